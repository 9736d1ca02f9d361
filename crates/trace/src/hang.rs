//! Why a job hangs, from the flight recorders of some or all ranks: who has not arrived at which collective, and where everyone
//! is in the user's code.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

/// The dump of one rank's flight recorder.
#[derive(Clone, Debug)]
pub struct Dump {
    /// The rank.
    pub rank: u32,
    /// Where it was read from.
    pub source: String,
    /// What the recorder says.
    pub content: Value,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// Some ranks have not come to a collective in which others wait.
    NotArrived,
    /// Ranks do different operations under one number.
    OperationMismatch,
    /// Ranks bring different sizes.
    SizeMismatch,
    /// Ranks bring different types.
    TypeMismatch,
    /// All have arrived and some have not ended.
    NotCompleted,
    /// A rank of the group left no dump.
    NoDump,
}

/// Where a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Location {
    /// The rank.
    pub rank: u32,
    /// `file:line function` of the innermost frame outside of libraries; absent if the dump has no frames.
    pub line: Option<String>,
    /// The operation that it is at or did last.
    pub operation: String,
    /// Its number in the group.
    pub sequence: i64,
    /// Input sizes and types.
    pub inputs: String,
    /// What the recorder says of its state.
    pub state: String,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is wrong.
    pub problem: Problem,
    /// The process group.
    pub group: String,
    /// The number of the collective in the group.
    pub sequence: i64,
    /// The operation.
    pub operation: String,
    /// The ranks at fault.
    pub ranks: Vec<u32>,
    /// In one sentence.
    pub message: String,
    /// What to look at.
    pub hint: String,
    /// Where the ranks at fault are.
    pub at_fault: Vec<Location>,
    /// Where the others are.
    pub others: Vec<Location>,
}

/// What the dumps say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Ranks that left a dump.
    pub ranks: Vec<u32>,
    /// The earliest problem first.
    pub findings: Vec<Finding>,
}

/// A collective in a rank's recorder.
#[derive(Clone, Debug)]
struct Entry {
    operation: String,
    inputs: String,
    types: String,
    state: String,
    done: bool,
    created: i64,
    line: Option<String>,
}

/// Of each rank, its collectives in one group by number.
type Group = BTreeMap<u32, BTreeMap<i64, Entry>>;

/// Compares the dumps.
pub fn diagnose(dumps: &[Dump]) -> Diagnosis {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    let mut members: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for dump in dumps {
        for (name, config) in dump.content["pg_config"].as_object().into_iter().flatten() {
            let ranks = ranks_of(&config["ranks"]);
            members.entry(name.clone()).or_default().extend(ranks);
        }
        for entry in dump.content["entries"].as_array().into_iter().flatten() {
            let Some((group, sequence, entry)) = entry_of(entry) else { continue };
            groups.entry(group).or_default().entry(dump.rank).or_default().insert(sequence, entry);
        }
    }
    let ranks: BTreeSet<u32> = dumps.iter().map(|dump| dump.rank).collect();
    let mut findings: Vec<(i64, Finding)> = Vec::new();
    for (name, group) in &mut groups {
        let expected = members.get(name).filter(|ranks| !ranks.is_empty()).unwrap_or(&ranks);
        for &rank in expected.intersection(&ranks) {
            group.entry(rank).or_default();
        }
        findings.extend(findings_of(name, group, expected, &ranks));
    }
    findings.sort_by_key(|(created, finding)| (*created, finding.problem, finding.sequence));
    Diagnosis {
        ranks: ranks.into_iter().collect(),
        findings: findings.into_iter().map(|(_, finding)| finding).collect(),
    }
}

/// Ranks as a list, or as the text of one.
fn ranks_of(value: &Value) -> Vec<u32> {
    match value {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        other => serde_json::from_value(other.clone()).unwrap_or_default(),
    }
}

fn entry_of(entry: &Value) -> Option<(String, i64, Entry)> {
    let group = match &entry["process_group"] {
        Value::Array(names) => names.first()?.as_str()?.to_owned(),
        _ => entry["pg_id"].to_string(),
    };
    // sends and receives have a number of their own
    if entry["is_p2p"].as_bool() == Some(true) {
        return None;
    }
    let sequence = entry["collective_seq_id"].as_i64()?;
    let state = entry["state"].as_str().unwrap_or("unknown").to_owned();
    let retired = entry["retired"].as_bool().unwrap_or(false);
    let compact = |value: &Value| if value.is_null() { String::new() } else { value.to_string() };
    Some((
        group,
        sequence,
        Entry {
            operation: entry["profiling_name"].as_str().unwrap_or("unknown").to_owned(),
            inputs: compact(&entry["input_sizes"]),
            types: compact(&entry["input_dtypes"]),
            done: retired || state == "completed",
            state,
            created: entry["time_created_ns"].as_i64().unwrap_or(0),
            line: line_of(&entry["frames"]),
        },
    ))
}

