//! What the tables of the search along one axis are made from.

use cost::Machine;
use ir::{AxisKind, Dtype, Graph, PartKind, Placement, Reduce, TensorType};
use passes::is_summed_in;
use shard::{Gathers, Space};

use crate::{
    folded::Folded,
    forbidden::Forbidden,
    intents::{Intent, Origins},
    moments::Charges,
    pins::Demands,
    roles::Role,
};

/// What the tables are made from.
pub struct Setting<'a> {
    /// The graph, in canonical form.
    pub graph: &'a Graph,
    /// Of a graph with few layers, what it stands for.
    pub folded: Option<&'a Folded>,
    /// Its strategies.
    pub space: &'a Space,
    /// Costs.
    pub machine: Machine<'a>,
    /// What of memory is weighed.
    pub charges: &'a Charges,
    /// What is decided already for operations of the step, and which operations of the graph these are.
    pub intent: Option<(&'a Intent, &'a Origins)>,
    /// What is demanded of inputs and of what modules give.
    pub pins: &'a Demands,
    /// The placement that is demanded of the batch, if one is.
    pub batch: Option<Placement>,
    /// Whether changes of placement against that demand are forbidden or penalised.
    pub strict: bool,
    /// The collectives that no solution has.
    pub forbidden: Forbidden,
    /// The element type in which gradients are summed between ranks, where it is not their own.
    pub reduce_dtype: Option<Dtype>,
    /// Along an axis of micro-batches, when what outer axes shard is gathered, and summed where it is sharded.
    pub gathers: Gathers,
}

impl Setting<'_> {
    /// The type in which a value that a part makes goes from one placement to another, where it is not its own: sums of gradients between ranks are
    /// in the type that the user's policy says.
    pub fn sent(&self, ty: &TensorType, role: Role, part: PartKind, from: Placement) -> Option<TensorType> {
        let is_sum =
            matches!(from, Placement::Partial(Reduce::Sum)) && self.space.axis.kind == AxisKind::Ranks;
        let is_needed = role != Role::Gradient && part != PartKind::Update;
        let is_cast = |dtype: &Dtype| is_sum && !is_needed && is_summed_in(*dtype, ty.dtype, part);
        Some(TensorType { dtype: self.reduce_dtype.filter(is_cast)?, ..ty.clone() })
    }
}
