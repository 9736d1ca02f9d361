//! Problems shaped like the sharding of a whole training step, for tests and measurements.
//!
//! A decoder of any depth is written as a list of operations on matrices `[tokens, features]`, differentiated and given an
//! Adam step; every operation becomes a variable whose states are the ways to cut it over one axis of eight devices, every
//! value with several uses one *copy set* for each phase (forward, backward, optimizer) that uses it, and every resharding
//! a table. So the graph is the ladder of the real thing: a forward rail, a backward rail, rungs of saved values, and one
//! hub where the norms of all gradients meet.

use unisono_solve::{Cost, Problem, VariableId};

/// Placement of a matrix on the one axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Placement {
    Replicate,
    Partial,
    Rows,
    Columns,
}
use Placement::{Columns, Partial, Replicate, Rows};

const ALL: [Placement; 4] = [Replicate, Partial, Rows, Columns];
const DEVICES: i64 = 8;

/// One way to run an operation: what it needs, what it gives, what it costs in picoseconds.
struct Way {
    needs: Vec<Placement>,
    gives: Placement,
    cost: i64,
}

struct Operation {
    ways: Vec<Way>,
    inputs: Vec<usize>,
    phase: usize,
    /// The state whose new value this is.
    updates: Option<usize>,
}

/// The output of the operation of the same number.
struct Value {
    bytes: i64,
    uses: Vec<(usize, usize)>,
}

/// How large the decoder is.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Tokens of a step.
    pub tokens: i64,
    /// Features of the residual stream.
    pub width: i64,
}

impl Shape {
    /// A decoder of the width of LLaMA-7B with 2048 tokens.
    pub fn llama(layers: usize) -> Self {
        Self { layers, tokens: 2048, width: 4096 }
    }
}

/// The problem of placing a whole training step of the decoder.
pub fn ladder(shape: Shape) -> Problem {
    let mut step = Step::default();
    let loss = step.forward(shape);
    step.backward(loss);
    step.optimizer();
    step.problem()
}

#[derive(Default)]
struct Step {
    operations: Vec<Operation>,
    values: Vec<Value>,
    /// For the gradient: what each operation of the forward phase was.
    tape: Vec<(Kind, usize)>,
    phase: usize,
    parameters: Vec<usize>,
    gradients: Vec<Option<usize>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    State,
    Matmul { flops: i64 },
    Transpose,
    Pointwise,
    Add,
    RowSum,
    Scale,
    Attention { flops: i64 },
}

/// Time of a kernel: 400 TFLOP/s, 3 TB/s, and a third of the traffic of a pointwise operation is real.
fn kernel(flops: i64, bytes: i64, shards: i64) -> i64 {
    (flops / 400).max(bytes / 10) / shards
}

/// Time of a change of placement: 100 GB/s and 5 us for each collective.
fn reshard(from: Placement, to: Placement, bytes: i64) -> Cost {
    let gather = bytes * 10 * (DEVICES - 1) / DEVICES;
    match (from, to) {
        (a, b) if a == b => Cost::ZERO,
        (Replicate, _) => Cost::ZERO,
        (_, Partial) => Cost::INFINITE,
        (Partial, Replicate) => Cost::new(10_000_000 + 2 * gather, 2),
        (Rows | Columns, Replicate) | (Partial, _) => Cost::new(5_000_000 + gather, 1),
        _ => Cost::new(5_000_000 + gather / DEVICES, 1),
    }
}

/// Bytes of a device's part.
fn local(placement: Placement, bytes: i64) -> u64 {
    (if matches!(placement, Rows | Columns) { bytes / DEVICES } else { bytes }) as u64
}

