//! What a plan is in the field's words, derived from its placements. No decision depends on it.

use aten::{Call, Work};
use base::Result;
use cost::{Machine, operation_time};
use ir::{AxisKind, Chunks, Graph, InputClass, MeshAxis, NodeId, Placement};
use shard::{Assignment, partition};

use crate::roles::{gradients, of_state};

/// How the computation along an axis is divided, as shares of its time.
#[derive(Clone, Copy, Default)]
struct Shares {
    /// Operands that come from the batch are sharded, parameters are not.
    data: i64,
    /// Parameters are sharded where they are used.
    tensor: i64,
    /// Every rank does the same.
    replicated: i64,
}

/// From this share of the time on, in percent, a way to divide the computation is named.
const NAMED: i64 = 10;

/// The name of a plan: a phrase for each axis of more than one rank.
pub fn label(graph: &Graph, assignments: &[Assignment], machine: Machine<'_>) -> Result<String> {
    let axes = || machine.mesh.sharding_axes();
    let several = axes().filter(|axis| axis.rank_count() > 1).count() > 1;
    let mut names = Vec::new();
    let mut local = graph.clone();
    for (axis, assignment) in axes().zip(assignments).filter(|(axis, _)| axis.rank_count() > 1) {
        let name = along(&local, assignment, axis, machine);
        let name = match idle(&local, assignment, axis, machine) {
            0 => name,
            idle => format!("{name}, {idle} of {} ranks idle", axis.size),
        };
        names.push(if several { format!("{name} on {}", axis.name) } else { name });
        if several {
            local = partition(&local, assignment, axis, 0)?.into_renumbered();
        }
    }
    let names = if names.is_empty() { "one rank".into() } else { names.join("; ") };
    Ok(match machine.mesh.micro_batches() {
        1 => names,
        count => format!("{names}; {count} micro-batches"),
    })
}

fn along(graph: &Graph, assignment: &Assignment, axis: &MeshAxis, machine: Machine<'_>) -> String {
    let Shares { data, tensor, replicated } = shares(graph, assignment, axis, machine);
    let total = (data + tensor + replicated).max(1);
    let named = [(data, "data parallel"), (tensor, "tensor parallel"), (replicated, "replicated")];
    let named: Vec<(i64, &str)> = named.into_iter().filter(|(time, _)| time * 100 >= total * NAMED).collect();
    let computation = match named.as_slice() {
        [(_, one)] => (*one).to_owned(),
        several => {
            let part = |(time, name): &(i64, &str)| format!("{name} {} %", (time * 100 + total / 2) / total);
            several.iter().map(part).collect::<Vec<_>>().join(" + ")
        }
    };
    let has_state = graph.inputs.values().any(|input| input.class == InputClass::Optimizer);
    let sharded = |class| sharded_share(graph, assignment, class);
    match (sharded(InputClass::Parameter), sharded(InputClass::Optimizer)) {
        (parameters, state) if parameters > ALL && (state > ALL || !has_state) => {
            format!("{computation}, state sharded")
        }
        (parameters, state) if parameters * 100.0 < NAMED as f64 && state > ALL => {
            format!("{computation}, optimizer state sharded")
        }
        (parameters, state) if parameters.max(state) * 100.0 >= NAMED as f64 => {
            format!("{computation}, state partly sharded")
        }
        _ => computation,
    }
}

/// A rank is idle whose operations take less than this share of those of the first rank, in percent.
const IDLE: i64 = 10;

/// How many ranks have next to nothing to compute: what is sharded in unequal parts may leave none for the last ranks.
fn idle(graph: &Graph, assignment: &Assignment, axis: &MeshAxis, machine: Machine<'_>) -> u32 {
    let mut times = vec![0_i64; axis.size as usize];
    let is_uneven = |chunks: &Chunks| !chunks.is_even();
    let uneven = |id: &NodeId| {
        let strategy = assignment.nodes.get(id)?;
        cost::shares(&Call::new(graph, *id), strategy, axis.size).filter(is_uneven)
    };
    if axis.kind != AxisKind::Ranks || !graph.order.iter().any(|id| uneven(id).is_some()) {
        return 0;
    }
    for id in &graph.order {
        let call = Call::new(graph, *id);
        let replicated = || aten::replicated(&call);
        let strategy = assignment.nodes.get(id).cloned().unwrap_or_else(replicated);
        let time = operation_time(machine, &call, &strategy, axis);
        let chunks = uneven(id);
        for (coordinate, sum) in times.iter_mut().enumerate() {
            *sum += chunks.map_or(time, |chunks| time * chunks.part(coordinate as u32).1 / chunks.chunk);
        }
    }
    times.iter().filter(|time| **time * 100 < times[0] * IDLE).count() as u32
}

fn shares(graph: &Graph, assignment: &Assignment, axis: &MeshAxis, machine: Machine<'_>) -> Shares {
    let (of_state, gradients) = (of_state(graph), gradients(graph));
    let mut shares = Shares::default();
    for id in &graph.order {
        let call = Call::new(graph, *id);
        if !aten::row(call.name()).is_some_and(|row| matches!(row.work, Work::Flops(_))) {
            continue;
        }
        let Some(strategy) = assignment.nodes.get(id) else {
            shares.replicated += operation_time(machine, &call, &aten::replicated(&call), axis);
            continue;
        };
        let time = operation_time(machine, &call, strategy, axis);
        let is_sharded = |placement: &Placement| matches!(placement, Placement::Shard { .. });
        let mut operands = call.operands.iter().zip(&strategy.operands);
        if operands.clone().any(|(value, placement)| of_state[*value] && is_sharded(placement)) {
            shares.tensor += time;
        } else if operands.any(|(_, placement)| is_sharded(placement)) {
            // From sharded activations, a partial gradient of a parameter is data parallel, a sharded one tensor parallel.
            let in_parts =
                strategy.results.iter().any(is_sharded) && call.results.iter().any(|value| gradients[*value]);
            *(if in_parts { &mut shares.tensor } else { &mut shares.data }) += time;
        } else {
            shares.replicated += time;
        }
    }
    shares
}

/// From this share on all of a class of inputs counts as sharded: step counters and the like never are.
const ALL: f64 = 0.98;

/// How much of the bytes of a class of inputs is sharded; nothing of a class that has none.
fn sharded_share(graph: &Graph, assignment: &Assignment, class: InputClass) -> f64 {
    let (mut sharded, mut all) = (0, 0);
    for (id, input) in graph.inputs.iter().filter(|(_, input)| input.class == class) {
        let bytes = graph.ty(input.value).bytes().0;
        all += bytes;
        let placement = assignment.inputs.get(&id);
        sharded += if matches!(placement, Some(Placement::Shard { .. })) { bytes } else { 0 };
    }
    if all == 0 { 0.0 } else { sharded as f64 / all as f64 }
}
