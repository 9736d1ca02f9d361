//! Which pass each part of a program is of: forward, with the backward that reads what it leaves.

use std::{cmp::Reverse, collections::BTreeMap};

use base::SecondaryMap;
use ir::{Graph, NodeId, Part, PartId, PartKind, ValueId};
use rustc_hash::FxHashMap;

/// Where a reader stands.
#[derive(Clone, Copy, Default)]
pub enum Reading {
    /// In the forward part of a pass.
    Forward(usize),
    /// In a backward part of it.
    Backward(usize, PartId),
    /// In no pass.
    #[default]
    Elsewhere,
}

/// What each part of a program is of, and the chunks of its passes.
pub type Readings = (SecondaryMap<PartId, Reading>, Vec<Option<u32>>);

/// Forward parts that follow each other are of one pass, and backward parts of the last one before them.
pub fn in_order(graph: &Graph) -> Readings {
    let mut readings: SecondaryMap<PartId, Reading> = SecondaryMap::default();
    let mut chunks = Vec::new();
    let mut last = None;
    for run in graph.order.chunk_by(|a, b| graph.nodes[*a].part == graph.nodes[*b].part) {
        let part = graph.nodes[run[0]].part;
        let kind = graph.parts[part].kind;
        readings[part] = match kind {
            PartKind::Forward => {
                if last != Some(PartKind::Forward) {
                    chunks.push(None);
                }
                Reading::Forward(chunks.len() - 1)
            }
            PartKind::Backward if !chunks.is_empty() && last != Some(PartKind::Update) => {
                Reading::Backward(chunks.len() - 1, part)
            }
            PartKind::Backward | PartKind::Update => Reading::Elsewhere,
        };
        last = if kind == PartKind::Backward && last == Some(PartKind::Update) { last } else { Some(kind) };
    }
    (readings, chunks)
}

/// In the program of a pipeline stage, forward parts of a micro-batch's chunk that follow each other are of one pass, and so are backward parts of the same.
pub fn in_stage(graph: &Graph) -> Readings {
    let mut readings: SecondaryMap<PartId, Reading> = SecondaryMap::default();
    let mut chunks = Vec::new();
    let mut passes: FxHashMap<(Option<u32>, Option<u32>), usize> = FxHashMap::default();
    let mut last = None;
    for run in graph.order.chunk_by(|a, b| graph.nodes[*a].part == graph.nodes[*b].part) {
        let part = graph.nodes[run[0]].part;
        let Part { kind, micro_batch, .. } = graph.parts[part];
        let key = (micro_batch, chunk_of(graph, run));
        readings[part] = match (kind, passes.get(&key)) {
            _ if last == Some((PartKind::Update, None)) => Reading::Elsewhere,
            (PartKind::Forward, known) => {
                let known = known.copied().filter(|_| last == Some((kind, Some(key))));
                let number = known.unwrap_or_else(|| {
                    chunks.push(key.1);
                    chunks.len() - 1
                });
                passes.insert(key, number);
                Reading::Forward(number)
            }
            (PartKind::Backward, Some(number)) => Reading::Backward(*number, part),
            (PartKind::Backward | PartKind::Update, _) => Reading::Elsewhere,
        };
        last = match last {
            Some((PartKind::Update, None)) => last,
            _ if kind == PartKind::Update => Some((kind, None)),
            _ => Some((kind, Some(key))),
        };
    }
    (readings, chunks)
}

/// The chunk that most of these nodes are in.
fn chunk_of(graph: &Graph, nodes: &[NodeId]) -> Option<u32> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for chunk in nodes.iter().filter_map(|id| graph.nodes[*id].stage) {
        *counts.entry(chunk).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(chunk, count)| (*count, Reverse(*chunk))).map(|(chunk, _)| chunk)
}

/// Where each collective is waited for.
pub fn awaited(graph: &Graph) -> FxHashMap<ValueId, usize> {
    let waits = graph.order.iter().enumerate().filter(|(_, id)| graph.is_wait(**id));
    waits.flat_map(|(position, id)| graph.nodes[*id].operands().map(move |value| (value, position))).collect()
}
