//! Operators with the kernels that they launch, and how long launches take to begin.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::Serialize;
use timeline::{Class, NameId, TrackId};

use crate::{
    Frame, Frames, Mode, queue,
    stats::{micros, round},
};

/// Calls of one operator that launched the same kernels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperatorKernels {
    /// The operator.
    pub aten_op_name: String,
    /// Its kernels in the order of their launch.
    pub kernel_sequence: String,
    /// How many calls.
    pub occurrence_count: usize,
    /// Mean time from the call to its first launch, in microseconds.
    pub avg_aten_op_launch_delay: f64,
    /// Mean time from that launch to the kernel, in microseconds.
    pub avg_runtime_delay: f64,
}

/// An operator's call: thread, name and begin.
type Call = (TrackId, NameId, i64);

/// What a call launched: kernels, and the delays of the first.
#[derive(Clone, Debug, Default)]
struct Launched {
    kernels: Vec<NameId>,
    to_launch: i64,
    to_kernel: i64,
}

/// Groups calls by operator and kernels: count, sum of launch delays, sum of kernel delays.
type Groups = IndexMap<(NameId, Vec<NameId>), (usize, i64, i64), FxBuildHasher>;

/// Operators of every rank. In compatible mode a rank's table contains those of the ranks before it, and ends the whole
/// analysis (`None`) where a launch has no kernel, as in HTA.
pub fn operators(frames: &Frames<'_>) -> Option<BTreeMap<u32, Vec<OperatorKernels>>> {
    let mut groups = Groups::default();
    let mut tables = BTreeMap::new();
    for frame in &frames.ranks {
        if frame.mode == Mode::Exact {
            groups.clear();
        }
        for ((_, name, _), launched) in calls(frame)? {
            let group = groups.entry((name, launched.kernels)).or_default();
            *group = (group.0 + 1, group.1 + launched.to_launch, group.2 + launched.to_kernel);
        }
        tables.insert(frame.rank.rank, table(frame, &groups));
    }
    Some(tables)
}

fn table(frame: &Frame<'_>, groups: &Groups) -> Vec<OperatorKernels> {
    let text = |name: NameId| frame.timeline.names.text(name);
    let mean = |sum: i64, count: usize| round(micros(sum) / count as f64, 3);
    let mut table: Vec<OperatorKernels> = groups
        .iter()
        .map(|((name, kernels), &(count, to_launch, to_kernel))| OperatorKernels {
            aten_op_name: text(*name).to_owned(),
            kernel_sequence: kernels.iter().map(|&kernel| text(kernel)).collect::<Vec<_>>().join(" -> "),
            occurrence_count: count,
            avg_aten_op_launch_delay: mean(to_launch, count),
            avg_runtime_delay: mean(to_kernel, count),
        })
        .collect();
    table.sort_by(|a, b| {
        (b.occurrence_count, &a.aten_op_name, &a.kernel_sequence).cmp(&(
            a.occurrence_count,
            &b.aten_op_name,
            &b.kernel_sequence,
        ))
    });
    table
}

fn calls(frame: &Frame<'_>) -> Option<IndexMap<Call, Launched, FxBuildHasher>> {
    match frame.mode {
        Mode::Exact => Some(exact_calls(frame)),
        Mode::Hta => hta_calls(frame),
    }
}

/// Each launch belongs to the innermost operator around it on its own thread.
fn exact_calls(frame: &Frame<'_>) -> IndexMap<Call, Launched, FxBuildHasher> {
    let stacks = frame.calls();
    let mut launches = queue::launches(frame);
    launches.sort_by_key(|&(launch, kernel)| (frame.begin[launch], frame.begin[kernel]));
    let mut calls = IndexMap::default();
    for (launch, kernel) in launches {
        let owner = stacks.path(launch).find(|&row| frame.class(row) == Class::Operator);
        if let Some(owner) = owner {
            note(frame, &mut calls, owner, launch, kernel);
        }
    }
    calls
}

/// Each launch belongs to the `aten::` operator, of any thread, that encloses it and begins last.
fn hta_calls(frame: &Frame<'_>) -> Option<IndexMap<Call, Launched, FxBuildHasher>> {
    let operator = frame.timeline.names.map(|name| name.starts_with("aten::"));
    let launch = frame.timeline.names.map(is_launch);
    let name = |row: usize| frame.name(row).0 as usize;
    let mut operators: Vec<usize> = frame.rows().filter(|&row| operator[name(row)]).collect();
    operators.sort_by_key(|&row| frame.begin[row]);
    let mut launches: Vec<usize> = frame.rows().filter(|&row| launch[name(row)]).collect();
    launches.sort_by_key(|&row| frame.begin[row]);
    let kernels = kernel_of_correlation(frame);
    // operators that no later one, which ends later, hides: ends descend
    let mut visible: Vec<usize> = Vec::new();
    let mut next = operators.into_iter().peekable();
    let mut calls = IndexMap::default();
    for launch in launches {
        while let Some(row) = next.next_if(|&row| frame.begin[row] <= frame.begin[launch]) {
            while visible.last().is_some_and(|&top| frame.end(top) <= frame.end(row)) {
                visible.pop();
            }
            visible.push(row);
        }
        let around = visible.partition_point(|&row| frame.end(row) >= frame.end(launch));
        let Some(&owner) = around.checked_sub(1).and_then(|last| visible.get(last)) else { continue };
        let kernel = *kernels.get(&frame.rank.events.correlation[launch])?;
        note(frame, &mut calls, owner, launch, kernel as usize);
    }
    Some(calls)
}

fn note(
    frame: &Frame<'_>,
    calls: &mut IndexMap<Call, Launched, FxBuildHasher>,
    owner: usize,
    launch: usize,
    kernel: usize,
) {
    let call = (frame.rank.events.track[owner], frame.name(owner), frame.begin[owner]);
    let launched = calls.entry(call).or_default();
    if launched.kernels.is_empty() {
        launched.to_launch = frame.begin[launch] - frame.begin[owner];
        launched.to_kernel = frame.begin[kernel] - frame.begin[launch];
    }
    launched.kernels.push(frame.name(kernel));
}

/// `cuda.*LaunchKernel`, `cuLaunchKernel` or `runFunction` at the start of the name.
fn is_launch(name: &str) -> bool {
    let cuda = name.strip_prefix("cuda").is_some_and(|rest| rest.contains("LaunchKernel"));
    cuda || name.starts_with("cuLaunchKernel") || name.starts_with("runFunction")
}

/// The device event of each correlation; the last where there are several.
fn kernel_of_correlation(frame: &Frame<'_>) -> FxHashMap<i64, u32> {
    let correlation = |row: usize| frame.rank.events.correlation[row];
    frame.rows().filter(|&row| frame.on_device(row)).map(|row| (correlation(row), row as u32)).collect()
}
