//! What each node of a rank's graph does to the streams, and its time: the only place that asks crate `cost`.

use aten::Call;
use cost::Wires;
use ir::{Graph, HostCopy, NodeId, ValueId};

use crate::Machine;

/// What a node does.
pub enum Work {
    /// Runs on the rank; picoseconds.
    Operation(i64),
    /// Starts a collective; picoseconds, and how much of the wires it uses.
    Collective(i64, Wires),
    /// Waits for the collective that makes a value.
    Wait(ValueId),
    /// Starts a copy between device and host; picoseconds.
    Copy(HostCopy, i64),
    /// Waits for the copy that makes a value.
    WaitCopy(ValueId),
}

/// What the node does.
pub fn work(graph: &Graph, id: NodeId, machine: Machine<'_>) -> Work {
    if let Some(collective) = graph.collective(id) {
        let time = cost::collective_time(machine, collective);
        return Work::Collective(time, cost::wires(machine, collective, time));
    }
    let call = Call::new(graph, id);
    if let (Some(copy), Some(operand)) = (graph.host_copy(id), call.operands.first()) {
        let time = || cost::host_copy_time(machine.cluster, graph.ty(*operand).bytes().0);
        return if copy == HostCopy::Wait { Work::WaitCopy(*operand) } else { Work::Copy(copy, time()) };
    }
    match call.operands.first().filter(|_| graph.is_wait(id)) {
        Some(operand) => Work::Wait(*operand),
        None if graph.is_wait(id) => Work::Operation(0),
        None => Work::Operation(cost::local_time(machine, &call)),
    }
}
