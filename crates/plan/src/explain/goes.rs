//! Where time and memory go, for people: the largest parts of an account.

use std::{collections::BTreeMap, fmt::Write};

use base::Bytes;
use indexmap::IndexMap;

use crate::{
    account::{Account, CauseTime, CollectiveTime},
    summary::nanos,
};

/// Maximum numbers of modules, causes of collectives and modules that hold memory that are listed.
const MOST_MODULES: usize = 6;
const MOST_CAUSES: usize = 6;
const MOST_HOLDERS: usize = 4;
/// Maximum number of changes listed of a bucket.
const MOST_CHANGES: usize = 2;

/// Whose times and memory an account is of, where ranks differ.
#[derive(Clone, Copy, Default)]
pub struct Whose {
    /// Of the times.
    pub times: &'static str,
    /// Of the memory.
    pub memory: &'static str,
}

impl Whose {
    /// Of a pipeline.
    pub const STAGES: Self =
        Self { times: ", of the stage that is busy longest", memory: ", in the stage that needs most," };
}

/// The largest parts of the time of operations, of the time of collectives, and of the memory at the peak.
pub fn goes(account: &Account, whose: Whose) -> String {
    let mut text = String::new();
    operations(&mut text, account, whose.times);
    collectives(&mut text, account, whose.times);
    memory(&mut text, account, whose.memory);
    text
}

/// Operations by module, with the parts of the program.
fn operations(text: &mut String, account: &Account, whose: &str) {
    let mut modules: IndexMap<&str, BTreeMap<&str, f64>> = IndexMap::new();
    for one in &account.modules {
        *modules.entry(&one.module).or_default().entry(one.part).or_default() += one.ms;
    }
    let sum = |parts: &BTreeMap<&str, f64>| parts.values().sum::<f64>();
    modules.sort_by(|_, a, _, b| sum(b).total_cmp(&sum(a)));
    let all: f64 = account.modules.iter().map(|one| one.ms).sum();
    if all <= 0.0 {
        return;
    }
    let _ = writeln!(text, "  operations by module{whose}:");
    let percent = |ms: f64| ms / all * 100.0;
    for (module, parts) in modules.iter().take(MOST_MODULES) {
        let ms = sum(parts);
        let each: Vec<String> =
            parts.iter().rev().map(|(part, ms)| format!("{part} {}", nanos(*ms))).collect();
        let _ = writeln!(
            text,
            "    {:>8} {:>3.0} %  {}: {}",
            nanos(ms).to_string(),
            percent(ms),
            module_name(module),
            each.join(", ")
        );
    }
    let rest: f64 = modules.values().skip(MOST_MODULES).map(sum).sum();
    if rest > 0.0 {
        let others = modules.len() - MOST_MODULES;
        let _ =
            writeln!(text, "    {:>8} {:>3.0} %  {others} others", nanos(rest).to_string(), percent(rest));
    }
}

/// What a module is called: what no module computes is of the step itself.
pub fn module_name(module: &str) -> String {
    if module.is_empty() { "the step itself".into() } else { format!("`{module}`") }
}

/// The causes of collectives, those that the rank waits for most first.
fn collectives(text: &mut String, account: &Account, whose: &str) {
    let mut causes: Vec<(&CollectiveTime, &CauseTime)> = Vec::new();
    for one in &account.collectives {
        causes.extend(one.causes.iter().map(|cause| (one, cause)));
    }
    if causes.is_empty() {
        return;
    }
    causes.sort_by(|(_, a), (_, b)| b.exposed_ms.total_cmp(&a.exposed_ms).then(b.ms.total_cmp(&a.ms)));
    let _ = writeln!(text, "  waiting for collectives, of what they take{whose}:");
    for (of, cause) in causes.iter().take(MOST_CAUSES) {
        let _ = writeln!(
            text,
            "    {:>8} of {}: {} x {} on {}, {}, {}{}",
            nanos(cause.exposed_ms).to_string(),
            nanos(cause.ms),
            cause.count,
            of.name(),
            of.axis,
            of.of,
            changes(&cause.changes),
            cause.place.as_deref().map_or_else(String::new, |place| format!(", {}", short(place)))
        );
    }
    let rest = causes.get(MOST_CAUSES..).unwrap_or_default();
    if !rest.is_empty() {
        let (waited, all) =
            rest.iter().fold((0.0, 0.0), |(waited, all), (_, one)| (waited + one.exposed_ms, all + one.ms));
        let count: u32 = rest.iter().map(|(_, one)| one.count).sum();
        let _ = writeln!(text, "    {:>8} of {}: {count} others", nanos(waited).to_string(), nanos(all));
    }
    if account.idle_ms > 0.0 {
        let _ =
            writeln!(text, "    {:>8} before other ranks come, or send", nanos(account.idle_ms).to_string());
    }
}

/// The changes that a collective serves, the first few of them.
pub fn changes(changes: &[String]) -> String {
    let shown = changes.iter().take(MOST_CHANGES).map(String::as_str).collect::<Vec<_>>().join("; ");
    match changes.len().saturating_sub(MOST_CHANGES) {
        0 => shown,
        more => format!("{shown}; {more} more"),
    }
}

/// A line of the user's code without the folder of its file.
pub fn short(place: &str) -> &str {
    place.rsplit(['/', '\\']).next().unwrap_or(place)
}

fn memory(text: &mut String, account: &Account, whose: &str) {
    if account.held.is_empty() {
        return;
    }
    let held = account.held.iter().take(MOST_HOLDERS);
    let held: Vec<String> = held
        .map(|one| {
            let line = one.line.as_deref().map_or(String::new(), |line| format!(" ({})", short(line)));
            format!("{} {} of {}{line}", Bytes(one.bytes), one.category, module_name(&one.module))
        })
        .collect();
    let rest: u64 = account.held.iter().skip(MOST_HOLDERS).map(|one| one.bytes).sum();
    let rest = if rest > 0 { format!(", {} of others", Bytes(rest)) } else { String::new() };
    let _ = writeln!(text, "  at the peak{whose} {}{rest}", held.join(", "));
}
