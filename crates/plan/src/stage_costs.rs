//! What the chunks of a program cost: the costs that schedules are compared at before they are simulated.

use base::{Bytes, SecondaryMap};
use cost::{Machine, collective_time, local_time};
use ir::{Collective, CollectiveKind, Graph, MICRO_BATCHES, NodeId, PartKind, RankGraph, STAGES, ValueId};
use schedule::{Costs, Placement};

/// The costs of the chunks of a program, whose nodes say in which one they are: those of its first micro-batch, or of all where there is one.
/// Times are those of `cost`, memory is in bytes.
pub fn costs(graph: &RankGraph, placement: &Placement, machine: Machine<'_>) -> Costs {
    let chunks = placement.chunks() as usize;
    let mut costs = Costs {
        forward: vec![0; chunks],
        inputs: vec![0; chunks],
        weights: vec![0; chunks],
        sending: vec![0; chunks - 1],
        kept: vec![0; chunks],
        left: vec![0; chunks],
        ..Costs::even(placement)
    };
    let order: Vec<NodeId> = graph.order.iter().copied().filter(|id| is_counted(graph, *id)).collect();
    let chunk_of = |id: NodeId| graph.nodes[id].stage.map(|chunk| chunk as usize);
    let needed = needed_elsewhere(graph, &order);
    for id in &order {
        let Some(chunk) = chunk_of(*id) else { continue };
        let time = local_time(machine, &aten::Call::new(graph, *id)).max(0);
        let sum = match (graph.part_kind(*id), needed[*id]) {
            (PartKind::Forward, _) => &mut costs.forward,
            (_, true) => &mut costs.inputs,
            (_, false) => &mut costs.weights,
        };
        sum[chunk] += time;
    }
    left_by_the_first_half(graph, &order, &needed, &mut costs);
    let bytes = sent_and_kept(graph, &order, &needed, &mut costs);
    for (boundary, bytes) in bytes.into_iter().enumerate() {
        if placement.stage_of[boundary] != placement.stage_of[boundary + 1] {
            costs.sending[boundary] = collective_time(
                machine,
                Collective {
                    kind: CollectiveKind::Broadcast,
                    reduction: None,
                    axis: STAGES,
                    bytes: Bytes(bytes),
                },
            );
        }
    }
    costs
}

/// Whether an operation is one of the first micro-batch's forward or backward. What would be a collective between micro-batches is none between
/// ranks.
fn is_counted(graph: &Graph, id: NodeId) -> bool {
    let part = graph.parts[graph.nodes[id].part];
    part.kind != PartKind::Update
        && part.micro_batch.is_none_or(|batch| batch == 0)
        && graph.collective(id).is_none_or(|collective| collective.axis != MICRO_BATCHES)
}

/// The operations of backward that others in another chunk depend on.
fn needed_elsewhere(graph: &Graph, order: &[NodeId]) -> SecondaryMap<NodeId, bool> {
    let mut needed = SecondaryMap::with_default(false);
    for id in order.iter().rev().filter(|id| graph.part_kind(**id) != PartKind::Forward) {
        for maker in graph.nodes[*id].operands().filter_map(|value| graph.maker(value)) {
            let is_elsewhere = graph.nodes[maker].stage != graph.nodes[*id].stage;
            if graph.nodes[maker].stage.is_some() && (needed[*id] || is_elsewhere) {
                needed[maker] = true;
            }
        }
    }
    needed
}

/// Notes what the first half of backward makes and the second half reads.
fn left_by_the_first_half(
    graph: &Graph,
    order: &[NodeId],
    needed: &SecondaryMap<NodeId, bool>,
    costs: &mut Costs,
) {
    let is_backward = |id: NodeId| graph.part_kind(id) != PartKind::Forward;
    let is_first = |id: NodeId| is_backward(id) && needed[id];
    let mut is_left = SecondaryMap::with_default(false);
    for id in order.iter().filter(|id| is_backward(**id) && !needed[**id]) {
        let Some(chunk) = graph.nodes[*id].stage else { continue };
        for value in graph.nodes[*id].operands().map(|value| viewed(graph, value)) {
            if graph.maker(value).is_some_and(is_first) && !is_left[value] {
                is_left[value] = true;
                costs.left[chunk as usize] += graph.ty(value).bytes().0 as i64;
            }
        }
    }
}

