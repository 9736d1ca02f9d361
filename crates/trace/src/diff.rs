//! Two runs compared: HTA's table of counts and durations, and a comparison that knows the noise.

use std::collections::BTreeMap;

use serde::Serialize;
use timeline::{Class, NameId, Rank, Timeline, step};

use crate::{
    Frames,
    source::{Origin, Sources},
    stats::{median, micros},
};

/// Which events to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// All.
    All,
    /// Those without a stream.
    Cpu,
    /// Those with a stream.
    Gpu,
}

/// One name in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NameDiff {
    /// The name.
    pub name: String,
    /// How often in the first run.
    #[serde(rename = "Control_counts")]
    pub control_counts: f64,
    /// Microseconds in the first run; nested events count for each level.
    #[serde(rename = "Control_total_duration")]
    pub control_duration: f64,
    /// How often in the second run.
    #[serde(rename = "Test_counts")]
    pub test_counts: f64,
    /// Microseconds in the second run.
    #[serde(rename = "Test_total_duration")]
    pub test_duration: f64,
    /// Second minus first.
    pub diff_counts: f64,
    /// Second minus first, in microseconds.
    pub diff_duration: f64,
    /// `+`, `-` or `=` by counts.
    pub counts_change_categories: &'static str,
}

/// Which part of a run to compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Part {
    /// The rank; the first if none is named.
    pub rank: Option<u32>,
    /// The iteration; the first if none is named.
    pub iteration: Option<i64>,
}

/// How names are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Spelling {
    /// As they are.
    #[default]
    Whole,
    /// Without arguments, templates and return types.
    Short,
}

/// A name without arguments, templates and return types; those of copies stay as they are.
pub fn short_name(name: &str) -> String {
    if ["Memcpy", "Memset", "dma"].iter().any(|start| name.starts_with(start)) || !name.contains(['<', '(']) {
        return name.to_owned();
    }
    let mut kept: Vec<char> = Vec::new();
    for letter in name.replace("->", "").chars() {
        let open = match letter {
            '>' => '<',
            ')' => '(',
            other => {
                kept.push(other);
                continue;
            }
        };
        let from = kept.iter().rposition(|&other| other == open).unwrap_or(0);
        kept.truncate(from);
    }
    let text: String = kept.into_iter().collect();
    text.rsplit(' ').next().unwrap_or_default().to_owned()
}

/// Counts and durations by name of one iteration of one rank; of everything where there are no iterations.
fn totals(
    timeline: &Timeline,
    device: Device,
    part: Part,
    spelling: Spelling,
) -> BTreeMap<String, (i64, i64)> {
    let frames = Frames::raw(timeline);
    let frame = match part.rank {
        Some(rank) => frames.rank(rank),
        None => frames.ranks.first(),
    };
    let Some(frame) = frame else { return BTreeMap::new() };
    let iteration = part.iteration.or_else(|| first_iteration(timeline, frame.rank));
    let mut totals: BTreeMap<String, (i64, i64)> = BTreeMap::new();
    for row in frame.rows() {
        let on_device = frame.stream(row) != -1;
        let wanted = device == Device::All || (device == Device::Gpu) == on_device;
        if wanted && iteration.is_none_or(|iteration| frame.iteration[row] == Some(iteration)) {
            let name = match spelling {
                Spelling::Whole => frame.text(row).to_owned(),
                Spelling::Short => short_name(frame.text(row)),
            };
            let total = totals.entry(name).or_default();
            *total = (total.0 + 1, total.1 + frame.duration[row]);
        }
    }
    totals
}

/// The first iteration of a rank, of those that HTA sees.
pub fn first_iteration(timeline: &Timeline, rank: &Rank) -> Option<i64> {
    let used = |name: &NameId| rank.events.name.contains(name);
    let number = |name: &str| name.strip_prefix("ProfilerStep#")?.trim().parse::<i64>().ok();
    let steps =
        timeline.names.iter().enumerate().filter_map(|(id, name)| Some((NameId(id as u32), number(name)?)));
    steps.filter(|(id, _)| used(id)).map(|(_, number)| number).min()
}

/// HTA's comparison of one iteration of one rank of each run, sorted by the change of duration.
pub fn compare(
    (control, control_part): (&Timeline, Part),
    (test, test_part): (&Timeline, Part),
    device: Device,
    spelling: Spelling,
) -> Vec<NameDiff> {
    let control = totals(control, device, control_part, spelling);
    let test = totals(test, device, test_part, spelling);
    let names: std::collections::BTreeSet<&String> = control.keys().chain(test.keys()).collect();
    let mut table: Vec<NameDiff> =
        names.into_iter().map(|name| name_diff(name, control.get(name), test.get(name))).collect();
    table.sort_by(|a, b| b.diff_duration.total_cmp(&a.diff_duration).then_with(|| a.name.cmp(&b.name)));
    table
}

