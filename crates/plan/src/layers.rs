//! Layers: what a program repeats, one piece after the other, and the same program with fewer of them.
//!
//! Names count for nothing here. A run is a stretch of the order in which equal operations come back after so many others: the layers of
//! forward, the same in backward, from the last to the first, and what updates their parameters. Runs are tied together by what they read of
//! each other, and pieces count as layers where every operand is the next layer's where the operation is.

use std::{
    cmp::Reverse,
    hash::{Hash, Hasher},
    ops::Range,
};

use base::{PrimaryMap, SecondaryMap};
use ir::{Graph, InputId, NodeId, ValueDef, ValueId};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::repeats::{Run, longest_run};

/// The layers of a program.
pub struct Layers<'g> {
    graph: &'g Graph,
    runs: Vec<Run>,
    /// The run of each node that is in one, and its position in the program.
    places: SecondaryMap<NodeId, Option<(usize, usize)>>,
    /// The run that reads a value first, of those in the order in which they were found, and where.
    readers: FxHashMap<ValueId, (usize, usize)>,
    /// The input that the next layer has where a layer has this one, and back, and the layer.
    next: FxHashMap<InputId, InputId>,
    before: FxHashMap<InputId, InputId>,
    layer_of: FxHashMap<InputId, i64>,
    /// The first and the last of those that are alike.
    alike: (i64, i64),
    /// The most layers between an operation and what it reads.
    reach: i64,
}

/// How an operation hangs together with a run: whether it reads what that makes, reads the same, or is read; the run, the position in its
/// piece, and the number of the result or operand.
type Tie = (u8, usize, usize, usize);

impl<'g> Layers<'g> {
    /// Those of a program in which some are alike.
    pub fn of(graph: &'g Graph) -> Option<Self> {
        let mut layers = Self {
            graph,
            runs: Vec::new(),
            places: SecondaryMap::with_default(None),
            readers: FxHashMap::default(),
            next: FxHashMap::default(),
            before: FxHashMap::default(),
            layer_of: FxHashMap::default(),
            alike: (0, 0),
            reach: 0,
        };
        layers.find()?;
        layers.compare()?;
        Some(layers)
    }

    /// Finds the longest run, and then those that hang together with it.
    fn find(&mut self) -> Option<()> {
        let signatures = signatures(self.graph);
        let longest = self.free().into_iter().filter_map(|range| longest_run(&signatures, range, 3, Some));
        let main = longest.max_by_key(|run| (run.covered(), Reverse(run.begin)))?;
        self.add(main);
        while let Some(run) = self.one_more(&signatures, main.pieces / 2) {
            self.add(run);
        }
        Some(())
    }

    /// A run that hangs together with those known so that its pieces are their layers.
    fn one_more(&self, signatures: &[u64], least: usize) -> Option<Run> {
        let tied: Vec<u64> = signatures.iter().enumerate().map(|(at, one)| self.tied(at, *one)).collect();
        let free = self.free().into_iter();
        let runs = free.filter_map(|range| longest_run(&tied, range, least.max(3), |run| self.numbered(run)));
        runs.max_by_key(|run| (run.covered(), Reverse(run.begin)))
    }

    /// What of each part of the program is in no run.
    fn free(&self) -> Vec<Range<usize>> {
        let Self { graph, places, .. } = self;
        let key = |id: &NodeId| (graph.nodes[*id].part, places[*id].map(|(run, _)| run));
        let (mut begin, mut free) = (0, Vec::new());
        for some in graph.order.chunk_by(|a, b| key(a) == key(b)) {
            let end = begin + some.len();
            if places[some[0]].is_none() {
                free.push(begin..end);
            }
            begin = end;
        }
        free
    }

    fn add(&mut self, run: Run) {
        let number = self.runs.len();
        for at in run.positions() {
            let id = self.graph.order[at];
            self.places[id] = Some((number, at));
            for value in self.graph.nodes[id].operands() {
                self.readers.entry(value).or_insert((number, at));
            }
        }
        self.runs.push(run);
    }

