//! Random graphs for property tests and fuzzing, here and in crates that use this one (feature `testing`).

use base::{Id, Place, PrimaryMap};

use crate::{
    Arg, Device, DeviceKind, Dims, Dtype, Graph, InputClass, InputId, LabelId, ModuleId, NodeId, Part,
    PartKind, PlaceId, ReturnType, TensorType, ValueId,
};

/// A small deterministic generator (SplitMix64): equal seeds give equal graphs on every machine.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts at `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub const fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// True once in `n` times.
    pub const fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`, of which there is at least one.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

/// A verified graph of `nodes` operations on small matrices, whose types are what PyTorch would say, with every kind of
/// argument and return, dead nodes, shuffled ids and odd names.
pub fn random_graph(seed: u64, nodes: usize) -> Graph {
    let mut maker = Maker { random: Random::new(seed), graph: Graph::default(), matrices: Vec::new() };
    maker.inputs();
    for i in 0..nodes {
        maker.node();
        maker.side_information(NodeId::from_index(i));
    }
    maker.ends();
    maker.graph
}

const SIZES: [i64; 3] = [2, 4, 8];
const FILES: [&str; 3] = ["train.py", "models/a b.py", "odd \"name\"\n\\.py"];
const MODULES: [&str; 3] = ["", "blocks.0.attention", "head"];
const LABELS: [&str; 2] = ["bucket_collectives: 3 all_reduce of 12 KiB", "reshard v3: shard(0) -> replicate"];
const SCALARS: [f64; 7] = [1e-8, 0.1, -0.0, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

const MM: &str = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
const ADD: &str = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
const MUL: &str = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";
const RELU: &str = "aten::relu(Tensor self) -> Tensor";
const T: &str = "aten::t(Tensor(a) self) -> Tensor(a)";
const CAT: &str = "aten::cat(Tensor[] tensors, int dim=0) -> Tensor";
const SPLIT: &str =
    "aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]";
const MAX: &str =
    "aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)";
const FULL: &str = "aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, \
                    Device? device=None, bool? pin_memory=None) -> Tensor";
const CLONE: &str = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor";
const INDEX: &str = "aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor";
const BERNOULLI: &str = "aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor";
const ALL_REDUCE: &str =
    "_c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor";
const ODD: &str =
    "custom::odd(Tensor self, float[] scales, bool[3] mask, str[] names) -> (Tensor, Tensor, Tensor[], int)";
const CHECK: &str = "aten::_assert_async.msg(Tensor self, str assert_msg) -> ()";

struct Maker {
    random: Random,
    graph: Graph,
    /// The `f32` matrices that exist.
    matrices: Vec<ValueId>,
}

impl Maker {
    fn inputs(&mut self) {
        let classes = [InputClass::Parameter, InputClass::Buffer, InputClass::Optimizer, InputClass::Batch];
        for i in 0..4 + self.random.below(8) {
            let class = *self.random.pick(&classes);
            let ty = self.matrix_type();
            let value = self.graph.input(class, format!("input.{i}.\"w\""), ty);
            self.matrices.push(value);
        }
        self.graph.input(InputClass::Hyper, "hyper.0.lr", TensorType::contiguous(Dtype::F32, Dims::new()));
    }

    fn matrix_type(&mut self) -> TensorType {
        let (rows, columns) = (*self.random.pick(&SIZES), *self.random.pick(&SIZES));
        let mut ty = TensorType::contiguous(Dtype::F32, [rows, columns].as_slice());
        if self.random.once_in(4) {
            ty.strides = Dims::from_slice(&[1, rows]);
        }
        if self.random.once_in(8) {
            ty.device = Device { kind: DeviceKind::named("cuda").expect("a name"), index: 1 };
        }
        ty
    }

    fn matrix(&mut self) -> ValueId {
        // Mostly recent ones, so that chains get long.
        let recent = self.matrices.len().min(12);
        let skipped = if self.random.once_in(4) { 0 } else { self.matrices.len() - recent };
        self.matrices[skipped + self.random.below(self.matrices.len() - skipped)]
    }

    fn shape(&self, value: ValueId) -> [i64; 2] {
        let shape = &self.graph.ty(value).shape;
        [shape[0], shape[1]]
    }

    /// Another matrix of the size `dim` of `value` at its own dimension `at`, or `value` itself.
    fn partner(&mut self, fits: impl Fn([i64; 2]) -> bool, otherwise: ValueId) -> ValueId {
        let found = (0..8).map(|_| self.matrix()).collect::<Vec<_>>();
        found.into_iter().find(|value| fits(self.shape(*value))).unwrap_or(otherwise)
    }

    fn push(&mut self, op: &str, args: Vec<Arg>, shape: [i64; 2]) {
        let value = self.graph.push_value(op, args, TensorType::contiguous(Dtype::F32, shape.as_slice()));
        self.matrices.push(value);
    }

    fn node(&mut self) {
        let value = self.matrix();
        let x = Arg::Value(value);
        let [rows, columns] = self.shape(value);
        match self.random.below(16) {
            0 | 1 => {
                let transposed = self.partner(|shape| shape[0] == columns, value);
                let [inner, out] = self.shape(transposed);
                if inner == columns {
                    self.push(MM, vec![x, Arg::Value(transposed)], [rows, out]);
                } else {
                    self.push(RELU, vec![x], [rows, columns]);
                }
            }
            2..=4 => {
                let other = Arg::Value(self.partner(|shape| shape == [rows, columns], value));
                if self.random.once_in(2) {
                    self.push(ADD, vec![x, other, Arg::Int(1)], [rows, columns]);
                } else {
                    self.push(MUL, vec![x, other], [rows, columns]);
                }
            }
            5 => self.push(RELU, vec![x], [rows, columns]),
            6 | 7 => self.transpose(value),
            8 => {
                let other = Arg::Value(self.partner(|shape| shape == [rows, columns], value));
                let scaled = Arg::Float(*self.random.pick(&SCALARS));
                self.push(ADD, vec![x, other, scaled], [rows, columns]);
            }
            9 => self.cat_or_split(value),
            10 => self.push(BERNOULLI, vec![x, Arg::None], [rows, columns]),
            11 => self.push(CLONE, vec![x, Arg::MemoryFormat("contiguous".into())], [rows, columns]),
            12 => self.max_and_index(value),
            13 => self.full(),
            14 => {
                let group = Arg::Str("axis:a".into());
                self.push(ALL_REDUCE, vec![x, Arg::Str("sum".into()), group], [rows, columns]);
            }
            _ => self.odd(value),
        }
    }

    fn transpose(&mut self, value: ValueId) {
        let mut ty = self.graph.ty(value).clone();
        ty.shape.swap(0, 1);
        ty.strides.swap(0, 1);
        let transposed = self.graph.push_value(T, vec![Arg::Value(value)], ty);
        self.matrices.push(transposed);
    }

    fn cat_or_split(&mut self, value: ValueId) {
        let [rows, columns] = self.shape(value);
        if rows == 8 || self.random.once_in(2) {
            let half = TensorType::contiguous(Dtype::F32, [rows / 2, columns].as_slice());
            let sizes = Arg::Ints(vec![rows / 2; 2]);
            let halves = ReturnType::Tensors(vec![half; 2]);
            let first = self.graph.values.next_id();
            self.graph.push(SPLIT, vec![Arg::Value(value), sizes, Arg::Int(0)], vec![halves]);
            if rows > 2 {
                self.matrices.push(first);
            }
        } else {
            self.push(CAT, vec![Arg::Values(vec![Some(value); 2]), Arg::Int(0)], [rows * 2, columns]);
        }
    }

    /// The largest entries of rows and their places; with a list that has an absent tensor after them.
    fn max_and_index(&mut self, value: ValueId) {
        let [rows, columns] = self.shape(value);
        let vector = |dtype| ReturnType::Tensor(TensorType::contiguous(dtype, [rows].as_slice()));
        let args = vec![Arg::Value(value), Arg::Int(-1), Arg::Bool(false)];
        if columns == rows {
            let places = ValueId::from_index(self.graph.values.len() + 1);
            self.graph.push(MAX, args, vec![vector(Dtype::F32), vector(Dtype::I64)]);
            self.side_information(self.graph.order[self.graph.order.len() - 1]);
            let indices = Arg::Values(vec![None, Some(places)]);
            self.push(INDEX, vec![Arg::Value(value), indices], [rows, rows]);
        } else {
            self.graph.push(MAX, args, vec![ReturnType::None, vector(Dtype::I64)]);
        }
    }

    fn full(&mut self) {
        let [rows, columns] = [*self.random.pick(&SIZES), *self.random.pick(&SIZES)];
        let number = Arg::Float(*self.random.pick(&SCALARS));
        let place = Arg::Device(
            *self.random.pick(&["cpu", "cuda:0", "npu:3"].map(|device| device.parse().expect("a device"))),
        );
        let options = [Arg::Dtype(Dtype::F32), Arg::Layout("strided".into()), place, Arg::Bool(false)];
        let args = [Arg::Ints(vec![rows, columns]), number].into_iter().chain(options);
        self.push(FULL, args.collect(), [rows, columns]);
    }

    fn odd(&mut self, value: ValueId) {
        if self.random.once_in(2) {
            self.graph.push(CHECK, vec![Arg::Value(value), Arg::Str("a \"b\"\n\u{1}é".into())], vec![]);
            return;
        }
        let lists = [
            Arg::Floats(SCALARS[..self.random.below(8)].to_vec()),
            Arg::Bools([true, false, true][..self.random.below(4)].to_vec()),
            Arg::Strs(["", "x\\", "]"][..self.random.below(4)].iter().map(|s| (*s).into()).collect()),
        ];
        let args = [Arg::Value(value)].into_iter().chain(lists).collect();
        let small = TensorType::contiguous(Dtype::Bool, [0].as_slice());
        let list = vec![small.clone(); self.random.below(3)];
        let returns = vec![small.into(), ReturnType::None, ReturnType::Tensors(list), ReturnType::None];
        self.graph.push(ODD, args, returns);
    }

    fn side_information(&mut self, id: NodeId) {
        if self.random.once_in(6) {
            let kinds = [PartKind::Forward, PartKind::Backward, PartKind::Update];
            let kind = *self.random.pick(&kinds);
            let micro_batch = self.random.once_in(2).then(|| self.random.below(3) as u32);
            self.graph.begin_part_of(Part { kind, micro_batch });
        }
        let place = Place {
            file: (*self.random.pick(&FILES)).into(),
            line: self.random.below(9) as u32,
            column: self.random.below(2) as u32,
        };
        let place: PlaceId = intern(&mut self.graph.places, place);
        let module: ModuleId = intern(&mut self.graph.modules, (*self.random.pick(&MODULES)).into());
        let label: LabelId = intern(&mut self.graph.labels, (*self.random.pick(&LABELS)).into());
        let chosen = [self.random.once_in(4), self.random.once_in(3), self.random.once_in(8)];
        let stage = self.random.once_in(5).then(|| self.random.below(4) as u32);
        let node = &mut self.graph.nodes[id];
        node.place = (!chosen[0]).then_some(place);
        node.module = (!chosen[1]).then_some(module);
        node.label = chosen[2].then_some(label);
        node.stage = stage;
    }

    fn ends(&mut self) {
        let returned = 1 + self.random.below(3);
        self.graph.returns = (0..returned).map(|_| self.matrix()).collect();
        let inputs: Vec<InputId> = self.graph.inputs.ids().collect();
        for input in inputs {
            let old = self.graph.inputs[input].value;
            let ty = self.graph.ty(old);
            let fits = |value: &ValueId| self.graph.ty(*value).shape == ty.shape && *value != old;
            let new = self.matrices.iter().rev().copied().find(fits);
            if let Some(new) = new.filter(|_| !self.random.once_in(3)) {
                self.graph.updates.push((input, new));
            }
        }
        self.shuffle_ids();
    }

    /// Renumbers all nodes at random and leaves some that nothing uses out of the program.
    fn shuffle_ids(&mut self) {
        let graph = &mut self.graph;
        let mut old: Vec<NodeId> = graph.nodes.ids().collect();
        self.random.shuffle(&mut old);
        let mut new = vec![NodeId(0); old.len()];
        old.iter().enumerate().for_each(|(i, id)| new[id.index()] = NodeId::from_index(i));
        graph.nodes = old.iter().map(|id| graph.nodes[*id].clone()).collect();
        graph.order.iter_mut().for_each(|id| *id = new[id.index()]);
        for (_, value) in graph.values.iter_mut() {
            if let crate::ValueDef::Result(node, _) = &mut value.def {
                *node = new[node.index()];
            }
        }
        let used: std::collections::BTreeSet<ValueId> =
            graph.nodes.values().flat_map(crate::Node::operands).collect();
        let ends: Vec<ValueId> =
            graph.returns.iter().copied().chain(graph.updates.iter().map(|(_, value)| *value)).collect();
        let random = &mut self.random;
        graph.order.retain(|id| {
            let live = graph.nodes[*id].results().any(|value| used.contains(&value) || ends.contains(&value));
            live || random.once_in(2)
        });
    }
}

/// The id of `entry` in a table, added where it lacks it.
fn intern<K: Id, V: PartialEq>(table: &mut PrimaryMap<K, V>, entry: V) -> K {
    let known = table.iter().find(|(_, known)| **known == entry).map(|(id, _)| id);
    known.unwrap_or_else(|| table.push(entry))
}
