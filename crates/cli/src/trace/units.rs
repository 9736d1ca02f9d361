//! Times and sizes in units that a person reads. In JSON, times are microseconds and sizes bytes.

use base::{Bytes, Nanos};
use serde_json::Value;

use super::tables::text;

/// Members that are microseconds, beside those whose names say it.
const TIMES: &[&str] = &[
    "after",
    "avg_aten_op_launch_delay",
    "avg_runtime_delay",
    "backward_time",
    "before",
    "begin",
    "caused",
    "cpu_sum",
    "delay_sum",
    "dur",
    "exposed",
    "extra",
    "forward_time",
    "gpu_sum",
    "idle_time",
    "kernel_time",
    "lateness",
    "model_error",
    "noise",
    "own",
    "peak_time",
    "stddev",
    "sum",
    "time",
    "total_duration",
    "transfer",
    "wait",
    "wall",
];

/// Members that are bytes.
const SIZES: &[&str] = &["before_bytes", "bytes", "peak_bytes"];

/// In what the numbers of a column are written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Unit {
    /// As they are.
    Plain,
    /// So many microseconds, under a name.
    Time(f64, &'static str),
    /// Bytes, each in the unit that fits it.
    Size,
}

impl Unit {
    /// A cell of the column.
    pub fn text(self, value: &Value) -> String {
        match (self, value.as_f64(), value) {
            (Self::Time(scale, _), Some(micros), _) => format!("{:.3}", micros / scale),
            (Self::Time(..), None, Value::Array(values)) if values.len() <= 16 => {
                values.iter().map(|value| self.text(value)).collect::<Vec<_>>().join(", ")
            }
            (Self::Size, Some(bytes), _) if bytes >= 0.0 => Bytes(bytes as u64).to_string(),
            _ => text(value),
        }
    }
}

/// Whether a member is a time.
pub fn is_time(key: &str) -> bool {
    key.ends_with("(us)") || key.ends_with("_us") || TIMES.contains(&key)
}

/// The unit in which the greatest number of a column has at most three digits before the point.
pub fn unit_of(key: &str, rows: &[Value]) -> Unit {
    if SIZES.contains(&key) {
        return Unit::Size;
    }
    if !is_time(key) {
        return Unit::Plain;
    }
    let numbers = rows.iter().flat_map(|row| match &row[key] {
        Value::Array(values) => values.iter().filter_map(Value::as_f64).collect(),
        value => value.as_f64().into_iter().collect::<Vec<f64>>(),
    });
    match numbers.map(f64::abs).fold(0.0, f64::max) {
        micros if micros >= 1e6 => Unit::Time(1e6, "s"),
        micros if micros >= 1e3 => Unit::Time(1e3, "ms"),
        _ => Unit::Time(1.0, "us"),
    }
}

/// The name of a column, with its unit.
pub fn header(key: &str, unit: Unit) -> String {
    match unit {
        Unit::Time(_, name) => format!("{}, {name}", title_of(key)),
        _ => title_of(key),
    }
}

/// A member's name for people.
pub fn title_of(key: &str) -> String {
    let key = key.trim_start_matches("queue_length/").trim_start_matches("memory_bw_gbps/");
    let key = if is_time(key) { key.trim_end_matches("(us)").trim_end_matches("_us") } else { key };
    key.trim_end().replace('_', " ")
}

/// A value that stands alone, with its unit.
pub fn single(key: &str, value: &Value) -> String {
    match value.as_f64() {
        Some(micros) if is_time(key) => Nanos((micros * 1e3).round() as i64).to_string(),
        Some(bytes) if SIZES.contains(&key) && bytes >= 0.0 => Bytes(bytes as u64).to_string(),
        _ => text(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_column_of_times_has_one_unit_that_its_greatest_number_reads_well_in() {
        let rows =
            [json!({"wait": 46_890.0, "sum (us)": 3.5}), json!({"wait": [12.5, 900.0], "sum (us)": null})];
        let wait = unit_of("wait", &rows);
        assert_eq!((header("wait", wait), wait.text(&rows[0]["wait"])), ("wait, ms".into(), "46.890".into()));
        assert_eq!(wait.text(&rows[1]["wait"]), "0.013, 0.900");
        let sum = unit_of("sum (us)", &rows);
        assert_eq!((header("sum (us)", sum), sum.text(&rows[1]["sum (us)"])), ("sum, us".into(), "-".into()));
        assert_eq!(single("peak_bytes", &json!(1536)), "1.50 KiB");
        assert_eq!(single("count", &json!(7)), "7");
    }
}