    /// How an operation hangs together with the known runs, and with which of their layers.
    fn ties(&self, at: usize) -> impl Iterator<Item = (Tie, i64)> + '_ {
        let node = &self.graph.nodes[self.graph.order[at]];
        let place = |way: u8, (run, at): (usize, usize), number: usize| {
            let (layer, within) = self.runs[run].layer(at);
            ((way, run, within, number), layer)
        };
        let operand = move |(number, value): (usize, ValueId)| match self.made_at(value) {
            Some((run, at, result)) => Some(place(0, (run, at), result as usize)),
            None => self.readers.get(&value).map(|reader| place(1, *reader, number)),
        };
        let result = move |(number, value): (usize, ValueId)| {
            self.readers.get(&value).map(|reader| place(2, *reader, number))
        };
        node.operands().enumerate().filter_map(operand).chain(node.results().enumerate().filter_map(result))
    }

    /// A signature with how the operation hangs together with the known runs.
    fn tied(&self, at: usize, signature: u64) -> u64 {
        let mut hasher = FxHasher::default();
        signature.hash(&mut hasher);
        self.ties(at).for_each(|(tie, _)| tie.hash(&mut hasher));
        hasher.finish()
    }

    /// A run with its pieces numbered as layers, by the first tie that is to another layer from one piece in the middle to the next.
    fn numbered(&self, run: Run) -> Option<Run> {
        let piece = run.pieces / 2;
        let position = |piece: usize, within: usize| run.begin + piece * run.period + within;
        let ties = (0..run.period).flat_map(|within| {
            self.ties(position(piece - 1, within)).zip(self.ties(position(piece, within)))
        });
        let (there, step) = ties
            .map(|((_, here), (_, there))| (there, there - here))
            .find(|(_, step)| *step != 0)
            .filter(|(_, step)| step.abs() == 1)?;
        Some(Run { first: there - step * piece as i64, step, ..run })
    }

    /// Where the maker of a value is, for one in a run.
    fn made_at(&self, value: ValueId) -> Option<(usize, usize, u32)> {
        let ValueDef::Result(node, position) = self.graph.values[value].def else { return None };
        let (run, at) = self.places[node]?;
        Some((run, at, position))
    }

    fn layer_of_value(&self, value: ValueId) -> Option<i64> {
        match self.graph.values[value].def {
            ValueDef::Input(input) => self.layer_of.get(&input).copied(),
            ValueDef::Result(..) => self.made_at(value).map(|(run, at, _)| self.runs[run].layer(at).0),
        }
    }

    /// How many are alike.
    pub const fn count(&self) -> usize {
        (self.alike.1 - self.alike.0 + 1) as usize
    }

    /// Finds the longest stretch of layers each of which is as the one before.
    fn compare(&mut self) -> Option<()> {
        let first = self.runs.iter().map(|run| run.layers().0).max()?;
        let last = self.runs.iter().map(|run| run.layers().1).min()?;
        let mut stretch: Option<(i64, i64)> = None;
        for layer in first..last {
            if !self.is_as_next(layer) {
                continue;
            }
            let begins = stretch.filter(|(_, end)| *end == layer).map_or(layer, |(begin, _)| begin);
            stretch = Some((begins, layer + 1));
            if layer + 1 - begins > self.alike.1 - self.alike.0 {
                self.alike = (begins, layer + 1);
            }
        }
        (self.alike.1 > self.alike.0).then_some(())
    }

    /// Whether a layer is as the next one, each operand being what the next layer has in its place.
    fn is_as_next(&mut self, layer: i64) -> bool {
        let mut inputs: Vec<(InputId, InputId)> = Vec::new();
        let mut reach = self.reach;
        for run in &self.runs {
            for within in 0..run.period {
                let (Some(here), Some(there)) = (run.at(layer, within), run.at(layer + 1, within)) else {
                    return false;
                };
                let operands = |at: usize| self.graph.nodes[self.graph.order[at]].operands();
                for (one, other) in operands(here).zip(operands(there)) {
                    match (self.graph.values[one].def, self.graph.values[other].def) {
                        (ValueDef::Input(one), ValueDef::Input(other)) => inputs.push((one, other)),
                        _ if one == other => {}
                        _ => {
                            let Some(apart) = self.is_next(one, other) else { return false };
                            reach = reach.max((layer - apart).abs());
                        }
                    }
                }
            }
        }
        if !self.are_next(&inputs, layer) {
            return false;
        }
        self.reach = reach;
        true
    }

    /// The layer of a value, if the other one is what the next layer has in its place.
    fn is_next(&self, one: ValueId, other: ValueId) -> Option<i64> {
        let (run, here, result) = self.made_at(one)?;
        let (other_run, there, other_result) = self.made_at(other)?;
        let (layer, within) = self.runs[run].layer(here);
        let is_next =
            (run, result) == (other_run, other_result) && self.runs[run].layer(there) == (layer + 1, within);
        is_next.then_some(layer)
    }

    /// Whether each input has one that is in its place in the next layer, or is the same in all; notes it.
    fn are_next(&mut self, inputs: &[(InputId, InputId)], layer: i64) -> bool {
        let (mut next, mut before) = (self.next.clone(), self.before.clone());
        for (one, other) in inputs {
            let is_known = *next.entry(*one).or_insert(*other) == *other
                && *before.entry(*other).or_insert(*one) == *one;
            let is_alike = self.graph.ty(self.graph.inputs[*one].value)
                == self.graph.ty(self.graph.inputs[*other].value)
                && self.graph.inputs[*one].class == self.graph.inputs[*other].class;
            if !is_known || !is_alike {
                return false;
            }
        }
        (self.next, self.before) = (next, before);
        for (one, other) in inputs.iter().filter(|(one, other)| one != other) {
            self.layer_of.insert(*one, layer);
            self.layer_of.insert(*other, layer + 1);
        }
        true
    }

    /// The program with `kept` of the layers that are alike; none where it has no more, or where what reads from one layer to another reaches over
    /// those that are left out, or over those that are kept before or behind.
    pub fn fewer(&self, kept: usize) -> Option<Graph> {
        let at_each_end = self.reach.max(1);
        let ahead = kept.div_ceil(2) as i64;
        let left_out = self.count() as i64 - kept as i64;
        if left_out < at_each_end || kept as i64 - ahead < at_each_end {
            return None;
        }
        let begin = self.alike.0 + ahead;
        Some(Fewer { layers: self, begin, end: begin + left_out }.graph())
    }
}

