//! Pins: placements that the user demands for inputs, by name pattern.

use base::{Code, Diagnostic, Result, unknown_name_hint};
use indexmap::IndexMap;
use ir::{Graph, InputId, Placement};
use rustc_hash::FxHashMap;

/// Placements by axis for name patterns; the last pattern that matches an input decides.
pub type Pins = IndexMap<String, IndexMap<String, Placement>>;

/// What is demanded of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Demand {
    /// A placement; passed over where it is impossible if the pin is a pattern that matched more than this input.
    At {
        /// The placement.
        placement: Placement,
        /// Whether it may be passed over.
        soft: bool,
    },
    /// Any placement that cuts it, where there is one.
    Cut,
}

/// The demands on the inputs of a graph.
pub type Demands = FxHashMap<InputId, Demand>;

/// The placement that is demanded for each input along `axis`. A pattern that matches nothing and an axis that does not exist are errors.
pub fn pinned(graph: &Graph, pins: &Pins, axis: &str) -> Result<Demands> {
    let mut pinned = Demands::default();
    for (pattern, placements) in pins {
        if let Some(unknown) = placements.keys().find(|name| *name != axis) {
            let message = format!("pin `{pattern}` names an axis `{unknown}` that the mesh does not have");
            return Err(Diagnostic::new(Code::BAD_PIN, message).hint(unknown_name_hint(unknown, [axis])));
        }
        let Some(placement) = placements.get(axis) else { continue };
        if matches!(placement, Placement::Partial(_)) {
            let message = format!("pin `{pattern}` demands `{placement}`, but inputs are not partial");
            return Err(Diagnostic::new(Code::BAD_PIN, message).hint("use `replicate` or `shard(DIM)`"));
        }
        let matching: Vec<InputId> =
            graph.inputs.iter().filter(|(_, input)| glob(pattern, &input.name)).map(|(id, _)| id).collect();
        if matching.is_empty() && !is_class_pattern(pattern) {
            let names: Vec<&str> = graph.inputs.values().map(|input| input.name.as_str()).collect();
            let hint = base::nearest(pattern, names.iter().copied()).map_or_else(
                || "inputs are named params.*, buffers.*, optimizer.*, batch.*".into(),
                |name| format!("did you mean `{name}`?"),
            );
            return Err(
                Diagnostic::new(Code::BAD_PIN, format!("pin `{pattern}` matches no input")).hint(hint)
            );
        }
        for id in matching {
            pinned.insert(id, Demand::At { placement: *placement, soft: pattern.contains('*') });
        }
    }
    Ok(pinned)
}

/// Whether a pattern speaks of a whole class of inputs, of which there may be none.
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
