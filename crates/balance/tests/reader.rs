//! The problem reader: every refusal names what is wrong, and no text makes it panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use unisono_balance::{read_problem, solve};

fn refusal(text: &str) -> String {
    match read_problem(text, "problem.json").and_then(|problem| solve(&problem).map(|_| ())) {
        Ok(()) => panic!("accepted: {text}"),
        Err(diagnostic) => diagnostic.to_string(),
    }
}

fn assert_names(text: &str, parts: &[&str]) {
    let told = refusal(text);
    for part in parts {
        assert!(told.contains(part), "{text}\n{told}\nlacks {part}");
    }
}

#[test]
fn no_json_is_refused_with_line_and_column() {
    assert_names("{\"lengths\": [1,\n 2,, 3]}", &["no JSON", "problem.json:2:4"]);
    assert_names("", &["no JSON", "problem.json:1"]);
    assert_names("[1, 2]", &["one JSON object"]);
    assert_names(r#"{"lengths": [NaN]}"#, &["no JSON", "problem.json:1:14"]);
}

#[test]
fn unknown_and_doubled_keys_are_named_with_the_nearest() {
    assert_names("{\n\"lenghts\": [1]}", &["`lenghts`", "did you mean `lengths`?", "problem.json:2:1"]);
    assert_names(r#"{"ranks": 1, "ranks": 2}"#, &["`ranks` is given twice"]);
    let cost = r#"{"lengths": [1], "ranks": 1, "cost": {"liner": 1}}"#;
    assert_names(cost, &["`liner`", "did you mean `linear`?"]);
    let parallel = r#"{"lengths": [1], "ranks": 1, "cost": {"linear": 1}, "rate": 1, "sequence_parallel": {"degree": [1]}}"#;
    assert_names(parallel, &["`degree`", "did you mean `degrees`?"]);
}

#[test]
fn numbers_at_fault_are_shown() {
    let with = |part: &str| format!(r#"{{"lengths": [4, 5], "ranks": 2, "cost": {{"linear": 1}}, {part}}}"#);
    let lengths = |list: &str| format!(r#"{{"lengths": {list}, "ranks": 2, "cost": {{"linear": 1}}}}"#);
    assert_names(&lengths("[4, 0]"), &["`lengths[1]` is 0", "problem.json:1:2"]);
    assert_names(&lengths("[4, -7]"), &["`lengths[1]` is -7"]);
    assert_names(&lengths("[4, 1.5]"), &["`lengths[1]` is 1.5"]);
    assert_names(&lengths("[4, \"x\"]"), &["`lengths[1]` is \"x\""]);
    assert_names(&lengths("[4, null]"), &["`lengths[1]` is null"]);
    assert_names(&lengths("[[4, 5], [1]]"), &["`lengths[1]` is [1]"]);
    assert_names(&lengths("[[0, 0]]"), &["`cost` has 1 entries for 2 phases"]);
    assert_names(&lengths("[]"), &["`lengths` is empty"]);
    assert_names(&lengths("7"), &["`lengths` is 7", "a list"]);
    assert_names(
        &lengths("[4611686018427387904, 4611686018427387904]"),
        &["overflow at sample 1", "4611686018427387904"],
    );
    assert_names(&with(r#""tokens_per_rank": 4"#), &["sample 1 of length 5", "the cap is 4 tokens"]);
    assert_names(&with(r#""tokens_per_rank": 0"#), &["`tokens_per_rank` is 0"]);
    assert_names(&with(r#""objective": "lokstep""#), &["lokstep", "did you mean `lockstep`?"]);
    assert_names(&with(r#""objective": "grouped""#), &["needs `shard_group`"]);
    assert_names(&with(r#""objective": "grouped", "shard_group": 3"#), &["`shard_group` 3", "2 ranks"]);
    assert_names(&with(r#""objective": "pipeline""#), &["needs `stages`"]);
    assert_names(
        &with(r#""objective": "pipeline", "stages": 9000000000000000000"#),
        &["9000000000000000000", "overflow"],
    );
    assert_names(&with(r#""equal_count": 1"#), &["`equal_count` is 1", "true or false"]);
    for key in ["rate", "passes", "ranks_per_node"] {
        assert_names(
            &with(&format!("\"{key}\": 4")),
            &[&format!("`{key}` is given without `sequence_parallel`")],
        );
    }
    let no_ranks = r#"{"lengths": [1], "ranks": 0, "cost": {"linear": 1}}"#;
    assert_names(no_ranks, &["`ranks` is 0"]);
    assert_names(&no_ranks.replace('0', "1e30"), &["`ranks` is 1e+30"]);
    assert_names(&no_ranks.replace('0', "999999999999"), &["`ranks` is 999999999999"]);
    assert_names(r#"{"lengths": [1], "ranks": 1, "cost": {}}"#, &["`cost`", "cost 0"]);
    assert_names(r#"{"lengths": [1], "ranks": 1}"#, &["lacks the key `cost`"]);
    let table = r#"{"lengths": [1], "ranks": 1, "cost": {"table": [[5, 9], [9, 3]]}}"#;
    assert_names(table, &["(5, 9)", "(9, 3)"]);
}

#[test]
fn sequence_parallel_settings_are_checked() {
    let with = |part: &str, extra: &str| {
        format!(
            r#"{{"lengths": [4, 900], "ranks": 8, "cost": {{"linear": 1}}, "ranks_per_node": 4, {extra}
               "sequence_parallel": {{{part}}}}}"#
        )
    };
    let rest = r#""bytes_per_token": 1, "bandwidth": [[8, 100]]"#;
    let rate = r#""rate": 10, "#;
    assert_names(&with(&format!(r#""degrees": [1, 2], {rest}"#), ""), &["needs the key `rate`"]);
    assert_names(&with(&format!(r#""degrees": [1, 3], {rest}"#), rate), &["degree 3", "nodes of 4 ranks"]);
    assert_names(&with(&format!(r#""degrees": [2, 2], {rest}"#), rate), &["lists 2 twice"]);
    assert_names(&with(&format!(r#""degrees": [], {rest}"#), rate), &["`degrees`"]);
    assert_names(&with(&format!(r#""degrees": [16], {rest}"#), rate), &["number of ranks, 8"]);
    assert_names(&with(&format!(r#""degrees": [1, 2], {rest}"#), r#""rate": -1,"#), &["`rate` is -1"]);
    assert_names(&with(r#""degrees": [1, 2], "bytes_per_token": 1"#, rate), &["lacks the key `bandwidth`"]);
    let giant = with(&format!(r#""degrees": [1, 4], {rest}"#), r#""rate": 10, "tokens_per_rank": 100,"#);
    assert_names(&giant, &["sample 1 of length 900", "the cap is 100 tokens", "4 ranks hold at most 400"]);
}

#[test]
fn what_is_legal_is_accepted() {
    for text in [
        r#"{"lengths": [1], "ranks": 7, "cost": {"linear": 24.33e9, "quadratic": 819200.0}}"#,
        r#"{"lengths": [3, 3, 3], "ranks": 3, "cost": [{"constant": 5}], "tokens_per_rank": null}"#,
        r#"{"lengths": [[0, 5], [9, 1]], "ranks": 2, "cost": [{"linear": 2}, {"linear": 1}]}"#,
        r#"{"lengths": [5], "ranks": 2, "cost": {"table": [[1, 1], [10, 30]]}, "name": "x"}"#,
    ] {
        solve(&read_problem(text, "p").unwrap()).unwrap();
    }
}

/// Texts that are nearly problems: a legal one with random bytes replaced, cut or doubled, or a random value in a random key.
#[test]
fn no_text_makes_the_reader_or_the_solver_panic() {
    const SEED: &str = r#"{"lengths": [4, 5, 7, 2, 9], "ranks": 12, "cost": {"linear": 2, "quadratic": 1, "constant": 3},
        "tokens_per_rank": 10, "objective": "lockstep", "equal_count": false, "shard_group": 2, "stages": 3, "ranks_per_node": 4,
        "rate": 1e3, "passes": 4, "sequence_parallel": {"degrees": [1, 2, 8], "bytes_per_token": 5, "bandwidth": [[8, 1e3]]}}"#;
    const VALUES: [&str; 12] = [
        "0",
        "1",
        "-1",
        "3",
        "1e308",
        "1e-300",
        "18446744073709551615",
        "null",
        "true",
        "[]",
        "{}",
        "\"free\"",
    ];
    base::testing::cases(2000, |u| {
        let mut bytes = SEED.as_bytes().to_vec();
        for _ in 0..u.int_in_range(0..=4)? {
            let at = u.choose_index(bytes.len().max(1))?;
            match u.int_in_range(0..=3)? {
                0 if at < bytes.len() => bytes[at] = u.arbitrary()?,
                1 => bytes.truncate(at),
                2 => {
                    let part = bytes[at.min(bytes.len())..].to_vec();
                    bytes.extend(part);
                }
                _ => {
                    let value = *u.choose(&VALUES)?;
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    let numbers: Vec<(usize, &str)> =
                        text.match_indices(|c: char| c.is_ascii_digit()).collect();
                    if !numbers.is_empty() {
                        let at = u.choose(&numbers)?.0;
                        bytes = [&text[..at], value, &text[at + 1..]].concat().into_bytes();
                    }
                }
            }
        }
        if let Ok(problem) = read_problem(&String::from_utf8_lossy(&bytes), "fuzz")
            && problem.ranks <= 10_000
        {
            drop(solve(&problem));
        }
        Ok(())
    });
}
