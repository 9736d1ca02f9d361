//! Small results in memory that stays: an operation with a form that writes into a given tensor writes into a buffer that is
//! made once, so that a step neither allocates the result nor makes its views again. Results whose lives do not overlap share
//! a buffer.

use base::Bytes;
use fixedbitset::FixedBitSet;
use rustc_hash::{FxHashMap, FxHashSet};
use torch_sys::{Arg, Output, Schema, Slot};

use crate::{OpCall, ProgramSpec, Role, Shape, is_pure, lifetime::Lifetimes, role};

/// The largest result that gets a buffer, in elements: beyond, an allocation is nothing beside the work.
const LARGEST: i64 = 1 << 16;
/// The most that all buffers of a program take together, where nothing else is said.
pub const BUFFERS: Bytes = Bytes(16 << 20);

/// The same program with small results in buffers, which together take at most `limit`.
pub(crate) fn keep_small_results(spec: &ProgramSpec, schemas: &[Schema], limit: Bytes) -> ProgramSpec {
    let mut pool = Pool::new(spec, schemas, limit);
    let calls = spec.calls.iter().enumerate().map(|(index, call)| pool.call(index, call)).collect();
    let mut shapes = spec.shapes.clone();
    shapes.resize(spec.slots as usize, None);
    shapes.extend(pool.shapes.iter().cloned().map(Some));
    ProgramSpec {
        slots: spec.slots + pool.shapes.len() as u32,
        calls,
        updates: spec.updates.iter().map(|u| crate::Update { value: pool.now(u.value), ..*u }).collect(),
        shapes,
        buffers: (0..pool.shapes.len()).map(|buffer| Slot(spec.slots + buffer as u32)).collect(),
        ..spec.clone()
    }
}

/// The buffers of one program while its calls are gone through in order.
struct Pool<'a> {
    spec: &'a ProgramSpec,
    schemas: &'a [Schema],
    numbers: FxHashMap<String, u32>,
    lifetimes: Lifetimes,
    /// Roots that leave the program, or whose memory an operation may hold on to.
    leaving: FxHashSet<Slot>,
    /// Slots whose values may be others at each step.
    varying: FixedBitSet,
    /// The shape of each buffer; its slot comes after those of the program.
    shapes: Vec<Shape>,
    /// What further buffers may take.
    left: Bytes,
    /// Buffers that nothing reads any more, the last one freed on top.
    free: Vec<Slot>,
    /// The buffers that a call is the last one to read.
    ending: FxHashMap<usize, Vec<Slot>>,
    /// The buffer that a result lies in.
    buffer_of: FxHashMap<Slot, Slot>,
}

impl<'a> Pool<'a> {
    fn new(spec: &'a ProgramSpec, schemas: &'a [Schema], limit: Bytes) -> Self {
        let lifetimes = Lifetimes::of(spec, schemas);
        let holding = spec.calls.iter().filter(|call| may_hold(&schemas[call.op as usize]));
        let held = holding.flat_map(|call| call.args.iter().flat_map(Arg::slots));
        let leaving = held.chain(spec.returns.iter().copied()).map(|slot| lifetimes.root(slot)).collect();
        let mut varying = FixedBitSet::with_capacity(spec.slots as usize);
        varying.extend(spec.state.iter().chain(&spec.inputs).map(|slot| slot.0 as usize));
        Self {
            spec,
            schemas,
            numbers: schemas.iter().enumerate().map(|(i, schema)| (schema.full_name(), i as u32)).collect(),
            lifetimes,
            leaving,
            varying,
            shapes: Vec::new(),
            left: limit,
            free: Vec::new(),
            ending: FxHashMap::default(),
            buffer_of: FxHashMap::default(),
        }
    }

    fn now(&self, slot: Slot) -> Slot {
        self.buffer_of.get(&slot).copied().unwrap_or(slot)
    }

    fn call(&mut self, index: usize, call: &OpCall) -> OpCall {
        let schema = &self.schemas[call.op as usize];
        let varies = |slot: Slot| self.varying.contains(slot.0 as usize);
        let mut written = None;
        if !is_pure(schema) || call.args.iter().flat_map(Arg::slots).any(varies) {
            self.varying.extend(call.outputs.iter().flat_map(Output::slots).map(|slot| slot.0 as usize));
            written = self.written_into_buffer(index, call, schema);
        }
        let call = written.unwrap_or_else(|| call.clone());
        self.free.extend(self.ending.remove(&index).into_iter().flatten());
        let args = call.args.into_iter().map(|arg| arg.map_slots(|slot| self.now(slot))).collect();
        OpCall { args, ..call }
    }

    /// The call that writes its result into a buffer, where that can be told from nothing.
    fn written_into_buffer(&mut self, index: usize, call: &OpCall, schema: &Schema) -> Option<OpCall> {
        let op = *self.numbers.get(aten::row(&schema.full_name())?.out?)?;
        if !takes_one_more(schema, &self.schemas[op as usize]) {
            return None;
        }
        let [Output::Tensor(result)] = call.outputs.as_slice() else { return None };
        let shape = self.spec.shape(*result).filter(|shape| is_small_and_dense(shape))?.clone();
        if self.leaving.contains(result) {
            return None;
        }
        let buffer = self.buffer(shape)?;
        self.buffer_of.insert(*result, buffer);
        let last = self.lifetimes.last_read(*result).unwrap_or(index);
        self.ending.entry(last).or_default().push(buffer);
        let args = call.args.iter().cloned().chain([Arg::Tensor(buffer)]).collect();
        Some(OpCall { op, args, outputs: vec![Output::Ignored], ..call.clone() })
    }

    /// A free buffer of this shape, or a new one.
    fn buffer(&mut self, shape: Shape) -> Option<Slot> {
        let first = self.spec.slots;
        let fits = |buffer: &Slot| self.shapes[(buffer.0 - first) as usize] == shape;
        if let Some(position) = self.free.iter().rposition(fits) {
            return Some(self.free.remove(position));
        }
        self.left = Bytes(self.left.0.checked_sub(shape.bytes().0)?);
        self.shapes.push(shape);
        Some(Slot(first + self.shapes.len() as u32 - 1))
    }
}

/// Whether an operation might keep, or return, the memory of an argument without its schema saying so. PyTorch's own do not,
/// but for those that `role` knows.
fn may_hold(schema: &Schema) -> bool {
    !schema.name.starts_with("aten::") && !ir::is_communication(&schema.name)
}

/// Whether `out` takes what `plain` takes and then the tensor to write into.
fn takes_one_more(plain: &Schema, out: &Schema) -> bool {
    let count = plain.arguments.len();
    let mut pairs = plain.arguments.iter().zip(&out.arguments);
    role(plain) == Role::Compute
        && out.arguments.len() == count + 1
        && out.arguments[count].written
        && pairs.all(|(a, b)| a.name == b.name && a.ty == b.ty && !b.written)
}

/// Whether a tensor is small, and its elements lie side by side in the order of its dimensions.
fn is_small_and_dense(shape: &Shape) -> bool {
    let elements: i64 = shape.sizes.iter().product();
    let Some(strides) = &shape.strides else { return false };
    let mut expected = 1;
    let dense = shape.sizes.iter().zip(strides).rev().all(|(size, stride)| {
        let dense = *size == 1 || *stride == expected;
        expected *= size;
        dense
    });
    dense && (1..=LARGEST).contains(&elements)
}
