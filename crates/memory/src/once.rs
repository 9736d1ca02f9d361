//! What is the same at every run, and so is computed before the first one and kept.

use fixedbitset::FixedBitSet;

use crate::{Effect, Lifetimes, Steps};

/// The largest constant that is kept from run to run, in elements.
const LARGEST_CONSTANT: u64 = 1 << 20;

/// Whether a step runs once for all runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Once {
    /// It runs each time.
    No,
    /// Its results have the same values each time.
    Constant,
    /// Its results are views of memory that stays where it is.
    View,
}

/// For each step of a program whether it runs once. `stays` are values whose memory stays beside state: buffers.
pub fn once(program: &Steps, stays: &[u32]) -> Vec<Once> {
    let lifetimes = Lifetimes::of(program);
    let mut anew = returned_as_it_lies(program, &lifetimes);
    let targets = program.steps.iter().flat_map(|step| &step.writes);
    targets.for_each(|value| anew.insert(lifetimes.root(*value) as usize));
    let mut pinned = FixedBitSet::with_capacity(program.values.len());
    pinned.extend(program.state.iter().chain(stays).map(|value| *value as usize));
    let mut constant = FixedBitSet::with_capacity(program.values.len());
    let mut found = Vec::with_capacity(program.steps.len());
    for step in &program.steps {
        let all = |bits: &FixedBitSet| step.reads.iter().all(|value| bits.contains(*value as usize));
        let keeps = |value: &u32| {
            let small = program.values[*value as usize].elements <= LARGEST_CONSTANT;
            small && !anew.contains(lifetimes.root(*value) as usize)
        };
        let is_view = matches!(step.effect, Effect::View | Effect::Repeating);
        let once = if step.pure && all(&constant) && step.makes.iter().all(keeps) {
            Once::Constant
        } else if (is_view || step.effect == Effect::Alias) && all(&pinned) {
            Once::View
        } else {
            Once::No
        };
        if once != Once::No {
            pinned.extend(step.makes.iter().map(|value| *value as usize));
        }
        if once == Once::Constant {
            constant.extend(step.makes.iter().map(|value| *value as usize));
        }
        found.push(once);
    }
    found
}

/// Memory that is made at each run, because a copy of what is kept would not lie as what is returned: several values share it, or one is a
/// view whose elements do not lie side by side.
fn returned_as_it_lies(program: &Steps, lifetimes: &Lifetimes) -> FixedBitSet {
    let mut first = vec![None; program.values.len()];
    let mut found = FixedBitSet::with_capacity(program.values.len());
    for value in &program.returns {
        let root = lifetimes.root(*value);
        let is_shared = first[root as usize].replace(*value).is_some_and(|other| other != *value);
        let is_apart = *value != root && !program.values[*value as usize].dense;
        if is_shared || is_apart {
            found.insert(root as usize);
        }
    }
    found
}
