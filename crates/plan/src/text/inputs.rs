//! Layouts of inputs as lines: by axis, and alike names as one pattern. In messages they are as they are.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use ir::Placement;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::patterns::{components, expanded, fold, pattern};

/// A placement for each axis along which an input is not replicated, by its name.
pub type Layouts = BTreeMap<String, IndexMap<String, Placement>>;

/// Maximum number of names that one line may stand for.
pub const MOST_NAMES: usize = 1 << 20;

/// Writes `pattern = placement` by axis.
pub fn serialize<S: Serializer>(layouts: &Layouts, serializer: S) -> Result<S::Ok, S::Error> {
    if !serializer.is_human_readable() {
        return layouts.serialize(serializer);
    }
    let placed = layouts.iter().flat_map(|(name, layout)| layout.iter().map(move |placed| (name, placed)));
    let items = placed.map(|(name, (axis, placement))| (components(name), (axis, *placement)));
    let mut lines: IndexMap<&str, IndexMap<String, Placement>> = IndexMap::new();
    for (name, (axis, placement)) in fold(items) {
        lines.entry(axis).or_default().insert(pattern(&name), placement);
    }
    lines.serialize(serializer)
}

/// Reads what [`serialize`] writes; a name must not come twice along an axis.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Layouts, D::Error> {
    if !deserializer.is_human_readable() {
        return Layouts::deserialize(deserializer);
    }
    let lines: IndexMap<String, IndexMap<String, Placement>> = IndexMap::deserialize(deserializer)?;
    let mut layouts = Layouts::new();
    for (axis, lines) in &lines {
        for (pattern, placement) in lines {
            for name in expanded(pattern, MOST_NAMES).map_err(D::Error::custom)? {
                let layout = layouts.entry(name).or_default();
                if layout.insert(axis.clone(), *placement).is_some() {
                    return Err(D::Error::custom(format!(
                        "an input of `{pattern}` has two placements along `{axis}`"
                    )));
                }
            }
        }
    }
    Ok(layouts)
}
