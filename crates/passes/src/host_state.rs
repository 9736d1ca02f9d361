//! State on the host: what only the update reads is in memory of the host between steps, and comes to the device piece by piece while the update
//! works on the piece before.
//!
//! How many [units](crate::state_units) each piece has is decided by the search and stands in the plan. At most three pieces are on the device
//! at once: one that comes, one that is worked on, one that goes.

use std::{fmt, str::FromStr};

use base::{Code, Diagnostic, Result};
use ir::{
    Arg, Device, FROM_HOST, Graph, InputId, NodeId, Patch, Return, ReturnType, TO_HOST_OVER, TensorType,
    ValueId, WAIT_COPY,
};
use rustc_hash::FxHashMap;

use crate::{
    Pass,
    offload::OFFLOAD,
    recompute::runs_again,
    state_units::{Entry, Unit, entries, state_units},
};

/// Has state on the host between steps.
pub struct HostState {
    /// How much of it, in which pieces.
    pub pieces: Pieces,
}

/// State that comes to the device together, for the part of the update that reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// How many units it has, those that follow the ones of the piece before.
    pub units: u32,
    /// Behind which position in program order its copy to the device starts, where that is before the update; what runs again and copies of
    /// what forward leaves do not count.
    pub from: Option<u32>,
}

/// The pieces in their order, the first of the units; what none has stays on the device. As text `3@120 4`, for units and position.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Pieces(pub Vec<Piece>);

impl Pieces {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Piece { units, from }) in self.0.iter().enumerate() {
            let space = if number == 0 { "" } else { " " };
            write!(f, "{space}{units}")?;
            if let Some(from) = from {
                write!(f, "@{from}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Pieces {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let piece = |word: &str| {
            let (units, from) =
                word.split_once('@').map_or((word, None), |(units, from)| (units, Some(from)));
            let from = from.map(|from| from.parse().ok()).map_or(Some(None), |from| from.map(Some))?;
            let units = units.parse().ok().filter(|units| *units > 0)?;
            Some(Piece { units, from })
        };
        let pieces = text.split_whitespace().map(|word| {
            piece(word).ok_or_else(|| {
                format!("`{word}` is no number of units such as `3`, or `3@120` with a position")
            })
        });
        Ok(Self(pieces.collect::<Result<_, _>>()?))
    }
}

base::serialized_as_text!(Pieces);

impl Pass for HostState {
    fn name(&self) -> &'static str {
        "host_state"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label("host_state");
        if self.pieces.is_empty() {
            return Ok(patch);
        }
        let units = state_units(graph);
        let mut left = &units[..];
        let mut pieces = Vec::new();
        for piece in &self.pieces.0 {
            let (these, others) = left.split_at_checked(piece.units as usize).ok_or_else(foreign)?;
            pieces.push((these, *piece));
            left = others;
        }
        Ok(Splitting::new(graph, &pieces, patch)?.split(&pieces))
    }
}

fn foreign() -> Box<Diagnostic> {
    Diagnostic::new(Code::FOREIGN_PLAN, "the plan is for another training step")
        .because("its update has no state that could be on the host as the plan says")
        .hint("plan again: the model, the optimizer or the version of PyTorch has changed")
}

struct Splitting<'g> {
    graph: &'g Graph,
    patch: Patch<'g>,
    /// For each node of which a piece has entries, the piece of each; none for those that are of no piece.
    piece_of: FxHashMap<NodeId, Vec<Option<usize>>>,
    /// Those nodes in program order.
    nodes: Vec<NodeId>,
    /// The same by piece.
    nodes_of: Vec<Vec<NodeId>>,
    /// The new value of state, by its value.
    new_of: FxHashMap<ValueId, (InputId, ValueId)>,
    /// The last of them, behind which the pieces come.
    last: NodeId,
    /// The end of the program.
    end: NodeId,
    /// Behind which node each piece comes to the device, where that is before the update.
    from: Vec<Option<NodeId>>,
    /// New values by old ones; state that has come to the device by itself.
    now: FxHashMap<ValueId, ValueId>,
}

/// State of a piece on its way to the device.
type Coming = Vec<(ValueId, ValueId)>;