fn name_diff(name: &str, control: Option<&(i64, i64)>, test: Option<&(i64, i64)>) -> NameDiff {
    let (control, test) = (control.copied().unwrap_or_default(), test.copied().unwrap_or_default());
    NameDiff {
        name: name.to_owned(),
        control_counts: control.0 as f64,
        control_duration: micros(control.1),
        test_counts: test.0 as f64,
        test_duration: micros(test.1),
        diff_counts: (test.0 - control.0) as f64,
        diff_duration: micros(test.1 - control.1),
        counts_change_categories: match test.0.cmp(&control.0) {
            std::cmp::Ordering::Greater => "+",
            std::cmp::Ordering::Less => "-",
            std::cmp::Ordering::Equal => "=",
        },
    }
}

/// Names by how their counts changed: how many, and which.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpsDiff {
    /// Only in the second run.
    pub added: Vec<String>,
    /// Only in the first run.
    pub deleted: Vec<String>,
    /// More often in the second.
    pub increased: Vec<String>,
    /// Less often in the second.
    pub decreased: Vec<String>,
    /// As often.
    pub unchanged: Vec<String>,
}

/// Sorts names by how their counts changed.
pub fn ops_diff(table: &[NameDiff]) -> OpsDiff {
    let mut diff = OpsDiff::default();
    for row in table {
        let list = match (row.control_counts == 0.0, row.test_counts == 0.0, row.counts_change_categories) {
            (true, false, _) => &mut diff.added,
            (false, true, _) => &mut diff.deleted,
            (_, _, "+") => &mut diff.increased,
            (_, _, "-") => &mut diff.decreased,
            _ => &mut diff.unchanged,
        };
        list.push(row.name.clone());
    }
    diff
}

/// An operation that takes longer or shorter than before by more than its noise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The operation or kernel.
    pub name: String,
    /// Dimensions of its inputs, for operators.
    pub shape: String,
    /// Where it runs: `gpu` or `cpu`.
    pub device: &'static str,
    /// Median time per step before, in microseconds.
    pub before: f64,
    /// Median time per step after, in microseconds.
    pub after: f64,
    /// `after` minus `before`, in per cent of `before`; nothing where it is new.
    pub percent: Option<f64>,
    /// The change in per cent of a step before.
    pub percent_of_step: f64,
    /// The noise: the median deviation of single samples, in microseconds.
    pub noise: f64,
    /// Calls per step before and after.
    pub calls: (f64, f64),
    /// Where it comes from: in the run after, or before if it is gone.
    #[serde(flatten)]
    pub origin: Origin,
}

/// The comparison of two runs per operation and shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Regression {
    /// Median duration of a step before, in microseconds.
    pub step_before: f64,
    /// Median duration of a step after, in microseconds.
    pub step_after: f64,
    /// Samples (steps of all ranks) before and after.
    pub samples: (usize, usize),
    /// What changed beyond the noise, most first.
    pub changes: Vec<Change>,
}

/// Name, shape and whether on a device.
type Op = (String, String, bool);

/// For each operation its time and calls in every sample.
struct Run {
    ops: BTreeMap<Op, Vec<(i64, i64)>>,
    steps: Vec<i64>,
    /// Frame and row of the first event of each operation.
    first: BTreeMap<Op, (usize, usize)>,
}

/// Minimum change of medians, in median deviations of single samples.
const DEVIATIONS: f64 = 2.0;
/// Minimum change of medians, in standard errors of a difference of medians.
const ERRORS: f64 = 4.0;
/// Minimum change, as a share of the step.
const SHARE: f64 = 0.005;
/// Standard error of a median of normal samples, in median deviations of one: 1.4826 times the square root of pi/2.
const MEDIAN_ERROR: f64 = 1.858;

/// Compares two runs. Each step of each rank is a sample; own time only, so that nested operators do not count twice.
pub fn regression(before: &Frames<'_>, after: &Frames<'_>) -> Regression {
    let (mut a, mut b) = (run(before), run(after));
    let step = |run: &mut Run| median(&mut run.steps);
    let (step_before, step_after) = (step(&mut a), step(&mut b));
    let keys: std::collections::BTreeSet<Op> = a.ops.keys().chain(b.ops.keys()).cloned().collect();
    let mut changes: Vec<Change> = keys
        .into_iter()
        .filter_map(|key| {
            let (x, y) = (a.samples(&key), b.samples(&key));
            let origin = || b.origin(&key, after).or_else(|| a.origin(&key, before)).unwrap_or_default();
            let mut change = change(key.clone(), &x, &y, step_before)?;
            change.origin = origin();
            Some(change)
        })
        .collect();
    changes.sort_by(|x, y| (y.after - y.before).abs().total_cmp(&(x.after - x.before).abs()));
    Regression {
        step_before: micros(step_before),
        step_after: micros(step_after),
        samples: (a.steps.len(), b.steps.len()),
        changes,
    }
}

impl Run {
    /// Time and calls of an operation in every sample; samples without it count 0.
    fn samples(&self, key: &Op) -> Vec<(i64, i64)> {
        let mut samples = self.ops.get(key).cloned().unwrap_or_default();
        samples.resize(self.steps.len().max(1), (0, 0));
        samples
    }

    /// Where the first event of an operation comes from.
    fn origin(&self, key: &Op, frames: &Frames<'_>) -> Option<Origin> {
        let &(frame, row) = self.first.get(key)?;
        Some(Sources::of(&frames.ranks[frame]).origin(row))
    }
}

