//! A program as far as memory goes, for [`memory`].

use aten::Memory;
use memory::{Effect, Info, Step, Steps};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use torch_sys::{Arg, Output, Schema, Slot};

use crate::{OpCall, ProgramSpec, Role, Shape, effects::shows_once, is_pure, kernels::is_kernel, role};

/// The steps of a program, one for each call; values are slots. `forms` are the operators that rewrites may use.
pub(crate) fn steps_of(spec: &ProgramSpec, schemas: &[Schema], forms: &Forms<'_>) -> Steps {
    let numbers = |slots: &[Slot]| slots.iter().map(|slot| slot.0).collect();
    Steps {
        values: infos(spec),
        state: numbers(&spec.state),
        inputs: numbers(&spec.inputs),
        steps: spec.calls.iter().map(|call| step(call, &schemas[call.op as usize], forms)).collect(),
        updates: spec.updates.iter().map(|update| (update.state.0, update.value.0)).collect(),
        returns: numbers(&spec.returns),
    }
}

/// The operators of a program by name.
pub(crate) struct Forms<'a> {
    schemas: &'a [Schema],
    numbers: FxHashMap<String, u32>,
}

impl<'a> Forms<'a> {
    pub(crate) fn new(schemas: &'a [Schema]) -> Self {
        let numbers = schemas.iter().enumerate().map(|(index, schema)| (schema.full_name(), index as u32));
        Self { schemas, numbers: numbers.collect() }
    }

    /// The operator that does the same as `schema` in place, if this PyTorch has it.
    pub(crate) fn in_place(&self, schema: &Schema) -> Option<u32> {
        let row = aten::row(&schema.full_name())?;
        let number = *self.numbers.get(&row.in_place_name()?)?;
        let form = &self.schemas[number as usize];
        let count = schema.returns.len();
        let written = form.arguments.iter().enumerate().filter(|(_, argument)| argument.written);
        let first = written.map(|(position, _)| position).eq(0..count);
        (first && same_arguments(schema, form, 0)).then_some(number)
    }

    /// The operator that does the same as `schema` into a given tensor, if this PyTorch has it.
    pub(crate) fn out(&self, schema: &Schema) -> Option<u32> {
        let number = *self.numbers.get(aten::row(&schema.full_name())?.out?)?;
        let form = &self.schemas[number as usize];
        let last = form.arguments.last().is_some_and(|argument| argument.written);
        (last && same_arguments(schema, form, 1)).then_some(number)
    }
}

/// Whether `form` takes what `plain` takes and then `more`.
fn same_arguments(plain: &Schema, form: &Schema, more: usize) -> bool {
    let mut pairs = plain.arguments.iter().zip(&form.arguments);
    plain.arguments.len() + more == form.arguments.len()
        && pairs.all(|(a, b)| a.name == b.name && a.ty == b.ty)
}

fn infos(spec: &ProgramSpec) -> Vec<Info> {
    let mut types: FxHashMap<(&Shape, bool), u32> = FxHashMap::default();
    let slots = (0..spec.slots).map(Slot);
    let infos = slots.map(|slot| {
        let Some(shape) = spec.shape(slot) else { return Info::default() };
        let (next, varies) = (types.len() as u32, spec.is_run_time_sized(slot));
        Info {
            bytes: shape.bytes().0,
            elements: shape.sizes.iter().product::<i64>().max(0) as u64,
            alike: shape.strides.is_some().then(|| *types.entry((shape, varies)).or_insert(next)),
            dense: !varies && is_dense(shape),
            on_host: false,
        }
    });
    infos.collect()
}

/// Whether the elements of a tensor lie side by side in the order of its dimensions.
fn is_dense(shape: &Shape) -> bool {
    let Some(strides) = &shape.strides else { return false };
    let mut expected = 1;
    shape.sizes.iter().zip(strides).rev().all(|(size, stride)| {
        let dense = *size == 1 || *stride == expected;
        expected *= size;
        dense
    })
}

fn step(call: &OpCall, schema: &Schema, forms: &Forms<'_>) -> Step {
    let known = aten::row(&schema.full_name()).map(|row| row.memory);
    let effect = match role(schema) {
        Role::Compute => Effect::Compute,
        Role::View if shows_once(schema) => Effect::View,
        Role::View => Effect::Repeating,
        Role::Alias => Effect::Alias,
        Role::Collective | Role::Copy => Effect::Collective,
        Role::Wait => Effect::Wait,
    };
    let written = schema.arguments.iter().zip(&call.args).filter(|(argument, _)| argument.written);
    let in_place = effect.may_overwrite() && forms.in_place(schema).is_some();
    Step {
        reads: call.args.iter().flat_map(Arg::slots).map(|slot| slot.0).collect(),
        makes: call.outputs.iter().flat_map(Output::slots).map(|slot| slot.0).collect(),
        effect,
        shares: shared(call, schema, effect.is_shared() || known == Some(Memory::Hidden)),
        overwrites: if in_place { overwrites(call, schema) } else { Vec::new() },
        writes: written.flat_map(|(_, arg)| arg.slots()).map(|slot| slot.0).collect::<SmallVec<_>>(),
        into: effect == Effect::Compute && call.outputs.len() == 1 && forms.out(schema).is_some(),
        writes_state: call.writes_state,
        pure: is_pure(schema),
        holds: !schema.name.starts_with("aten::")
            && !ir::is_communication(&schema.name)
            && ir::HostCopy::of_operator(&schema.name).is_none()
            && !is_kernel(schema),
        workspace: 0,
    }
}

/// The slot whose memory the returns share: that of a view or alias, or the one that is written and returned.
fn shared(call: &OpCall, schema: &Schema, by_row: bool) -> Option<u32> {
    let first = |arg: &Arg| arg.slots().next().map(|slot| slot.0);
    if by_row {
        return call.args.first().and_then(first);
    }
    let returned = schema.returns.iter().find_map(|returned| returned.alias.as_deref())?;
    let position =
        schema.arguments.iter().position(|argument| argument.alias.as_deref() == Some(returned))?;
    first(&call.args[position])
}

/// What the form in place of a call writes: each operand with the slot of its new value.
pub(crate) fn overwrites(call: &OpCall, schema: &Schema) -> Vec<(u32, Option<u32>)> {
    let mut pairs = Vec::new();
    let scaled = aten::row(&schema.full_name()).and_then(|row| row.scaled);
    for (position, output) in call.outputs.iter().enumerate() {
        if scaled.is_some_and(|(grads, scale)| grads == position && call.args[scale] == Arg::None) {
            continue;
        }
        match entries(&call.args[position], output) {
            Some(entries) => pairs.extend(entries),
            None => return Vec::new(),
        }
    }
    pairs
}

/// Each operand with the slot of its new value.
fn entries(arg: &Arg, output: &Output) -> Option<Vec<(u32, Option<u32>)>> {
    match (arg, output) {
        (Arg::Tensors(from), Output::Tensors(to)) if from.len() == to.len() => {
            Some(from.iter().zip(to).map(|(from, to)| (from.0, to.map(|to| to.0))).collect())
        }
        (Arg::Tensors(from), Output::Ignored) => Some(from.iter().map(|from| (from.0, None)).collect()),
        (Arg::Tensor(from), Output::Tensor(to)) => Some(vec![(from.0, Some(to.0))]),
        _ => None,
    }
}
