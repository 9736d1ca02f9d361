//! What is known of an operation stands in its row of the operation table: no other crate asks for one by its name.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The table itself, libtorch's own tests, and analyses of other programs' traces.
const MAY_NAME: [&str; 3] = ["aten", "torch-sys", "trace"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The operator's name, if a string literal is nothing else. One with a schema makes a node, and asks for none.
fn bare_name(after_quote: &str) -> Option<&str> {
    let name = after_quote.split('"').next()?;
    let rest = name.strip_prefix("aten::").or(name.strip_prefix("prims::"))?;
    let is_name = !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    is_name.then_some(name)
}

#[test]
fn operators_are_asked_for_in_the_table_alone() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut found = Vec::new();
    for folder in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        if !MAY_NAME.contains(&folder.file_name().unwrap().to_str().unwrap()) {
            sources(&folder.join("src"), &mut found);
        }
    }
    assert!(found.len() > 100, "{}", found.len());
    for file in found {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
        let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let name = lines.find_map(|line| line.split('"').skip(1).find_map(bare_name));
        assert_eq!(name, None, "{}: make what it wants to know a property of the row", file.display());
    }
}

#[test]
fn a_name_is_told_from_a_schema_and_a_namespace() {
    assert_eq!(bare_name("aten::mm\" => 1"), Some("aten::mm"));
    assert_eq!(bare_name("aten::"), None);
    assert_eq!(bare_name("aten::mm(Tensor self, Tensor mat2) -> Tensor"), None);
}
