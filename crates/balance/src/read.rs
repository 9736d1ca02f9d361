//! Reads a problem file: one JSON object. Every refusal names the key and the number at fault.

use std::fmt;

use base::{Code, Diagnostic, Result, unknown_name_hint};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::Value;

use crate::{
    cost::{Cost, Table},
    machine::SequenceParallel,
    partition::Tier,
    problem::{Objective, Problem},
};

const KEYS: [&str; 16] = [
    "lengths",
    "ranks",
    "cost",
    "tokens_per_rank",
    "objective",
    "equal_count",
    "equal_micro_batches",
    "shard_group",
    "stages",
    "ranks_per_node",
    "rate",
    "passes",
    "sequence_parallel",
    "tier",
    "moving",
    "name",
];

/// Reads the text of a problem file; `file` is its name in messages.
pub fn read_problem(text: &str, file: &str) -> Result<Problem> {
    let Entries(entries) = serde_json::from_str(text).map_err(|error| syntax(&error, file))?;
    build(&entries, false).map_err(|diagnostic| match diagnostic.place {
        Some(_) => diagnostic,
        None => place(diagnostic, text, file),
    })
}

/// Reads a problem without `lengths`: the settings of a sampler, for which samples come later.
pub fn read_settings(text: &str) -> Result<Problem> {
    let Entries(entries) = serde_json::from_str(text).map_err(|error| syntax(&error, "settings"))?;
    if entries.iter().any(|entry| entry.0 == "lengths") {
        return Err(Diagnostic::new(
            Code::UNKNOWN_KEY,
            "settings hold no `lengths`: they come with the samples",
        ));
    }
    build(&entries, true)
}

/// Where the first quoted name of the message stands in the file, if it does.
fn place(diagnostic: Box<Diagnostic>, text: &str, file: &str) -> Box<Diagnostic> {
    let name = diagnostic.message.split('`').nth(1).map(|name| name.split(['[', '.']).next().unwrap_or(name));
    let at = name.and_then(|name| text.find(&format!("\"{name}\"")));
    let Some(before) = at.map(|at| &text[..at]) else { return diagnostic.at_line(file, 0, 0) };
    let line = before.matches('\n').count() as u32 + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() as u32 + 1;
    diagnostic.at_line(file, line, column)
}

fn syntax(error: &serde_json::Error, file: &str) -> Box<Diagnostic> {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text).to_owned();
    let message = match error.classify() {
        serde_json::error::Category::Data => format!("a problem is one JSON object: {what}"),
        _ => format!("the problem file is no JSON: {what}"),
    };
    Diagnostic::new(Code::BAD_TEXT, message).at_line(file, error.line() as u32, error.column() as u32)
}

/// A JSON object with its keys in order, repeated ones refused.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with `lengths`, `ranks` and `cost`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
                let mut entries: Vec<(String, Value)> = Vec::new();
                while let Some(key) = map.next_key::<String>()? {
                    if entries.iter().any(|entry| entry.0 == key) {
                        return Err(serde::de::Error::custom(format!("the key `{key}` is given twice")));
                    }
                    entries.push((key, map.next_value()?));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

fn build(entries: &[(String, Value)], template: bool) -> Result<Problem> {
    known(entries.iter().map(|entry| entry.0.as_str()), "the problem", &KEYS)?;
    let get = |key: &str| {
        entries.iter().find(|entry| entry.0 == key).map(|entry| &entry.1).filter(|v| !v.is_null())
    };
    let need = |key: &str| {
        let what = || Diagnostic::new(Code::BAD_PROBLEM, format!("the problem lacks the key `{key}`"));
        get(key).ok_or_else(what)
    };
    let lengths = if template { Vec::new() } else { read_lengths(need("lengths")?)? };
    let costs = read_costs(need("cost")?)?;
    let ranks = whole(need("ranks")?, "ranks")? as usize;
    let integer = |key: &str| get(key).map(|value| whole(value, key)).transpose();
    let flag = |key: &str| match get(key) {
        None => Ok(false),
        Some(value) => value.as_bool().ok_or_else(|| wrong(key, value, "true or false")),
    };
    let sequence_parallel = match get("sequence_parallel") {
        None => {
            unused(get)?;
            None
        }
        Some(value) => Some(read_parallel(value, ranks, get)?),
    };
    let problem = Problem {
        lengths,
        costs,
        ranks,
        tokens_per_rank: integer("tokens_per_rank")?,
        objective: choice(get("objective"), "objective", &Objective::ALL)?,
        equal_count: flag("equal_count")?,
        equal_micro_batches: flag("equal_micro_batches")?,
        shard_group: integer("shard_group")?.map(|group| group as usize),
        stages: integer("stages")?,
        sequence_parallel,
        tier: choice(get("tier"), "tier", &Tier::ALL)?,
        moving: integer("moving")?,
    };
    if template {
        problem.check_settings()?;
    } else {
        problem.check()?;
    }
    Ok(problem)
}

/// Refuses what only counts with sequence parallelism where there is none.
fn unused<'a>(get: impl Fn(&str) -> Option<&'a Value>) -> Result<()> {
    match ["rate", "passes", "ranks_per_node"].into_iter().find(|key| get(key).is_some()) {
        None => Ok(()),
        Some(key) => {
            Err(Diagnostic::new(Code::BAD_PROBLEM, format!("`{key}` is given without `sequence_parallel`"))
                .because("only groups of ranks have exchanges to time; without them costs count as they are")
                .hint("add `sequence_parallel` with its `degrees`, or leave the key out"))
        }
    }
}

