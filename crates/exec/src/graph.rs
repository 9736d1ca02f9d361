//! From the graph of a step to the executor's input: values become slots, symbolic names of process groups real ones.

use std::collections::BTreeMap;

use base::{Code, Diagnostic, Result};
use ir::{Graph, Node, NodeId, PRODUCT_OF_GROUPS, PartKind, Return, TensorType, ValueId};
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
    let sizes = aten::RunTimeSizes::of(graph);
    let mut schemas: Vec<String> = graph.ops.values().map(|op| format!("{}{}", op.name, op.schema)).collect();
    let calls = (0..).zip(&graph.order).map(|(position, id)| {
        let node = &graph.nodes[*id];
        let writes_state = graph.part_kind(*id) == PartKind::Update;
        call(node, position, writes_state, groups, device).map_err(|diagnostic| match graph.place(*id) {
            Some(place) => diagnostic.at(place.clone()),
            None => diagnostic,
        })
    });
    let mut calls: Vec<OpCall> = calls.collect::<Result<_>>()?;
    let mut products = graph.order.iter().zip(&mut calls).filter(|(id, _)| is_of_rows(graph, **id, &sizes));
    if let Some((_, first)) = products.next() {
        let op = schemas.len() as u32;
        schemas.push(PRODUCT_OF_GROUPS.to_owned());
        std::iter::once(first).chain(products.map(|(_, call)| call)).for_each(|call| call.op = op);
    }
    let update = |(input, value): &(ir::InputId, ValueId)| Update {
        state: slot(graph.inputs[*input].value),
        value: slot(*value),
    };
    Ok(ProgramSpec {
        slots: graph.values.len() as u32,
        schemas,
        state: slots(state),
        inputs: slots(inputs),
        buffers: Vec::new(),
        inner: Vec::new(),
        kept: Vec::new(),
        kernels: Vec::new(),
        computes: false,
        calls,
        updates: graph.updates.iter().map(update).collect(),
        returns: graph.returns.iter().map(|value| slot(*value)).collect(),
        shapes: graph.values.values().map(|value| shape(&value.ty)).collect(),
        run_time_sized: graph.values.ids().filter(|value| sizes.has(*value)).map(slot).collect(),
        places: graph.places.values().cloned().collect(),
    })
}

/// Whether an operation is a product of groups of which there may be none.
fn is_of_rows(graph: &Graph, id: NodeId, sizes: &aten::RunTimeSizes) -> bool {
    !sizes.is_empty()
        && aten::row(graph.op_name(id)).is_some_and(|row| row.groups.is_some())
        && graph.nodes[id].operands().any(|value| sizes.has(value))
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

    const ROWS: &str = "unisono graph 2\n\
        op unisono::group_bounds(Tensor offsets, int ranks, int size) -> Tensor\n\
        op unisono::own_rows(Tensor(a) self, Tensor bounds, int dim, int rank) -> Tensor(a)\n\
        op aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor\n\
        op aten::t(Tensor(a) self) -> Tensor(a)\n\
        input v0: f32[12, 16] = batch \"batch.0\"\n\
        input v1: f32[2, 16, 24] = parameter \"params.up\"\n\
        input v2: i32[2] = batch \"batch.1\"\n\
        v3: i64[3] = unisono::group_bounds(v2, 2, 12)\n\
        v4: f32[6, 16] = unisono::own_rows(v0, v3, 0, 0)\n\
        v5: f32[6, 24] = aten::_grouped_mm(v4, v1, v2, none, none)\n\
        v6: f32[16, 6]{1, 16} = aten::t(v4)\n\
        v7: f32[2, 16, 24] = aten::_grouped_mm(v6, v5, v2, none, none)\n\
        return v7\n";

    #[test]
    fn what_follows_from_rows_of_groups_has_a_size_of_run_time_and_its_views_are_made_anew() {
        let graph: Graph = Graph::from_text("test", ROWS).unwrap();
        let spec = spec_of(&graph, &Groups::new(), &Device::host()).unwrap();
        assert_eq!(spec.run_time_sized, [4, 5, 6].map(Slot));
        let name = |call: &OpCall| spec.schemas[call.op as usize].split('(').next().unwrap().to_owned();
        assert_eq!(name(&spec.calls[2]), "unisono::product_of_groups");
        let version = torch_sys::Version { major: 2, minor: 14 };
        let program = crate::lower(&spec, &crate::Abilities::of(version, Device::host())).unwrap();
        assert_eq!((program.views(), program.body.len()), (0, 5));
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
