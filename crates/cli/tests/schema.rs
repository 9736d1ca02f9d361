//! The figures of plans of all kinds are as their JSON schema says, and nothing else is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Files, fast, slow};
use serde_json::Value;

/// A product for each of eight experts.
const STEP: &str = include_str!("../../plan/tests/steps/experts.txt");

/// What of `value` is not as `schema` says; `root` is what references are looked up in. A keyword that is not known here is a failure.
fn wrong(root: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (keyword, said) in schema.as_object().unwrap() {
        let one = |is_right: bool, what: &str| {
            if is_right { vec![] } else { vec![format!("{at}: {what} {said}: {value}")] }
        };
        found.extend(match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => vec![],
            "$ref" => {
                let pointer = said.as_str().unwrap().trim_start_matches('#');
                wrong(root, root.pointer(pointer).unwrap(), value, at)
            }
            "type" => {
                let types = said.as_array().map_or_else(|| vec![said.clone()], Clone::clone);
                one(types.iter().any(|name| is_of(value, name.as_str().unwrap())), "is no")
            }
            "enum" => one(said.as_array().unwrap().contains(value), "is none of"),
            "minimum" => {
                one(value.as_f64().is_none_or(|number| number >= said.as_f64().unwrap()), "is below")
            }
            "anyOf" => {
                let all = said.as_array().unwrap().iter().map(|one| wrong(root, one, value, at));
                all.min_by_key(Vec::len).unwrap()
            }
            "items" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                items.flat_map(|(number, item)| wrong(root, said, item, &format!("{at}[{number}]"))).collect()
            }
            "required" if !value.is_object() => vec![],
            "required" => {
                let missing = said
                    .as_array()
                    .unwrap()
                    .iter()
                    .filter(|name| value.get(name.as_str().unwrap()).is_none());
                missing.map(|name| format!("{at}: {name} is missing")).collect()
            }
            "properties" => {
                let known = said.as_object().unwrap().iter();
                let there = known.filter_map(|(name, schema)| Some((name, schema, value.get(name)?)));
                there
                    .flat_map(|(name, schema, value)| wrong(root, schema, value, &format!("{at}.{name}")))
                    .collect()
            }
            "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                let others = value.as_object().into_iter().flatten();
                let others = others.filter(|(name, _)| known.is_none_or(|known| !known.contains_key(*name)));
                let wrong = |(name, value): (&String, &Value)| match said {
                    Value::Bool(false) => vec![format!("{at}: {name} is not in the schema")],
                    schema => wrong(root, schema, value, &format!("{at}.{name}")),
                };
                others.flat_map(wrong).collect()
            }
            unknown => vec![format!("the schema says `{unknown}`")],
        });
    }
    found
}

fn is_of(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

#[test]
fn plans_of_all_kinds_are_as_the_schema_says() {
    let files = Files::new("schema-kinds", STEP, &slow(fast(100.0)));
    files.write("none.toml", "\"params.*\".a = \"shard(5)\"\n");
    files.write("shards.toml", "\"*\".a = \"shard(0)\"\n");
    let (status, schema, errors) = files.run("plan --schema");
    assert_eq!((status, errors.as_str()), (0, ""));
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let mut seen = Vec::new();
    for arguments in [
        "--mesh a=1",
        "--mesh a=4 --sensitivity --why-not tensor --why-not none.toml --why-not a=2",
        "--mesh a=2,b=2",
        "--mesh a=4 --micro-batches 2",
        "--mesh stages=2,a=2 --micro-batches 2 --why-not a=4",
        "--mesh a=4 --pins shards.toml --memory-limit 2100000 --sensitivity --why-not data",
    ] {
        let (status, json, errors) =
            files.run(&format!("plan step.txt --cluster cluster.toml --json --quick {arguments}"));
        assert_eq!((status, errors.as_str()), (0, ""), "{arguments}");
        let said: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(wrong(&schema, &schema, &said, ""), Vec::<String>::new(), "{arguments}");
        seen.push(said);
    }
    // Every kind shows something that the others do not.
    assert!(seen[0]["collectives"] == Value::Array(vec![]) && !seen[4]["pipeline"].is_null());
    assert!(!seen[1]["why_not"][1]["refused"].is_null() && !seen[1]["why_not"][0]["first"].is_null());
    assert!(seen[5]["sensitivity"][0]["with"].as_str().unwrap().contains("GiB"));
}

#[test]
fn what_is_not_as_the_schema_says_is_found() {
    let files = Files::new("schema-wrong", STEP, &slow(fast(100.0)));
    let schema: Value = serde_json::from_str(&files.run("plan --schema").1).unwrap();
    let (_, json, _) = files.run("plan step.txt --cluster cluster.toml --json --quick --mesh a=2");
    let right: Value = serde_json::from_str(&json).unwrap();
    let changes: [fn(&mut Value); 5] = [
        |said| drop(said.as_object_mut().unwrap().remove("held")),
        |said| said["modules"][0]["more"] = 1.into(),
        |said| said["step_ms"] = "1 ms".into(),
        |said| said["collectives"][0]["kind"] = "gather".into(),
        |said| said["mesh"]["a"] = 0.into(),
    ];
    for change in changes {
        let mut said = right.clone();
        change(&mut said);
        assert_eq!(wrong(&schema, &schema, &said, "").len(), 1, "{said}");
    }
}
