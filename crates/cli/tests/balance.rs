//! The `balance` command from the outside.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    io::Write,
    process::{Command, Output, Stdio},
};

fn balance(problem: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
    command.args(["balance", "-"]).args(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(problem.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

const PROBLEM: &str = r#"{"lengths": [5, 5, 4, 4, 3, 3, 3], "ranks": 3, "cost": {"linear": 1}}"#;

#[test]
fn json_has_the_plan_and_its_certificate() {
    let output = balance(PROBLEM, &["--json"]);
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&plan["makespan"], &plan["lower_bound"]), (&9.into(), &9.into()));
    assert_eq!(plan["loads"].as_array().unwrap().len(), 3);
    assert_eq!(plan["hash"].as_str().unwrap().len(), 16);
    assert!(plan["micro_batches"][0][0].is_array());
}

#[test]
fn the_table_shows_bars_the_naive_split_and_what_limits() {
    let text = String::from_utf8(balance(PROBLEM, &[]).stdout).unwrap();
    for part in ["arrival order", "█", "1.0000 of the lower bound", "limited by the mean"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_comparison_lists_every_tier_and_baseline() {
    let text = String::from_utf8(balance(PROBLEM, &["--compare"]).stdout).unwrap();
    for name in
        ["arrival order", "sorted, strided", "greedy", "lpt", "multifit", "local_search", "exact", "auto"]
    {
        assert!(text.contains(name), "{name}: {text}");
    }
}

#[test]
fn the_comparison_of_groups_lists_every_single_degree() {
    let problem = r#"{"lengths": [90, 50, 9, 8, 7, 6], "ranks": 4, "cost": {"linear": 1}, "rate": 10, "tokens_per_rank": 50,
        "sequence_parallel": {"degrees": [1, 2, 4], "bytes_per_token": 1, "bandwidth": [[4, 100]]}}"#;
    let text = String::from_utf8(balance(problem, &["--compare"]).stdout).unwrap();
    for name in ["auto", "all groups of 2", "all groups of 4", "lower bound"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    // Two ranks hold 100 tokens, one holds 50.
    assert!(!text.contains("all groups of 1"), "{text}");
}

#[test]
fn a_bad_problem_is_a_diagnostic_on_stderr_and_nothing_on_stdout() {
    let output = balance(r#"{"lenghts": [1]}"#, &["--json"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("`lenghts`") && text.contains("did you mean `lengths`"), "{text}");
}
