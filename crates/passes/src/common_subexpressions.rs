//! Common-subexpression elimination: what is computed twice from the same operands is computed once.
//!
//! Random operations, collectives and operations with effects are never merged: a dropout drawn twice is two dropouts, and
//! a parameter gathered twice was meant to be.

use std::fmt::Write;

use base::Result;
use ir::{Graph, Node, Patch, Return, ValueId};
use rustc_hash::FxHashMap;

use crate::{Pass, facts::Facts};

/// Keeps the first of equal nodes.
pub struct CommonSubexpressions;

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
        for id in graph.order.iter().filter(|id| facts.is_pure(&graph.nodes[**id])) {
            let node = &graph.nodes[*id];
            match known.entry(key(node, &kept)) {
                std::collections::hash_map::Entry::Vacant(entry) => drop(entry.insert(*id)),
                std::collections::hash_map::Entry::Occupied(entry) => {
                    for (again, first) in node.results().zip(graph.nodes[*entry.get()].results()) {
                        kept.insert(again, first);
                        patch.replace(again, first);
                    }
                    patch.remove(*id);
                }
            }
        }
        Ok(patch)
    }
}

/// A text that is the same for nodes that compute the same: operator, arguments over `kept` values, and which returns there are.
fn key(node: &Node, kept: &FxHashMap<ValueId, ValueId>) -> String {
    let mut key = String::new();
    let returned = |returned: &Return| match returned {
        Return::None => '_',
        Return::Value(_) => 'v',
        Return::Values(_) => '*',
    };
    key.extend(node.returns.iter().map(returned));
    let mut args = node.args.clone();
    for arg in &mut args {
        arg.map_values(|value| *kept.get(&value).unwrap_or(&value));
    }
    write!(key, "{} {args:?}", node.op).expect("writing to a string succeeds");
    key
}
