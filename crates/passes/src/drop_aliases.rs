//! Drops nodes whose result is their operand: in a graph without writes, another name or a copy of a tensor is that tensor, and so is one
//! times it.
//!
//! `clone` is kept where it changes the layout, and also where it does not: a user writes it to say so.

use base::Result;
use ir::{Arg, Graph, Node, Patch, Return, ValueId};

use crate::{Pass, facts::is_uneven};

/// Gives the operand of an alias to its users.
pub struct DropAliases;

impl Pass for DropAliases {
    fn name(&self) -> &'static str {
        "drop_aliases"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label("drop_aliases");
        for id in &graph.order {
            let node = &graph.nodes[*id];
            if is_uneven(graph, *id) {
                continue;
            }
            if let Some((operand, result)) = alias(graph, node) {
                patch.replace(result, operand);
                patch.remove(*id);
            }
        }
        Ok(patch)
    }
}

/// The operand and the result of an alias.
fn alias(graph: &Graph, node: &Node) -> Option<(ValueId, ValueId)> {
    let name = &graph.ops[node.op].name;
    // What is copied over a tensor of its own type is what there is afterwards.
    let from = usize::from(name == "aten::copy");
    let (Some(Arg::Value(operand)), [Return::Value(result)]) = (node.args.get(from), node.returns.as_slice())
    else {
        return None;
    };
    let known = from == 1 || aten::row(name).is_some_and(|row| row.identity) || is_times_one(name, node);
    (known && graph.ty(*operand) == graph.ty(*result)).then_some((*operand, *result))
}

/// Whether a tensor is multiplied or divided by the number 1, as where a model scales by what a setting says.
fn is_times_one(name: &str, node: &Node) -> bool {
    let scales =
        ["aten::mul.Tensor", "aten::mul.Scalar", "aten::div.Tensor", "aten::div.Scalar"].contains(&name);
    scales && matches!(node.args.get(1), Some(Arg::Int(1) | Arg::Float(1.0)))
}
