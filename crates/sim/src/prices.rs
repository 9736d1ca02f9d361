//! What each node of a rank's graph does to the streams, and its time: the only place that asks crate `cost`.

use std::borrow::Cow;

use aten::Call;
use cluster::Bound;
use cost::Wires;
use ir::{Graph, HostCopy, NodeId, ValueId};
use timeline::step;

use crate::Machine;

/// What a node does.
pub enum Work {
    /// Runs on the rank; picoseconds, and what it is limited by.
    Operation(i64, Bound),
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
        None if graph.is_wait(id) => Work::Operation(0, Bound::Bytes),
        None => Work::Operation(cost::local_time(machine, &call), cost::bound(&call)),
    }
}

/// How much a node does, for whoever reads its timeline; nothing of collectives, waits, views and what is copied nowhere.
pub fn work_of(graph: &Graph, id: NodeId) -> Option<step::Work> {
    let call = Call::new(graph, id);
    if let Some(copy) = graph.host_copy(id) {
        let ty = graph.ty(*call.operands.first().filter(|_| copy != HostCopy::Wait)?);
        let dtype = Cow::Borrowed(ty.dtype.text());
        return Some(step::Work {
            dtype,
            reads: None,
            flops: 0.0,
            bytes: ty.bytes().0,
            tensors: 1,
            uneven: false,
        });
    }
    if graph.is_communication(id) || ir::is_kernel(call.name()) {
        return None;
    }
    let operation = cost::Operation::of(&call)?;
    Some(step::Work {
        dtype: Cow::Borrowed(operation.dtype.text()),
        reads: (operation.reads != operation.dtype).then(|| Cow::Borrowed(operation.reads.text())),
        flops: operation.amounts.flops,
        bytes: operation.amounts.bytes,
        tensors: operation.amounts.tensors,
        uneven: !operation.is_even,
    })
}
