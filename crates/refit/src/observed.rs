//! From timelines to what was seen: calls that do the same together, with what one of them took.

use std::collections::BTreeMap;

use base::Bytes;
use cluster::{Amounts, Bound};
use ir::{CollectiveKind, Dtype};
use rustc_hash::FxHashMap;
use serde::Serialize;
use timeline::{
    Category, Class, NameId,
    step::{COPY, Work, is_simulated},
};
use trace::{Frame, Frames, collective, interval::Union, queue};

use crate::{Calls, Seen, What, seen::Beside};

/// A call that takes so many times as long as usual was held up by something else.
const USUAL: f64 = 3.0;
/// How far apart calls that do the same may be, quarter from quarter, as a part of what one takes.
const NOISE: f64 = 1.0;
/// How many calls tell how far they are apart.
const SEVERAL: usize = 4;
/// The part of a call beside which something must run for it to count as slowed.
const HARDLY: f64 = 0.02;
/// The part of a collective for which a rank must have waited for its end to be seen.
const WAITED: f64 = 0.02;

/// Calls that are in no fit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LeftOut {
    /// What they do, in words.
    pub what: String,
    /// How many there were.
    pub calls: usize,
    /// Nanoseconds of all.
    pub nanos: f64,
    /// Why.
    pub why: String,
}

/// What timelines show.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Observed {
    /// How many ranks they are of.
    pub ranks: usize,
    /// What counts.
    pub seen: Vec<Seen>,
    /// What does not.
    pub left_out: Vec<LeftOut>,
    /// Nanoseconds of operations that are none of the step, by name: of a profiler's traces, in which each operation is looked up.
    pub unknown: BTreeMap<String, f64>,
}

/// One call, collective or copy.
struct One {
    what: What,
    nanos: i64,
    beside: Beside<i64>,
}

