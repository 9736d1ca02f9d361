//! Collectives: the one place that knows the operators which exchange tensors between ranks.

use std::fmt;

use base::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Arg, Graph, Node, NodeId, RowOperator, STAGES, ValueId};

/// Symbolic names of process groups are this and the name of the mesh axis along which their ranks lie.
pub const GROUP_PREFIX: &str = "axis:";

/// The symbolic name of the group in which a pipeline stage sends to another.
pub fn transfer_group(from: u32, to: u32) -> String {
    format!("{GROUP_PREFIX}{STAGES}:{from}>{to}")
}

/// The stages that send and receive in the group of that symbolic name; none where it is another group's.
pub fn transfer_stages(group: &str) -> Option<(u32, u32)> {
    let (from, to) =
        group.strip_prefix(GROUP_PREFIX)?.strip_prefix(STAGES)?.strip_prefix(':')?.split_once('>')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

/// What the names of all operators of collectives begin with.
const NAMESPACE: &str = "_c10d_functional::";

/// The schema of the operator that waits for a collective's result.
pub const WAIT: &str = "_c10d_functional::wait_tensor(Tensor tensor) -> Tensor";

/// A kind of collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// Every rank gets the reduction of all.
    AllReduce,
    /// Every rank gets the parts of all along the first dimension.
    AllGather,
    /// Every rank gets its part of the reduction of all along the first dimension.
    ReduceScatter,
    /// Every rank gets a part from each.
    AllToAll,
    /// Every rank sends all it has to one, and gets what another has.
    Permute,
    /// Every rank gets what one rank has. Between two pipeline stages, a transfer.
    Broadcast,
}

/// How the operands of the ranks are put together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// By addition.
    Sum,
    /// By the largest.
    Max,
}

impl Reduction {
    /// Its name as an argument of a collective's operator.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
        }
    }
}

/// A collective along a mesh axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Collective<'a> {
    /// What it does.
    pub kind: CollectiveKind,
    /// How it reduces; none where it does not, or in a way that is not known here.
    pub reduction: Option<Reduction>,
    /// The name of the mesh axis along which its ranks lie.
    pub axis: &'a str,
    /// The bytes of the full tensor for gathers and reductions, of one rank's tensor for an all-to-all or a permutation.
    pub bytes: Bytes,
}

impl CollectiveKind {
    /// All kinds; those of one operator with the general one first.
    pub const ALL: [Self; 6] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Permute,
        Self::Broadcast,
    ];

    /// The schema of its operator. A permutation is an all-to-all of one part, along a first dimension of size 1.
    pub const fn schema(self) -> &'static str {
        match self {
            Self::AllReduce => {
                "_c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor"
            }
            Self::AllGather => {
                "_c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor"
            }
            Self::ReduceScatter => {
                "_c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name) -> Tensor"
            }
            Self::AllToAll | Self::Permute => {
                "_c10d_functional::all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] input_split_sizes, str group_name) -> Tensor"
            }
            Self::Broadcast => "_c10d_functional::broadcast(Tensor input, int src, str group_name) -> Tensor",
        }
    }

    /// The name of its operator.
    pub fn operator(self) -> &'static str {
        name_of(self.schema())
    }

    /// The kind of collective that an operator starts, if it does; of an all-to-all that may be a permutation too.
    pub fn of_operator(name: &str) -> Option<Self> {
        // Most operators are none, and every pass asks of every node.
        if !name.starts_with(NAMESPACE) {
            return (RowOperator::of_operator(name) == Some(RowOperator::Exchange)).then_some(Self::AllToAll);
        }
        Self::ALL.into_iter().find(|kind| kind.operator() == name)
    }

    /// What it is called in messages.
    pub const fn text(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Permute => "permute",
            Self::Broadcast => "transfer",
        }
    }

    /// The kind that is called so.
    pub fn of_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.text() == text)
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Whether an operator waits for a collective.
pub fn is_wait(operator: &str) -> bool {
    operator == wait_operator()
}

/// The name of the operator that waits for a collective.
pub fn wait_operator() -> &'static str {
    name_of(WAIT)
}

/// Whether an operator starts a collective or waits for one.
pub fn is_communication(operator: &str) -> bool {
    is_wait(operator) || CollectiveKind::of_operator(operator).is_some()
}

