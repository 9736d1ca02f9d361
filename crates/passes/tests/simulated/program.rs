//! Random rank graphs: parameters in halves that are gathered, products and sums of them, reductions, and an optimizer's arithmetic.

use base::Id;
use ir::{
    Arg, Dtype, Graph, InputClass, InputId, PartKind, ReturnType, TensorType, ValueId, testing::Random,
};

const GATHER: &str =
    "_c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor";
const REDUCE: &str = "_c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor";
const SCATTER: &str = "_c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name) -> Tensor";
const WAIT: &str = "_c10d_functional::wait_tensor(Tensor tensor) -> Tensor";
const MM: &str = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
const T: &str = "aten::t(Tensor(a) self) -> Tensor(a)";
const VIEW: &str = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)";
const PERMUTE: &str = "aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)";
const CLONE: &str = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor";
const NEG: &str = "aten::neg(Tensor self) -> Tensor";
const STACK: &str = "aten::stack(Tensor[] tensors, int dim=0) -> Tensor";
const SPLIT: &str =
    "aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]";
const SLICE: &str = "aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)";
const OVER: &str = "aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor";
const COPY: &str = "aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor";
const DETACH: &str = "aten::detach(Tensor(a) self) -> Tensor(a)";
const ABS: &str = "aten::abs(Tensor self) -> Tensor";
const ADD: &str = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
const MUL: &str = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";

/// Rows and columns of a whole matrix; a rank holds half of the rows.
const SIZE: i64 = 4;

struct Maker {
    random: Random,
    graph: Graph,
    halves: Vec<ValueId>,
    wholes: Vec<ValueId>,
}

/// A graph of about `nodes` operations for one of two ranks.
pub fn rank_graph(seed: u64, nodes: usize) -> Graph {
    let mut maker =
        Maker { random: Random::new(seed), graph: Graph::default(), halves: Vec::new(), wholes: Vec::new() };
    for i in 0..4 {
        let half = maker.graph.input(InputClass::Parameter, format!("params.{i}"), matrix(SIZE / 2));
        maker.halves.push(half);
    }
    let batch = maker.graph.input(InputClass::Batch, "batch.0", matrix(SIZE));
    maker.wholes.push(batch);
    let scale = TensorType::contiguous(Dtype::F32, [].as_slice());
    let scale = maker.graph.input(InputClass::Hyper, "hyper.0.lr", scale);
    let momenta: Vec<InputId> = (0..4).map(|i| maker.momentum(i)).collect();
    maker.graph.begin_part(PartKind::Forward);
    maker.gathered_parameters();
    for _ in 0..nodes / 3 {
        maker.arithmetic();
    }
    maker.products_of_columns();
    maker.written_by_slices();
    maker.graph.begin_part(PartKind::Backward);
    maker.written_by_slices();
    maker.stacked();
    maker.products_of_columns();
    maker.reduced_to_columns();
    for _ in 0..nodes / 3 {
        maker.arithmetic();
    }
    let gradients: Vec<ValueId> = (0..4).map(|_| maker.scattered()).collect();
    let wholes: Vec<ValueId> = (0..3).map(|_| maker.reduced()).collect();
    maker.graph.begin_part(PartKind::Update);
    maker.optimizer(&gradients, scale, &momenta);
    let sums: Vec<ValueId> =
        wholes.iter().map(|value| maker.push(NEG, vec![Arg::Value(*value)], matrix(SIZE))).collect();
    maker.graph.returns = sums.into_iter().chain([maker.wholes[maker.wholes.len() - 1]]).collect();
    maker.graph
}

fn matrix(rows: i64) -> TensorType {
    TensorType::contiguous(Dtype::F32, [rows, SIZE].as_slice())
}

impl Maker {
    fn push(&mut self, op: &str, args: Vec<Arg>, ty: TensorType) -> ValueId {
        self.graph.push_value(op, args, ty)
    }

    fn whole(&mut self) -> ValueId {
        *self.random.pick(&self.wholes)
    }

    fn gathered_parameters(&mut self) {
        for half in self.halves.clone() {
            let cast = if self.random.once_in(2) {
                self.push(NEG, vec![Arg::Value(half)], matrix(SIZE / 2))
            } else {
                half
            };
            let whole = self.waited(GATHER, vec![Arg::Value(cast), Arg::Int(2)], matrix(SIZE));
            self.wholes.push(whole);
        }
    }

