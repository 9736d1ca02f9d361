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
    let row = aten::row(&graph.ops[node.op].name)?;
    let (Some(Arg::Value(operand)), [Return::Value(result)]) =
        (node.args.get(row.copied.unwrap_or(0)), node.returns.as_slice())
    else {
        return None;
    };
    let is_one = || matches!(node.args.get(1), Some(Arg::Int(1) | Arg::Float(1.0)));
    let known = row.identity || row.copied.is_some() || (row.scales && is_one());
    (known && graph.ty(*operand) == graph.ty(*result)).then_some((*operand, *result))
}
