//! Numbers of list operations: on CPU a list operation with a `Scalar` makes a tensor of it for each entry; one with a tensor
//! takes the one that the prologue has made.

use rustc_hash::FxHashMap;
use torch_sys::{Arg, Dtype, Schema, Slot};

use crate::{OpCall, ProgramSpec};

/// The operation with a tensor instead of a `Scalar`, and the arguments that it has beyond that.
const FORMS: &[(&str, &str, &[Arg])] = &[
    ("aten::_foreach_add.Scalar", "aten::_foreach_add.Tensor", &[Arg::Int(1)]),
    ("aten::_foreach_mul.Scalar", "aten::_foreach_mul.Tensor", &[]),
    ("aten::_foreach_div.Scalar", "aten::_foreach_div.Tensor", &[]),
];

/// The operation that takes a tensor where `name` takes a `Scalar`.
pub(crate) fn tensor_form(name: &str) -> Option<&'static str> {
    FORMS.iter().find(|(from, ..)| *from == name).map(|(_, to, _)| *to)
}

/// The same program with numbers of list operations as tensors.
pub(crate) fn numbers_as_tensors(spec: &ProgramSpec, schemas: &[Schema]) -> ProgramSpec {
    let numbers: FxHashMap<String, u32> =
        schemas.iter().enumerate().map(|(index, schema)| (schema.full_name(), index as u32)).collect();
    let calls = spec.calls.iter().map(|call| {
        let name = schemas[call.op as usize].full_name();
        let form = FORMS.iter().find(|(from, ..)| *from == name);
        form.and_then(|(_, to, more)| tensor_call(spec, call, *numbers.get(*to)?, more))
            .unwrap_or_else(|| call.clone())
    });
    ProgramSpec { calls: calls.collect(), ..spec.clone() }
}

fn tensor_call(spec: &ProgramSpec, call: &OpCall, op: u32, more: &[Arg]) -> Option<OpCall> {
    let [Arg::Tensors(list), number @ (Arg::Int(_) | Arg::Float(_))] = call.args.as_slice() else {
        return None;
    };
    if !promotes_alike(spec, list) {
        return None;
    }
    let mut args = vec![call.args[0].clone(), number.clone()];
    args.extend_from_slice(more);
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