/// A program without the layers from `begin` on and before `end`.
struct Fewer<'a, 'g> {
    layers: &'a Layers<'g>,
    begin: i64,
    end: i64,
}

impl Fewer<'_, '_> {
    const fn is_out(&self, layer: i64) -> bool {
        self.begin <= layer && layer < self.end
    }

    fn graph(&self) -> Graph {
        let mut graph = self.layers.graph.clone();
        let layer = |id: NodeId| {
            let (run, at) = self.layers.places[id]?;
            Some(self.layers.runs[run].layer(at).0)
        };
        graph.order.retain(|id| layer(*id).is_none_or(|layer| !self.is_out(layer)));
        for id in &graph.order {
            let reader = layer(*id);
            let args = &mut graph.nodes[*id].args;
            for arg in args {
                arg.map_values(|value| self.seen(value, reader));
            }
        }
        graph.returns.iter_mut().for_each(|value| *value = self.seen(*value, None));
        self.keep_inputs(&mut graph);
        keep_needed(&mut graph);
        graph.into_renumbered()
    }

    /// What a layer reads instead of a value that is left out: layers before see the first ones behind, all else sees the last ones before.
    fn seen(&self, value: ValueId, reader: Option<i64>) -> ValueId {
        let Some(layer) = self.layers.layer_of_value(value).filter(|layer| self.is_out(*layer)) else {
            return value;
        };
        let left_out = self.end - self.begin;
        let alike = |layer: i64| self.layers.alike.0 <= layer && layer <= self.layers.alike.1;
        let to = match reader {
            Some(reader) if alike(reader) && reader < self.begin => layer + left_out,
            Some(reader) if alike(reader) => layer - left_out,
            _ => self.begin - 1,
        };
        self.in_layer(value, layer, to).unwrap_or(value)
    }

    /// What another layer has in the place of a value.
    fn in_layer(&self, value: ValueId, layer: i64, to: i64) -> Option<ValueId> {
        let Layers { graph, runs, next, before, .. } = self.layers;
        if let ValueDef::Input(input) = graph.values[value].def {
            let steps = if to > layer { next } else { before };
            let found = (0..layer.abs_diff(to)).try_fold(input, |input, _| steps.get(&input).copied())?;
            return Some(graph.inputs[found].value);
        }
        let (run, at, result) = self.layers.made_at(value)?;
        let at = runs[run].at(to, runs[run].layer(at).1)?;
        graph.nodes[graph.order[at]].results().nth(result as usize)
    }