fn known<'a>(keys: impl Iterator<Item = &'a str>, whose: &str, known: &[&'static str]) -> Result<()> {
    for key in keys {
        if !known.contains(&key) {
            return Err(Diagnostic::new(Code::UNKNOWN_KEY, format!("unknown key `{key}`"))
                .because(format!("{whose} has no such key"))
                .hint(unknown_name_hint(key, known.iter().copied())));
        }
    }
    Ok(())
}

fn wrong(key: &str, value: &Value, wanted: &str) -> Box<Diagnostic> {
    let mut shown = value.to_string();
    if shown.chars().count() > 60 {
        shown = shown.chars().take(57).chain("...".chars()).collect();
    }
    Diagnostic::new(Code::BAD_PROBLEM, format!("`{key}` is {shown}: it must be {wanted}"))
}

/// A whole number that is not negative; `12.0` and `1e9` are accepted, as Python writes them.
fn whole(value: &Value, key: &str) -> Result<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let from_float =
        |value: f64| (value.fract() == 0.0 && (0.0..=EXACT).contains(&value)).then_some(value as u64);
    let number = value.as_u64().or_else(|| value.as_f64().and_then(from_float));
    number.ok_or_else(|| wrong(key, value, "a whole number that is not negative and fits 64 bits"))
}

fn positive(value: &Value, key: &str) -> Result<u64> {
    match whole(value, key) {
        Ok(0) | Err(_) => Err(wrong(key, value, "a positive whole number that fits 64 bits")),
        number => number,
    }
}