fn change(key: Op, before: &[(i64, i64)], after: &[(i64, i64)], step: i64) -> Option<Change> {
    let stats = |samples: &[(i64, i64)]| {
        let mut times: Vec<i64> = samples.iter().map(|sample| sample.0).collect();
        let calls = samples.iter().map(|sample| sample.1).sum::<i64>() as f64 / samples.len() as f64;
        (median(&mut times), calls)
    };
    let ((x, calls_x), (y, calls_y)) = (stats(before), stats(after));
    // both runs say how much single samples differ
    let distances = |samples: &[(i64, i64)], middle: i64| -> Vec<i64> {
        samples.iter().map(|sample| (sample.0 - middle).abs()).collect()
    };
    let mut distances = [distances(before, x), distances(after, y)].concat();
    // with one or two samples there is no noise to see: a tenth of the time stands for it
    let least = if before.len().min(after.len()) < 3 { x.max(y) / 10 } else { 0 };
    let noise = median(&mut distances).max(least);
    let error = MEDIAN_ERROR * noise as f64 * (1.0 / before.len() as f64 + 1.0 / after.len() as f64).sqrt();
    let delta = (y - x).abs() as f64;
    if delta <= (DEVIATIONS * noise as f64).max(ERRORS * error) || delta < SHARE * step as f64 {
        return None;
    }
    Some(Change {
        name: key.0,
        shape: key.1,
        device: if key.2 { "gpu" } else { "cpu" },
        before: micros(x),
        after: micros(y),
        percent: (x != 0).then(|| crate::stats::percent((y - x) as f64, x as f64, 2)),
        percent_of_step: crate::stats::percent((y - x) as f64, step.max(1) as f64, 2),
        noise: micros(noise),
        calls: (calls_x, calls_y),
        origin: Origin::default(),
    })
}

/// The samples of a run: every step of every rank, or each rank as a whole if there are no steps.
fn run(frames: &Frames<'_>) -> Run {
    let mut run = Run { ops: BTreeMap::new(), steps: Vec::new(), first: BTreeMap::new() };
    for (number, frame) in frames.ranks.iter().enumerate() {
        let numbers = frame.steps.numbers();
        let first = run.steps.len();
        let sample_of = |row: usize| match frame.iteration[row] {
            Some(number) => numbers.binary_search(&number).ok(),
            None => numbers.is_empty().then_some(0),
        };
        if numbers.is_empty() {
            let begin = frame.rows().map(|row| frame.begin[row]).min().unwrap_or(0);
            run.steps.push(frame.rows().map(|row| frame.end(row)).max().unwrap_or(0) - begin);
        }
        for number in &numbers {
            let of_step = frame.steps.steps.iter().filter(|step| step.number == *number);
            run.steps.push(of_step.map(|step| step.end - step.begin).max().unwrap_or(0));
        }
        let own = own_times(frame);
        // a call that waits takes as long as what it waits for, which has a line of its own
        let waits = frame.timeline.names.map(|name| crate::causal::is_wait(name) || step::is_wait(name));
        for row in frame.rows() {
            let is_call = matches!(frame.class(row), Class::Operator | Class::Runtime);
            let is_collective = frame.class(row) == Class::Annotation && frame.communicates(row);
            let is_work = is_call && !waits[frame.name(row).0 as usize];
            let counts = frame.on_device(row) || is_work || is_collective;
            let Some(sample) = sample_of(row).filter(|_| counts) else { continue };
            let shape = frame
                .rank
                .sides
                .inputs
                .get(row as u32)
                .map_or("", |inputs| frame.timeline.names.text(inputs.dims));
            let op = (frame.text(row).to_owned(), shape.to_owned(), frame.on_device(row));
            if !run.ops.contains_key(&op) {
                run.first.insert(op.clone(), (number, row));
            }
            let samples = run.ops.entry(op).or_default();
            samples.resize(samples.len().max(first + sample + 1), (0, 0));
            let sample = &mut samples[first + sample];
            *sample = (sample.0 + own[row], sample.1 + 1);
        }
    }
    run
}

/// Duration of every row without that of the events inside it.
fn own_times(frame: &crate::Frame<'_>) -> Vec<i64> {
    let stacks =
        crate::stack::Stacks::of(frame, |row| matches!(frame.class(row), Class::Operator | Class::Runtime));
    let mut own = frame.duration.clone();
    for &row in stacks.threads.values().flatten() {
        if let Some(parent) = stacks.parent(row as usize) {
            own[parent] -= frame.duration[row as usize];
        }
    }
    own
}

#[cfg(test)]
mod tests {
    use super::short_name;

    #[test]
    fn short_names_drop_arguments_templates_and_return_types() {
        assert_eq!(short_name("void at::native::f<float, g<2>>(int, h(*)(int))"), "at::native::f");
        assert_eq!(short_name("Memcpy DtoD (Device -> Device)"), "Memcpy DtoD (Device -> Device)");
        assert_eq!(short_name("aten::add_"), "aten::add_");
        assert_eq!(short_name("a b"), "a b");
    }
}
