//! Pins: placements that the user demands for inputs, and for what modules give, by name pattern.

use base::{Code, Diagnostic, Result, unknown_name_hint};
use indexmap::IndexMap;
use ir::{Graph, InputClass, InputId, Mesh, Placement};
use rustc_hash::FxHashMap;
use shard::Space;

use crate::{
    outputs::{self, OUTPUTS, Outputs},
    pattern::glob,
};

/// Placements by axis for name patterns; the last pattern that matches an input, or a module after `outputs.`, decides.
pub type Pins = IndexMap<String, IndexMap<String, Placement>>;

/// What is demanded of an input along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Demand {
    /// The placement.
    pub placement: Placement,
    /// Whether the pin is a pattern, which passes over inputs that cannot be placed so.
    pub soft: bool,
}

/// The demands on a graph along an axis.
#[derive(Clone, Default, Debug)]
pub struct Demands {
    /// On its inputs.
    pub inputs: FxHashMap<InputId, Demand>,
    /// On what its modules give.
    pub outputs: Outputs,
}

impl Demands {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }
}

/// The placement that is demanded of (the first demanded part of) the batch.
pub fn demand_on_batch(graph: &Graph, pins: &Demands) -> Option<Placement> {
    let batch = graph.inputs.iter().filter(|(_, input)| input.class == InputClass::Batch);
    batch.filter_map(|(id, _)| pins.inputs.get(&id)).map(|demand| demand.placement).next()
}

/// The placements that are demanded along the axis of `space`. A pattern that matches nothing, one that nothing it matches
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
        if let Some(path) = pattern.strip_prefix(OUTPUTS) {
            if pinned.outputs.pin(graph, space, path, *placement) == 0 {
                return Err(binds_no_output(graph, space, pattern, path, *placement));
            }
            continue;
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
            pinned.inputs.insert(id, Demand { placement: *placement, soft });
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
        || "inputs are named params.*, buffers.*, optimizer.*, batch.*; what a module gives, outputs.<its path>".into(),
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

fn binds_no_output(
    graph: &Graph,
    space: &Space,
    pattern: &str,
    path: &str,
    placement: Placement,
) -> Box<Diagnostic> {
    let is_known = outputs::paths(graph).any(|known| outputs::matches(path, known));
    if !is_known {
        let hint = base::nearest(path, outputs::paths(graph)).map_or_else(
            || "give the path that the module has in the model".into(),
            |near| format!("did you mean `{OUTPUTS}{near}`?"),
        );
        return Diagnostic::new(Code::BAD_PIN, format!("pin `{pattern}` matches no module")).hint(hint);
    }
    let axis = &space.axis;
    let message = format!("pin `{pattern}` binds nothing along `{}`", axis.name);
    let diagnostic = Diagnostic::new(Code::BAD_PIN, message);
    let shapes: Vec<String> =
        outputs::shapes(graph, path).iter().take(MOST_NAMES).map(|one| format!("{one:?}")).collect();
    if shapes.is_empty() {
        return diagnostic.because("nothing outside of the module reads what it gives in forward");
    }
    diagnostic
        .because(format!(
            "what the module gives is read as a tensor of shape {}, and not as `{placement}` over {} ranks",
            shapes.join(", "),
            axis.size
        ))
        .hint("pin another dimension of that shape, in which views of views are one, or `replicate`")
}

/// Maximum number of inputs listed in an error.
const MOST_NAMES: usize = 4;

/// Whether a pattern names a class of inputs, of which there may be none.
fn is_class_pattern(pattern: &str) -> bool {
    ["params.*", "buffers.*", "optimizer.*", "batch.*", "*"].contains(&pattern)
}