/// The innermost frame that is neither PyTorch's nor Python's own; the innermost of all if there is no such.
fn line_of(frames: &Value) -> Option<String> {
    let frames = frames.as_array()?;
    let is_users = |frame: &&Value| {
        let file = frame["filename"].as_str().unwrap_or("");
        let library = ["torch/", "site-packages/", "multiprocessing/", "threading.py", "<frozen", "<string>"];
        !file.is_empty() && !library.iter().any(|part| file.contains(part)) && !file.starts_with('<')
    };
    let frame = frames.iter().find(is_users).or(frames.first())?;
    let text = |key: &str| frame[key].as_str().unwrap_or("?");
    Some(format!("{}:{} {}", text("filename"), frame["line"], text("name")))
}

fn findings_of(
    name: &str,
    group: &Group,
    expected: &BTreeSet<u32>,
    dumped: &BTreeSet<u32>,
) -> Vec<(i64, Finding)> {
    let mut findings = Vec::new();
    let last = |entries: &BTreeMap<i64, Entry>| entries.keys().next_back().copied().unwrap_or(0);
    let Some(furthest) = group.values().map(last).max() else { return findings };
    // recorders keep the last entries only: what all of them still have can be compared
    let oldest = group.values().filter_map(|entries| entries.keys().next().copied()).max().unwrap_or(0);
    let behind: Vec<u32> =
        group.iter().filter(|(_, entries)| last(entries) < furthest).map(|(&rank, _)| rank).collect();
    if let Some(first) = behind.iter().map(|rank| last(&group[rank]) + 1).min() {
        let absent: Vec<u32> = behind.iter().copied().filter(|rank| last(&group[rank]) < first).collect();
        let waits = group
            .iter()
            .any(|(rank, entries)| !absent.contains(rank) && entries.get(&first).is_some_and(|e| !e.done));
        // where all who arrived have ended, they did not wait: the others are slow, not missing
        if waits {
            findings.push(finding(Problem::NotArrived, name, first, group, absent, &[]));
        }
    }
    for sequence in oldest..=furthest {
        findings.extend(mismatch(name, sequence, group));
    }
    let stuck = group
        .values()
        .filter_map(|entries| entries.iter().find(|(_, entry)| !entry.done))
        .map(|(s, _)| *s)
        .min();
    if let Some(sequence) = stuck.filter(|_| findings.is_empty()) {
        let undone = |entries: &BTreeMap<i64, Entry>| entries.get(&sequence).is_some_and(|entry| !entry.done);
        let ranks = group.iter().filter(|(_, entries)| undone(entries)).map(|(&rank, _)| rank).collect();
        findings.push(finding(Problem::NotCompleted, name, sequence, group, ranks, &[]));
    }
    let silent: Vec<u32> = expected.difference(dumped).copied().collect();
    if !silent.is_empty() && !findings.is_empty() {
        findings.push(finding(Problem::NoDump, name, furthest, group, silent, &[]));
    }
    findings
}

/// What is compared between ranks.
type Aspect<'a> = &'a dyn Fn(&Entry) -> &str;

/// Different operations, sizes or types under one number.
fn mismatch(name: &str, sequence: i64, group: &Group) -> Option<(i64, Finding)> {
    let here: Vec<(u32, &Entry)> =
        group.iter().filter_map(|(&rank, entries)| Some((rank, entries.get(&sequence)?))).collect();
    // sizes may differ between ranks where the operation says so
    let same_sizes = |operation: &str| {
        ["all_reduce", "allreduce", "broadcast", "_allgather_base", "reduce_scatter_tensor"]
            .iter()
            .any(|o| operation.contains(o))
    };
    let aspects: [(Problem, Aspect<'_>); 3] = [
        (Problem::OperationMismatch, &|entry| &entry.operation),
        (Problem::SizeMismatch, &|entry| if same_sizes(&entry.operation) { &entry.inputs } else { "" }),
        (Problem::TypeMismatch, &|entry| &entry.types),
    ];
    for (problem, aspect) in aspects {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, entry) in &here {
            *counts.entry(aspect(entry)).or_default() += 1;
        }
        if counts.len() > 1 {
            let usual = counts.iter().max_by_key(|(text, count)| (**count, std::cmp::Reverse(**text)))?.0;
            let odd: Vec<u32> =
                here.iter().filter(|(_, entry)| aspect(entry) != *usual).map(|(rank, _)| *rank).collect();
            let texts: Vec<&str> = counts.keys().copied().collect();
            return Some(finding(problem, name, sequence, group, odd, &texts));
        }
    }
    None
}

