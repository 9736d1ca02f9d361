//! How state is placed along an axis, and how often its shards are put together.

use base::SecondaryMap;
use ir::{Graph, InputClass, PartId, PartKind, Placement, ValueId};
use rustc_hash::FxHashMap;
use shard::Assignment;

use super::Known;

/// From this share on all of a class of inputs counts as sharded: step counters and the like never are.
const ALL: f64 = 0.98;
/// From this share on it is worth a word.
const NAMED: f64 = 0.1;
/// From this share on most of something is meant.
const MOST: f64 = 0.5;

/// How state is placed, in words; nothing where it is replicated.
pub fn placed(graph: &Graph, known: &Known, assignment: &Assignment) -> Option<String> {
    let has_state = graph.inputs.values().any(|input| input.class == InputClass::Optimizer);
    let sharded = |class| sharded_share(graph, assignment, class);
    let (parameters, optimizer) = (sharded(InputClass::Parameter), sharded(InputClass::Optimizer));
    let changes = Changes::new(graph, known, assignment);
    if parameters > ALL && (optimizer > ALL || !has_state) {
        return Some(match changes.gathered() {
            0 => "state sharded".to_owned(),
            1 => "state sharded, gathered once".to_owned(),
            _ => "state sharded, gathered twice (ZeRO-3)".to_owned(),
        });
    }
    if parameters < NAMED && optimizer > ALL {
        let name = if changes.are_gradients_scattered() { "ZeRO-2" } else { "ZeRO-1" };
        return Some(format!("optimizer state sharded ({name})"));
    }
    if parameters.max(optimizer) < NAMED {
        return None;
    }
    Some(match changes.gathered() {
        0 => "state partly sharded".to_owned(),
        1 => "state partly sharded, gathered once".to_owned(),
        _ => "state partly sharded, gathered twice".to_owned(),
    })
}

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

/// The changes of placement of parameters and their gradients, in elements.
#[derive(Default)]
struct Changes {
    /// Of parameters that are stored sharded.
    sharded: u64,
    /// Of those that forward puts together.
    forward: u64,
    /// Of those that backward puts together, again or for the first time.
    backward: u64,
    /// Of gradients that are reduced to shards.
    scattered: u64,
    /// Of gradients that are reduced to whole tensors.
    reduced: u64,
}

impl Changes {
    fn new(graph: &Graph, known: &Known, assignment: &Assignment) -> Self {
        let Known { of_state, gradients, .. } = known;
        let provided = provided(graph, assignment);
        let elements = |value: ValueId| graph.ty(value).elements();
        let is_sharded = |placement| matches!(placement, Placement::Shard { .. });
        let mut changes = Self::default();
        for input in graph.inputs.values().filter(|input| input.class == InputClass::Parameter) {
            if is_sharded(provided[input.value]) {
                changes.sharded += elements(input.value);
            }
        }
        // The part of the program that a value was last put together or reduced in.
        let mut met: FxHashMap<(ValueId, Placement), PartId> = FxHashMap::default();
        for id in &graph.order {
            let (node, strategy) = (&graph.nodes[*id], assignment.nodes.get(id));
            for (number, value) in node.operands().enumerate() {
                let to = strategy.map_or(Placement::Replicate, |strategy| strategy.operands[number]);
                let from = provided[value];
                let before = met.insert((value, to), node.part);
                let is_there = before.is_some_and(|part| {
                    let kept = assignment.kept.get(&(value, node.part));
                    part == node.part || kept.is_none_or(|kept| *kept == to)
                });
                if from == to || is_there {
                    continue;
                }
                match (from, to, graph.part_kind(*id)) {
                    (Placement::Shard { .. }, Placement::Replicate, PartKind::Forward) if of_state[value] => {
                        changes.forward += elements(value);
                    }
                    (Placement::Shard { .. }, Placement::Replicate, PartKind::Backward)
                        if of_state[value] =>
                    {
                        changes.backward += elements(value);
                    }
                    (Placement::Partial(_), Placement::Shard { .. }, _) if gradients[value] => {
                        changes.scattered += elements(value);
                    }
                    (Placement::Partial(_), Placement::Replicate, _) if gradients[value] => {
                        changes.reduced += elements(value);
                    }
                    _ => {}
                }
            }
        }
        changes
    }

    /// How often most of the sharded parameters are put together in a step.
    fn gathered(&self) -> u32 {
        let is_most = |elements: u64| self.sharded > 0 && elements as f64 >= self.sharded as f64 * MOST;
        u32::from(is_most(self.forward)) + u32::from(is_most(self.backward))
    }

    const fn are_gradients_scattered(&self) -> bool {
        self.scattered > self.reduced
    }
}

/// The placement in which each value is made or stored.
fn provided(graph: &Graph, assignment: &Assignment) -> SecondaryMap<ValueId, Placement> {
    let mut provided = SecondaryMap::with_default(Placement::Replicate);
    for (id, input) in graph.inputs.iter() {
        provided[input.value] = assignment.inputs.get(&id).copied().unwrap_or(Placement::Replicate);
    }
    for id in &graph.order {
        let Some(strategy) = assignment.nodes.get(id) else { continue };
        for (value, placement) in graph.nodes[*id].results().zip(&strategy.results) {
            provided[value] = *placement;
        }
    }
    provided
}