    /// Leaves out the inputs of the layers that are left out, and their updates.
    fn keep_inputs(&self, graph: &mut Graph) {
        let out: FxHashSet<InputId> = self
            .layers
            .layer_of
            .iter()
            .filter(|(_, layer)| self.is_out(**layer))
            .map(|(input, _)| *input)
            .collect();
        let mut new: FxHashMap<InputId, InputId> = FxHashMap::default();
        let mut inputs = PrimaryMap::new();
        for (id, input) in graph.inputs.iter().filter(|(id, _)| !out.contains(id)) {
            new.insert(id, inputs.push(input.clone()));
        }
        for (id, input) in inputs.iter() {
            graph.values[input.value].def = ValueDef::Input(id);
        }
        graph.inputs = inputs;
        let updates = std::mem::take(&mut graph.updates).into_iter();
        graph.updates =
            updates.filter_map(|(input, value)| Some((*new.get(&input)?, self.seen(value, None)))).collect();
    }
}

/// Leaves out what no return and no update needs.
fn keep_needed(graph: &mut Graph) {
    let ends = graph.returns.iter().chain(graph.updates.iter().map(|(_, value)| value));
    let mut needed: FxHashSet<NodeId> = ends.filter_map(|value| graph.maker(*value)).collect();
    for id in graph.order.iter().rev() {
        if needed.contains(id) {
            needed.extend(graph.nodes[*id].operands().filter_map(|value| graph.maker(value)));
        }
    }
    graph.order.retain(|id| needed.contains(id));
}