    /// Products with what is gathered along columns, which each rank holds half of.
    fn products_of_columns(&mut self) {
        let contiguous = |shape: &[i64]| TensorType::contiguous(Dtype::F32, shape);
        let half = *self.random.pick(&self.halves);
        let columns =
            self.push(VIEW, vec![Arg::Value(half), Arg::Ints(vec![SIZE, 2])], contiguous(&[SIZE, 2]));
        let gathered =
            self.waited(GATHER, vec![Arg::Value(columns), Arg::Int(2)], contiguous(&[2 * SIZE, 2]));
        let apart = vec![Arg::Value(gathered), Arg::Ints(vec![2, SIZE, 1, 2])];
        let apart = self.push(VIEW, apart, contiguous(&[2, SIZE, 1, 2]));
        let mut ty = contiguous(&[SIZE, 1, 2, 2]);
        ty.strides = [2, 2, 2 * SIZE, 1].as_slice().into();
        let turned = self.push(PERMUTE, vec![Arg::Value(apart), Arg::Ints(vec![1, 2, 0, 3])], ty);
        let copy = vec![Arg::Value(turned), Arg::MemoryFormat("contiguous".into())];
        let copy = self.push(CLONE, copy, contiguous(&[SIZE, 1, 2, 2]));
        let whole = self.push(VIEW, vec![Arg::Value(copy), Arg::Ints(vec![SIZE, SIZE])], matrix(SIZE));
        let left = self.whole();
        let product = self.push(MM, vec![Arg::Value(left), Arg::Value(whole)], matrix(SIZE));
        let mut ty = matrix(SIZE);
        ty.strides.swap(0, 1);
        let transposed = self.push(T, vec![Arg::Value(whole)], ty);
        let product = self.push(MM, vec![Arg::Value(transposed), Arg::Value(product)], matrix(SIZE));
        self.wholes.push(product);
        if self.random.once_in(4) {
            self.wholes.push(whole);
        }
    }

    /// A product that is reduced to the half of the columns that a rank holds, and gathered again along its first dimension.
    fn reduced_to_columns(&mut self) {
        let contiguous = |shape: &[i64]| TensorType::contiguous(Dtype::F32, shape);
        let (left, right) = (Arg::Value(self.whole()), Arg::Value(self.whole()));
        let product = self.push(MM, vec![left, right], matrix(SIZE));
        let apart = vec![Arg::Value(product), Arg::Ints(vec![SIZE, 1, 2, 2])];
        let apart = self.push(VIEW, apart, contiguous(&[SIZE, 1, 2, 2]));
        let mut ty = contiguous(&[2, SIZE, 1, 2]);
        ty.strides = [2, SIZE, SIZE, 1].as_slice().into();
        let turned = self.push(PERMUTE, vec![Arg::Value(apart), Arg::Ints(vec![2, 0, 1, 3])], ty);
        let copy = vec![Arg::Value(turned), Arg::MemoryFormat("contiguous".into())];
        let copy = self.push(CLONE, copy, contiguous(&[2, SIZE, 1, 2]));
        let dealt = vec![Arg::Value(copy), Arg::Ints(vec![2 * SIZE, 2])];
        let dealt = self.push(VIEW, dealt, contiguous(&[2 * SIZE, 2]));
        let args = vec![Arg::Value(dealt), Arg::Str("sum".into()), Arg::Int(2)];
        let part = self.waited(SCATTER, args, contiguous(&[SIZE, 2]));
        let half = self.push(VIEW, vec![Arg::Value(part), Arg::Ints(vec![SIZE / 2, SIZE])], matrix(SIZE / 2));
        let whole = self.waited(GATHER, vec![Arg::Value(half), Arg::Int(2)], matrix(SIZE));
        self.wholes.push(whole);
    }

    /// Two matrices stacked, copied in another order, and taken apart along rows.
    fn stacked(&mut self) {
        let contiguous = |shape: &[i64]| TensorType::contiguous(Dtype::F32, shape);
        let matrices = Arg::Values(vec![Some(self.whole()), Some(self.whole())]);
        let mut shape = vec![SIZE, SIZE];
        let dim = self.random.below(3);
        shape.insert(dim, 2);
        let stack = self.push(STACK, vec![matrices, Arg::Int(dim as i64)], contiguous(&shape));
        let mut order = [0, 1, 2];
        self.random.shuffle(&mut order);
        let mut ty = contiguous(&order.map(|dim| shape[dim]));
        ty.strides = order.iter().map(|dim| ir::contiguous_strides(&shape)[*dim]).collect();
        let order = Arg::Ints(order.iter().map(|dim| *dim as i64).collect());
        let turned = self.push(PERMUTE, vec![Arg::Value(stack), order], ty.clone());
        let copy = vec![Arg::Value(turned), Arg::MemoryFormat("contiguous".into())];
        let copy = self.push(CLONE, copy, contiguous(&ty.shape));
        let rows = vec![Arg::Value(copy), Arg::Ints(vec![2 * SIZE, SIZE])];
        let rows = self.push(VIEW, rows, contiguous(&[2 * SIZE, SIZE]));
        let parts = ReturnType::Tensors(vec![matrix(SIZE); 2]);
        let args = vec![Arg::Value(rows), Arg::Ints(vec![SIZE; 2]), Arg::Int(0)];
        let split = self.graph.push(SPLIT, args, vec![parts]);
        self.wholes.extend(self.graph.nodes[split].results().collect::<Vec<_>>());
    }

