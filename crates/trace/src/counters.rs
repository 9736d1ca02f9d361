//! Hardware counters of kernels, with the operators that launched them.

use indexmap::IndexMap;
use serde::Serialize;
use timeline::{Category, Class};

use crate::{Frame, stack::Stacks, stats::micros};

/// A profiled kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counted {
    /// Position in the source.
    pub index: u32,
    /// Category.
    pub cat: &'static str,
    /// The kernel.
    pub name: String,
    /// Begin in microseconds since the first event.
    pub ts: f64,
    /// Duration in microseconds.
    pub dur: f64,
    /// Position of the launch in the source.
    pub index_runtime: u32,
    /// Operators around the launch, outermost first.
    pub op_stack: Vec<String>,
    /// The outermost operator.
    pub top_level_op: Option<String>,
    /// The innermost operator.
    pub bottom_level_op: Option<String>,
    /// The counters.
    #[serde(flatten)]
    pub counters: IndexMap<String, f64>,
}

/// Pairs profiled ranges with launches in the order of time; `None` where there are none, or not as many as launches.
pub fn counters(frame: &Frame<'_>) -> Option<Vec<Counted>> {
    let in_time = |wanted: &dyn Fn(usize) -> bool| {
        let mut rows: Vec<usize> = frame.rows().filter(|&row| wanted(row)).collect();
        rows.sort_by_key(|&row| frame.begin[row]);
        rows
    };
    let ranges = in_time(&|row| frame.rank.events.category[row] == Category::CudaProfilerRange);
    let launch = frame.timeline.names.map(|name| name.starts_with("cudaLaunchKernel"));
    let launches = in_time(&|row| {
        frame.rank.events.category[row].text().starts_with("cuda_runtime")
            && launch[frame.name(row).0 as usize]
    });
    if ranges.is_empty() || ranges.len() != launches.len() {
        return None;
    }
    Some(
        ranges
            .into_iter()
            .zip(launches)
            .map(|(range, launch)| counted(frame, frame.calls(), range, launch))
            .collect(),
    )
}

fn counted(frame: &Frame<'_>, stacks: &Stacks, range: usize, launch: usize) -> Counted {
    let mut stack: Vec<String> = stacks
        .path(launch)
        .filter(|&row| frame.class(row) == Class::Operator)
        .map(|row| frame.text(row).to_owned())
        .collect();
    stack.reverse();
    let values = frame.rank.sides.counters.get(range as u32).map(Vec::as_slice).unwrap_or_default();
    let counter =
        |&(name, value): &(timeline::NameId, f64)| (frame.timeline.names.text(name).to_owned(), value);
    Counted {
        index: frame.rank.events.index[range],
        cat: frame.rank.events.category[range].text(),
        name: frame.text(range).to_owned(),
        ts: micros(frame.begin[range]),
        dur: micros(frame.duration[range]),
        index_runtime: frame.rank.events.index[launch],
        top_level_op: stack.first().cloned(),
        bottom_level_op: stack.last().cloned(),
        op_stack: stack,
        counters: values.iter().map(counter).collect(),
    }
}