impl Step {
    fn push(&mut self, kind: Kind, inputs: &[usize], bytes: i64) -> usize {
        let id = self.operations.len();
        for (slot, &input) in inputs.iter().enumerate() {
            self.values[input].uses.push((id, slot));
        }
        let traffic = bytes + inputs.iter().map(|&input| self.values[input].bytes).sum::<i64>();
        let ways = ways(kind, inputs.len(), traffic);
        let inputs = inputs.to_vec();
        self.operations.push(Operation { ways, inputs, phase: self.phase, updates: None });
        self.values.push(Value { bytes, uses: Vec::new() });
        self.tape.push((kind, id));
        id
    }

    fn state(&mut self, bytes: i64) -> usize {
        self.push(Kind::State, &[], bytes)
    }

    fn parameter(&mut self, bytes: i64) -> usize {
        let parameter = self.state(bytes);
        self.parameters.push(parameter);
        parameter
    }

    fn linear(&mut self, x: usize, (tokens, from, to): (i64, i64, i64)) -> usize {
        let weight = self.parameter(2 * from * to);
        let transposed = self.push(Kind::Transpose, &[weight], 2 * from * to);
        self.push(Kind::Matmul { flops: 2 * tokens * from * to }, &[x, transposed], 2 * tokens * to)
    }

    fn norm(&mut self, x: usize, shape: Shape) -> usize {
        let bytes = 2 * shape.tokens * shape.width;
        let weight = self.parameter(2 * shape.width);
        let wide = self.push(Kind::Pointwise, &[x], 2 * bytes);
        let square = self.push(Kind::Pointwise, &[wide], 2 * bytes);
        let mean = self.push(Kind::RowSum, &[square], 4 * shape.tokens);
        let root = self.push(Kind::Scale, &[mean], 4 * shape.tokens);
        let scaled = self.push(Kind::Scale, &[wide, root], 2 * bytes);
        let narrow = self.push(Kind::Pointwise, &[scaled], bytes);
        self.push(Kind::Scale, &[narrow, weight], bytes)
    }

    fn rotate(&mut self, x: usize, bytes: i64) -> usize {
        let cosine = self.push(Kind::Pointwise, &[x], bytes);
        let half = self.push(Kind::Pointwise, &[x], bytes);
        let turned = self.push(Kind::Pointwise, &[half], bytes);
        let sine = self.push(Kind::Pointwise, &[turned], bytes);
        self.push(Kind::Add, &[cosine, sine], bytes)
    }

    fn layer(&mut self, x: usize, shape: Shape) -> usize {
        let Shape { tokens, width, .. } = shape;
        let bytes = 2 * tokens * width;
        let normed = self.norm(x, shape);
        let [q, k, v] = [0; 3].map(|_| {
            let flat = self.linear(normed, (tokens, width, width));
            self.push(Kind::Pointwise, &[flat], bytes)
        });
        let (q, k) = (self.rotate(q, bytes), self.rotate(k, bytes));
        let attended = self.push(Kind::Attention { flops: 4 * tokens * tokens * width }, &[q, k, v], bytes);
        let flat = self.push(Kind::Pointwise, &[attended], bytes);
        let output = self.linear(flat, (tokens, width, width));
        let x = self.push(Kind::Add, &[x, output], bytes);
        let normed = self.norm(x, shape);
        let hidden = width * 11 / 4;
        let gate = self.linear(normed, (tokens, width, hidden));
        let up = self.linear(normed, (tokens, width, hidden));
        let gate = self.push(Kind::Pointwise, &[gate], 2 * tokens * hidden);
        let product = self.push(Kind::Scale, &[gate, up], 2 * tokens * hidden);
        let down = self.linear(product, (tokens, hidden, width));
        self.push(Kind::Add, &[x, down], bytes)
    }

    fn forward(&mut self, shape: Shape) -> usize {
        let bytes = 2 * shape.tokens * shape.width;
        let mut x = self.state(bytes);
        for _ in 0..shape.layers {
            x = self.layer(x, shape);
        }
        x = self.norm(x, shape);
        let logits = self.linear(x, (shape.tokens, shape.width, 32_000));
        self.push(Kind::RowSum, &[logits], 4 * shape.tokens)
    }

