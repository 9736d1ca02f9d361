//! Which pipeline stages hold state as lines: alike names as one pattern. In messages they are as they are.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{
    inputs::MOST_NAMES,
    patterns::{components, expanded, fold, pattern},
};

/// The stages that hold an input, by its name.
pub type Holders = BTreeMap<String, Vec<u32>>;

/// Writes `pattern = stages`.
pub fn serialize<S: Serializer>(holders: &Holders, serializer: S) -> Result<S::Ok, S::Error> {
    if !serializer.is_human_readable() {
        return holders.serialize(serializer);
    }
    let lines = fold(holders.iter().map(|(name, stages)| (components(name), stages)));
    let lines: IndexMap<String, &Vec<u32>> =
        lines.into_iter().map(|(name, stages)| (pattern(&name), stages)).collect();
    lines.serialize(serializer)
}

/// Reads what [`serialize`] writes; a name must not come twice.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Holders, D::Error> {
    if !deserializer.is_human_readable() {
        return Holders::deserialize(deserializer);
    }
    let mut holders = Holders::new();
    for (pattern, stages) in IndexMap::<String, Vec<u32>>::deserialize(deserializer)? {
        for name in expanded(&pattern, MOST_NAMES).map_err(D::Error::custom)? {
            if holders.insert(name, stages.clone()).is_some() {
                return Err(D::Error::custom(format!("an input of `{pattern}` is on stages twice")));
            }
        }
    }
    Ok(holders)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Lines {
        #[serde(with = "super")]
        state: Holders,
    }

    #[test]
    fn alike_layers_on_a_stage_are_one_line_which_is_read_back() {
        let mut state = Holders::new();
        for layer in 0..4 {
            for name in ["q", "k"] {
                state.insert(format!("params.blocks.{layer}.{name}.weight"), vec![layer / 2]);
            }
        }
        state.insert("params.embedding".into(), vec![0, 1]);
        let text = toml::to_string(&Lines { state: state.clone() }).unwrap();
        let expected = r#"[state]
"params.blocks.{0,1}.{k,q}.weight" = [0]
"params.blocks.{2,3}.{k,q}.weight" = [1]
"params.embedding" = [0, 1]
"#;
        assert_eq!(text, expected);
        assert_eq!(toml::from_str::<Lines>(&text).unwrap(), Lines { state });
    }

    #[test]
    fn a_name_in_two_lines_is_refused() {
        let text = "[state]\n\"params.{a,b}\" = [0]\n\"params.b\" = [1]\n";
        let refused = toml::from_str::<Lines>(text).unwrap_err().to_string();
        assert!(refused.contains("an input of `params.b` is on stages twice"), "{refused}");
    }
}
