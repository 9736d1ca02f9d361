//! Pins that demand the placements of a plan that was not chosen, so that it can be tried.

use ir::{Graph, InputClass, Mesh, Placement};
use shard::Assignment;

use crate::pins::Pins;

/// Classes of inputs with the pattern of their names.
const CLASSES: [(InputClass, &str); 3] = [
    (InputClass::Batch, "batch.*"),
    (InputClass::Parameter, "params.*"),
    (InputClass::Optimizer, "optimizer.*"),
];

/// Maximum number of inputs of a class that are named one by one; more are left to the search.
const MOST_NAMED: usize = 64;

/// A pin for each class of inputs and each axis on which all that are not replicated are placed alike; others are named one by one.
pub fn pins_of(graph: &Graph, assignments: &[Assignment], mesh: &Mesh) -> Pins {
    let mut pins = Pins::default();
    for (axis, assignment) in mesh.sharding_axes().zip(assignments).filter(|(axis, _)| axis.rank_count() > 1)
    {
        for (class, pattern) in CLASSES {
            let of_class = || graph.inputs.iter().filter(move |(_, input)| input.class == class);
            let placed = |id| assignment.inputs.get(&id).copied().unwrap_or(Placement::Replicate);
            let mut sharded: Vec<Placement> =
                of_class().map(|(id, _)| placed(id)).filter(|p| *p != Placement::Replicate).collect();
            sharded.sort_unstable();
            sharded.dedup();
            match sharded.as_slice() {
                [] if of_class().next().is_none() => {}
                // Nothing is demanded of a batch that is sliced where it is used.
                [] if class == InputClass::Batch => {}
                [] => demand(&mut pins, pattern, &axis.name, Placement::Replicate),
                [one] => demand(&mut pins, pattern, &axis.name, *one),
                _ if of_class().count() > MOST_NAMED => {}
                _ => {
                    for (id, input) in of_class() {
                        demand(&mut pins, &input.name, &axis.name, placed(id));
                    }
                }
            }
        }
    }
    pins
}

fn demand(pins: &mut Pins, pattern: &str, axis: &str, placement: Placement) {
    pins.entry(pattern.to_owned()).or_default().insert(axis.to_owned(), placement);
}
