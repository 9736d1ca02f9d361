//! Tables of the page.

use base::Bytes;
use indexmap::IndexMap;
use ir::{PartKind, Placement};
use report::{Paint, Row, Share, Table};

use super::{lanes::paint, percent};
use crate::{
    account::{CauseTime, CollectiveTime},
    explain::{changes, short},
    summary::{StatePattern, Summary},
};

/// What a rank has in memory at the peak.
pub fn at_peak(summary: &Summary) -> Table {
    let whole = summary.peak_bytes as f64;
    let rows = summary.memory.iter().filter(|(_, bytes)| **bytes > 0).map(|(what, bytes)| {
        let share = percent(*bytes as f64, whole);
        Row {
            cells: vec![(*what).to_owned(), Bytes(*bytes).to_string(), format!("{share:.1} %")],
            bar: vec![plain(Paint::Forward, share)],
        }
    });
    Table {
        heading: "Memory at the peak".into(),
        note: "What a rank holds at the worst moment of the step.".into(),
        heads: heads(&["what", "bytes", "share"]),
        rows: rows.collect(),
    }
}

/// Which modules have made what is in memory at the peak.
pub fn held(summary: &Summary) -> Table {
    let most = summary.account.held.first().map_or(0.0, |one| one.bytes as f64);
    let rows = summary.account.held.iter().map(|one| Row {
        cells: vec![
            named(&one.module),
            one.category.to_owned(),
            Bytes(one.bytes).to_string(),
            one.line.as_deref().map_or(String::new(), |line| short(line).to_owned()),
        ],
        bar: vec![plain(Paint::Forward, percent(one.bytes as f64, most))],
    });
    Table {
        heading: "What holds memory at the peak".into(),
        note:
            "By the module whose operations make it, with the line that makes most of it; state, the batch and what stays from step to step aside."
                .into(),
        heads: heads(&["module", "what", "bytes", "line", ""]),
        rows: rows.collect(),
    }
}

/// What a module is called.
fn named(module: &str) -> String {
    if module.is_empty() { "outside of modules".to_owned() } else { module.to_owned() }
}

/// Time of operations by module and part of the program.
pub fn modules(summary: &Summary) -> Table {
    let mut times: IndexMap<&str, [f64; 3]> = IndexMap::new();
    for one in &summary.account.modules {
        let part = PartKind::NAMES.iter().position(|(_, name)| *name == one.part);
        times.entry(&one.module).or_default()[part.unwrap_or_default()] += one.ms;
    }
    let total = |parts: &[f64; 3]| parts.iter().sum::<f64>();
    times.sort_by(|_, a, _, b| total(b).total_cmp(&total(a)));
    let most = times.values().map(total).fold(0.0, f64::max);
    let millis = |ms: f64| millis(ms, summary.step_ms);
    let row = |(module, parts): (&&str, &[f64; 3])| {
        let mut cells = vec![named(module)];
        cells.extend(parts.iter().chain([&total(parts)]).map(|ms| millis(*ms)));
        cells.push(format!("{:.1} %", percent(total(parts), summary.step_ms)));
        let kinds = PartKind::NAMES.into_iter().zip(parts);
        Row { cells, bar: kinds.map(|((kind, _), ms)| plain(paint(kind), percent(*ms, most))).collect() }
    };
    Table {
        heading: "Where the time goes".into(),
        note: "Milliseconds of operations in a step, by module and part of the program; modules that are alike are one row.".into(),
        heads: heads(&["module", "forward", "backward", "update", "ms", "of the step", ""]),
        rows: times.iter().map(row).collect(),
    }
}