    fn accumulate(&mut self, value: usize, gradient: usize) {
        let sum = match self.gradients[value] {
            None => gradient,
            Some(other) => self.push(Kind::Add, &[other, gradient], self.values[value].bytes),
        };
        self.gradients[value] = Some(sum);
    }

    fn backward(&mut self, loss: usize) {
        self.phase = 1;
        let forward = self.tape.clone();
        self.gradients = vec![None; forward.len()];
        self.gradients[loss] = Some(self.push(Kind::Pointwise, &[loss], self.values[loss].bytes));
        for (kind, id) in forward.into_iter().rev() {
            let Some(gradient) = self.gradients[id] else { continue };
            let inputs = self.operations[id].inputs.clone();
            self.differentiate(kind, &inputs, gradient);
        }
    }

    fn differentiate(&mut self, kind: Kind, inputs: &[usize], gradient: usize) {
        let bytes: Vec<i64> = inputs.iter().map(|&input| self.values[input].bytes).collect();
        match (kind, inputs) {
            (Kind::State, _) => {}
            (Kind::Matmul { .. }, &[a, b]) => {
                let b_t = self.push(Kind::Transpose, &[b], bytes[1]);
                let a_t = self.push(Kind::Transpose, &[a], bytes[0]);
                let to_a = self.push(kind, &[gradient, b_t], bytes[0]);
                let to_b = self.push(kind, &[a_t, gradient], bytes[1]);
                self.accumulate(a, to_a);
                self.accumulate(b, to_b);
            }
            (Kind::Scale, &[a, b]) => {
                let to_a = self.push(Kind::Scale, &[gradient, b], bytes[0]);
                let product = self.push(Kind::Scale, &[gradient, a], bytes[0]);
                let to_b = if bytes[0] == bytes[1] {
                    product
                } else {
                    self.push(Kind::RowSum, &[product], bytes[1])
                };
                self.accumulate(a, to_a);
                self.accumulate(b, to_b);
            }
            (Kind::Attention { .. }, &[q, k, v]) => {
                for input in [q, k, v] {
                    let part = self.push(kind, &[gradient, k, v], self.values[input].bytes);
                    self.accumulate(input, part);
                }
            }
            (Kind::Add, &[a, b]) => {
                self.accumulate(a, gradient);
                self.accumulate(b, gradient);
            }
            (Kind::Transpose, &[a]) => {
                let turned = self.push(Kind::Transpose, &[gradient], bytes[0]);
                self.accumulate(a, turned);
            }
            (_, &[a]) => {
                let part = self.push(Kind::Scale, &[gradient, a], bytes[0]);
                self.accumulate(a, part);
            }
            _ => unreachable!("kinds have one number of inputs"),
        }
    }

    /// Clip by the norm of all gradients, then an Adam step for each parameter.
    fn optimizer(&mut self) {
        self.phase = 2;
        let parameters = self.parameters.clone();
        let gradients: Vec<usize> =
            parameters.iter().map(|&p| self.gradients[p].expect("a gradient")).collect();
        let norms: Vec<usize> = gradients.iter().map(|&g| self.push(Kind::RowSum, &[g], 4)).collect();
        // The hub only adds what it gets, partial or not.
        let hub = self.push(Kind::Add, &norms, 4);
        self.operations[hub].ways.retain(|way| matches!(way.gives, Replicate | Partial));
        for (parameter, gradient) in parameters.into_iter().zip(gradients) {
            self.adam(parameter, gradient);
        }
    }

