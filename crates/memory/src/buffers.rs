//! Small results in memory that stays: an operation with a form that writes into a given tensor writes into a buffer that is made once,
//! so that a run neither allocates the result nor makes its views again. Results whose lives do not overlap share a buffer.

use base::Bytes;
use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use crate::{Lifetimes, Step, Steps};

/// The largest result that gets a buffer, in elements: beyond, an allocation is nothing beside the work.
const LARGEST: u64 = 1 << 16;
/// The most that all buffers of a program take together, where nothing else is said.
pub const BUFFERS: Bytes = Bytes(16 << 20);

/// Which results lie in buffers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Buffers {
    /// For each step the buffer that it writes its result into.
    pub of: Vec<Option<u32>>,
    /// For each buffer a value of its type.
    pub like: Vec<u32>,
    /// What all of them take.
    pub bytes: Bytes,
}

/// The buffers of a program, which take at most `limit`.
pub fn buffers(program: &Steps, limit: Bytes) -> Buffers {
    if limit == Bytes(0) {
        return Buffers { of: vec![None; program.steps.len()], ..Buffers::default() };
    }
    let mut pool = Pool::new(program, limit);
    for (index, step) in program.steps.iter().enumerate() {
        let buffer = pool.step(index, step);
        pool.found.of.push(buffer);
    }
    pool.found
}

/// The buffers of one program while its steps are gone through in order.
struct Pool<'a> {
    program: &'a Steps,
    lifetimes: Lifetimes,
    /// Roots that leave the program, or whose memory an operation may hold on to.
    leaving: FixedBitSet,
    /// Values that may be others at each run.
    varying: FixedBitSet,
    limit: Bytes,
    /// Buffers that nothing reads any more, by their type, the last one freed on top.
    free: FxHashMap<u32, Vec<u32>>,
    /// The buffers that a step is the last one to read.
    ending: FxHashMap<usize, Vec<u32>>,
    found: Buffers,
}

impl<'a> Pool<'a> {
    fn new(program: &'a Steps, limit: Bytes) -> Self {
        let lifetimes = Lifetimes::of(program);
        let held = program.steps.iter().filter(|step| step.holds).flat_map(|step| step.reads.iter().copied());
        let mut leaving = FixedBitSet::with_capacity(program.values.len());
        leaving
            .extend(held.chain(program.returns.iter().copied()).map(|value| lifetimes.root(value) as usize));
        let mut varying = FixedBitSet::with_capacity(program.values.len());
        varying.extend(program.state.iter().chain(&program.inputs).map(|value| *value as usize));
        Self {
            program,
            lifetimes,
            leaving,
            varying,
            limit,
            free: FxHashMap::default(),
            ending: FxHashMap::default(),
            found: Buffers::default(),
        }
    }

    fn step(&mut self, index: usize, step: &Step) -> Option<u32> {
        let varies = !step.pure || step.reads.iter().any(|value| self.varying.contains(*value as usize));
        let mut buffer = None;
        if varies {
            self.varying.extend(step.makes.iter().map(|value| *value as usize));
            buffer = self.buffer_of(index, step);
        }
        for ended in self.ending.remove(&index).into_iter().flatten() {
            let alike = self.type_of(ended);
            self.free.entry(alike).or_default().push(ended);
        }
        buffer
    }

    /// The type of a buffer.
    fn type_of(&self, buffer: u32) -> u32 {
        let like = self.found.like[buffer as usize];
        self.program.values[like as usize].alike.expect("a value in a buffer has a type")
    }

    /// The buffer that a step writes its result into, where that can be told from nothing.
    fn buffer_of(&mut self, index: usize, step: &Step) -> Option<u32> {
        let [result] = step.makes.as_slice() else { return None };
        let info = self.program.values[*result as usize];
        let small = info.dense && (1..=LARGEST).contains(&info.elements);
        if !step.into || !small || self.leaving.contains(*result as usize) {
            return None;
        }
        let buffer = self.free_or_new(*result, info.alike?, info.bytes)?;
        let last = self.lifetimes.last_read(*result).unwrap_or(index);
        self.ending.entry(last).or_default().push(buffer);
        Some(buffer)
    }

    fn free_or_new(&mut self, value: u32, alike: u32, bytes: u64) -> Option<u32> {
        if let Some(buffer) = self.free.get_mut(&alike).and_then(Vec::pop) {
            return Some(buffer);
        }
        let bytes = Bytes(self.found.bytes.0 + bytes);
        if bytes > self.limit {
            return None;
        }
        self.found.bytes = bytes;
        self.found.like.push(value);
        Some(self.found.like.len() as u32 - 1)
    }
}
