//! A recorded step as a timeline, in the form of the simulator's timelines.

use std::collections::BTreeMap;

use base::{Nanos, SecondaryMap};
use ir::{AxisKind, Graph, Mesh, NodeId};
use timeline::{
    Timeline,
    step::{Group, Span, StepTimeline, Works},
};

use crate::{Program, program::Action};

/// When an instruction ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Index into the program's body.
    pub instruction: u32,
    /// Start, from the start of the step.
    pub start: Nanos,
    /// How long the call took; a collective goes on after that.
    pub duration: Nanos,
}

/// The timeline of one recorded step of `program` on `rank`. With the graph that the program was made of, events are of its operations,
/// collectives have lanes of their own, and say on a `mesh` which ranks take part; `works` says how much operations do.
pub fn timeline_of(
    program: &Program,
    records: &[Record],
    rank: u32,
    graph: Option<(&Graph, &Mesh)>,
    works: Works<'_>,
) -> Timeline {
    let (no_graph, no_mesh) = (Graph::default(), Mesh::default());
    let (graph, mesh) = graph.unwrap_or((&no_graph, &no_mesh));
    let mut step = StepTimeline::new(graph, rank, works);
    let mut spans: Vec<(usize, Span)> = Vec::with_capacity(records.len());
    for record in records {
        let instruction = &program.body[record.instruction as usize];
        let span = Span { start: record.start, end: record.start + record.duration };
        let position = instruction.node.map(|node| node as usize).filter(|node| *node < graph.order.len());
        match position {
            Some(position) if matches!(instruction.action, Action::Kernel { .. }) => {
                step.kernel(position, span);
            }
            Some(position) => {
                step.operation(position, span);
                spans.push((position, span));
            }
            None => step.other(&program.name(instruction), span),
        }
    }
    for (group, collectives) in seen(graph, &spans) {
        for (position, span) in collectives {
            let axis = graph.collective(graph.order[position]).and_then(|of| mesh.axis(of.axis));
            let (size, stride) = match axis {
                Some(axis) if axis.kind == AxisKind::Ranks => (axis.size, mesh.stride_of(&axis.name)),
                // Between two stages.
                Some(_) => (2, 0),
                None => (0, 0),
            };
            step.collective(position, &Group { name: group, size, stride }, span);
        }
    }
    let (names, rank) = step.finish(false);
    let mut timeline = Timeline::default();
    timeline.add(names, rank);
    timeline
}

/// The collectives of each group as far as the rank saw them: each from its start, or the end of the one before, to when it was known to
/// be over, because the rank had waited for it or for a later one.
fn seen<'g>(graph: &'g Graph, spans: &[(usize, Span)]) -> BTreeMap<&'g str, Vec<(usize, Span)>> {
    let mut groups: BTreeMap<&str, Vec<(usize, Span)>> = BTreeMap::new();
    let waited = first_waits(graph, spans);
    for (position, span) in spans {
        let id = graph.order[*position];
        let Some(group) = graph.group_name(id) else { continue };
        let end = waited[id].unwrap_or(span.end);
        groups.entry(group).or_default().push((*position, Span { start: span.start, end }));
    }
    for collectives in groups.values_mut() {
        one_after_the_other(collectives);
    }
    groups
}

/// Makes spans disjoint: a collective ends before the next of its group begins.
fn one_after_the_other(collectives: &mut [(usize, Span)]) {
    let mut known = Nanos(i64::MAX);
    for (_, span) in collectives.iter_mut().rev() {
        known = known.min(span.end);
        span.end = known;
    }
    let mut before = Nanos(0);
    for (_, span) in collectives {
        span.start = span.start.max(before).min(span.end);
        before = span.end;
    }
}

/// When the first wait for what a node started was over.
fn first_waits(graph: &Graph, spans: &[(usize, Span)]) -> SecondaryMap<NodeId, Option<Nanos>> {
    let mut waited: SecondaryMap<NodeId, Option<Nanos>> = SecondaryMap::with_default(None);
    for (position, span) in spans {
        let id = graph.order[*position];
        if !graph.is_wait(id) {
            continue;
        }
        let makers = graph.nodes[id].operands().filter_map(|value| graph.maker(value));
        for maker in makers {
            waited[maker].get_or_insert(span.end);
        }
    }
    waited
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = r#"unisono graph 2

op aten::neg(Tensor self) -> Tensor
op _c10d_functional::all_reduce(Tensor input, str reduce_op, Any group_name) -> Tensor
op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor

input v0: f32[4] = batch "batch.0"

v1: f32[4] = _c10d_functional::all_reduce(v0, "sum", "axis:a")
v2: f32[4] = _c10d_functional::all_reduce(v0, "sum", "axis:a")
v3: f32[4] = aten::neg(v0)
v4: f32[4] = _c10d_functional::wait_tensor(v2)
v5: f32[4] = _c10d_functional::wait_tensor(v1)

return v4
"#;

    #[test]
    fn a_collective_ends_at_the_latest_when_one_after_it_has_been_waited_for() {
        let graph: Graph = Graph::from_text("test", GRAPH).unwrap();
        let times = [(0, 1), (1, 2), (2, 7), (7, 9), (9, 10)];
        let span = |(start, end)| Span { start: Nanos(start), end: Nanos(end) };
        let spans: Vec<(usize, Span)> = times.into_iter().map(span).enumerate().collect();
        let expected = vec![(0, span((0, 9))), (1, span((9, 9)))];
        assert_eq!(seen(&graph, &spans), BTreeMap::from([("axis:a", expected)]));
    }
}
