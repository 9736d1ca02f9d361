//! How long memory is read: through views and aliases, and by collectives until they have been waited for.

use rustc_hash::FxHashMap;
use torch_sys::{Arg, Output, Schema, Slot};

use crate::{OpCall, ProgramSpec, Role, role};

/// For each slot the one whose memory it shares: through aliases, views and operations that return what they write into.
pub(crate) fn roots(spec: &ProgramSpec, schemas: &[Schema]) -> Vec<Slot> {
    let mut roots: Vec<Slot> = (0..spec.slots).map(Slot).collect();
    for call in &spec.calls {
        let shared = shared_argument(&schemas[call.op as usize]);
        let Some(from) = shared.and_then(|index| call.args[index].slots().next()) else { continue };
        for slot in call.outputs.iter().flat_map(Output::slots) {
            roots[slot.0 as usize] = roots[from.0 as usize];
        }
    }
    roots
}

/// The argument whose memory the returns share: that of a view or alias, or the one that is written and returned.
fn shared_argument(schema: &Schema) -> Option<usize> {
    let by_role = matches!(role(schema), Role::View | Role::Alias | Role::Wait).then_some(0);
    let returned = schema.returns.iter().find_map(|returned| returned.alias.as_deref());
    by_role.or_else(|| {
        let returned = returned?;
        schema.arguments.iter().position(|argument| argument.alias.as_deref() == Some(returned))
    })
}

/// Which slots share memory, and for how long it is read.
pub(crate) struct Lifetimes {
    /// The slot whose memory a slot shares.
    root: Vec<Slot>,
    /// For each root, the last call that reads memory of it; `usize::MAX` for what goes out.
    last_read: FxHashMap<Slot, usize>,
}

impl Lifetimes {
    pub(crate) fn of(spec: &ProgramSpec, schemas: &[Schema]) -> Self {
        let mut lifetimes = Self { root: roots(spec, schemas), last_read: FxHashMap::default() };
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
            Role::Wait => {
                let waited = call.args.iter().flat_map(Arg::slots);
                let read = waited.filter_map(|slot| in_flight.remove(&slot)).flatten();
                self.last_read.extend(read.map(|root| (root, index)));
            }
            Role::Collective => {
                for slot in call.outputs.iter().flat_map(Output::slots) {
                    in_flight.insert(slot, roots.clone());
                }
            }
            Role::Compute | Role::View | Role::Alias => {}
        }
    }
}
