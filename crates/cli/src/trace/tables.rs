//! Tables for people.

use std::io::{Result, Write};

use ::trace::diff::Regression;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::{Map, Value};

/// More rows than these are not shown.
const MOST_ROWS: usize = 24;

/// Results that are better read elsewhere than as a table.
const NOT_SHOWN: &[&str] = &["ranks", "mode", "notes", "user_annotation_breakdown"];

/// Columns that come first, in this order.
const FIRST: &[&str] = &[
    "rank",
    "stream",
    "name",
    "kernel_type",
    "idle_category",
    "aten_op_name",
    "operation",
    "group",
    "number",
    "category",
    "device",
    "operator",
    "pattern",
];

/// Prints the findings, and then every table of `object` under its name.
pub fn print(out: &mut dyn Write, object: &Map<String, Value>) -> Result<()> {
    if let Some(findings) = object.get("findings").and_then(Value::as_array) {
        print_findings(out, findings)?;
    }
    for (name, value) in
        object.iter().filter(|(name, _)| !NOT_SHOWN.contains(&name.as_str()) && *name != "findings")
    {
        print_rows(out, name, value)?;
    }
    Ok(())
}

fn print_findings(out: &mut dyn Write, findings: &[Value]) -> Result<()> {
    if findings.is_empty() {
        return writeln!(out, "nothing stands out\n");
    }
    for (number, finding) in findings.iter().enumerate() {
        let text = |key: &str| finding[key].as_str().unwrap_or_default();
        let share = finding["share"].as_f64().unwrap_or_default();
        writeln!(out, "{}. {} ({share:.1} % of the time)", number + 1, text("title"))?;
        writeln!(out, "   {}", text("evidence"))?;
        writeln!(out, "   hint: {}; details: {}\n", text("action"), text("analysis"))?;
    }
    Ok(())
}

/// Prints the tables of one result.
pub fn print_rows(out: &mut dyn Write, name: &str, value: &Value) -> Result<()> {
    let title = name.replace('_', " ");
    match value {
        Value::Array(rows) if rows.iter().any(Value::is_object) => {
            writeln!(out, "{title}\n{}", table(rows))?;
            if rows.len() > MOST_ROWS {
                writeln!(out, "... {} more rows with --json", rows.len() - MOST_ROWS)?;
            }
            writeln!(out)?;
            rows.iter().take(4).try_for_each(|row| print_inner(out, &title, row))
        }
        Value::Array(parts) if parts.iter().any(Value::is_array) => {
            parts.iter().try_for_each(|part| print_rows(out, name, part))
        }
        Value::Array(numbers) if !numbers.is_empty() => writeln!(out, "{title}: {}\n", list(numbers)),
        Value::Object(object) => print_object(out, &title, object),
        _ => Ok(()),
    }
}

/// Tables that are members of a row.
fn print_inner(out: &mut dyn Write, title: &str, row: &Value) -> Result<()> {
    let inner = row.as_object().into_iter().flatten().filter(|(_, value)| is_table(value));
    for (key, value) in inner {
        let of = FIRST
            .iter()
            .find(|first| row.get(*first).is_some())
            .map_or_else(String::new, |first| format!(" of {first} {}", text(&row[*first])));
        print_rows(out, &format!("{title}: {key}{of}"), value)?;
    }
    Ok(())
}

fn is_table(value: &Value) -> bool {
    matches!(value, Value::Array(rows) if rows.iter().any(Value::is_object))
}

fn list(values: &[Value]) -> String {
    values.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Plain members on lines, members with tables below.
fn print_object(out: &mut dyn Write, title: &str, object: &Map<String, Value>) -> Result<()> {
    let by_rank = object.values().all(Value::is_object) && !object.is_empty();
    if by_rank {
        let rows: Vec<Value> = object.iter().map(|(rank, row)| with_rank(rank, row)).collect();
        return print_rows(out, title, &Value::Array(rows));
    }
    let is_plain = |value: &Value| !value.is_array() && !value.is_object();
    for (key, value) in object.iter().filter(|(_, value)| is_plain(value)) {
        writeln!(out, "{title}: {} {}", key.replace('_', " "), text(value))?;
    }
    for (key, value) in object.iter().filter(|(_, value)| !is_plain(value)) {
        match value {
            Value::Object(parts) if parts.values().all(is_plain) => {
                let parts: Vec<String> =
                    parts.iter().map(|(name, value)| format!("{name} {}", text(value))).collect();
                writeln!(out, "{title}: {}: {}", key.replace('_', " "), parts.join(", "))?;
            }
            _ => print_rows(out, &format!("{title}: {key}"), value)?,
        }
    }
    writeln!(out)
}

fn with_rank(rank: &str, row: &Value) -> Value {
    let mut row = row.as_object().cloned().unwrap_or_default();
    row.insert("rank".to_owned(), Value::String(rank.to_owned()));
    Value::Object(row)
}

fn table(rows: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    let Some(Value::Object(first)) = rows.first() else { return table };
    let mut keys: Vec<&String> =
        first.keys().filter(|key| !is_table(&first[*key]) && key.as_str() != "curve").collect();
    keys.sort_by_key(|key| FIRST.iter().position(|first| first == *key).unwrap_or(FIRST.len()));
    table.set_header(
        keys.iter().map(|key| key.trim_start_matches("queue_length/").trim_start_matches("memory_bw_gbps/")),
    );
    for row in rows.iter().take(MOST_ROWS) {
        table.add_row(keys.iter().map(|key| text(&row[key.as_str()])));
    }
    for (number, key) in keys.iter().enumerate() {
        if let Some(column) = table.column_mut(number).filter(|_| first[key.as_str()].is_number()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().count() > 60 => {
            text.chars().take(57).chain("...".chars()).collect()
        }
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Number(number) => number.as_f64().map_or_else(String::new, |number| {
            if number.fract() == 0.0 { format!("{number:.0}") } else { format!("{number:.3}") }
        }),
        Value::Array(values) if values.len() <= 16 => list(values),
        Value::Array(values) => format!("{} values", values.len()),
        Value::Object(object) => object
            .iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| format!("{k} {}", text(v)))
            .collect::<Vec<_>>()
            .join(", "),
        Value::Bool(value) => value.to_string(),
    }
}

/// Prints what changed between two runs.
pub fn print_regression(out: &mut dyn Write, result: &Regression) -> Result<()> {
    writeln!(
        out,
        "step: {:.1} us before, {:.1} us after ({} and {} samples)",
        result.step_before, result.step_after, result.samples.0, result.samples.1
    )?;
    if result.changes.is_empty() {
        return writeln!(out, "no operation changed beyond the noise");
    }
    let rows = serde_json::to_value(&result.changes).unwrap_or_default();
    print_rows(out, "changes beyond the noise", &rows)
}
