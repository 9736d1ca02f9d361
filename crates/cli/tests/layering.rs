//! The crate graph points down only, as `docs/architecture.md` lays it out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, path::Path, process::Command};

/// Levels of the table in `docs/architecture.md`, by crate folder.
fn levels() -> BTreeMap<String, u8> {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let table = page.split("## Crates").nth(1).unwrap().split("\n## ").next().unwrap();
    table
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let level = cells.next()?.parse().ok()?;
            Some((cells.next()?.trim_matches('`').to_owned(), level))
        })
        .collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Every workspace crate's folder with the folders of the workspace crates that it depends on (tests aside).
fn edges() -> Vec<(String, Vec<String>)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let folder = |path: &str| Path::new(path).file_name().unwrap().to_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let manifest = Path::new(package["manifest_path"].as_str().unwrap());
            let uses = package["dependencies"].as_array().unwrap().iter();
            let uses = uses.filter(|edge| edge["kind"].is_null()).filter_map(|edge| edge["path"].as_str());
            (folder(manifest.parent().unwrap().to_str().unwrap()), uses.map(folder).collect())
        })
        .collect()
}

#[test]
fn there_are_at_most_eight_levels() {
    assert!(levels().values().all(|level| *level < 8));
}

#[test]
fn crates_use_only_crates_of_lower_levels() {
    let levels = levels();
    for (user, uses) in edges() {
        let level = levels.get(&user).unwrap_or_else(|| panic!("`{user}` is not in docs/architecture.md"));
        for used in uses {
            assert!(
                levels[&used] < *level,
                "`{user}` (level {level}) uses `{used}` (level {})",
                levels[&used]
            );
        }
    }
}
