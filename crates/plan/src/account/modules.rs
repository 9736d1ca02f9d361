//! Operations and memory by the module that they are of.

use base::Bytes;
use indexmap::IndexMap;
use ir::{Graph, PartKind};
use memory::Category;
use serde::Serialize;

use super::times::{Times, millis};
use crate::{prediction::category_name, text::patterns::folded};

/// The operations of a module, or of all modules that differ in numbers only.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModuleTime {
    /// The path, with `*` for numbers.
    pub module: String,
    /// The part of the program.
    pub part: &'static str,
    /// Time of the operations, in milliseconds.
    pub ms: f64,
}

/// Memory that operations of a module hold at the peak, or those of all modules that differ in numbers only.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HeldByModule {
    /// The path, with `*` for numbers.
    pub module: String,
    /// What for.
    pub category: &'static str,
    /// How much.
    pub bytes: u64,
}

/// The operations that a rank runs.
pub fn by_module(graph: &Graph, times: &Times) -> Vec<ModuleTime> {
    let mut sums: IndexMap<(String, PartKind), i64> = IndexMap::new();
    for (at, time) in times.operations.iter().enumerate().filter(|(_, time)| **time > 0) {
        *sums.entry((module_at(graph, at), graph.part_kind(graph.order[at]))).or_default() += time;
    }
    sums.sort_by(|_, a, _, b| b.cmp(a));
    let entry = |((module, part), time): (&(String, PartKind), &i64)| ModuleTime {
        module: module.clone(),
        part: part.text(),
        ms: millis(*time),
    };
    sums.iter().map(entry).collect()
}

/// What a rank holds at the peak beside what it holds all the time.
pub fn held_by_module(graph: &Graph, limit: Option<Bytes>) -> Vec<HeldByModule> {
    let mut sums: IndexMap<(String, Category), u64> = IndexMap::new();
    for held in memory::at_peak(graph, limit) {
        if let Some(from) = held.from {
            *sums.entry((module_at(graph, from), held.category)).or_default() += held.bytes.0;
        }
    }
    sums.sort_by(|_, a, _, b| b.cmp(a));
    let entry = |((module, category), bytes): (&(String, Category), &u64)| HeldByModule {
        module: module.clone(),
        category: category_name(*category),
        bytes: *bytes,
    };
    sums.iter().map(entry).collect()
}

/// The module of the operation at a position, with `*` for numbers.
fn module_at(graph: &Graph, at: usize) -> String {
    folded(graph.nodes[graph.order[at]].module.map_or("", |module| &graph.modules[module]))
}