/// A number for each operation of a program that is equal for equal ones: operator, arguments but tensors, and the types of tensors.
fn signatures(graph: &Graph) -> Vec<u64> {
    let signature = |id: &NodeId| {
        let node = &graph.nodes[*id];
        let mut hasher = FxHasher::default();
        node.key(|_| 0).hash(&mut hasher);
        node.operands().chain(node.results()).for_each(|value| graph.ty(value).hash(&mut hasher));
        hasher.finish()
    };
    graph.order.iter().map(signature).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub mod tests {
    use ir::{Arg, Dtype, InputClass, PartKind, TensorType, testing::Random, verify};

    use super::*;

    const MM: &str = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
    const T: &str = "aten::t(Tensor(a) self) -> Tensor(a)";
    const ADD: &str = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
    const MUL: &str = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";
    const EXP: &str = "aten::exp(Tensor self) -> Tensor";

    /// What a tower of layers is like.
    #[derive(Clone, Copy)]
    pub struct Tower {
        /// How many layers there are.
        pub layers: usize,
        /// Rows of the batch.
        pub rows: i64,
        /// Columns of the batch, and of the square parameters.
        pub width: i64,
        /// How many layers back a layer reads beside the one before.
        pub reach: usize,
        /// A layer with an operation more.
        pub odd: Option<usize>,
    }

    fn value(graph: &mut Graph, op: &str, operands: &[ValueId], shape: [i64; 2]) -> ValueId {
        let mut args: Vec<Arg> = operands.iter().map(|value| Arg::Value(*value)).collect();
        if op == ADD {
            args.push(Arg::Int(1));
        }
        graph.push_value(op, args, TensorType::contiguous(Dtype::F32, &shape[..]))
    }

    /// Layers `x + exp(x w) m`, with a mask `m` for all of them, gradients of their parameters, and plain descent.
    pub fn tower(of: Tower) -> Graph {
        let Tower { layers, rows, width, reach, odd } = of;
        let (own, square) = ([rows, width], [width, width]);
        let mut graph = Graph::default();
        let ty = |shape: [i64; 2]| TensorType::contiguous(Dtype::F32, &shape[..]);
        let weights: Vec<ValueId> = (0..layers)
            .map(|at| graph.input(InputClass::Parameter, format!("params.{at}"), ty(square)))
            .collect();
        let batch = graph.input(InputClass::Batch, "batch", ty(own));
        graph.begin_part(PartKind::Forward);
        let mask = value(&mut graph, EXP, &[batch], own);
        let (mut xs, mut hs) = (vec![value(&mut graph, MUL, &[batch, mask], own)], Vec::new());
        for (at, weight) in weights.iter().enumerate() {
            let x = xs[at];
            let product = value(&mut graph, MM, &[x, *weight], own);
            let mut h = value(&mut graph, EXP, &[product], own);
            if odd == Some(at) {
                h = value(&mut graph, EXP, &[h], own);
            }
            hs.push(h);
            let masked = value(&mut graph, MUL, &[h, mask], own);
            let skipped = xs[at.saturating_sub(reach - 1)];
            xs.push(value(&mut graph, ADD, &[skipped, masked], own));
        }
        graph.begin_part(PartKind::Backward);
        let mut gradient = value(&mut graph, EXP, &[xs[layers]], own);
        let mut gradients = Vec::new();
        for at in (0..layers).rev() {
            let masked = value(&mut graph, MUL, &[gradient, mask], own);
            let inner = value(&mut graph, MUL, &[masked, hs[at]], own);
            let turned = value(&mut graph, T, &[xs[at]], [width, rows]);
            gradients.push(value(&mut graph, MM, &[turned, inner], square));
            if at == 0 {
                break;
            }
            let back = value(&mut graph, T, &[weights[at]], square);
            let through = value(&mut graph, MM, &[inner, back], own);
            gradient = value(&mut graph, ADD, &[gradient, through], own);
        }
        graph.begin_part(PartKind::Update);
        gradients.reverse();
        for (at, gradient) in gradients.into_iter().enumerate() {
            let scaled = value(&mut graph, MUL, &[gradient, gradient], square);
            let updated = value(&mut graph, ADD, &[weights[at], scaled], square);
            graph.updates.push((InputId(at as u32), updated));
        }
        graph.returns.push(xs[layers]);
        graph
    }

    /// The text form without names of inputs.
    fn text(graph: &Graph) -> String {
        let mut graph = graph.renumbered();
        for (id, input) in graph.inputs.iter_mut() {
            input.name = id.to_string();
        }
        graph.to_string()
    }

    /// The lines of one text form that are not those of the other.
    fn unlike(one: &Graph, other: &Graph) -> Vec<String> {
        let (one, other) = (text(one), text(other));
        let pairs = one.lines().zip(other.lines()).filter(|(one, other)| one != other);
        let mut unlike: Vec<String> = pairs.map(|(one, other)| format!("{one} | {other}")).collect();
        if one.lines().count() != other.lines().count() {
            unlike.push(format!("{} and {} lines", one.lines().count(), other.lines().count()));
        }
        unlike
    }

    #[test]
    fn fewer_layers_are_the_step_of_a_model_with_fewer_layers() {
        for (layers, reach) in [(8, 1), (12, 2), (17, 3)] {
            let of = Tower { layers, rows: 8, width: 4, reach, odd: None };
            let graph = tower(of);
            let found = Layers::of(&graph).unwrap();
            // The first ones read the first one, whose gradient goes nowhere, and the last one's is not a sum.
            assert!(found.count() + 2 * reach + 1 >= layers, "{} of {layers} are alike", found.count());
            for kept in 2 * reach..=found.count() - reach {
                let fewer = found.fewer(kept).unwrap();
                verify(&fewer).unwrap();
                let expected = tower(Tower { layers: layers - found.count() + kept, ..of });
                assert_eq!(unlike(&fewer, &expected), Vec::<String>::new(), "{kept} of {layers}");
            }
            assert!(found.fewer(found.count()).is_none());
            assert!(found.fewer(reach - 1).is_none(), "too few for what reaches {reach} back");
        }
    }

    #[test]
    fn a_layer_that_is_unlike_ends_those_that_are_alike() {
        let of = Tower { layers: 20, rows: 8, width: 4, reach: 1, odd: Some(6) };
        let graph = tower(of);
        let found = Layers::of(&graph).unwrap();
        assert!((10..=13).contains(&found.count()), "{} of 13", found.count());
        let fewer = found.fewer(4).unwrap();
        verify(&fewer).unwrap();
        let expected = tower(Tower { layers: 20 - found.count() + 4, ..of });
        assert_eq!(unlike(&fewer, &expected), Vec::<String>::new());
    }

    #[test]
    fn a_program_that_repeats_nothing_has_no_layers() {
        let mut random = Random::new(3);
        for seed in 0..20 {
            let graph = ir::testing::random_graph(seed, 20 + random.below(60));
            if let Some(fewer) = Layers::of(&graph).and_then(|layers| layers.fewer(2)) {
                verify(&fewer).unwrap();
            }
        }
        let of = Tower { layers: 1, rows: 8, width: 4, reach: 1, odd: None };
        assert!(Layers::of(&tower(of)).is_none());
    }
}
