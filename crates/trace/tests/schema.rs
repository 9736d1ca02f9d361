//! The documented schema holds for what the analyses answer.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Setting, generate};
use serde_json::Value;
use unisono_trace::{
    Frames, Mode, Selection,
    summary::{self, Analysis, Options},
};

/// Where `value` breaks `schema`, of which it knows what the documented schema uses.
fn check(schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = match &schema["type"] {
        Value::String(one) => one == kind,
        Value::Array(several) => several.iter().any(|one| one == kind),
        _ => true,
    };
    if !allowed {
        wrong.push(format!("{at} is {kind}, and should be {}", schema["type"]));
    }
    if let Value::Object(object) = value {
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(key) {
                wrong.push(format!("{at} lacks {key}"));
            }
        }
        for (key, member) in object {
            let inner = if schema["properties"][key].is_object() {
                &schema["properties"][key]
            } else {
                &schema["additionalProperties"]
            };
            if inner.is_null() && schema["properties"].is_object() {
                wrong.push(format!("{at}/{key} is not documented"));
            }
            check(inner, member, &format!("{at}/{key}"), wrong);
        }
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        let inner = if schema["prefixItems"][number].is_object() {
            &schema["prefixItems"][number]
        } else {
            &schema["items"]
        };
        check(inner, item, &format!("{at}/{number}"), wrong);
    }
}

#[test]
fn every_key_of_the_answer_is_documented_with_its_type() {
    let schema: Value = serde_json::from_str(include_str!("../../../docs/trace/schema.json")).unwrap();
    for setting in [Setting::default(), Setting { ranks: 1, steps: 1, ..Setting::default() }] {
        let generated = generate(&setting);
        let frames = Frames::new(&generated.timeline, Mode::Exact, Selection::default());
        let answer =
            summary::run(&frames, Analysis::ALL, &Options { op: "aten::mm".into(), ..Options::default() });
        let mut wrong = Vec::new();
        check(&schema, &Value::Object(answer), "", &mut wrong);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
