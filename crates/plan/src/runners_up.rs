//! The best of the plans that were not chosen: what they are, and pins that demand their placements, so that they can be tried.

use base::Result;
use cost::Machine;
use ir::{Graph, InputClass, InputId, Mesh, Placement};
use shard::Assignment;

use crate::{
    labels::Labels,
    on_axes::OnAxis,
    pins::Pins,
    plan::{Prediction, RunnerUp},
    run::Found,
};

/// How many runners-up a plan names.
pub const MOST_RUNNERS_UP: usize = 5;

/// What candidates are called by.
pub struct Naming<'a> {
    graph: &'a Graph,
    machine: Machine<'a>,
    limit: Option<u64>,
    labels: Labels<'a>,
}

impl<'a> Naming<'a> {
    /// Names candidates for a graph in canonical form, of which the best one is decided so.
    pub const fn new(
        graph: &'a Graph,
        machine: Machine<'a>,
        limit: Option<u64>,
        best: &'a [OnAxis<'a>],
    ) -> Self {
        Self { graph, machine, limit, labels: Labels::new(graph, machine, best) }
    }

    /// What a candidate is in the field's words.
    pub fn label(&self, found: &Found) -> Result<String> {
        self.labels.label(&found.assignments)
    }

    /// The best of `others`, which come best first: plans that are called otherwise than `chosen`, whose name is `name`, and each other; where
    /// these are few, also such as place other inputs.
    pub fn runners_up(&self, name: &str, chosen: &Found, others: &[Found]) -> Result<Vec<RunnerUp>> {
        let mut known: Vec<(String, &Found)> = Vec::new();
        let (mut distinct, mut alike) = (Vec::new(), Vec::new());
        for (rank, other) in others.iter().enumerate() {
            if distinct.len() == MOST_RUNNERS_UP {
                break;
            }
            let label = self.label(other)?;
            let called_so = known.iter().filter(|(of, _)| *of == label).map(|(_, found)| *found);
            let called_so = called_so.chain((label == name).then_some(chosen));
            // Of plans that place all inputs alike the fastest is enough.
            let differences: Option<Vec<String>> =
                called_so.map(|known| self.difference(known, other)).collect();
            match differences.as_deref() {
                None => continue,
                Some([]) => distinct.push((rank, self.named(label.clone(), other))),
                Some([.., with]) => alike.push((rank, self.named(format!("{label}, {with}"), other))),
            }
            known.push((label, other));
        }
        alike.truncate(MOST_RUNNERS_UP.saturating_sub(distinct.len()));
        distinct.append(&mut alike);
        distinct.sort_by_key(|(rank, _)| *rank);
        Ok(distinct.into_iter().map(|(_, other)| other).collect())
    }

    fn named(&self, name: String, found: &Found) -> RunnerUp {
        let Prediction { step_ns, peak_bytes, exposed_ns, .. } = found.prediction;
        RunnerUp {
            name,
            step_ns,
            peak_bytes,
            exposed_ns: Some(exposed_ns),
            fits: found.fits(self.limit),
            pins: pins_of(self.graph, &found.assignments, self.machine.mesh),
        }
    }

    /// The largest input that another candidate places otherwise than a known one, with its placement; none where there is none.
    fn difference(&self, known: &Found, other: &Found) -> Option<String> {
        let placed = |found: &Found, id: InputId| -> Vec<Placement> {
            let of = |assignment: &Assignment| assignment.inputs.get(&id).copied();
            found.assignments.iter().map(|one| of(one).unwrap_or(Placement::Replicate)).collect()
        };
        let differs = |id: &InputId| placed(known, *id) != placed(other, *id);
        let bytes = |id: &InputId| self.graph.ty(self.graph.inputs[*id].value).bytes();
        // Of equals the first.
        let largest =
            self.graph.inputs.ids().filter(differs).min_by_key(|id| std::cmp::Reverse(bytes(id)))?;
        let (before, after) = (placed(known, largest), placed(other, largest));
        let axes = self.machine.mesh.sharding_axes().zip(before.iter().zip(&after));
        let (axis, (_, placement)) = axes.into_iter().find(|(_, (before, after))| before != after)?;
        Some(format!("`{}` {placement} on {}", self.graph.inputs[largest].name, axis.name))
    }
}

/// Classes of inputs with the pattern of their names.
pub const CLASSES: [(InputClass, &str); 3] = [
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
