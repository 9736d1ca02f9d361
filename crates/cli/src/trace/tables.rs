//! Tables for people.

use std::io::{Result, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value};

/// Prints every table of `object` under its name.
pub fn print(out: &mut dyn Write, object: &Map<String, Value>) -> Result<()> {
    for (name, value) in object {
        for (number, rows) in tables_of(value).into_iter().enumerate() {
            let suffix = if number > 0 { format!(" ({})", number + 1) } else { String::new() };
            writeln!(out, "{}{suffix}\n{}\n", name.replace('_', " "), table(rows))?;
        }
    }
    Ok(())
}

/// The lists of records in a result: itself, or those of its parts.
fn tables_of(value: &Value) -> Vec<&Vec<Value>> {
    match value {
        Value::Array(rows) if rows.iter().any(Value::is_object) => vec![rows],
        Value::Array(parts) => parts.iter().flat_map(tables_of).collect(),
        _ => Vec::new(),
    }
}

fn table(rows: &[Value]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let Some(Value::Object(first)) = rows.first() else { return table };
    table.set_header(first.keys());
    for row in rows {
        table.add_row(first.keys().map(|key| text(&row[key])));
    }
    for (number, key) in first.keys().enumerate() {
        if let Some(column) = table.column_mut(number).filter(|_| first[key].is_number()) {
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
        other => other.to_string(),
    }
}