/// What the timelines of the ranks of one or several runs show: those of our own programs say what their operations do, and the calls of a
/// profiler's are looked up in `calls`.
pub fn observe(runs: &[Frames<'_>], calls: &Calls) -> Observed {
    let mut observed =
        Observed { ranks: runs.iter().map(|run| run.ranks.len()).max().unwrap_or(0), ..Observed::default() };
    let mut all: Vec<One> = runs.iter().flat_map(collectives).collect();
    for frame in runs.iter().flat_map(|run| &run.ranks) {
        let beside = slowing(frame);
        if frame.rank.sides.node.is_empty() {
            looked_up(frame, calls, &beside, &mut all, &mut observed.unknown);
        } else {
            of_programs(frame, &beside, &mut all);
        }
    }
    group(all, &mut observed);
    observed
}

/// When collectives run on a rank.
fn slowing(frame: &Frame<'_>) -> Union {
    let parts = collective::parts(frame, 0);
    Union::of(parts.iter().map(|(_, part, _)| (part.begin, part.end)))
}

/// Operations and copies of our own programs.
fn of_programs(frame: &Frame<'_>, beside: &Union, all: &mut Vec<One>) {
    for (row, node) in frame.rank.sides.node.iter() {
        let row = row as usize;
        let work = node.work.some().map(|work| frame.timeline.names.text(work));
        let Some(work) = work.and_then(|work| serde_json::from_str::<Work>(work).ok()) else { continue };
        let nanos = frame.duration[row];
        if frame.text(row).starts_with(COPY) {
            all.push(One { what: What::HostCopy(Bytes(work.bytes)), nanos, beside: Beside::default() });
            continue;
        }
        let Some(dtype) = Dtype::from_text(&work.dtype) else { continue };
        let reads = work.reads.and_then(|reads| Dtype::from_text(&reads)).unwrap_or(dtype);
        let what = What::Operation {
            name: frame.text(row).to_owned(),
            dtype,
            reads,
            amounts: Amounts { flops: work.flops, bytes: work.bytes, tensors: work.tensors },
            is_even: !work.uneven,
        };
        let (begin, end) = frame.interval(row);
        let beside = Beside::of(Bound::of(work.flops), beside.covered(begin, end));
        all.push(One { what, nanos, beside });
    }
}

/// Operations of a profiler's trace that are calls of the step: by the time of their kernels where there are some, else by their own.
fn looked_up(
    frame: &Frame<'_>,
    calls: &Calls,
    beside: &Union,
    all: &mut Vec<One>,
    unknown: &mut BTreeMap<String, f64>,
) {
    let (what, stacks) = (known(frame, calls), frame.calls());
    // A call may be made of others that are in the step too.
    let outermost = |row: usize| stacks.path(row).filter(|&row| what[row].is_some()).last();
    let mut found: BTreeMap<usize, (i64, i64)> = BTreeMap::new();
    let mut add = |call: Option<usize>, row: usize| {
        let (begin, end) = frame.interval(row);
        match call {
            Some(call) => {
                let taken = found.entry(call).or_default();
                *taken = (taken.0 + end - begin, taken.1 + beside.covered(begin, end));
            }
            None => *unknown.entry(frame.text(row).to_owned()).or_default() += (end - begin) as f64,
        }
    };
    let launches = queue::launches(frame);
    for &(launch, kernel) in &launches {
        if frame.class(kernel) == Class::Kernel && !frame.communicates(kernel) {
            add(outermost(launch), kernel);
        }
    }
    if launches.is_empty() {
        let is_call =
            |row: &usize| frame.class(*row) == Class::Operator && frame.text(*row).starts_with("aten::");
        let mut calls_others = vec![false; stacks.parent.len()];
        for row in frame.rows().filter(is_call) {
            stacks.path(row).skip(1).for_each(|caller| calls_others[caller] = true);
        }
        for row in frame.rows().filter(is_call) {
            match outermost(row) {
                Some(call) if call == row => add(Some(call), row),
                // Of calls within calls the innermost take the time.
                None if !calls_others[row] => add(None, row),
                _ => {}
            }
        }
    }
    let one = |(row, (nanos, beside)): (usize, (i64, i64))| {
        let what = what[row]?.clone();
        let beside = Beside::of(what.bound(), beside);
        Some(One { what, nanos, beside })
    };
    all.extend(found.into_iter().filter_map(one));
}

/// Which call of the step each row is, if it is one.
fn known<'c>(frame: &Frame<'_>, calls: &'c Calls) -> Vec<Option<&'c What>> {
    let names = &frame.timeline.names;
    let text = |name: NameId| name.some().map_or("[]", |name| names.text(name));
    // Calls that do the same have the same texts.
    let mut asked: FxHashMap<(NameId, NameId, NameId), Option<&What>> = FxHashMap::default();
    let mut known = vec![None; frame.rank.events.len()];
    for (row, inputs) in frame.rank.sides.inputs.iter() {
        let row = row as usize;
        if frame.class(row) == Class::Operator {
            let asks = (frame.name(row), inputs.dims, inputs.types);
            let look = || calls.get(frame.text(row), text(inputs.dims), text(inputs.types));
            known[row] = *asked.entry(asks).or_insert_with(look);
        }
    }
    known
}

/// Collectives as long as they took without waiting for a rank: as long as on the rank that came last.
fn collectives(frames: &Frames<'_>) -> Vec<One> {
    let mut found: BTreeMap<(collective::Key, String), One> = BTreeMap::new();
    for (number, frame) in frames.ranks.iter().enumerate() {
        let waits = waits(frame);
        let [products, operations] = operations(frame);
        for (key, part, size) in collective::parts(frame, number) {
            let args = frame.rank.sides.collective.get(part.row as u32);
            let ranks = args.and_then(|args| args.ranks.some()).map(|ranks| frame.timeline.names.text(ranks));
            let Some(kind) = kind(&key.operation) else { continue };
            let nanos = part.duration();
            let is_own = !frame.rank.sides.node.is_empty() && !is_simulated(frame.rank);
            let waited = waits.get(&part.end).copied().unwrap_or(0);
            if nanos <= 0 || part.bytes <= 0 || is_own && (waited as f64) < WAITED * nanos as f64 {
                continue;
            }
            let size = if size > 0 { size } else { frame.rank.meta.world_size.unwrap_or(0) as usize };
            if size < 2 {
                continue;
            }
            let (ranks, text) = (size as u32, ranks.unwrap_or_default());
            let what =
                What::Collective { kind, ranks, stride: stride(text), bytes: Bytes(part.bytes as u64) };
            let of_products = products.covered(part.begin, part.end);
            let beside = Beside([of_products, operations.covered(part.begin, part.end) - of_products]);
            let one = One { what, nanos, beside };
            let entry = found.entry((key, text.to_owned()));
            let shortest =
                entry.or_insert_with(|| One { what: one.what.clone(), nanos: i64::MAX, beside: one.beside });
            if one.nanos < shortest.nanos {
                *shortest = one;
            }
        }
    }
    found.into_values().collect()
}

/// How long a rank waited, by when each of its waits was over.
fn waits(frame: &Frame<'_>) -> BTreeMap<i64, i64> {
    let is_wait = frame.timeline.names.map(ir::is_wait);
    let rows = frame.rows().filter(|&row| is_wait[frame.name(row).0 as usize]);
    rows.map(|row| (frame.end(row), frame.duration[row])).collect()
}

/// When a rank computes: products, and anything. Kernels, and calls of which nothing says what they do, are taken for what their names say.
fn operations(frame: &Frame<'_>) -> [Union; 2] {
    let names = &frame.timeline.names;
    let on_device = frame.rows().any(|row| frame.class(row) == Class::Kernel);
    let (is_wait, by_name) = (names.map(ir::is_wait), names.map(by_name));
    let rows = frame.rows().filter(|&row| {
        if on_device {
            frame.class(row) == Class::Kernel && !frame.communicates(row)
        } else {
            frame.rank.events.category[row] == Category::CpuOp && !is_wait[frame.name(row).0 as usize]
        }
    });
    let rows: Vec<usize> = rows.collect();
    let is_product = |row: &&usize| {
        let work = frame.rank.sides.node.get(**row as u32).and_then(|node| node.work.some());
        let work = work.and_then(|work| serde_json::from_str::<Work>(names.text(work)).ok());
        let bound = work.map_or(by_name[frame.name(**row).0 as usize], |work| Bound::of(work.flops));
        bound == Bound::Products
    };
    let products = Union::of(rows.iter().filter(is_product).map(|row| frame.interval(*row)));
    [products, Union::of(rows.iter().map(|row| frame.interval(*row)))]
}

/// What an operator or a kernel of that name is limited by.
fn by_name(name: &str) -> Bound {
    const PRODUCTS: &[&str] = &["gemm", "conv", "attention", "flash", "fmha", "cutlass", "nvjet", "xmma"];
    let name = name.to_ascii_lowercase();
    let is_operator = matches!(name.strip_prefix("aten::"), Some("mm" | "addmm" | "bmm" | "baddbmm"));
    let is_kernel = PRODUCTS.iter().any(|part| name.contains(part));
    if is_operator || is_kernel { Bound::Products } else { Bound::Bytes }
}

fn kind(operation: &str) -> Option<CollectiveKind> {
    match operation {
        "broadcast" => Some(CollectiveKind::Broadcast),
        other => CollectiveKind::of_text(other),
    }
}

/// How far apart the ranks of a list are, such as `[0, 2, 4]`; 1 where they are not known.
fn stride(ranks: &str) -> u32 {
    let mut numbers = ranks.split(|c: char| !c.is_ascii_digit()).filter_map(|text| text.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(first), Some(second)) if second > first => second - first,
        _ => 1,
    }
}

