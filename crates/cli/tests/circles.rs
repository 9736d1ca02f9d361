//! The files of a crate use each other in one direction only.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

type Uses = BTreeMap<String, BTreeSet<String>>;

/// The names that follow `crate::`, braces opened: `crate::{a, b::{c, d}}` gives `a` and `b`.
fn named(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let mut depth = 0;
        let mut outer = String::new();
        for c in rest.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ';' => break,
                _ if depth <= 1 => outer.push(c),
                _ => {}
            }
            if depth <= 0 && !(c.is_alphanumeric() || "_:}".contains(c)) {
                break;
            }
        }
        let names = outer.split(',').filter_map(|name| name.trim().split("::").next());
        let bare =
            |name: &str| name.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap().to_owned();
        found.extend(names.map(bare).filter(|name| !name.is_empty()));
    }
    found
}

/// What a file says outside of its tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap().lines();
    code.filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The code of all files of each module that lies directly under `source`.
fn modules(source: &Path) -> BTreeMap<String, String> {
    fn add(path: &Path, text: &mut String) {
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                add(&entry.unwrap().path(), text);
            }
        } else {
            text.push_str(&code(path));
        }
    }
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for path in fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        add(&path, found.entry(name).or_default());
    }
    found.retain(|name, _| name != "main");
    found
}

/// The module that each name comes from which a crate exports: `pub use module::{A, B}`.
fn exports(lib: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for rest in lib.split("pub use ").skip(1) {
        let Some((module, names)) = rest.split_once(';').and_then(|(used, _)| used.split_once("::")) else {
            continue;
        };
        for name in names.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            found.insert(name.to_owned(), module.to_owned());
        }
    }
    found
}

fn uses(source: &Path) -> Uses {
    let mut modules = modules(source);
    let exports = exports(&modules.remove("lib").unwrap_or_default());
    let module_of = |name: String| exports.get(&name).cloned().unwrap_or(name);
    let used = |name: &String, code: &String| {
        let used =
            named(code).into_iter().map(module_of).filter(|used| used != name && modules.contains_key(used));
        (name.clone(), used.collect())
    };
    modules.iter().map(|(name, code)| used(name, code)).collect()
}

/// A file that uses itself by way of others, if there is one.
fn circle(uses: &Uses) -> Option<&str> {
    uses.keys().map(String::as_str).find(|start| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![*start]);
        while let Some(next) = open.pop() {
            open.extend(uses[next].iter().map(String::as_str).filter(|used| seen.insert(*used)));
        }
        seen.contains(start)
    })
}

#[test]
fn files_of_a_crate_use_each_other_in_one_direction() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    for folder in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let uses = uses(&folder.join("src"));
        if let Some(file) = circle(&uses) {
            panic!("`{file}` of crate `{name}` uses itself by way of others: {uses:?}");
        }
    }
}

#[test]
fn names_are_read_through_braces_and_exports() {
    let found = named("use crate::{\n    a, b::{c, d},\n    E,\n};\nlet x = crate::f::g(1, 2);");
    assert_eq!(found, ["E", "a", "b", "f"].map(str::to_owned).into());
    assert_eq!(exports("pub use m::{A, B};")["B"], "m");
    let uses: Uses = [("a", vec!["b"]), ("b", vec!["a"])]
        .map(|(name, used)| (name.to_owned(), used.into_iter().map(str::to_owned).collect()))
        .into();
    assert_eq!(circle(&uses), Some("a"));
}