impl<'g> Splitting<'g> {
    fn new(graph: &'g Graph, pieces: &[(&[Unit], Piece)], patch: Patch<'g>) -> Result<Self> {
        let counts = |id: &&NodeId| {
            let label = graph.nodes[**id].label.map(|label| graph.labels[label].as_str());
            !runs_again(graph, **id) && label != Some(OFFLOAD)
        };
        let order: Vec<NodeId> = graph.order.iter().filter(counts).copied().collect();
        let positions = graph.positions();
        let mut piece_of: FxHashMap<NodeId, Vec<Option<usize>>> = FxHashMap::default();
        let mut nodes_of = Vec::new();
        let in_order = |mut nodes: Vec<NodeId>| {
            nodes.sort_unstable_by_key(|id| positions[*id]);
            nodes.dedup();
            nodes
        };
        for (number, (units, _)) in pieces.iter().enumerate() {
            let entries_of = units.iter().flat_map(|unit| &unit.entries);
            for Entry { node, at } in entries_of.clone() {
                let of =
                    piece_of.entry(*node).or_insert_with(|| vec![None; entries(graph, *node).unwrap_or(1)]);
                of[*at] = Some(number);
            }
            nodes_of.push(in_order(entries_of.map(|entry| entry.node).collect()));
        }
        let nodes = in_order(piece_of.keys().copied().collect());
        let new_of = graph.updates.iter().map(|(input, new)| (graph.inputs[*input].value, (*input, *new)));
        let new_of = new_of.collect();
        let (Some(last), Some(end)) = (nodes.last(), graph.order.last()) else {
            return Err(foreign());
        };
        // All that works on state moves behind the last of it, which may follow other parts than the first does.
        let at = |from: u32| {
            let node = order.get(from as usize).filter(|id| positions[**id] < positions[*last]);
            node.copied().ok_or_else(foreign)
        };
        let from = pieces.iter().map(|(_, piece)| piece.from.map(at).transpose()).collect::<Result<_>>()?;
        let (last, end) = (*last, *end);
        Ok(Self {
            graph,
            patch,
            piece_of,
            nodes,
            nodes_of,
            new_of,
            last,
            end,
            from,
            now: FxHashMap::default(),
        })
    }