/// Puts calls that do the same together.
fn group(all: Vec<One>, observed: &mut Observed) {
    let mut groups: BTreeMap<(String, [bool; 2]), (What, Vec<One>)> = BTreeMap::new();
    for one in all.into_iter().filter(|one| one.nanos > 0) {
        let is_slowed = one.beside.0.map(|beside| beside as f64 > HARDLY * one.nanos as f64);
        let (_, members) = groups
            .entry((format!("{:?}", one.what), is_slowed))
            .or_insert_with(|| (one.what.clone(), Vec::new()));
        members.push(one);
    }
    for (what, mut members) in groups.into_values() {
        members.sort_by_key(|one| one.nanos);
        let count = members.len();
        let (low, middle, high) =
            (members[count / 4].nanos, members[count / 2].nanos, members[3 * count / 4].nanos);
        let apart = (high - low) as f64 / middle as f64;
        if count >= SEVERAL && apart > NOISE {
            observed.left_out.push(LeftOut {
                what: what.family(),
                calls: count,
                nanos: members.iter().map(|one| one.nanos as f64).sum(),
                why: format!("the middle half of them are {:.0} % apart", 100.0 * apart),
            });
            continue;
        }
        members.retain(|one| one.nanos as f64 <= USUAL * middle as f64);
        let total = |of: &dyn Fn(&One) -> i64| members.iter().map(|one| of(one) as f64).sum::<f64>();
        let nanos = total(&|one| one.nanos);
        let part = |bound: Bound| (total(&|one| one.beside.0[bound as usize]) / nanos).min(1.0);
        let beside = Beside(Bound::ALL.map(part));
        observed.seen.push(Seen { what, nanos: nanos / members.len() as f64, beside, calls: count });
    }
}
