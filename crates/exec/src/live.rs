//! Numbers of a step that are tensors of the device, as in programs that are captured as its graphs.

use torch_sys::{Arg, Dtype, Output, Schema, Slot, Type};

use crate::{OpCall, ProgramSpec, Shape};

const CAST: &str = "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor";

/// The same program with learning rates as fused updates of devices read them where they are tensors there: in single precision.
pub fn with_live_numbers(mut spec: ProgramSpec, schemas: &[Schema]) -> ProgramSpec {
    let op = spec.schemas.len() as u32;
    let calls = std::mem::take(&mut spec.calls);
    for mut call in calls {
        if let Some(position) = rate_in_double(&spec, &call, &schemas[call.op as usize])
            && let Arg::Tensor(rate) = call.args[position]
        {
            let cast = new_slot(&mut spec);
            spec.calls.push(cast_of(&call, op, rate, cast));
            call.args[position] = Arg::Tensor(cast);
        }
        spec.calls.push(call);
    }
    spec.schemas.push(CAST.to_owned());
    spec
}

/// The position of a learning rate that is a tensor in double precision.
fn rate_in_double(spec: &ProgramSpec, call: &OpCall, schema: &Schema) -> Option<usize> {
    let position =
        schema.arguments.iter().position(|argument| argument.name == "lr" && argument.ty == Type::Tensor)?;
    let Arg::Tensor(slot) = call.args.get(position)? else { return None };
    (spec.shape(*slot)?.dtype == Dtype::Float64).then_some(position)
}

fn new_slot(spec: &mut ProgramSpec) -> Slot {
    let slot = Slot(spec.slots);
    spec.slots += 1;
    spec.shapes.resize(slot.0 as usize, None);
    spec.shapes.push(Some(Shape { dtype: Dtype::Float32, sizes: Vec::new(), strides: Some(Vec::new()) }));
    slot
}

fn cast_of(call: &OpCall, op: u32, from: Slot, to: Slot) -> OpCall {
    let [none, single] = [Arg::None, Arg::Dtype(Dtype::Float32)];
    let args =
        vec![Arg::Tensor(from), single, none.clone(), none.clone(), none.clone(), Arg::Bool(false), none];
    OpCall { op, args, outputs: vec![Output::Tensor(to)], node: None, ..call.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learning_rate_in_double_precision_is_cast_for_each_update_that_reads_a_tensor() {
        let schemas = [
            "aten::f(Tensor[] self, Tensor lr) -> Tensor[]",
            "aten::g(Tensor[] self, *, float lr) -> Tensor[]",
        ];
        let schemas: Vec<Schema> = schemas.iter().map(|text| Schema::parse(text).unwrap()).collect();
        let shape = |dtype| Some(Shape { dtype, sizes: Vec::new(), strides: Some(Vec::new()) });
        let call = |op, lr, to| OpCall {
            op,
            args: vec![Arg::Tensors(vec![Slot(0)]), lr],
            outputs: vec![Output::Tensors(vec![Some(Slot(to))])],
            place: Some(4),
            node: Some(0),
            writes_state: true,
        };
        let spec = ProgramSpec {
            slots: 6,
            schemas: vec![String::new(); 2],
            state: vec![Slot(0)],
            inputs: vec![Slot(1), Slot(2)],
            buffers: Vec::new(),
            inner: Vec::new(),
            kept: Vec::new(),
            kernels: Vec::new(),
            computes: false,
            calls: vec![
                call(0, Arg::Tensor(Slot(1)), 3),
                call(0, Arg::Tensor(Slot(2)), 4),
                call(1, Arg::Float(0.5), 5),
            ],
            updates: Vec::new(),
            returns: Vec::new(),
            shapes: vec![None, shape(Dtype::Float64), shape(Dtype::Float32)],
            run_time_sized: Vec::new(),
            places: Vec::new(),
        };
        let made = with_live_numbers(spec, &schemas);
        let ops: Vec<u32> = made.calls.iter().map(|call| call.op).collect();
        assert_eq!((ops, made.slots), (vec![2, 0, 0, 1], 7));
        assert_eq!((made.calls[0].place, made.calls[0].writes_state), (Some(4), true));
        assert_eq!(made.calls[0].args[0], Arg::Tensor(Slot(1)));
        assert_eq!(made.calls[1].args[1], Arg::Tensor(Slot(6)));
        assert_eq!(made.calls[2].args[1], Arg::Tensor(Slot(2)));
        assert_eq!(made.shapes[6].as_ref().map(|shape| shape.dtype), Some(Dtype::Float32));
    }
}
