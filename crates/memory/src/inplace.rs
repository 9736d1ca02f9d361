//! Writing in place: an operation whose operand nobody reads afterwards writes into it, and a state's new value is written where the
//! state is.

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{Effect, Lifetimes, Once, Step, Steps, once::once};

/// The largest constant that is not written over, in elements: beyond, its memory is worth more than the call that makes it again.
const LARGEST_CONSTANT: u64 = 1 << 14;

/// For each step whether it runs in place, where nobody can tell. State is written by steps of the end of the run only, so that a run
/// that fails before leaves it as it was.
pub fn in_place(program: &Steps) -> Vec<bool> {
    let mut decision = Decision::new(program);
    decision.follow_state();
    program.steps.iter().enumerate().map(|(index, step)| decision.is_free(index, step)).collect()
}

struct Decision<'a> {
    program: &'a Steps,
    lifetimes: Lifetimes,
    /// Roots that come from outside.
    given: FixedBitSet,
    /// Values whose elements lie apart from each other: results of computations, and views that show no element twice.
    distinct: FixedBitSet,
    /// Small values that are the same at every run: written over, they would have to be computed each time.
    constant: FixedBitSet,
    /// The part of its root that a value is: which step has split the root, and which of its results it comes from.
    parts: Vec<Option<(usize, usize)>>,
    returned: FixedBitSet,
    /// The state that a value is, or becomes in place, the new value of.
    state_of: FxHashMap<u32, u32>,
}

impl<'a> Decision<'a> {
    fn new(program: &'a Steps) -> Self {
        let bits = |values: &mut dyn Iterator<Item = u32>| {
            let mut bits = FixedBitSet::with_capacity(program.values.len());
            values.for_each(|value| bits.insert(value as usize));
            bits
        };
        let given = bits(&mut program.state.iter().chain(&program.inputs).copied());
        Self {
            lifetimes: Lifetimes::of(program),
            distinct: distinct(program, given.clone()),
            constant: constant(program),
            parts: parts(program),
            given,
            returned: bits(&mut program.returns.iter().copied()),
            state_of: program.updates.iter().map(|(state, value)| (*value, *state)).collect(),
            program,
        }
    }

    /// What a chain of operations in place makes of a state's value, the last of them its new one, is written where the state is from the
    /// first of them on. What is waited for is where it was started.
    fn follow_state(&mut self) {
        for (index, step) in self.program.steps.iter().enumerate().rev().filter(|(_, step)| step.writes_state)
        {
            if let (Effect::Wait, [from], [to]) = (step.effect, &step.reads[..], &step.makes[..]) {
                if let Some(state) = self.state_of.get(to).copied() {
                    self.state_of.insert(*from, state);
                }
                continue;
            }
            if !self.is_free(index, step) {
                continue;
            }
            for (from, to) in &step.overwrites {
                let Some(state) = to.and_then(|to| self.state_of.get(&to).copied()) else { continue };
                if state != *from && !self.given.contains(*from as usize) {
                    self.state_of.insert(*from, state);
                }
            }
        }
    }

    fn is_free(&self, index: usize, step: &Step) -> bool {
        if !step.effect.may_overwrite() || step.overwrites.is_empty() {
            return false;
        }
        // An operation on lists reads thousands of values: those of one root lie side by side.
        let mut reads: SmallVec<[(u32, u32); 8]> =
            step.reads.iter().map(|read| (self.lifetimes.root(*read), *read)).collect();
        reads.sort_unstable();
        let alone = |value: u32| {
            let root = self.lifetimes.root(value);
            let of_root = reads[reads.partition_point(|(known, _)| *known < root)..].iter();
            let of_root = of_root.take_while(|(known, _)| *known == root).map(|(_, read)| *read);
            let mut others = of_root.filter(|read| !self.are_apart(value, *read));
            others.next() == Some(value) && others.next().is_none()
        };
        step.overwrites.iter().all(|(from, to)| alone(*from) && self.may_overwrite(index, step, *from, *to))
    }

    /// Whether two values have no memory in common: other roots, or other parts of one.
    fn are_apart(&self, one: u32, other: u32) -> bool {
        let part = |value: u32| self.parts[value as usize];
        let of_one_split = || match (part(one), part(other)) {
            (Some((split, index)), Some((other_split, other_index))) => {
                split == other_split && index != other_index
            }
            _ => false,
        };
        self.lifetimes.root(one) != self.lifetimes.root(other) || of_one_split()
    }