    fn adam(&mut self, parameter: usize, gradient: usize) {
        let bytes = self.values[parameter].bytes;
        let clipped = self.push(Kind::Pointwise, &[gradient], bytes);
        let [first, second] = [0, 1].map(|power| {
            let state = self.state(2 * bytes);
            let decayed = self.push(Kind::Pointwise, &[state], 2 * bytes);
            let inputs = [clipped, clipped, decayed];
            let new = self.push(Kind::Scale, &inputs[1 - power..], 2 * bytes);
            self.operations[new].updates = Some(state);
            new
        });
        let corrected = self.push(Kind::Pointwise, &[first], 2 * bytes);
        let mut root = second;
        for _ in 0..3 {
            root = self.push(Kind::Scale, &[root], 2 * bytes);
        }
        let quotient = self.push(Kind::Scale, &[corrected, root], 2 * bytes);
        let decayed = self.push(Kind::Pointwise, &[parameter], bytes);
        let new = self.push(Kind::Add, &[decayed, quotient], bytes);
        self.operations[new].updates = Some(parameter);
    }
}

/// The ways to cut an operation with this many inputs over the axis.
fn ways(kind: Kind, inputs: usize, traffic: i64) -> Vec<Way> {
    let way = |needs: &[Placement], gives, flops| {
        let shards = if needs.iter().chain([&gives]).all(|&p| p == Replicate) { 1 } else { DEVICES };
        Way { needs: needs.to_vec(), gives, cost: kernel(flops, traffic, shards) }
    };
    let alike = |placement| way(&vec![placement; inputs], placement, 0);
    match kind {
        Kind::State => [Replicate, Rows, Columns].map(|p| Way { needs: vec![], gives: p, cost: 0 }).into(),
        Kind::Matmul { flops } => vec![
            way(&[Replicate, Replicate], Replicate, flops),
            way(&[Rows, Replicate], Rows, flops),
            way(&[Replicate, Columns], Columns, flops),
            way(&[Columns, Rows], Partial, flops),
            way(&[Partial, Replicate], Partial, flops * DEVICES),
            way(&[Replicate, Partial], Partial, flops * DEVICES),
        ],
        Kind::Transpose => [(Replicate, Replicate), (Rows, Columns), (Columns, Rows), (Partial, Partial)]
            .map(|(needs, gives)| Way { needs: vec![needs], gives, cost: 0 })
            .into(),
        Kind::Pointwise | Kind::Add => ALL.map(alike).into(),
        Kind::RowSum => vec![
            way(&[Replicate], Replicate, 0),
            way(&[Rows], Rows, 0),
            way(&[Columns], Partial, 0),
            way(&[Partial], Partial, 0),
        ],
        Kind::Scale => {
            let mut ways: Vec<Way> = [Replicate, Rows, Columns].map(alike).into();
            for slot in 0..if inputs > 1 { inputs } else { 0 } {
                let mut needs = vec![Replicate; inputs];
                needs[slot] = Partial;
                ways.push(way(&needs, Partial, 0));
            }
            ways
        }
        Kind::Attention { flops } => vec![
            way(&[Replicate; 3], Replicate, flops),
            way(&[Rows, Replicate, Replicate], Rows, flops),
            way(&[Columns; 3], Columns, flops),
        ],
    }
}

/// Where a value is kept in one phase: the placement that it is read from, and what else is made of it.
#[derive(Clone, PartialEq)]
struct CopySet {
    from: Placement,
    extras: Vec<Placement>,
}

impl CopySet {
    fn all() -> Vec<Self> {
        let with = |from: Placement| {
            let others: Vec<Placement> =
                [Replicate, Rows, Columns].into_iter().filter(|&p| p != from && from != Replicate).collect();
            let mut sets = vec![vec![]];
            for (i, &a) in others.iter().enumerate() {
                sets.push(vec![a]);
                sets.extend(others[i + 1..].iter().map(|&b| vec![a, b]));
            }
            sets.into_iter().map(move |extras| Self { from, extras })
        };
        ALL.into_iter().flat_map(with).collect()
    }

    /// Bytes kept on a device: what it is read from, where that is kept at all, and the extras.
    fn weight(&self, bytes: i64, from_is_kept: bool) -> u64 {
        let kept = self.extras.iter().chain(from_is_kept.then_some(&self.from));
        kept.map(|&placement| local(placement, bytes)).sum()
    }

