//! How long memory is read: through views and aliases, and by collectives until they have been waited for.

use rustc_hash::FxHashMap;
use torch_sys::{Arg, Output, Schema, Slot};

use crate::{OpCall, ProgramSpec, Role, role};

/// Which slots share memory, and for how long it is read.
pub(crate) struct Lifetimes {
    /// The slot whose memory a slot shares.
    root: Vec<Slot>,
    /// For each root, the last call that reads memory of it; `usize::MAX` for what goes out.
    last_read: FxHashMap<Slot, usize>,
}

impl Lifetimes {
    pub(crate) fn of(spec: &ProgramSpec, schemas: &[Schema]) -> Self {
        let mut lifetimes =
            Self { root: (0..spec.slots).map(Slot).collect(), last_read: FxHashMap::default() };
        // For each collective that has not been waited for, by its result: the roots that it may still be reading.
        let mut in_flight = FxHashMap::default();
        for (index, call) in spec.calls.iter().enumerate() {
            lifetimes.read(index, call, role(&schemas[call.op as usize]), &mut in_flight);
        }
        let unwaited = in_flight.into_values().flatten();
        lifetimes.last_read.extend(unwaited.map(|root| (root, usize::MAX)));
        for slot in spec.returns.iter().copied().chain(spec.updates.iter().map(|update| update.value)) {
            let root = lifetimes.root(slot);
            lifetimes.last_read.insert(root, usize::MAX);
        }
        lifetimes
    }

    /// The slot whose memory `slot` shares.
    pub(crate) fn root(&self, slot: Slot) -> Slot {
        self.root[slot.0 as usize]
    }

    /// The last call that reads memory of `root`, `usize::MAX` where it goes out; none where nothing reads it.
    pub(crate) fn last_read(&self, root: Slot) -> Option<usize> {
        self.last_read.get(&root).copied()
    }

    fn read(&mut self, index: usize, call: &OpCall, role: Role, in_flight: &mut FxHashMap<Slot, Vec<Slot>>) {
        let roots: Vec<Slot> = call.args.iter().flat_map(Arg::slots).map(|slot| self.root(slot)).collect();
        self.last_read.extend(roots.iter().map(|root| (*root, index)));
        match role {
            Role::Compute => {}
            Role::Collective => {
                for slot in call.outputs.iter().flat_map(Output::slots) {
                    in_flight.insert(slot, roots.clone());
                }
            }
            Role::View | Role::Alias | Role::Wait => {
                if role == Role::Wait {
                    let waited = call.args.iter().flat_map(Arg::slots);
                    let read = waited.filter_map(|slot| in_flight.remove(&slot)).flatten();
                    self.last_read.extend(read.map(|root| (root, index)));
                }
                let Some(from) = call.args.first().and_then(|arg| arg.slots().next()) else { return };
                for slot in call.outputs.iter().flat_map(Output::slots) {
                    self.root[slot.0 as usize] = self.root(from);
                }
            }
        }
    }
}
