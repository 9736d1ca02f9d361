//! How long memory is read: through views and aliases, and by collectives until they have been waited for.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{Effect, Step, Steps};

/// Which values share memory, and for how long it is read.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// The value whose memory a value shares.
    root: Vec<u32>,
    /// For each root, the last step that reads memory of it; `usize::MAX` for what goes out.
    last_read: Vec<Option<usize>>,
}

impl Lifetimes {
    /// The lifetimes of a program's memory.
    pub fn of(program: &Steps) -> Self {
        let root = roots(program);
        let mut lifetimes = Self { last_read: vec![None; root.len()], root };
        // For each collective that has not been waited for, by its result: the roots that it may still be reading.
        let mut in_flight: FxHashMap<u32, SmallVec<[u32; 4]>> = FxHashMap::default();
        for (index, step) in program.steps.iter().enumerate() {
            lifetimes.read(index, step, &mut in_flight);
        }
        let unwaited = in_flight.into_values().flatten();
        let ends = program.returns.iter().copied().chain(program.updates.iter().map(|(_, value)| *value));
        for root in unwaited.chain(ends.map(|value| lifetimes.root[value as usize])).collect::<Vec<_>>() {
            lifetimes.last_read[root as usize] = Some(usize::MAX);
        }
        lifetimes
    }

    /// The value whose memory `value` shares.
    pub fn root(&self, value: u32) -> u32 {
        self.root[value as usize]
    }

    /// The last step that reads memory of `root`, `usize::MAX` where it goes out; none where nothing reads it.
    pub fn last_read(&self, root: u32) -> Option<usize> {
        self.last_read[root as usize]
    }

    fn read(&mut self, index: usize, step: &Step, in_flight: &mut FxHashMap<u32, SmallVec<[u32; 4]>>) {
        let roots: SmallVec<[u32; 4]> = step.reads.iter().map(|value| self.root(*value)).collect();
        for root in &roots {
            self.last_read[*root as usize] = Some(index);
        }
        match step.effect {
            Effect::Wait => {
                let waited = step.reads.iter().filter_map(|value| in_flight.remove(value));
                for root in waited.flatten() {
                    self.last_read[root as usize] = Some(index);
                }
            }
            Effect::Collective => {
                // What it writes over it does not read.
                let over = |root: &u32| {
                    let written = step.writes.iter().chain(step.overwrites.iter().map(|(from, _)| from));
                    written.map(|value| self.root[*value as usize]).any(|written| written == *root)
                };
                let read: SmallVec<[u32; 4]> = roots.iter().copied().filter(|root| !over(root)).collect();
                for value in step.makes.iter().chain(&step.writes) {
                    in_flight.insert(*value, read.clone());
                }
            }
            _ => {}
        }
    }
}

/// For each value the one whose memory it shares: through aliases, views and operations that return what they write into.
fn roots(program: &Steps) -> Vec<u32> {
    let mut roots: Vec<u32> = (0..program.values.len() as u32).collect();
    for step in &program.steps {
        let Some(from) = step.shares else { continue };
        for made in &step.makes {
            roots[*made as usize] = roots[from as usize];
        }
    }
    roots
}
