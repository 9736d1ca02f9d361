//! What each node of a rank's graph does to the streams, and what it takes: the only place that asks crate `cost`.

use aten::Call;
use ir::{Graph, NodeId, ValueId};

use crate::Machine;

/// What a node does.
pub enum Work {
    /// Runs on the rank, for so many picoseconds.
    Operation(i64),
    /// Starts a collective that takes so many picoseconds.
    Collective(i64),
    /// Waits for the collective that makes a value.
    Wait(ValueId),
}

/// What the node does, where `size` ranks are in the group of its name.
pub fn work(graph: &Graph, id: NodeId, machine: Machine<'_>, size: impl Fn(&str) -> u32) -> Work {
    if !timeline::step::is_on_group(graph.op_name(id)) {
        let call = Call::new(graph, id);
        return Work::Operation(cost::operation_time(machine.cluster, &call, &aten::replicated(&call), 1));
    }
    let call = Call::new(graph, id);
    let ranks = timeline::step::group_name(graph, id).map_or(1, size);
    match (cost::collective(&call, ranks), call.operands.first()) {
        (Some(collective), _) => Work::Collective(cost::collective_time(machine.cluster, collective, ranks)),
        (None, Some(operand)) => Work::Wait(*operand),
        (None, None) => Work::Operation(0),
    }
}