fn finding(
    problem: Problem,
    name: &str,
    sequence: i64,
    group: &Group,
    ranks: Vec<u32>,
    texts: &[&str],
) -> (i64, Finding) {
    let at = |rank: &u32| group.get(rank).and_then(|entries| entries.range(..=sequence).next_back());
    let location = |rank: &u32| {
        let (&sequence, entry) = at(rank)?;
        Some(Location {
            rank: *rank,
            line: entry.line.clone(),
            operation: entry.operation.clone(),
            sequence,
            inputs: format!("{} {}", entry.inputs, entry.types).trim().to_owned(),
            state: if entry.done { "done".to_owned() } else { entry.state.clone() },
        })
    };
    let others: Vec<Location> =
        group.keys().filter(|rank| !ranks.contains(rank)).filter_map(location).collect();
    let at_fault: Vec<Location> = ranks.iter().filter_map(location).collect();
    let here = |entries: &BTreeMap<i64, Entry>| {
        entries.get(&sequence).map(|entry| (entry.operation.clone(), entry.created))
    };
    let (operation, created) = group.values().find_map(here).unwrap_or_default();
    let list = ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let which = format!("`{operation}` number {sequence} of group `{name}`");
    let (message, hint) = words(problem, &list, &which, texts);
    let finding = Finding {
        problem,
        group: name.to_owned(),
        sequence,
        operation,
        ranks,
        message,
        hint: hint.to_owned(),
        at_fault,
        others,
    };
    (created, finding)
}

fn words(problem: Problem, ranks: &str, which: &str, texts: &[&str]) -> (String, &'static str) {
    let texts = texts.join(" against ");
    match problem {
        Problem::NotArrived => (
            format!("rank(s) {ranks} have not arrived at {which}, in which others wait"),
            "see what these ranks do after the line they came to last: a branch, an exception or a data loader that only they run into",
        ),
        Problem::OperationMismatch => (
            format!("rank(s) {ranks} do another operation under {which}: {texts}"),
            "all ranks of a group must issue the same collectives in the same order",
        ),
        Problem::SizeMismatch => (
            format!("rank(s) {ranks} bring other sizes to {which}: {texts}"),
            "pad to one size, or use an operation for uneven sizes",
        ),
        Problem::TypeMismatch => (
            format!("rank(s) {ranks} bring another type to {which}: {texts}"),
            "convert to one type before the collective",
        ),
        Problem::NotCompleted => (
            format!("all have arrived at {which}, which has not ended on rank(s) {ranks}"),
            "the network, the device or a slow rank holds it: look at the transport's own log",
        ),
        Problem::NoDump => (
            format!("rank(s) {ranks} left no dump while others were at {which}"),
            "these ranks may have died first: look at their logs",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sequence: i64, operation: &str, size: i64, done: bool, line: i64) -> Value {
        serde_json::json!({
            "process_group": ["0", "default_pg"], "collective_seq_id": sequence, "profiling_name": operation,
            "input_sizes": [[size]], "input_dtypes": ["Float"], "state": "scheduled", "retired": done,
            "time_created_ns": sequence,
            "frames": [{"name": "all_reduce", "filename": "torch/distributed/x.py", "line": 1},
                       {"name": "train", "filename": "train.py", "line": line}],
        })
    }

    fn dump(rank: u32, entries: &[Value]) -> Dump {
        let content = serde_json::json!({"entries": entries, "pg_config": {"0": {"ranks": "[0, 1, 2]"}}});
        Dump { rank, source: String::new(), content }
    }

    #[test]
    fn the_rank_that_has_not_arrived_is_named_with_the_lines_of_all() {
        let full =
            |rank| dump(rank, &[entry(1, "all_reduce", 4, true, 10), entry(2, "all_reduce", 4, false, 20)]);
        let late = dump(1, &[entry(1, "all_reduce", 4, true, 11)]);
        let diagnosis = diagnose(&[full(0), late, full(2)]);
        let finding = &diagnosis.findings[0];
        assert_eq!(
            (finding.problem, finding.sequence, &finding.ranks[..]),
            (Problem::NotArrived, 2, &[1][..])
        );
        assert_eq!(finding.at_fault[0].line.as_deref(), Some("train.py:11 train"));
        assert_eq!(finding.others[0].line.as_deref(), Some("train.py:20 train"));
    }

    #[test]
    fn different_sizes_and_operations_are_told_apart() {
        let usual = |rank| dump(rank, &[entry(1, "all_reduce", 4, false, 1)]);
        let size = diagnose(&[usual(0), dump(1, &[entry(1, "all_reduce", 5, false, 1)]), usual(2)]);
        assert_eq!(
            (size.findings[0].problem, &size.findings[0].ranks[..]),
            (Problem::SizeMismatch, &[1][..])
        );
        let operation = diagnose(&[usual(0), usual(1), dump(2, &[entry(1, "broadcast", 4, false, 1)])]);
        assert_eq!(operation.findings[0].problem, Problem::OperationMismatch);
    }

    #[test]
    fn a_rank_without_dump_is_named_and_ranks_that_ended_everything_have_no_problem() {
        let at = |rank, done| dump(rank, &[entry(1, "all_reduce", 4, done, 1)]);
        let diagnosis = diagnose(&[at(0, false), at(1, false)]);
        assert_eq!(diagnosis.findings[1].ranks, [2]);
        assert_eq!(diagnosis.findings[1].problem, Problem::NoDump);
        assert!(diagnose(&[at(0, true), at(1, true), at(2, true)]).findings.is_empty());
    }
}
