//! Pins: placements that the user demands for inputs, by name pattern.

use base::{Code, Diagnostic, Result, unknown_name_hint};
use indexmap::IndexMap;
use ir::{Graph, InputClass, InputId, Mesh, Placement};
use rustc_hash::FxHashMap;
use shard::Space;

/// Placements by axis for name patterns; the last pattern that matches an input decides.
pub type Pins = IndexMap<String, IndexMap<String, Placement>>;

/// What is demanded of an input along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// The placement.
    pub placement: Placement,
    /// Whether the pin is a pattern, which passes over inputs that cannot be placed so.
    pub soft: bool,
}

/// The demands on the inputs of a graph along an axis.
pub type Demands = FxHashMap<InputId, Demand>;

/// The placement that is demanded of (the first demanded part of) the batch.
pub fn demand_on_batch(graph: &Graph, pins: &Demands) -> Option<Placement> {
    let batch = graph.inputs.iter().filter(|(_, input)| input.class == InputClass::Batch);
    batch.filter_map(|(id, _)| pins.get(&id)).map(|demand| demand.placement).next()
}

/// The placement that is demanded for each input along the axis of `space`. A pattern that matches nothing, one that no input it matches
/// can keep, and an axis that the mesh does not have are errors.
pub fn pinned(graph: &Graph, space: &Space, pins: &Pins, mesh: &Mesh) -> Result<Demands> {
    let mut pinned = Demands::default();
    for (pattern, placements) in pins {
        let names = || mesh.axes.iter().map(|axis| axis.name.as_str());
        if let Some(unknown) = placements.keys().find(|name| mesh.axis(name).is_none()) {
            let message = format!("pin `{pattern}` names an axis `{unknown}` that the mesh does not have");
            return Err(Diagnostic::new(Code::BAD_PIN, message).hint(unknown_name_hint(unknown, names())));
        }
        let Some(placement) = placements.get(&space.axis.name) else { continue };
        if matches!(placement, Placement::Partial(_) | Placement::Groups { .. }) {
            let message =
                format!("pin `{pattern}` demands `{placement}`, but inputs are not partial, nor in groups");
            return Err(Diagnostic::new(Code::BAD_PIN, message).hint("use `replicate` or `shard(DIM)`"));
        }
        let matching: Vec<InputId> =
            graph.inputs.iter().filter(|(_, input)| glob(pattern, &input.name)).map(|(id, _)| id).collect();
        if matching.is_empty() && !is_class_pattern(pattern) {
            return Err(matches_nothing(graph, pattern));
        }
        let soft = pattern.contains('*');
        if soft && !matching.is_empty() && !matching.iter().any(|id| can_be(graph, space, *id, *placement)) {
            return Err(binds_nothing(graph, space, pattern, *placement, &matching));
        }
        for id in matching {
            pinned.insert(id, Demand { placement: *placement, soft });
        }
    }
    Ok(pinned)
}

/// Whether an input can have a placement along the axis of `space`.
pub fn can_be(graph: &Graph, space: &Space, id: InputId, placement: Placement) -> bool {
    match placement {
        Placement::Shard { .. } => space.offers[graph.inputs[id].value].contains(&placement),
        _ => true,
    }
}

fn matches_nothing(graph: &Graph, pattern: &str) -> Box<Diagnostic> {
    let names: Vec<&str> = graph.inputs.values().map(|input| input.name.as_str()).collect();
    let hint = base::nearest(pattern, names.iter().copied()).map_or_else(
        || "inputs are named params.*, buffers.*, optimizer.*, batch.*".into(),
        |name| format!("did you mean `{name}`?"),
    );
    Diagnostic::new(Code::BAD_PIN, format!("pin `{pattern}` matches no input")).hint(hint)
}

fn binds_nothing(
    graph: &Graph,
    space: &Space,
    pattern: &str,
    placement: Placement,
    matching: &[InputId],
) -> Box<Diagnostic> {
    let shapes: Vec<String> = matching
        .iter()
        .take(MOST_NAMES)
        .map(|id| {
            let input = &graph.inputs[*id];
            format!("`{}` of shape {:?}", input.name, graph.ty(input.value).shape)
        })
        .collect();
    let axis = &space.axis;
    let message = format!(
        "pin `{pattern}` binds nothing: no input that it matches can be `{placement}` over {} ranks of `{}`",
        axis.size, axis.name
    );
    Diagnostic::new(Code::BAD_PIN, message)
        .because(format!("it matches {}", shapes.join(", ")))
        .hint("a dimension with too few elements for so many ranks, or for ranks of several axes, is not sharded: pin another one, or `replicate`")
}

/// Maximum number of inputs listed in an error.
const MOST_NAMES: usize = 4;

/// Whether a pattern names a class of inputs, of which there may be none.
fn is_class_pattern(pattern: &str) -> bool {
    ["params.*", "buffers.*", "optimizer.*", "batch.*", "*"].contains(&pattern)
}

/// Whether `name` matches `pattern`, in which `*` stands for any text.
pub fn glob(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(glob("params.*", "params.a.b"));
        assert!(glob("*", "x"));
        assert!(glob("params.*.weight", "params.a.b.weight"));
        assert!(!glob("params.*.weight", "params.a.bias"));
        assert!(!glob("params.a", "params.ab"));
    }
}
