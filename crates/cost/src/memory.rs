//! The memory of one rank while it runs its graph.

use base::{Bytes, Id, SecondaryMap};
use ir::{Arg, Graph, NodeId, ValueDef, ValueId};

/// The most memory that a graph holds at once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Peak {
    /// Inputs that live on: parameters, buffers, optimizer state.
    pub state: Bytes,
    /// State and everything else that is alive at the worst moment.
    pub total: Bytes,
    /// The node that runs at that moment.
    pub at: Option<NodeId>,
}

/// The peak of a graph that is run in program order, each buffer freed after its last use, views sharing their operand's buffer and state
/// updated in place.
pub fn peak(graph: &Graph) -> Peak {
    let roots = roots(graph);
    let last = last_uses(graph, &roots);
    let state: u64 =
        graph.inputs.values().filter(|i| i.class.is_state()).map(|i| graph.ty(i.value).bytes().0).sum();
    let mut alive = graph.inputs.values().map(|input| graph.ty(input.value).bytes().0).sum::<u64>();
    let mut peak = Peak { state: Bytes(state), total: Bytes(alive), at: None };
    for (position, node) in graph.order.iter().enumerate() {
        for value in graph.nodes[*node].results().filter(|value| roots[*value] == Some(*value)) {
            alive += graph.ty(value).bytes().0;
        }
        if alive > peak.total.0 {
            peak.total = Bytes(alive);
            peak.at = Some(*node);
        }
        let touched = graph.nodes[*node].operands().chain(graph.nodes[*node].results());
        let mut freed: Vec<ValueId> = touched.filter_map(|value| roots[value]).collect();
        freed.sort_unstable();
        freed.dedup();
        for root in freed {
            let is_input = matches!(graph.values[root].def, ValueDef::Input(_));
            if last[root] == position && !is_input {
                alive -= graph.ty(root).bytes().0;
            }
        }
    }
    peak
}

/// For each value the one whose buffer it looks into.
fn roots(graph: &Graph) -> SecondaryMap<ValueId, Option<ValueId>> {
    let mut roots: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::with_default(None);
    for input in graph.inputs.values() {
        roots[input.value] = Some(input.value);
    }
    for node in &graph.order {
        let name = graph.op_name(*node);
        let is_view =
            aten::row(name).is_some_and(|row| matches!(row.work, aten::Work::View)) || ir::is_wait(name);
        let first = graph.nodes[*node].args.first().and_then(|arg| match arg {
            Arg::Value(value) => roots[*value],
            _ => None,
        });
        for value in graph.nodes[*node].results() {
            roots[value] = if is_view { first } else { Some(value) };
        }
    }
    roots
}

/// The position of the last node that touches each buffer; what is returned or updated lives to the end.
fn last_uses(graph: &Graph, roots: &SecondaryMap<ValueId, Option<ValueId>>) -> SecondaryMap<ValueId, usize> {
    let mut last: SecondaryMap<ValueId, usize> = SecondaryMap::with_default(0);
    for (position, node) in graph.order.iter().enumerate() {
        for value in graph.nodes[*node].operands().chain(graph.nodes[*node].results()) {
            if let Some(root) = roots[value] {
                last[root] = position;
            }
        }
    }
    for value in &graph.returns {
        if let Some(root) = roots[*value] {
            last[root] = usize::MAX;
        }
    }
    debug_assert!(graph.values.ids().all(|value| value.index() < graph.values.len()));
    last
}
