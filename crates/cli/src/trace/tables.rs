//! Tables for people.

use std::io::{Result, Write};

use ::trace::{
    diff::Regression,
    prediction::{CollectiveRow, Comparison, FamilyRow, Pair},
};
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle, presets};
use serde_json::{Map, Value, json};

use super::units::{Unit, header, is_time, single, title_of, unit_of};

/// More rows than these are not shown.
const MOST_ROWS: usize = 24;

/// Results that are better read elsewhere than as a table.
const NOT_SHOWN: &[&str] = &["ranks", "mode", "notes", "user_annotation_breakdown"];

/// Results that come first, in this order; the others follow by name.
const BEGIN: &[&str] = &[
    "temporal_breakdown",
    "comm_comp_overlap",
    "exposed_communication",
    "critical_path",
    "kernel_breakdown",
];

/// Columns that come first, in this order.
const FIRST: &[&str] = &[
    "rank",
    "stream",
    "name",
    "kernel_type",
    "of a rank",
    "idle_category",
    "aten_op_name",
    "operation",
    "group",
    "number",
    "category",
    "device",
    "operator",
    "pattern",
    "predicted (us)",
    "measured (us)",
    "calls predicted",
    "calls measured",
];

/// Prints the findings, and then every table of `object` under its name.
pub fn print(out: &mut dyn Write, object: &Map<String, Value>) -> Result<()> {
    if let Some(findings) = object.get("findings").and_then(Value::as_array) {
        print_findings(out, findings)?;
    }
    let shown = object.iter().filter(|(name, _)| !NOT_SHOWN.contains(&name.as_str()) && *name != "findings");
    let mut shown: Vec<(&String, &Value)> = shown.collect();
    shown.sort_by_key(|(name, _)| BEGIN.iter().position(|first| first == name).unwrap_or(BEGIN.len()));
    shown.into_iter().try_for_each(|(name, value)| print_rows(out, name, value))
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
        writeln!(out, "{title}: {} {}", title_of(key), single(key, value))?;
    }
    for (key, value) in object.iter().filter(|(_, value)| !is_plain(value)) {
        match value {
            Value::Object(parts) if parts.values().all(is_plain) => {
                let kind = |name: &'_ str| if is_time(key) { key.clone() } else { name.to_owned() };
                let part =
                    |(name, value): (&String, &Value)| format!("{name} {}", single(&kind(name), value));
                let parts: Vec<String> = parts.iter().map(part).collect();
                writeln!(out, "{title}: {}: {}", title_of(key), parts.join(", "))?;
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

/// A line under the names of the columns, and none between rows.
const STYLE: TableStyle = presets::NOTHING.header_separator(LineStyle::new('─', '─', '─', '─'));

fn table(rows: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic);
    let Some(Value::Object(first)) = rows.first() else { return table };
    let mut keys: Vec<&String> =
        first.keys().filter(|key| !is_table(&first[*key]) && key.as_str() != "curve").collect();
    keys.sort_by_key(|key| FIRST.iter().position(|first| first == *key).unwrap_or(FIRST.len()));
    let shown = &rows[..rows.len().min(MOST_ROWS)];
    let units: Vec<Unit> = keys.iter().map(|key| unit_of(key, shown)).collect();
    table.set_header(keys.iter().zip(&units).map(|(key, unit)| header(key, *unit)));
    for row in shown {
        table.add_row(keys.iter().zip(&units).map(|(key, unit)| unit.text(&row[key.as_str()])));
    }
    for (number, key) in keys.iter().enumerate() {
        if let Some(column) = table.column_mut(number).filter(|_| first[key.as_str()].is_number()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A value as it is.
pub fn text(value: &Value) -> String {
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
            .map(|(k, v)| format!("{k} {}", single(k, v)))
            .collect::<Vec<_>>()
            .join(", "),
        Value::Bool(value) => value.to_string(),
    }
}

/// Prints a simulated step beside a measured one.
pub fn print_prediction(out: &mut dyn Write, result: &Comparison) -> Result<()> {
    let Comparison { step, compute, communication, exposed, operations, collectives } = result;
    let rows =
        [("step", step), ("operations", compute), ("waiting", exposed), ("collectives", communication)];
    let row = |(what, pair): &(&str, &Pair)| json!({"of a rank": what, "predicted (us)": pair.predicted, "measured (us)": pair.measured});
    print_rows(out, "step", &rows.iter().map(row).collect())?;
    let row = |row: &FamilyRow| {
        json!({
            "operation": row.operation, "predicted (us)": row.time.predicted, "measured (us)": row.time.measured,
            "calls predicted": row.calls.0, "calls measured": row.calls.1,
        })
    };
    print_rows(out, "operations", &operations.iter().map(row).collect())?;
    let row = |row: &CollectiveRow| {
        json!({
            "operation": row.operation, "group": row.group, "predicted (us)": row.time.predicted,
            "measured (us)": row.time.measured, "count": row.count, "cause": row.cause,
        })
    };
    print_rows(out, "collectives", &collectives.iter().map(row).collect())
}

/// Prints what changed between two runs.
pub fn print_regression(out: &mut dyn Write, result: &Regression) -> Result<()> {
    let (before, after) =
        (single("wall", &result.step_before.into()), single("wall", &result.step_after.into()));
    let (samples, more) = result.samples;
    writeln!(out, "step: {before} before, {after} after ({samples} and {more} samples)")?;
    if result.changes.is_empty() {
        return writeln!(out, "no operation changed beyond the noise");
    }
    let rows = serde_json::to_value(&result.changes).unwrap_or_default();
    print_rows(out, "changes beyond the noise", &rows)
}
