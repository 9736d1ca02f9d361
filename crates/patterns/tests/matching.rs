//! Patterns in programs of lines such as `b = neg(a)`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use unisono_patterns::{Argument, Pattern, Program, find};

/// Operations by position; values are the positions of what makes them, with 100 for each further result, and letters are inputs.
struct Lines {
    ops: Vec<(String, Vec<Argument<u32>>, u32)>,
    leaving: Vec<u32>,
}

impl Lines {
    /// A line is `name(argument, ...)`, perhaps with `*results` behind it; `%1` is the result of line 1, `%1.2` its third one.
    fn new(lines: &[&str], leaving: &[u32]) -> Self {
        let op = |line: &&str| {
            let (call, results) = line.split_once('*').unwrap_or((line, "1"));
            let (name, rest) = call.split_once('(').unwrap();
            let inner = rest.strip_suffix(')').unwrap();
            let arguments = inner.split(", ").filter(|text| !text.is_empty()).map(argument).collect();
            (name.to_owned(), arguments, results.parse().unwrap())
        };
        Self { ops: lines.iter().map(op).collect(), leaving: leaving.to_vec() }
    }
}

fn argument(text: &str) -> Argument<u32> {
    match (text.strip_prefix('%'), text.as_bytes()) {
        (Some(made), _) => {
            let (line, result) = made.split_once('.').unwrap_or((made, "0"));
            Argument::Value(line.parse::<u32>().unwrap() + 100 * result.parse::<u32>().unwrap())
        }
        (None, [letter @ b'a'..=b'z']) => Argument::Value(10_000 + u32::from(*letter)),
        _ => Argument::Literal(text.to_owned()),
    }
}

impl Program for Lines {
    type Value = u32;
    type Op = usize;

    fn ops(&self) -> Vec<usize> {
        (0..self.ops.len()).collect()
    }
    fn name(&self, op: usize) -> &str {
        &self.ops[op].0
    }
    fn arguments(&self, op: usize) -> Vec<Argument<u32>> {
        self.ops[op].1.clone()
    }
    fn results(&self, op: usize) -> Vec<Option<u32>> {
        (0..self.ops[op].2).map(|result| Some(op as u32 + 100 * result)).collect()
    }
    fn maker(&self, value: u32) -> Option<usize> {
        (value < 10_000).then_some(value as usize % 100)
    }
    fn users(&self, value: u32) -> Vec<usize> {
        let reads = |op: &usize| self.ops[*op].1.contains(&Argument::Value(value));
        self.ops().into_iter().filter(reads).collect()
    }
    fn leaves(&self, value: u32) -> bool {
        self.leaving.contains(&value)
    }
    fn holds(&self, property: &str, value: u32) -> bool {
        property == "input" && value >= 10_000
    }
}

/// The operations of each place where a pattern stands.
fn found(pattern: &str, lines: &[&str], leaving: &[u32]) -> Vec<Vec<usize>> {
    let pattern: Pattern = format!("pattern p\n{pattern}").parse().unwrap();
    find(&[pattern], &Lines::new(lines, leaving)).into_iter().map(|found| found.ops).collect()
}

#[test]
fn what_is_written_twice_in_a_pattern_is_one_value() {
    let square = "y = mul(x, x)\nz = neg(y)\n-> z";
    let lines = ["mul(a, b)", "neg(%0)", "mul(a, a)", "neg(%2)"];
    assert_eq!(found(square, &lines, &[]), [[2, 3]]);
}

#[test]
fn a_value_within_is_read_by_nothing_else() {
    let pattern = "y = exp(x)\nz = neg(y)\n-> z";
    assert_eq!(found(pattern, &["exp(a)", "neg(%0)"], &[]), [[0, 1]]);
    assert!(found(pattern, &["exp(a)", "neg(%0)", "abs(%0)"], &[]).is_empty());
    assert!(found(pattern, &["exp(a)", "neg(%0)"], &[0]).is_empty());
    assert_eq!(found("y = exp(x)\nz = neg(y)\n-> y, z", &["exp(a)", "neg(%0)", "abs(%0)"], &[]), [[0, 1]]);
}

