//! A graph as what patterns are looked for in.

use base::SecondaryMap;
use ir::{Arg, Graph, Node, NodeId, Return, ValueDef, ValueId};
use patterns::{Argument, Program};

use crate::facts::{Users, users};

/// The operations of a graph with who reads what.
pub struct Terms<'g> {
    pub graph: &'g Graph,
    users: Users,
    leaves: SecondaryMap<ValueId, bool>,
}

impl<'g> Terms<'g> {
    pub fn new(graph: &'g Graph) -> Self {
        let mut leaves = SecondaryMap::with_default(false);
        let updated = graph.updates.iter().map(|(_, value)| value);
        graph.returns.iter().chain(updated).for_each(|value| leaves[*value] = true);
        Self { graph, users: users(graph), leaves }
    }
}

/// What an operation makes, by position; none for what is never there.
pub fn results_of(node: &Node) -> Vec<Option<ValueId>> {
    let result = |returned: &Return| match returned {
        Return::Value(value) => vec![Some(*value)],
        Return::None => vec![None],
        Return::Values(values) => values.iter().copied().map(Some).collect(),
    };
    node.returns.iter().flat_map(result).collect()
}

impl Program for Terms<'_> {
    type Value = ValueId;
    type Op = NodeId;

    fn ops(&self) -> Vec<NodeId> {
        self.graph.order.clone()
    }

    fn name(&self, op: NodeId) -> &str {
        self.graph.op_name(op)
    }

    fn arguments(&self, op: NodeId) -> Vec<Argument<ValueId>> {
        let argument = |arg: &Arg| match arg {
            Arg::Value(value) => Argument::Value(*value),
            Arg::Values(values) => Argument::Values(values.clone()),
            _ => Argument::Literal(arg.to_string()),
        };
        self.graph.nodes[op].args.iter().map(argument).collect()
    }

    fn results(&self, op: NodeId) -> Vec<Option<ValueId>> {
        results_of(&self.graph.nodes[op])
    }

    fn maker(&self, value: ValueId) -> Option<NodeId> {
        match self.graph.values[value].def {
            ValueDef::Result(node, _) => Some(node),
            ValueDef::Input(_) => None,
        }
    }

    fn users(&self, value: ValueId) -> Vec<NodeId> {
        self.users[value].to_vec()
    }

    fn leaves(&self, value: ValueId) -> bool {
        self.leaves[value]
    }

    /// An element type, `floating`, `dense`, or a number of dimensions such as `2d`.
    fn holds(&self, property: &str, value: ValueId) -> bool {
        let ty = self.graph.ty(value);
        match property {
            "floating" => ty.dtype.is_floating(),
            "dense" => ty.is_contiguous(),
            _ => property == ty.dtype.text() || property == format!("{}d", ty.rank()),
        }
    }
}
