//! Writing in place: an operation whose operand nobody reads afterwards writes into it, and a state's new value is written
//! where the state is.

use rustc_hash::{FxHashMap, FxHashSet};
use torch_sys::{Arg, Output, Schema, Slot};

use crate::{OpCall, ProgramSpec, Role, effects::shows_once, lifetime::Lifetimes, role};

/// The same program with operations in place, where nobody can tell. State is written by the optimizer's operations only, so that
/// a step that fails before leaves it as it was.
pub(crate) fn write_in_place(spec: &ProgramSpec, schemas: &[Schema]) -> ProgramSpec {
    let mut rewrite = Rewrite::new(spec, schemas);
    let calls = spec.calls.iter().enumerate().map(|(index, call)| rewrite.call(index, call)).collect();
    let updates = spec.updates.iter().filter(|update| rewrite.now(update.value) != update.state);
    let updates =
        updates.map(|update| crate::Update { state: update.state, value: rewrite.now(update.value) });
    ProgramSpec {
        calls,
        updates: updates.collect(),
        returns: spec.returns.iter().map(|slot| rewrite.now(*slot)).collect(),
        ..spec.clone()
    }
}

struct Rewrite<'a> {
    spec: &'a ProgramSpec,
    schemas: &'a [Schema],
    numbers: FxHashMap<String, u32>,
    lifetimes: Lifetimes,
    /// Roots that come from outside.
    given: FxHashSet<Slot>,
    /// Slots whose elements lie apart from each other: results of computations, and views that show no element twice.
    distinct: FxHashSet<Slot>,
    /// The state that a slot is the new value of.
    state_of: FxHashMap<Slot, Slot>,
    /// What took over a slot that was made by an operation that is now in place.
    replaced: FxHashMap<Slot, Slot>,
}

impl<'a> Rewrite<'a> {
    fn new(spec: &'a ProgramSpec, schemas: &'a [Schema]) -> Self {
        let mut rewrite = Self {
            spec,
            schemas,
            numbers: schemas.iter().enumerate().map(|(i, schema)| (schema.full_name(), i as u32)).collect(),
            lifetimes: Lifetimes::of(spec, schemas),
            given: spec.state.iter().chain(&spec.inputs).copied().collect(),
            distinct: spec.state.iter().chain(&spec.inputs).copied().collect(),
            state_of: spec.updates.iter().map(|update| (update.value, update.state)).collect(),
            replaced: FxHashMap::default(),
        };
        for call in &spec.calls {
            rewrite.find_distinct(call);
        }
        rewrite
    }

    fn find_distinct(&mut self, call: &OpCall) {
        let schema = &self.schemas[call.op as usize];
        let shares = matches!(role(schema), Role::View | Role::Alias | Role::Wait);
        let from = call.args.first().and_then(|arg| arg.slots().next()).filter(|_| shares);
        if !shares || (from.is_some_and(|from| self.distinct.contains(&from)) && shows_once(schema)) {
            self.distinct.extend(call.outputs.iter().flat_map(Output::slots));
        }
    }

    /// The slot that has a slot's value now.
    fn now(&self, slot: Slot) -> Slot {
        self.replaced.get(&slot).copied().unwrap_or(slot)
    }

    fn call(&mut self, index: usize, call: &OpCall) -> OpCall {
        let made = self.in_place(index, call);
        let call = made.unwrap_or_else(|| call.clone());
        let args = call.args.into_iter().map(|arg| arg.map_slots(|slot| self.now(slot))).collect();
        OpCall { args, ..call }
    }

    fn in_place(&mut self, index: usize, call: &OpCall) -> Option<OpCall> {
        let schema = &self.schemas[call.op as usize];
        if role(schema) != Role::Compute {
            return None;
        }
        let op = *self.numbers.get(&aten::row(&schema.full_name())?.in_place_name()?)?;
        let written =
            self.schemas[op as usize].arguments.iter().enumerate().filter(|(_, argument)| argument.written);
        let written: Vec<usize> = written.map(|(index, _)| index).collect();
        if written.len() != call.outputs.len() || !same_arguments(schema, &self.schemas[op as usize]) {
            return None;
        }
        let mut pairs = Vec::new();
        for (argument, output) in written.into_iter().zip(&call.outputs) {
            if only_scaled(schema, call, argument) {
                continue;
            }
            pairs.extend(entries(&call.args[argument], output)?);
        }
        let mut roots: FxHashMap<Slot, u32> = FxHashMap::default();
        for slot in call.args.iter().flat_map(Arg::slots) {
            *roots.entry(self.lifetimes.root(slot)).or_default() += 1;
        }
        let free = |(from, to): &(Slot, Option<Slot>)| {
            roots[&self.lifetimes.root(*from)] == 1 && self.may_overwrite(index, call, *from, *to)
        };
        if !pairs.iter().all(free) {
            return None;
        }
        for (from, to) in pairs {
            if let Some(to) = to {
                self.replaced.insert(to, self.now(from));
            }
        }
        let outputs = self.schemas[op as usize].returns.iter().map(|_| Output::Ignored).collect();
        Some(OpCall { op, args: call.args.clone(), outputs, ..call.clone() })
    }

    /// Whether the call at `index` may write the value of `to` where that of `from` is.
    fn may_overwrite(&self, index: usize, call: &OpCall, from: Slot, to: Option<Slot>) -> bool {
        let root = self.lifetimes.root(from);
        let unread = self.lifetimes.last_read(root).is_none_or(|last| last <= index);
        let alike = to.is_none_or(|to| match (self.spec.shape(from), self.spec.shape(to)) {
            (Some(a), Some(b)) => a == b && a.strides.is_some(),
            _ => false,
        });
        let temporary = !self.given.contains(&root) && self.distinct.contains(&from);
        let state = to.is_some_and(|to| {
            self.state_of.get(&to) == Some(&from) && call.writes_state && !self.spec.returns.contains(&to)
        });
        let mine = temporary || state;
        unread && alike && mine
    }
}

fn same_arguments(a: &Schema, b: &Schema) -> bool {
    let mut pairs = a.arguments.iter().zip(&b.arguments);
    a.arguments.len() == b.arguments.len() && pairs.all(|(a, b)| a.name == b.name && a.ty == b.ty)
}

/// Fused optimizers say that they write gradients, but do so only to undo a loss scale.
fn only_scaled(schema: &Schema, call: &OpCall, argument: usize) -> bool {
    let position = schema.arguments.iter().position(|argument| argument.name == "grad_scale");
    let unscaled = position.is_some_and(|position| call.args[position] == Arg::None);
    unscaled && schema.arguments[argument].name == "grads"
}

/// Each operand with the slot of its new value.
fn entries(arg: &Arg, output: &Output) -> Option<Vec<(Slot, Option<Slot>)>> {
    match (arg, output) {
        (Arg::Tensors(from), Output::Tensors(to)) if from.len() == to.len() => {
            Some(from.iter().copied().zip(to.iter().copied()).collect())
        }
        (Arg::Tensors(from), Output::Ignored) => Some(from.iter().map(|from| (*from, None)).collect()),
        (Arg::Tensor(from), Output::Tensor(to)) => Some(vec![(*from, Some(*to))]),
        _ => None,
    }
}