#[test]
fn arguments_change_places_only_where_the_pattern_says_so() {
    let lines = ["exp(a)", "sub(b, %0)", "sub(%0, b)"];
    assert_eq!(found("y = exp(x)\nz = sub(y, w)\n-> y, z", &lines, &[]), [[0, 2]]);
    assert_eq!(found("y = exp(x)\nz = sub~(y, w)\n-> y, z", &lines, &[]), [[0, 1]]);
}

#[test]
fn the_order_of_two_arguments_is_one_for_all_that_is_asked_of_them() {
    // Both are made by the same kind of operation: only one order has what the other step reads as well.
    let lines = ["exp(a)", "exp(b)", "add(%1, %0)", "neg(%1)", "max(%2, %3)"];
    let pattern = "y = exp(x)\nz = add~(y, w)\nv = neg(w)\nu = max(z, v)\n-> y, u";
    let program = Lines::new(&lines, &[]);
    let pattern: Pattern = format!("pattern p\n{pattern}").parse().unwrap();
    let one = &find(std::slice::from_ref(&pattern), &program)[0];
    assert_eq!((&one.ops, one.value(pattern.capture("w").unwrap())), (&vec![0, 2, 3, 4], Some(1)));
}

#[test]
fn literals_are_as_written_or_taken() {
    let lines = ["sum(a, [1], true)", "sum(b, [0], true)"];
    assert_eq!(found("y = sum(x, [1], true)\n-> y", &lines, &[]), [[0]]);
    assert_eq!(found("y = sum(x, _, true)\n-> y", &lines, &[]), [[0], [1]]);
    let pattern: Pattern = "pattern p\ny = sum(x, dims, true)\n-> y".parse().unwrap();
    let places = find(std::slice::from_ref(&pattern), &Lines::new(&lines, &[]));
    let dims = pattern.capture("dims").unwrap();
    assert_eq!(places.iter().map(|one| one.literal(dims)).collect::<Vec<_>>(), [Some("[1]"), Some("[0]")]);
}

#[test]
fn forward_and_backward_are_one_pattern_with_results_that_others_read() {
    let lines =
        ["norm(a)*2", "mul(%0, b)", "back(c, %0.1)", "norm(d)*2", "back(c, %3.1)", "neg(%3.1)", "neg(%2)"];
    let pattern = "y, r = norm(x)\ng = back(gradient, r)\n-> y, g";
    assert_eq!(found(pattern, &lines, &[]), [[0, 2]]);
}

#[test]
fn properties_of_what_is_read_are_asked_of_the_program() {
    let lines = ["neg(a)", "neg(%0)"];
    assert_eq!(found("y = neg(x)\n-> y\nwhere x is input", &lines, &[]), [[0]]);
}

#[test]
fn no_operation_is_in_two_places() {
    let lines = ["neg(a)", "neg(%0)", "neg(%1)", "neg(%2)"];
    assert_eq!(found("y = neg(x)\nz = neg(y)\n-> z", &lines, &[]), [[0, 1], [2, 3]]);
}

#[test]
fn a_text_that_is_no_pattern_is_refused_with_the_line() {
    for (text, why) in [
        ("y = neg(x)\n-> y", "no `pattern` line"),
        ("pattern p\ny = neg(x)", "no line with `->`"),
        ("pattern p\ny = neg(x)\n-> z", "no operation makes `z`"),
        ("pattern p\ny = neg(x)\nz = abs(w)\n-> y, z", "not connected"),
        ("pattern p\ny = neg~(x)\n-> y", "change places"),
        ("pattern p\ny neg(x)\n-> y", "neither"),
        ("pattern p\ny = neg(x)\n-> y\nwhere w is f32", "no capture `w`"),
    ] {
        let refused = text.parse::<Pattern>().unwrap_err();
        assert!(refused.contains(why), "{refused}");
    }
}
