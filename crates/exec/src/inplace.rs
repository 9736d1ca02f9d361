//! Writing in place, as [`memory::in_place`] decides it.

use rustc_hash::FxHashMap;
use torch_sys::{Arg, Output, Schema, Slot};

use crate::{
    OpCall, ProgramSpec, Role, Update,
    effects::role,
    steps::{Forms, overwrites, steps_of},
};

/// The same program with operations in place where that cannot change a result.
pub(crate) fn write_in_place(spec: &ProgramSpec, schemas: &[Schema]) -> ProgramSpec {
    let forms = Forms::new(schemas);
    let decisions = memory::in_place(&steps_of(spec, schemas, &forms));
    // What took over a slot that was made by an operation that is now in place.
    let mut replaced: FxHashMap<Slot, Slot> = FxHashMap::default();
    let mut calls = Vec::with_capacity(spec.calls.len());
    for (call, in_place) in spec.calls.iter().zip(decisions) {
        let schema = &schemas[call.op as usize];
        let now = |slot: Slot| replaced.get(&slot).copied().unwrap_or(slot);
        let args: Vec<Arg> = call.args.iter().cloned().map(|arg| arg.map_slots(now)).collect();
        // What is waited for is where it was started.
        let waited = args.first() != call.args.first() && role(schema) == Role::Wait;
        if let (true, Some(Arg::Tensor(from)), Some(Output::Tensor(to))) =
            (waited, args.first(), call.outputs.first())
        {
            replaced.insert(*to, *from);
        }
        let Some(op) = forms.in_place(schema).filter(|_| in_place) else {
            calls.push(OpCall { args, ..call.clone() });
            continue;
        };
        for (from, to) in overwrites(call, schema) {
            let from = replaced.get(&Slot(from)).copied().unwrap_or(Slot(from));
            replaced.extend(to.map(|to| (Slot(to), from)));
        }
        let outputs = schemas[op as usize].returns.iter().map(|_| Output::Ignored).collect();
        calls.push(OpCall { op, args, outputs, ..call.clone() });
    }
    let now = |slot: Slot| replaced.get(&slot).copied().unwrap_or(slot);
    let updates = spec.updates.iter().map(|update| Update { value: now(update.value), ..*update });
    ProgramSpec {
        calls,
        updates: updates.filter(|update| update.value != update.state).collect(),
        returns: spec.returns.iter().map(|slot| now(*slot)).collect(),
        ..spec.clone()
    }
}
