//! Numbers of list operations: on CPU a list operation with a `Scalar` makes a tensor of it for each entry; one with a tensor
//! takes the one that the prologue has made.

use rustc_hash::FxHashMap;
use torch_sys::{Arg, Dtype, Schema, Slot};

use crate::{OpCall, ProgramSpec};

/// The same program with numbers of list operations as tensors.
pub(crate) fn numbers_as_tensors(spec: &ProgramSpec, schemas: &[Schema]) -> ProgramSpec {
    let numbers: FxHashMap<String, u32> =
        schemas.iter().enumerate().map(|(index, schema)| (schema.full_name(), index as u32)).collect();
    let calls = spec.calls.iter().map(|call| {
        let name = schemas[call.op as usize].full_name();
        let form = aten::row(&name).and_then(|row| row.with_tensor);
        form.and_then(|(to, more)| tensor_call(spec, call, *numbers.get(to)?, more))
            .unwrap_or_else(|| call.clone())
    });
    ProgramSpec { calls: calls.collect(), ..spec.clone() }
}

fn tensor_call(spec: &ProgramSpec, call: &OpCall, op: u32, more: &[i64]) -> Option<OpCall> {
    let [Arg::Tensors(list), number @ (Arg::Int(_) | Arg::Float(_))] = call.args.as_slice() else {
        return None;
    };
    if !promotes_alike(spec, list) {
        return None;
    }
    let mut args = vec![call.args[0].clone(), number.clone()];
    args.extend(more.iter().copied().map(Arg::Int));
    Some(OpCall { op, args, ..call.clone() })
}

/// Whether one tensor without dimensions acts on all entries as the number itself would.
fn promotes_alike(spec: &ProgramSpec, list: &[Slot]) -> bool {
    let shapes: Option<Vec<_>> = list.iter().map(|slot| spec.shape(*slot)).collect();
    shapes.is_some_and(|shapes| {
        let scalars = shapes.iter().filter(|shape| shape.sizes.is_empty()).count();
        let single = shapes.iter().all(|shape| shape.dtype == Dtype::Float32);
        single && (scalars == 0 || scalars == shapes.len())
    })
}
