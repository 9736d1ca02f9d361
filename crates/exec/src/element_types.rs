//! The element types that a device must have to run a graph.

use ir::{Graph, ValueDef};

/// The element types, by PyTorch's names, of tensors that a graph has on a device, each with the place of an operation that makes one, if one
/// does.
pub fn element_types(graph: &Graph) -> Vec<(&'static str, Option<String>)> {
    let mut found: Vec<(&'static str, Option<String>)> = Vec::new();
    for value in graph.values.values().filter(|value| !value.ty.device.kind.is_cpu()) {
        let name = value.ty.dtype.torch_name();
        if found.iter().all(|(known, _)| *known != name) {
            let place = match value.def {
                ValueDef::Result(node, _) => graph.place(node).map(ToString::to_string),
                ValueDef::Input(_) => None,
            };
            found.push((name, place));
        }
    }
    found
}