    /// Whether the step at `index` may write the value of `to` where that of `from` is.
    fn may_overwrite(&self, index: usize, step: &Step, from: u32, to: Option<u32>) -> bool {
        let root = self.lifetimes.root(from);
        let unread = self.lifetimes.last_read(root).is_none_or(|last| last <= index);
        let info = |value: u32| self.program.values[value as usize].alike;
        let alike = to.is_none_or(|to| info(from).is_some() && info(from) == info(to));
        let kept = self.given.contains(root as usize) || self.constant.contains(root as usize);
        let temporary = !kept && self.distinct.contains(from as usize);
        let state = to.is_some_and(|to| {
            self.state_of.get(&to) == Some(&from) && step.writes_state && !self.returned.contains(to as usize)
        });
        unread && alike && (temporary || state)
    }
}

/// Small values that are computed once for all runs.
fn constant(program: &Steps) -> FixedBitSet {
    let mut constant = FixedBitSet::with_capacity(program.values.len());
    let is_small = |value: &usize| program.values[*value].elements <= LARGEST_CONSTANT;
    for (step, once) in program.steps.iter().zip(once(program, &[])) {
        if once == Once::Constant {
            constant.extend(step.makes.iter().map(|value| *value as usize).filter(is_small));
        }
    }
    constant
}

/// Values that show no element of memory twice.
fn distinct(program: &Steps, given: FixedBitSet) -> FixedBitSet {
    let mut distinct = given;
    for step in &program.steps {
        let from = step.reads.first().is_some_and(|from| distinct.contains(*from as usize));
        let keeps = matches!(step.effect, Effect::View | Effect::Alias | Effect::Wait);
        if !step.effect.is_shared() || (keeps && from) {
            step.makes.iter().for_each(|made| distinct.insert(*made as usize));
        }
    }
    distinct
}

/// Which part of its root each value is, where the root has been split: the results of a view that has several share no element.
fn parts(program: &Steps) -> Vec<Option<(usize, usize)>> {
    let mut parts = vec![None; program.values.len()];
    for (number, step) in program.steps.iter().enumerate().filter(|(_, step)| step.effect.is_shared()) {
        let of = step.reads.first().and_then(|from| parts[*from as usize]);
        let splits = step.effect == Effect::View && step.makes.len() > 1;
        for (index, made) in step.makes.iter().enumerate() {
            parts[*made as usize] = of.or_else(|| splits.then_some((number, index)));
        }
    }
    parts
}

impl Steps {
    /// The same program with the steps that `in_place` names in place: what they would make is where their operands are.
    #[must_use]
    pub fn written_in_place(&self, in_place: &[bool]) -> Self {
        let mut now: Vec<u32> = (0..self.values.len() as u32).collect();
        let steps = self.steps.iter().zip(in_place).map(|(step, in_place)| {
            let mut step = step.clone();
            let waited = step.reads.first().copied();
            step.map(|value| now[value as usize]);
            // What is waited for is where it was started.
            if let (Effect::Wait, true, Some(made)) =
                (step.effect, step.reads.first() != waited.as_ref(), step.makes.first())
            {
                now[*made as usize] = step.reads[0];
            }
            if *in_place {
                for (from, to) in &step.overwrites {
                    if let Some(to) = to {
                        now[*to as usize] = *from;
                    }
                }
                step.writes = step.overwrites.iter().map(|(from, _)| *from).collect();
                step.makes.clear();
                step.overwrites.clear();
                step.into = false;
                step.pure = false;
            }
            step
        });
        let steps = steps.collect();
        let updates = self.updates.iter().map(|(state, value)| (*state, now[*value as usize]));
        Self {
            steps,
            updates: updates.filter(|(state, value)| state != value).collect(),
            returns: self.returns.iter().map(|value| now[*value as usize]).collect(),
            values: self.values.clone(),
            state: self.state.clone(),
            inputs: self.inputs.clone(),
        }
    }
}

impl Step {
    /// Replaces every value that it reads or shares by what `map` gives for it.
    pub(crate) fn map(&mut self, map: impl Fn(u32) -> u32) {
        self.reads
            .iter_mut()
            .chain(&mut self.shares)
            .chain(&mut self.writes)
            .for_each(|value| *value = map(*value));
        self.overwrites.iter_mut().for_each(|(from, _)| *from = map(*from));
    }
}
