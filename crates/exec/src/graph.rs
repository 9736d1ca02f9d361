//! From the graph of a step to the executor's input: values become slots, symbolic names of process groups real ones.

use std::collections::BTreeMap;

use base::{Code, Diagnostic, Result};
use ir::{Graph, Node, PartKind, Return, TensorType, ValueId};
use torch_sys::{Arg, Device, Dtype, Layout, MemoryFormat, Output, Slot};

use crate::{OpCall, ProgramSpec, Shape, Update};

/// The names of process groups by the symbolic names that a graph has for them, such as `axis:a`.
pub type Groups = BTreeMap<String, String>;

/// What the executor has to run for `graph`: state are its inputs that live on from step to step, in their order, and inputs all
/// others; slots are numbered as values are. Schemas are the graph's own; whoever runs the program replaces them by PyTorch's.
/// Device arguments name the capturing process's device: here they are `device`, but for those that name the host.
pub fn spec_of(graph: &Graph, groups: &Groups, device: &Device) -> Result<ProgramSpec> {
    let (state, inputs): (Vec<_>, Vec<_>) = graph.inputs.values().partition(|input| input.class.is_state());
    let slots = |inputs: Vec<&ir::Input>| inputs.into_iter().map(|input| slot(input.value)).collect();
    let calls = (0..).zip(&graph.order).map(|(position, id)| {
        let node = &graph.nodes[*id];
        let writes_state = graph.part_kind(*id) == PartKind::Update;
        call(node, position, writes_state, groups, device).map_err(|diagnostic| match graph.place(*id) {
            Some(place) => diagnostic.at(place.clone()),
            None => diagnostic,
        })
    });
    let update = |(input, value): &(ir::InputId, ValueId)| Update {
        state: slot(graph.inputs[*input].value),
        value: slot(*value),
    };
    Ok(ProgramSpec {
        slots: graph.values.len() as u32,
        schemas: graph.ops.values().map(|op| format!("{}{}", op.name, op.schema)).collect(),
        state: slots(state),
        inputs: slots(inputs),
        buffers: Vec::new(),
        kernels: Vec::new(),
        calls: calls.collect::<Result<_>>()?,
        updates: graph.updates.iter().map(update).collect(),
        returns: graph.returns.iter().map(|value| slot(*value)).collect(),
        shapes: graph.values.values().map(|value| shape(&value.ty)).collect(),
        places: graph.places.values().cloned().collect(),
    })
}

const fn slot(value: ValueId) -> Slot {
    Slot(value.0)
}

fn shape(ty: &TensorType) -> Option<Shape> {
    let dtype = Dtype::named(ty.dtype.torch_name())?;
    Some(Shape { dtype, sizes: ty.shape.to_vec(), strides: Some(ty.strides.to_vec()) })
}

fn call(node: &Node, position: u32, writes_state: bool, groups: &Groups, device: &Device) -> Result<OpCall> {
    let output = |returned: &Return| match returned {
        Return::None => Output::Ignored,
        Return::Value(value) => Output::Tensor(slot(*value)),
        Return::Values(values) => Output::Tensors(values.iter().map(|value| Some(slot(*value))).collect()),
    };
    Ok(OpCall {
        op: node.op.0,
        args: node.args.iter().map(|arg| argument(arg, groups, device)).collect::<Result<_>>()?,
        outputs: node.returns.iter().map(output).collect(),
        place: node.place.map(|place| place.0),
        node: Some(position),
        writes_state,
    })
}

