//! Layers: what a program repeats, one piece after the other.
//!
//! Names count for nothing here. A run is a stretch of the order in which equal operations come back after so many others: the layers of
//! forward, the same in backward, from the last to the first, and what updates their parameters. Runs are tied together by what they read of
//! each other, and pieces count as layers where every operand is the next layer's where the operation is.

use std::{
    cmp::Reverse,
    hash::{Hash, Hasher},
    ops::Range,
};

use base::SecondaryMap;
use ir::{Arg, Graph, InputId, NodeId, ValueDef, ValueId};
use rustc_hash::{FxHashMap, FxHasher};

use crate::repeats::{Run, longest_run};

/// The layers of a program.
pub struct Layers<'g> {
    /// The program.
    pub graph: &'g Graph,
    runs: Vec<Run>,
    /// The run of each node that is in one, and its position in the program.
    places: SecondaryMap<NodeId, Option<(usize, usize)>>,
    /// The run that reads a value first, of those in the order in which they were found, and where.
    readers: FxHashMap<ValueId, (usize, usize)>,
    /// The input that the next layer has where a layer has this one, and back, and the layer.
    next: FxHashMap<InputId, InputId>,
    before: FxHashMap<InputId, InputId>,
    layer_of_input: FxHashMap<InputId, i64>,
    /// The first and the last of those that are alike.
    pub alike: (i64, i64),
    /// The most layers between an operation and what it reads.
    pub reach: i64,
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
            layer_of_input: FxHashMap::default(),
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
            self.layer_of_input.insert(*one, layer);
            self.layer_of_input.insert(*other, layer + 1);
        }
        true
    }

    /// The layer of an operation in a run.
    pub fn layer_of(&self, id: NodeId) -> Option<i64> {
        let (run, at) = self.places[id]?;
        Some(self.runs[run].layer(at).0)
    }

    /// The layer that a value is of.
    pub fn layer_of_value(&self, value: ValueId) -> Option<i64> {
        match self.graph.values[value].def {
            ValueDef::Input(input) => self.layer_of_input.get(&input).copied(),
            ValueDef::Result(node, _) => self.layer_of(node),
        }
    }

    /// The inputs that are of one layer each, with it.
    pub fn inputs(&self) -> impl Iterator<Item = (InputId, i64)> + '_ {
        self.graph.inputs.ids().filter_map(|input| Some((input, *self.layer_of_input.get(&input)?)))
    }

    /// What another layer has in the place of an operation.
    pub fn node_in(&self, id: NodeId, layer: i64) -> Option<NodeId> {
        let (run, at) = self.places[id]?;
        let run = &self.runs[run];
        run.at(layer, run.layer(at).1).map(|at| self.graph.order[at])
    }

    /// The same of an input.
    pub fn input_in(&self, input: InputId, layer: i64) -> Option<InputId> {
        let own = *self.layer_of_input.get(&input)?;
        let steps = if layer > own { &self.next } else { &self.before };
        (0..own.abs_diff(layer)).try_fold(input, |input, _| steps.get(&input).copied())
    }

    /// The same of a value.
    pub fn value_in(&self, value: ValueId, layer: i64) -> Option<ValueId> {
        match self.graph.values[value].def {
            ValueDef::Input(input) => self.input_in(input, layer).map(|input| self.graph.inputs[input].value),
            ValueDef::Result(node, position) => {
                let node = self.node_in(node, layer)?;
                self.graph.nodes[node].results().nth(position as usize)
            }
        }
    }
}

/// A number for each operation of a program that is equal for equal ones: operator, arguments but tensors, and the types of tensors.
fn signatures(graph: &Graph) -> Vec<u64> {
    let signature = |id: &NodeId| {
        let node = &graph.nodes[*id];
        let mut hasher = FxHasher::default();
        // Each layer draws numbers of its own.
        match aten::row(graph.op_name(*id)).and_then(|row| row.number) {
            Some(number) => {
                let mut any = node.clone();
                any.args[number] = Arg::None;
                any.key(|_| 0).hash(&mut hasher);
            }
            None => node.key(|_| 0).hash(&mut hasher),
        }
        node.operands().chain(node.results()).for_each(|value| graph.ty(value).hash(&mut hasher));
        hasher.finish()
    };
    graph.order.iter().map(signature).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub mod tests {
    use ir::{Arg, Dtype, InputClass, PartKind, TensorType};

    use super::*;

    const MM: &str = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
    const T: &str = "aten::t(Tensor(a) self) -> Tensor(a)";
    const ADD: &str = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
    const MUL: &str = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";
    const EXP: &str = "aten::exp(Tensor self) -> Tensor";
    const RANDOM: &str = "unisono::random_at(Tensor key, Tensor[] index, int[] shape, int number, str distribution, float a, float b, int digits, ScalarType dtype) -> Tensor";

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
        built(of, false)
    }

    /// The same, each layer with a mask of its own that it draws by a counter.
    pub fn drawing_tower(of: Tower) -> Graph {
        built(of, true)
    }

    /// A mask that is drawn by a counter: by the key and the positions of rows and columns, which are inputs.
    fn drawn(graph: &mut Graph, [key, rows, columns]: [ValueId; 3], number: i64, shape: [i64; 2]) -> ValueId {
        let args = vec![
            Arg::Value(key),
            Arg::Values(vec![Some(rows), Some(columns)]),
            Arg::Ints(shape.to_vec()),
            Arg::Int(number),
            Arg::Str("bernoulli".into()),
            Arg::Float(0.9),
            Arg::Float(0.0),
            Arg::Int(24),
            Arg::Dtype(Dtype::F32),
        ];
        graph.push_value(RANDOM, args, TensorType::contiguous(Dtype::F32, &shape[..]))
    }

    fn built(of: Tower, draws: bool) -> Graph {
        let Tower { layers, rows, width, reach, odd } = of;
        let (own, square) = ([rows, width], [width, width]);
        let mut graph = Graph::default();
        let ty = |shape: [i64; 2]| TensorType::contiguous(Dtype::F32, &shape[..]);
        let weights: Vec<ValueId> = (0..layers)
            .map(|at| graph.input(InputClass::Parameter, format!("params.{at}"), ty(square)))
            .collect();
        let batch = graph.input(InputClass::Batch, "batch", ty(own));
        let of_draws = draws.then(|| {
            [("key", 2), ("rows", rows), ("columns", width)].map(|(name, size)| {
                graph.input(InputClass::Constant, name, TensorType::contiguous(Dtype::I64, &[size][..]))
            })
        });
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
            if let Some(of_draws) = of_draws {
                let drawn = drawn(&mut graph, of_draws, at as i64, own);
                h = value(&mut graph, MUL, &[h, drawn], own);
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

    #[test]
    fn a_program_that_repeats_nothing_has_no_layers() {
        let of = Tower { layers: 1, rows: 8, width: 4, reach: 1, odd: None };
        assert!(Layers::of(&tower(of)).is_none());
    }
}