/// Collectives by kind, axis and what they move.
pub fn collectives(summary: &Summary) -> Table {
    let found = &summary.account.collectives;
    let most = found.iter().map(|one| one.ms.max(one.exposed_ms)).fold(0.0, f64::max);
    let millis = |ms: f64| millis(ms, summary.step_ms);
    let rows = found.iter().map(|one| Row {
        cells: vec![
            format!("{} of {}", one.name(), one.of),
            one.axis.clone(),
            one.count.to_string(),
            Bytes(one.bytes).to_string(),
            millis(one.ms),
            millis(one.exposed_ms),
        ],
        bar: vec![
            plain(Paint::Wait, percent(one.exposed_ms, most)),
            plain(Paint::Collective, percent((one.ms - one.exposed_ms).max(0.0), most)),
        ],
    });
    Table {
        heading: "Collectives".into(),
        note: "Bytes are those of the whole tensors, of an all-to-all or a direct exchange those of one rank. Waiting (red) makes the step longer, the rest is hidden \
               beside operations.".into(),
        heads: heads(&["what", "axis", "number", "bytes", "ms", "waiting, ms", ""]),
        rows: rows.collect(),
    }
}

/// Collectives by the changes of placement that they serve, those that are waited for most first.
pub fn causes(summary: &Summary) -> Table {
    let mut found: Vec<(&CollectiveTime, &CauseTime)> = Vec::new();
    for one in &summary.account.collectives {
        found.extend(one.causes.iter().map(|cause| (one, cause)));
    }
    found.sort_by(|(_, a), (_, b)| b.exposed_ms.total_cmp(&a.exposed_ms).then(b.ms.total_cmp(&a.ms)));
    let most = found.iter().map(|(_, one)| one.ms).fold(0.0, f64::max);
    let millis = |ms: f64| millis(ms, summary.step_ms);
    let rows = found.iter().map(|(of, cause)| Row {
        cells: vec![
            changes(&cause.changes),
            format!("{} on {}", of.name(), of.axis),
            cause.place.as_deref().map_or_else(String::new, |place| short(place).to_owned()),
            cause.count.to_string(),
            millis(cause.ms),
            millis(cause.exposed_ms),
        ],
        bar: vec![
            plain(Paint::Wait, percent(cause.exposed_ms, most)),
            plain(Paint::Collective, percent(cause.ms - cause.exposed_ms, most)),
        ],
    });
    Table {
        heading: "Why there are collectives".into(),
        note: "The changes of placement that they serve, several where a bucket joins them, and the first one's line."
            .into(),
        heads: heads(&["change", "what", "line", "number", "ms", "waiting, ms", ""]),
        rows: rows.collect(),
    }
}

/// State by pattern of its names, what takes most memory of a rank first.
pub fn state(summary: &Summary) -> Table {
    let mut patterns: Vec<(u64, &StatePattern)> =
        summary.state.iter().map(|pattern| (of_rank(summary, pattern), pattern)).collect();
    patterns.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let axes: Vec<&str> = summary.mesh.keys().map(String::as_str).collect();
    let row = |(bytes, pattern): &(u64, &StatePattern)| {
        let mut cells = vec![
            pattern.names.clone(),
            pattern.count.to_string(),
            Bytes(pattern.bytes).to_string(),
            Bytes(*bytes).to_string(),
        ];
        let placement =
            |axis: &&str| pattern.layout.get(*axis).copied().unwrap_or(Placement::Replicate).to_string();
        cells.extend(axes.iter().map(placement));
        Row { cells, bar: Vec::new() }
    };
    Table {
        heading: "State".into(),
        note: "Parameters, buffers and optimizer state, with their placement along each axis of the mesh."
            .into(),
        heads: heads(&[&["names", "number", "on one device", "on a rank"], axes.as_slice()].concat()),
        rows: patterns.iter().map(row).collect(),
    }
}

/// Bytes of a pattern that a rank has.
fn of_rank(summary: &Summary, pattern: &StatePattern) -> u64 {
    let is_sharded = |axis: &String| matches!(pattern.layout.get(axis), Some(Placement::Shard { .. }));
    let shards = summary.mesh.iter().filter(|(axis, _)| is_sharded(axis));
    pattern.bytes / shards.map(|(_, size)| u64::from(*size)).product::<u64>()
}

fn heads(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn plain(paint: Paint, percent: f64) -> Share {
    Share { paint, percent, text: String::new() }
}

/// Milliseconds, with as many digits as matter in a step of that length.
fn millis(ms: f64, step_ms: f64) -> String {
    let digits = (3 - step_ms.max(1e-3).log10().floor() as i32).clamp(1, 6) as usize;
    format!("{ms:.digits$}")
}