    fn cost(&self, bytes: i64) -> Cost {
        self.extras.iter().map(|&extra| reshard(self.from, extra, bytes)).sum()
    }

    /// Use is free where the placement is there or a slice of one that is.
    fn offer(&self, needed: Placement) -> Cost {
        let here = |p: Placement| p == needed || p == Replicate;
        let free = here(self.from) || self.extras.iter().any(|&extra| here(extra));
        if free { Cost::ZERO } else { Cost::INFINITE }
    }
}

impl Step {
    fn problem(&self) -> Problem {
        let mut problem = Problem::new();
        let sets = CopySet::all();
        let mut variables: Vec<VariableId> = Vec::new();
        let mut copies: Vec<[Option<VariableId>; 3]> = Vec::new();
        for (operation, value) in self.operations.iter().zip(&self.values) {
            let costs: Vec<Cost> = operation.ways.iter().map(|way| Cost::new(way.cost, 0)).collect();
            // State stays on the device; of all other values, copies weigh what outlives the phase.
            let state = operation.inputs.is_empty();
            let kept = |way: &Way| if state { local(way.gives, value.bytes) } else { 0 };
            variables.push(
                problem.weighted_variable(&costs, &operation.ways.iter().map(kept).collect::<Vec<_>>()),
            );
            let set_costs: Vec<Cost> = sets.iter().map(|set| set.cost(value.bytes)).collect();
            let used = |phase| value.uses.iter().any(|&(user, _)| self.operations[user].phase == phase);
            let shared = value.uses.len() > 1;
            copies.push([0, 1, 2].map(|phase| {
                let crosses = phase > operation.phase;
                let weights = |set: &CopySet| if crosses { set.weight(value.bytes, !state) } else { 0 };
                let weights: Vec<u64> = sets.iter().map(weights).collect();
                (shared && used(phase)).then(|| problem.weighted_variable(&set_costs, &weights))
            }));
        }
        for (id, copies) in copies.iter().enumerate() {
            self.connect(id, &variables, copies, &sets, &mut problem);
        }
        problem
    }

    /// Adds the tables between a value's producer, its copies and its uses.
    fn connect(
        &self,
        id: usize,
        variables: &[VariableId],
        copies: &[Option<VariableId>; 3],
        sets: &[CopySet],
        problem: &mut Problem,
    ) {
        let (operation, value) = (&self.operations[id], &self.values[id]);
        let mut source = None;
        for copy in copies.iter().flatten() {
            match source {
                None => link(problem, (variables[id], &operation.ways), (*copy, sets), |way, set| {
                    reshard(way.gives, set.from, value.bytes)
                }),
                Some(before) => {
                    link(problem, (before, sets), (*copy, sets), |a: &CopySet, b| a.offer(b.from));
                }
            }
            source = Some(*copy);
        }
        for &(user, slot) in &value.uses {
            let ways = (variables[user], self.operations[user].ways.as_slice());
            match copies[self.operations[user].phase] {
                Some(copy) => link(problem, (copy, sets), ways, |set, way| set.offer(way.needs[slot])),
                None => link(problem, (variables[id], &operation.ways), ways, |a, b| {
                    reshard(a.gives, b.needs[slot], value.bytes)
                }),
            }
        }
        if let Some(state) = operation.updates {
            let old = (variables[state], self.operations[state].ways.as_slice());
            link(problem, (variables[id], &operation.ways), old, |new, old| {
                reshard(new.gives, old.gives, value.bytes)
            });
        }
    }
}

fn link<A, B>(
    problem: &mut Problem,
    (a, a_states): (VariableId, &[A]),
    (b, b_states): (VariableId, &[B]),
    cost: impl Fn(&A, &B) -> Cost,
) {
    let costs: Vec<Cost> = a_states.iter().flat_map(|x| b_states.iter().map(|y| cost(x, y))).collect();
    let table = problem.table(a_states.len(), b_states.len(), &costs);
    problem.pair(a, b, table);
}
