//! Small results in memory that stays, as [`memory::buffers`] decides it.

use base::Bytes;
use rustc_hash::FxHashMap;
use torch_sys::{Arg, Output, Schema, Slot};

use crate::{
    OpCall, ProgramSpec, Update,
    steps::{Forms, steps_of},
};

/// The same program with small results in buffers, which together take at most `limit`.
pub(crate) fn keep_small_results(spec: &ProgramSpec, schemas: &[Schema], limit: Bytes) -> ProgramSpec {
    let forms = Forms::new(schemas);
    let found = memory::buffers(&steps_of(spec, schemas, &forms), limit);
    let slot_of = |buffer: u32| Slot(spec.slots + buffer);
    let mut buffer_of: FxHashMap<Slot, Slot> = FxHashMap::default();
    let mut calls = Vec::with_capacity(spec.calls.len());
    for (call, buffer) in spec.calls.iter().zip(&found.of) {
        let now = |slot: Slot| buffer_of.get(&slot).copied().unwrap_or(slot);
        let mut args: Vec<Arg> = call.args.iter().cloned().map(|arg| arg.map_slots(now)).collect();
        let into = buffer.and_then(|buffer| Some((buffer, forms.out(&schemas[call.op as usize])?)));
        let Some((buffer, op)) = into else {
            calls.push(OpCall { args, ..call.clone() });
            continue;
        };
        buffer_of.extend(call.outputs.iter().flat_map(Output::slots).map(|result| (result, slot_of(buffer))));
        args.push(Arg::Tensor(slot_of(buffer)));
        calls.push(OpCall { op, args, outputs: vec![Output::Ignored], ..call.clone() });
    }
    let now = |slot: Slot| buffer_of.get(&slot).copied().unwrap_or(slot);
    let mut shapes = spec.shapes.clone();
    shapes.resize(spec.slots as usize, None);
    shapes.extend(found.like.iter().map(|like| spec.shape(Slot(*like)).cloned()));
    ProgramSpec {
        slots: spec.slots + found.like.len() as u32,
        calls,
        updates: spec.updates.iter().map(|update| Update { value: now(update.value), ..*update }).collect(),
        shapes,
        buffers: (0..found.like.len() as u32).map(slot_of).collect(),
        ..spec.clone()
    }
}