/// The name of the operator with a schema.
pub(crate) fn name_of(schema: &'static str) -> &'static str {
    schema.split('(').next().unwrap_or(schema)
}

impl Graph {
    /// The collective that a node starts, if it does.
    pub fn collective(&self, id: NodeId) -> Option<Collective<'_>> {
        let node = &self.nodes[id];
        let mut kind = CollectiveKind::of_operator(&self.ops[node.op].name)?;
        let is_one = |value: ValueId| self.ty(value).shape.first() == Some(&1);
        let is_of_rows = self.row_operator(id) == Some(RowOperator::Exchange);
        if kind == CollectiveKind::AllToAll && !is_of_rows && node.operands().next().is_some_and(is_one) {
            kind = CollectiveKind::Permute;
        }
        let group = self.group_name(id)?;
        let full = match kind {
            CollectiveKind::AllGather => node.results().next(),
            _ => node.operands().next(),
        };
        let bytes = full.map_or(Bytes(0), |value| self.ty(value).bytes());
        let axis = group.strip_prefix(GROUP_PREFIX).unwrap_or(group);
        let axis = axis.split_once(':').map_or(axis, |(axis, _)| axis);
        Some(Collective { kind, reduction: reduction(kind, node), axis, bytes })
    }

    /// The symbolic name of the process group of the collective that a node starts: its last argument.
    pub fn group_name(&self, id: NodeId) -> Option<&str> {
        match self.nodes[id].args.last() {
            Some(Arg::Str(name)) if CollectiveKind::of_operator(self.op_name(id)).is_some() => Some(name),
            _ => None,
        }
    }

    /// Whether a node waits for a collective.
    pub fn is_wait(&self, id: NodeId) -> bool {
        is_wait(self.op_name(id))
    }

    /// Whether a node starts a collective or waits for one.
    pub fn is_communication(&self, id: NodeId) -> bool {
        is_communication(self.op_name(id))
    }
}

fn reduction(kind: CollectiveKind, node: &Node) -> Option<Reduction> {
    if !matches!(kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter) {
        return None;
    }
    let Some(Arg::Str(name)) = node.args.get(1) else { return None };
    [Reduction::Sum, Reduction::Max].into_iter().find(|known| known.text() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dims, Dtype, InputClass, TensorType};

    #[test]
    fn a_node_says_which_collective_it_starts() {
        let mut graph = Graph::default();
        let ty = TensorType::contiguous(Dtype::F32, Dims::from_slice(&[4]));
        let x = graph.input(InputClass::Batch, "batch.0", ty.clone());
        let group = Arg::Str("axis:a".into());
        let reduced = graph.push_value(
            CollectiveKind::AllReduce.schema(),
            vec![Arg::Value(x), Arg::Str("max".into()), group.clone()],
            ty.clone(),
        );
        let full = TensorType::contiguous(Dtype::F32, Dims::from_slice(&[12]));
        graph.push_value(
            CollectiveKind::AllGather.schema(),
            vec![Arg::Value(reduced), Arg::Int(3), group],
            full,
        );
        graph.push_value(WAIT, vec![Arg::Value(x)], ty);
        let found: Vec<_> = graph.order.iter().map(|id| graph.collective(*id)).collect();
        let collective =
            |kind, reduction, bytes| Some(Collective { kind, reduction, axis: "a", bytes: Bytes(bytes) });
        assert_eq!(found[0], collective(CollectiveKind::AllReduce, Some(Reduction::Max), 16));
        assert_eq!(found[1], collective(CollectiveKind::AllGather, None, 48));
        assert_eq!((found[2], graph.is_wait(graph.order[2])), (None, true));
    }

    #[test]
    fn an_all_to_all_of_one_part_is_a_permutation() {
        let mut graph = Graph::default();
        for (first, kind) in [(1, CollectiveKind::Permute), (2, CollectiveKind::AllToAll)] {
            let ty = TensorType::contiguous(Dtype::F32, Dims::from_slice(&[first, 4]));
            let x = graph.input(InputClass::Batch, "batch.0", ty.clone());
            let args = [Arg::Value(x), Arg::Ints(vec![first, 0]), Arg::Ints(vec![0, first])];
            let args = args.into_iter().chain([Arg::Str("axis:a".into())]).collect();
            graph.push_value(kind.schema(), args, ty);
            let last = *graph.order.last().expect("a node");
            assert_eq!(graph.collective(last).map(|one| one.kind), Some(kind));
        }
    }
}
