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
    /// The line of the user's code that makes most of it, as `file:line`, where it is known.
    pub line: Option<String>,
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
    let mut sums: IndexMap<(String, Category), Holder> = IndexMap::new();
    for held in memory::at_peak(graph, limit) {
        if let Some(from) = held.from {
            sums.entry((module_at(graph, from), held.category)).or_default().add(held.bytes.0, from);
        }
    }
    sums.sort_by(|_, a, _, b| b.bytes.cmp(&a.bytes));
    let entry = |((module, category), holder): (&(String, Category), &Holder)| HeldByModule {
        module: module.clone(),
        category: category_name(*category),
        bytes: holder.bytes,
        line: graph
            .place(graph.order[holder.largest.1])
            .map(|place| format!("{}:{}", place.file, place.line)),
    };
    sums.iter().map(entry).collect()
}

/// What some operations hold together, and the most that one of them does, with its position.
#[derive(Default)]
struct Holder {
    bytes: u64,
    largest: (u64, usize),
}

impl Holder {
    fn add(&mut self, bytes: u64, from: usize) {
        self.bytes += bytes;
        if bytes > self.largest.0 {
            self.largest = (bytes, from);
        }
    }
}

/// The module of the operation at a position, with `*` for numbers.
fn module_at(graph: &Graph, at: usize) -> String {
    folded(graph.nodes[graph.order[at]].module.map_or("", |module| &graph.modules[module]))
}