    fn split(mut self, pieces: &[(&[Unit], Piece)]) -> Patch<'g> {
        for id in self.nodes.clone() {
            self.take(id, None, id);
        }
        let states: Vec<Vec<ValueId>> = pieces.iter().map(|(units, _)| self.states(units)).collect();
        let mut coming: Vec<Option<Coming>> = (0..pieces.len()).map(|_| None).collect();
        for number in self.by_start() {
            let from = self.from[number].unwrap_or(self.last);
            coming[number] = Some(self.fetch(&states[number], from));
        }
        let mut going: Vec<Vec<(ValueId, ValueId)>> = Vec::new();
        for number in 0..pieces.len() {
            // What two pieces before is gone before the next one comes: behind it, so that it has its memory.
            if number >= 2 {
                let gone = std::mem::take(&mut going[number - 2]);
                self.wait(&gone, self.last);
            }
            for next in [number, number + 1].into_iter().filter(|next| *next < pieces.len()) {
                if coming[next].is_none() {
                    coming[next] = Some(self.fetch(&states[next], self.last));
                }
            }
            let here = coming[number].take().unwrap_or_default();
            self.arrive(&here);
            for id in std::mem::take(&mut self.nodes_of[number]) {
                self.take(id, Some(number), self.last);
            }
            going.push(self.leave(&states[number]));
        }
        self.wait(&going.concat(), self.end);
        self.finish(pieces);
        self.patch
    }

    /// The pieces that come to the device before the update, in the order in which their copies start.
    fn by_start(&self) -> Vec<usize> {
        let positions = self.graph.positions();
        let started =
            self.from.iter().enumerate().filter_map(|(number, from)| Some((positions[(*from)?], number)));
        let mut started: Vec<(usize, usize)> = started.collect();
        started.sort_unstable();
        started.into_iter().map(|(_, number)| number).collect()
    }

    /// The state of units.
    fn states(&self, units: &[Unit]) -> Vec<ValueId> {
        units.iter().flat_map(|unit| &unit.state).map(|input| self.graph.inputs[*input].value).collect()
    }

    fn on_host(&self, value: ValueId) -> TensorType {
        TensorType { device: Device::default(), ..self.graph.ty(value).clone() }
    }

    /// Starts the copies of state to the device.
    fn fetch(&mut self, states: &[ValueId], source: NodeId) -> Coming {
        let start = |state: &ValueId| {
            let ty = self.graph.ty(*state).clone();
            let args = vec![Arg::Value(*state), Arg::Device(ty.device)];
            (*state, self.patch.push_value(source, FROM_HOST, args, ty))
        };
        states.iter().map(start).collect()
    }

    /// Waits for state, which is on the device then.
    fn arrive(&mut self, coming: &[(ValueId, ValueId)]) {
        for (state, copy) in coming {
            let ty = self.graph.ty(*state).clone();
            let here = self.patch.push_value(self.last, WAIT_COPY, vec![Arg::Value(*copy)], ty);
            self.now.insert(*state, here);
        }
    }

    /// Starts the copies of the state's new values to the host, over what is there.
    fn leave(&mut self, states: &[ValueId]) -> Vec<(ValueId, ValueId)> {
        let mut going = Vec::new();
        for state in states {
            let new = self.new_of.get(state).and_then(|(_, new)| self.now.get(new).copied());
            let Some(new) = new else { continue };
            let ty = self.on_host(*state);
            let args = vec![Arg::Value(*state), Arg::Value(new)];
            going.push((*state, self.patch.push_value(self.last, TO_HOST_OVER, args, ty)));
        }
        going
    }

    /// Waits for copies to the host: what they give are the state's new values.
    fn wait(&mut self, going: &[(ValueId, ValueId)], source: NodeId) {
        for (state, copy) in going {
            let ty = self.on_host(*state);
            let there = self.patch.push_value(source, WAIT_COPY, vec![Arg::Value(*copy)], ty);
            if let Some((input, _)) = self.new_of.get(state) {
                self.patch.update(*input, there);
            }
        }
    }

    /// Copies the entries of a node that are of a piece, or of none.
    fn take(&mut self, id: NodeId, piece: Option<usize>, source: NodeId) {
        let of = &self.piece_of[&id];
        let taken: Vec<usize> = (0..of.len()).filter(|at| of[*at] == piece).collect();
        if taken.is_empty() {
            return;
        }
        let node = &self.graph.nodes[id];
        let is_list = entries(self.graph, id).is_some();
        let mut args = node.args.clone();
        for arg in &mut args {
            match arg {
                Arg::Values(values) if is_list && !values.is_empty() => {
                    *values = taken.iter().map(|at| values[*at]).collect();
                }
                _ => {}
            }
            arg.map_values(|value| self.now.get(&value).copied().unwrap_or(value));
        }
        let ty = |value: &ValueId| self.graph.ty(*value).clone();
        let old: Vec<Vec<ValueId>> = node
            .returns
            .iter()
            .map(|returned| match returned {
                Return::Values(values) if is_list && !values.is_empty() => {
                    taken.iter().map(|at| values[*at]).collect()
                }
                returned => returned.values().to_vec(),
            })
            .collect();
        let returns = node.returns.iter().zip(&old).map(|(returned, old)| match returned {
            Return::None => ReturnType::None,
            Return::Value(value) => ReturnType::Tensor(ty(value)),
            Return::Values(_) => ReturnType::Tensors(old.iter().map(ty).collect()),
        });
        let made = self.patch.copy_with(id, source, args, returns.collect());
        let new: Vec<ValueId> = self.patch.node(made).results().collect();
        for (old, new) in old.into_iter().flatten().zip(new) {
            self.now.insert(old, new);
            self.patch.replace(old, new);
        }
    }

    /// Puts the state on the host, and takes out what pieces have instead.
    fn finish(&mut self, pieces: &[(&[Unit], Piece)]) {
        for input in pieces.iter().flat_map(|(units, _)| *units).flat_map(|unit| &unit.state) {
            self.patch.put_input(*input, Device::default());
        }
        for id in &self.nodes {
            self.patch.remove(*id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_written_as_numbers_of_units_and_read_back() {
        let piece = |units, from| Piece { units, from };
        let pieces = Pieces(vec![piece(3, Some(120)), piece(4, None)]);
        assert_eq!(pieces.to_string(), "3@120 4");
        assert_eq!("3@120  4".parse(), Ok(pieces));
        for wrong in ["0", "3@", "x", "3@-1"] {
            assert!(wrong.parse::<Pieces>().is_err(), "{wrong}");
        }
    }
}