fn float(value: &Value, key: &str) -> Result<f64> {
    value.as_f64().ok_or_else(|| wrong(key, value, "a number"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value.as_array().ok_or_else(|| wrong(key, value, "a list"))
}

fn choice<T: Copy + Default>(value: Option<&Value>, key: &str, all: &[(T, &'static str)]) -> Result<T> {
    let Some(value) = value else { return Ok(T::default()) };
    let name = value.as_str().ok_or_else(|| wrong(key, value, "a name"))?;
    let names = all.iter().map(|row| row.1);
    let found = all.iter().find(|row| row.1 == name);
    found.map(|row| row.0).ok_or_else(|| {
        Diagnostic::new(Code::UNKNOWN_KEY, format!("`{key}` is \"{name}\", which is not known"))
            .hint(unknown_name_hint(name, names))
    })
}

/// One list per phase.
fn read_lengths(value: &Value) -> Result<Vec<Vec<u64>>> {
    let samples = list(value, "lengths")?;
    let Some(width) = samples.first().and_then(Value::as_array).map(Vec::len) else {
        let read = |(index, value): (usize, &Value)| positive(value, &format!("lengths[{index}]"));
        return Ok(vec![samples.iter().enumerate().map(read).collect::<Result<_>>()?]);
    };
    let mut phases = vec![Vec::with_capacity(samples.len()); width.max(1)];
    for (index, sample) in samples.iter().enumerate() {
        let key = format!("lengths[{index}]");
        let row = sample.as_array().filter(|row| row.len() == width && width > 0);
        let row =
            row.ok_or_else(|| wrong(&key, sample, &format!("a list of {width} lengths like the first")))?;
        for (phase, length) in row.iter().enumerate() {
            phases[phase].push(whole(length, &format!("{key}[{phase}]"))?);
        }
    }
    Ok(phases)
}

fn read_costs(value: &Value) -> Result<Vec<Cost>> {
    match value {
        Value::Array(costs) => {
            costs.iter().enumerate().map(|(index, cost)| read_cost(cost, &format!("cost[{index}]"))).collect()
        }
        _ => Ok(vec![read_cost(value, "cost")?]),
    }
}

fn read_cost(value: &Value, key: &str) -> Result<Cost> {
    let wanted = "an object with `linear`, `quadratic`, `constant`, or with `table`";
    let object = value.as_object().ok_or_else(|| wrong(key, value, wanted))?;
    known(object.keys().map(String::as_str), "a cost", &["linear", "quadratic", "constant", "table"])?;
    if let Some(table) = object.get("table") {
        if object.len() > 1 {
            return Err(wrong(key, value, "either a `table` or coefficients"));
        }
        let point = |(index, row): (usize, &Value)| {
            let key = format!("{key}.table[{index}]");
            let row = row.as_array().filter(|row| row.len() == 2);
            let row = row.ok_or_else(|| wrong(&key, value, "a [length, cost] pair"))?;
            Ok((whole(&row[0], &key)?, whole(&row[1], &key)?))
        };
        let points = list(table, key)?.iter().enumerate().map(point).collect::<Result<_>>()?;
        return Table::new(points).map(Cost::Table);
    }
    let coefficient = |name: &str| match object.get(name) {
        None => Ok(0),
        Some(value) => whole(value, &format!("{key}.{name}")),
    };
    let (linear, quadratic, constant) =
        (coefficient("linear")?, coefficient("quadratic")?, coefficient("constant")?);
    if (linear, quadratic, constant) == (0, 0, 0) {
        return Err(wrong(key, value, "more than nothing: every sample would cost 0"));
    }
    Ok(Cost::polynomial(linear, quadratic, constant))
}

fn read_parallel<'a>(
    value: &Value,
    ranks: usize,
    get: impl Fn(&str) -> Option<&'a Value>,
) -> Result<SequenceParallel> {
    let key = "sequence_parallel";
    let object = value.as_object().ok_or_else(|| wrong(key, value, "an object"))?;
    known(
        object.keys().map(String::as_str),
        "`sequence_parallel`",
        &["degrees", "bytes_per_token", "bandwidth"],
    )?;
    let need = |name: &str| {
        let what = || Diagnostic::new(Code::BAD_PROBLEM, format!("`{key}` lacks the key `{name}`"));
        object.get(name).ok_or_else(what)
    };
    let degrees = list(need("degrees")?, "degrees")?.iter().enumerate();
    let mut degrees: Vec<usize> = degrees
        .map(|(index, degree)| positive(degree, &format!("degrees[{index}]")).map(|degree| degree as usize))
        .collect::<Result<_>>()?;
    degrees.sort_unstable();
    let rate = get("rate").ok_or_else(|| {
        Diagnostic::new(Code::BAD_PROBLEM, "`sequence_parallel` needs the key `rate`")
            .because("exchanges take seconds, so costs must become seconds: operations per second of a rank")
    })?;
    let single = degrees.iter().all(|degree| *degree == 1);
    let bandwidth = match object.get("bandwidth") {
        None if single => Vec::new(),
        _ => read_bandwidth(need("bandwidth")?)?,
    };
    let bytes = if single { object.get("bytes_per_token") } else { Some(need("bytes_per_token")?) };
    Ok(SequenceParallel {
        degrees,
        bytes_per_token: bytes.map_or(Ok(0.0), |value| float(value, "bytes_per_token"))?,
        bandwidth,
        ranks_per_node: get("ranks_per_node")
            .map_or(Ok(ranks as u64), |value| positive(value, "ranks_per_node"))?
            as usize,
        rate: float(rate, "rate")?,
        passes: get("passes").map_or(Ok(1.0), |value| float(value, "passes"))?,
    })
}

fn read_bandwidth(value: &Value) -> Result<Vec<(usize, f64)>> {
    let row = |(index, row): (usize, &Value)| {
        let key = format!("bandwidth[{index}]");
        let pair = row.as_array().filter(|row| row.len() == 2);
        let pair = pair.ok_or_else(|| wrong(&key, row, "a [largest_degree, bytes_per_second] pair"))?;
        Ok((positive(&pair[0], &key)? as usize, float(&pair[1], &key)?))
    };
    list(value, "bandwidth")?.iter().enumerate().map(row).collect()
}