    /// A matrix with one or both of its halves written, side by side or in turns; the second sometimes is what is read of it then.
    fn written_by_slices(&mut self) {
        let mut at = self.whole();
        let (dim, in_turns) = (self.random.below(2), self.random.once_in(2));
        let mut halves = [0, 1];
        self.random.shuffle(&mut halves);
        for half in &halves[..2 - usize::from(self.random.once_in(4))] {
            let (start, end, step) =
                if in_turns { (*half, i64::MAX, 2) } else { (half * SIZE / 2, (half + 1) * SIZE / 2, 1) };
            let slice = [dim as i64, start, end, step].map(Arg::Int);
            let from = if self.random.once_in(2) { at } else { self.whole() };
            let mut part = self.sliced(from, dim, &slice);
            if from == at || self.random.once_in(2) {
                let ty = TensorType::contiguous(Dtype::F32, self.graph.ty(part).shape.as_slice());
                part = self.push(NEG, vec![Arg::Value(part)], ty);
            }
            if self.random.once_in(2) {
                let over = self.sliced(at, dim, &slice);
                let ty = self.graph.ty(over).clone();
                part = self.push(COPY, vec![Arg::Value(over), Arg::Value(part), Arg::Bool(false)], ty);
            }
            let ty = self.graph.ty(at).clone();
            let args = [Arg::Value(at), Arg::Value(part)].into_iter().chain(slice).collect();
            at = self.push(OVER, args, ty);
        }
        self.wholes.push(at);
    }

    /// Half of a matrix along a dimension.
    fn sliced(&mut self, value: ValueId, dim: usize, slice: &[Arg; 4]) -> ValueId {
        let mut ty = self.graph.ty(value).clone();
        let Arg::Int(step) = slice[3] else { unreachable!("steps are numbers") };
        ty.shape[dim] /= 2;
        ty.strides[dim] *= step;
        self.push(SLICE, std::iter::once(Arg::Value(value)).chain(slice.iter().cloned()).collect(), ty)
    }

    /// A collective and its wait.
    fn waited(&mut self, op: &str, mut args: Vec<Arg>, ty: TensorType) -> ValueId {
        args.push(Arg::Str("axis:a".into()));
        let started = self.push(op, args, ty.clone());
        self.push(WAIT, vec![Arg::Value(started)], ty)
    }

    fn arithmetic(&mut self) {
        let (left, right) = (Arg::Value(self.whole()), Arg::Value(self.whole()));
        let new = match self.random.below(9) {
            0 | 1 => self.push(MM, vec![left, right], matrix(SIZE)),
            2 => self.push(ADD, vec![left, right, Arg::Int(1)], matrix(SIZE)),
            3 => self.push(MUL, vec![left, right], matrix(SIZE)),
            4 => self.push(NEG, vec![left], matrix(SIZE)),
            5 => self.reduced(),
            6 => {
                let operand = self.whole();
                let ty = self.graph.ty(operand).clone();
                self.push(DETACH, vec![Arg::Value(operand)], ty)
            }
            _ => {
                let operand = self.whole();
                let mut ty = self.graph.ty(operand).clone();
                ty.strides.swap(0, 1);
                self.push(T, vec![Arg::Value(operand)], ty)
            }
        };
        self.wholes.push(new);
    }

    /// A sum over the ranks, with the strides of its operand or in row-major order.
    fn reduced(&mut self) -> ValueId {
        let operand = self.whole();
        let ty = if self.random.once_in(2) { self.graph.ty(operand).clone() } else { matrix(SIZE) };
        let reduction = *self.random.pick(&["sum", "sum", "max"]);
        self.waited(REDUCE, vec![Arg::Value(operand), Arg::Str(reduction.into())], ty)
    }

    fn scattered(&mut self) -> ValueId {
        let args = vec![Arg::Value(self.whole()), Arg::Str("sum".into()), Arg::Int(2)];
        self.waited(SCATTER, args, matrix(SIZE / 2))
    }

    /// State of the optimizer.
    fn momentum(&mut self, number: usize) -> InputId {
        self.graph.input(InputClass::Optimizer, format!("optimizer.{number}.momentum"), matrix(SIZE / 2));
        InputId::from_index(self.graph.inputs.len() - 1)
    }

    /// The same few operations for every parameter, some of which are left out for some.
    fn optimizer(&mut self, gradients: &[ValueId], scale: ValueId, momenta: &[InputId]) {
        for (i, gradient) in gradients.iter().enumerate() {
            let ty = matrix(SIZE / 2);
            let mut step = self.push(MUL, vec![Arg::Value(*gradient), Arg::Value(scale)], ty.clone());
            if !self.random.once_in(3) {
                step = self.push(ABS, vec![Arg::Value(step)], ty.clone());
            }
            if !self.random.once_in(4) {
                let momentum = self.graph.inputs[momenta[i]].value;
                let args = vec![Arg::Value(momentum), Arg::Value(step), Arg::Int(1)];
                step = self.push(ADD, args, ty.clone());
                self.graph.updates.push((momenta[i], step));
            }
            let args = vec![Arg::Value(self.halves[i]), Arg::Value(step), Arg::Float(-0.5)];
            let new = self.push(ADD, args, ty.clone());
            let new = self.push(MUL, vec![Arg::Value(new), Arg::Float(0.25)], ty);
            self.graph.updates.push((InputId(i as u32), new));
        }
    }
}