/// What a value is a view of.
fn viewed(graph: &Graph, mut value: ValueId) -> ValueId {
    while let Some(view) = graph.maker(value).filter(|id| aten::is_view(graph, *id))
        && let Some(of) = graph.nodes[view].operands().next()
    {
        value = of;
    }
    value
}

/// The bytes that cross from each chunk to the next; notes what is kept from forward to backward.
fn sent_and_kept(
    graph: &Graph,
    order: &[NodeId],
    needed: &SecondaryMap<NodeId, bool>,
    costs: &mut Costs,
) -> Vec<u64> {
    let mut sent = vec![0; costs.sending.len()];
    let mut is_kept = SecondaryMap::with_default(false);
    let mut is_left = SecondaryMap::with_default(false);
    let mut is_sent = SecondaryMap::with_default(false);
    for id in order {
        let is_forward = graph.part_kind(*id) == PartKind::Forward;
        let looks = aten::is_view(graph, *id);
        for value in graph.nodes[*id].operands() {
            let Some(maker) = graph.maker(value).filter(|one| graph.part_kind(*one) == PartKind::Forward)
            else {
                continue;
            };
            let (Some(from), Some(to)) = (graph.nodes[maker].stage, graph.nodes[*id].stage) else { continue };
            let bytes = graph.ty(value).bytes().0;
            if is_forward && to > from && !is_sent[value] {
                is_sent[value] = true;
                sent[from as usize] += bytes;
            }
            if is_forward || looks {
                continue;
            }
            if !is_kept[value] {
                is_kept[value] = true;
                costs.kept[to as usize] += bytes as i64;
            }
            if !needed[*id] && !is_left[value] {
                is_left[value] = true;
                costs.left[to as usize] += bytes as i64;
            }
        }
    }
    sent
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::testing::slow;
    use ir::Mesh;

    use super::*;

    /// Two products, one in each chunk. All but weights and their gradients have 32 bytes.
    const TWO: &str = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
input v0: f32[4, 4] = parameter "params.first"
input v1: f32[4, 4] = parameter "params.second"
input v2: f32[2, 4] = batch "batch.x"
part forward
v3: f32[2, 4] = aten::mm(v2, v0)
v4: f32[2, 4] = aten::mm(v3, v1)
part backward
v5: f32[2, 4] = aten::mul.Tensor(v4, v4)
v6: f32[2, 4] = aten::mm(v5, v1)
v7: f32[4, 2] = aten::t(v5)
v8: f32[4, 4] = aten::mm(v7, v3)
v9: f32[4, 2] = aten::t(v6)
v10: f32[4, 4] = aten::mm(v9, v2)
return v4, v8, v10
"#;

    #[test]
    fn what_the_first_half_of_backward_makes_is_held_for_the_second() {
        let mut graph = Graph::from_text("step", TWO).unwrap();
        let chunks = [0, 1, 1, 1, 1, 1, 0, 0];
        for (id, chunk) in graph.order.clone().into_iter().zip(chunks) {
            graph.nodes[id].stage = Some(chunk);
        }
        let mesh = Mesh::along(STAGES, 2);
        let (cluster, placement) = (slow(), Placement::in_turn(2, 1));
        let costs = costs(&graph, &placement, Machine { cluster: &cluster, mesh: &mesh });
        // Of the second chunk what it was sent and the gradient, of the first one the gradient that it is sent: its batch is there anyway.
        assert_eq!((costs.kept, costs.left), (vec![0, 64], vec![32, 64]));
    }
}
