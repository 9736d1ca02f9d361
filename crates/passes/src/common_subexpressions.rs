//! Common-subexpression elimination: what is computed twice from the same operands is computed once.
//!
//! Random operations, collectives and operations with effects are never merged: a dropout drawn twice is two dropouts, and
//! a parameter gathered twice was meant to be. So was what backward computes of what forward has computed: the user's code checkpoints
//! it, or the plan has it run again.
//!
//! What several modules compute is of the module around them: none of them gives it to the others.

use base::Result;
use ir::{Graph, LabelId, NodeId, PartKind, Patch, ValueId};
use rustc_hash::FxHashMap;

use crate::{
    Pass,
    facts::{Facts, is_uneven},
    recompute::RECOMPUTE,
};

/// Keeps the first of equal nodes.
#[derive(Default)]
pub struct CommonSubexpressions {
    /// Whether what the step's own code computes again in backward is merged too, and so held from forward on.
    pub without_checkpoints: bool,
}

impl Pass for CommonSubexpressions {
    fn name(&self) -> &'static str {
        "common_subexpressions"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let facts = Facts::new(graph);
        let mut patch = Patch::new(graph);
        patch.label("common_subexpressions");
        let mut kept: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        let mut known = FxHashMap::default();
        let mut modules = Modules { graph, shared: FxHashMap::default() };
        let runs_again = |label: LabelId| graph.labels[label] == RECOMPUTE;
        for id in graph.order.iter().filter(|id| facts.is_pure(&graph.nodes[**id])) {
            let node = &graph.nodes[*id];
            let computes = !facts.is_view(node) && node.operands().next().is_some();
            let is_checkpoint =
                !self.without_checkpoints && computes && graph.part_kind(*id) == PartKind::Backward;
            let is_again = node.label.is_some_and(runs_again);
            let again = (is_checkpoint || is_again).then_some(node.part);
            let first_of = |value: ValueId| kept.get(&value).unwrap_or(&value).0;
            // What a change of placement made may equal the user's own on one rank only (a slice that begins at 0): never merged, so that
            // the graphs of all ranks stay alike.
            // Nor is one that has another size on each rank, unless it is the same change.
            // Nor are changes along two axes, along both of which only some ranks are at the same place.
            let label = node.label.map(|label| graph.labels[label].as_str());
            let change = label.map(|label| if is_uneven(graph, *id) { label } else { along(label) });
            match known.entry((change, again, node.key(first_of))) {
                std::collections::hash_map::Entry::Vacant(entry) => drop(entry.insert(*id)),
                std::collections::hash_map::Entry::Occupied(entry) => {
                    modules.share(*entry.get(), *id);
                    for (again, first) in node.results().zip(graph.nodes[*entry.get()].results()) {
                        kept.insert(again, first);
                        patch.replace(again, first);
                    }
                    patch.remove(*id);
                }
            }
        }
        for (node, path) in modules.shared {
            patch.put_module(node, (!path.is_empty()).then(|| path.to_owned()));
        }
        Ok(patch)
    }
}

/// The axis of a change of placement by its label; nothing of what else has a label.
fn along(label: &str) -> &str {
    let change = label.rsplit_once(" on ").map_or("", |(_, change)| change);
    change.split_once(':').map_or("", |(axis, _)| axis)
}

/// The modules of nodes that stand for several.
struct Modules<'g> {
    graph: &'g Graph,
    /// The path of the module around all that it stands for; none is empty.
    shared: FxHashMap<NodeId, &'g str>,
}

impl<'g> Modules<'g> {
    fn path(&self, node: NodeId) -> &'g str {
        let module = self.graph.nodes[node].module;
        module.map_or("", |module| self.graph.modules[module].as_str())
    }

    /// Notes that `first` stands for `again` too.
    fn share(&mut self, first: NodeId, again: NodeId) {
        if self.graph.nodes[first].module == self.graph.nodes[again].module {
            return;
        }
        let path = self.shared.get(&first).copied().unwrap_or_else(|| self.path(first));
        self.shared.insert(first, around_both(path, self.path(again)));
    }
}

/// The path of the innermost module around two.
fn around_both<'a>(one: &'a str, other: &str) -> &'a str {
    let mut end = 0;
    for (name, own) in one.split('.').zip(other.split('.')) {
        if name != own {
            break;
        }
        end += name.len() + usize::from(end > 0);
    }
    &one[..end]
}