fn argument(arg: &ir::Arg, groups: &Groups, here: &Device) -> Result<Arg> {
    let unknown =
        |what: &str, name: &str| Diagnostic::new(Code::BAD_PROGRAM, format!("unknown {what} `{name}`"));
    Ok(match arg {
        ir::Arg::None => Arg::None,
        ir::Arg::Value(value) => Arg::Tensor(slot(*value)),
        ir::Arg::Values(values) => {
            let slots: Vec<Option<Slot>> = values.iter().map(|value| value.map(slot)).collect();
            match slots.iter().copied().collect::<Option<Vec<Slot>>>() {
                Some(slots) => Arg::Tensors(slots),
                None => Arg::OptionalTensors(slots),
            }
        }
        ir::Arg::Int(value) => Arg::Int(*value),
        ir::Arg::Ints(values) => Arg::Ints(values.clone()),
        ir::Arg::Float(value) => Arg::Float(*value),
        ir::Arg::Floats(values) => Arg::Floats(values.clone()),
        ir::Arg::Bool(value) => Arg::Bool(*value),
        ir::Arg::Bools(values) => Arg::Bools(values.clone()),
        ir::Arg::Str(text) => Arg::Str(groups.get(text).unwrap_or(text).clone()),
        ir::Arg::Strs(texts) => Arg::Strs(texts.clone()),
        ir::Arg::Dtype(dtype) => {
            let name = dtype.torch_name();
            Arg::Dtype(Dtype::named(name).ok_or_else(|| unknown("element type", name))?)
        }
        ir::Arg::Layout(name) => Arg::Layout(Layout::named(name).ok_or_else(|| unknown("layout", name))?),
        ir::Arg::MemoryFormat(name) => {
            Arg::MemoryFormat(format(name).ok_or_else(|| unknown("memory format", name))?)
        }
        ir::Arg::Device(device) if device.kind.is_cpu() => Arg::Device(Device::host()),
        ir::Arg::Device(_) => Arg::Device(here.clone()),
    })
}

fn format(name: &str) -> Option<MemoryFormat> {
    MemoryFormat::named(name).or_else(|| MemoryFormat::named(&format!("{name}_format")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = r#"unisono graph 2

op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op _c10d_functional::all_reduce(Tensor input, str reduce_op, Any group_name) -> Tensor

input v0: f32[4] = parameter "params.w"
input v1: f32[4] = batch "batch.0"

v2: f32[4] = aten::mul.Tensor(v0, v1) @p0
v3: f32[4] = _c10d_functional::all_reduce(v2, "sum", "axis:a")

return v3
update "params.w" = v2

place p0 "train.py":12:5
"#;

    #[test]
    fn values_become_slots_and_symbolic_groups_real_ones() {
        let graph: Graph = Graph::from_text("test", GRAPH).unwrap();
        let groups = Groups::from([("axis:a".to_owned(), "group 7".to_owned())]);
        let spec = spec_of(&graph, &groups, &Device::host()).unwrap();
        assert_eq!((spec.state, spec.inputs, spec.returns), (vec![Slot(0)], vec![Slot(1)], vec![Slot(3)]));
        assert_eq!(spec.schemas[0], "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor");
        assert_eq!(spec.calls[1].args[2], Arg::Str("group 7".to_owned()));
        assert_eq!(spec.updates, [Update { state: Slot(0), value: Slot(2) }]);
        assert_eq!(spec.places[spec.calls[0].place.unwrap() as usize].line, 12);
        assert_eq!(spec.shapes[2].as_ref().unwrap().sizes, [4]);
    }

    #[test]
    fn device_arguments_are_the_rank_s_own_but_for_the_host_s() {
        let rest = "f32, none, DEVICE, none";
        let line = |value: &str, device: &str| {
            format!("{value}: f32[2] = aten::full([2], 0, {})\n", rest.replace("DEVICE", device))
        };
        let op = "op aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";
        let body = line("v0", "device(npu:0)") + &line("v1", "device(cpu)");
        let graph =
            Graph::from_text("test", &format!("unisono graph 2\n{op}\n{body}return v0, v1\n")).unwrap();
        let here = Device { kind: "npu".to_owned(), index: Some(3) };
        let spec = spec_of(&graph, &Groups::new(), &here).unwrap();
        assert_eq!(spec.calls[0].args[4], Arg::Device(here));
        assert_eq!(spec.calls[1].args[4], Arg::Device(Device::host()));
    }
}
