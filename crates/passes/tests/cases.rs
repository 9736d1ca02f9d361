//! Passes, text in and text out: each file of `cases/` names its passes, and holds a graph and what becomes of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fmt::Write, fs, path::PathBuf};

use base::Bytes;
use expect_test::expect_file;
use ir::{Dtype, Graph};
use unisono_passes::{Direct, DirectAxes, Pass, Settings, by_name, run};

const SEPARATOR: &str = "\n----\n";

/// The passes of the line `# passes: NAME NAME KEY=BYTES ...`.
fn passes(case: &str) -> Vec<Box<dyn Pass>> {
    let line = case.lines().find_map(|line| line.strip_prefix("# passes: ")).unwrap();
    let mut settings = Settings::default();
    for (key, value) in line.split(' ').filter_map(|word| word.split_once('=')) {
        if key == "again" {
            settings.recompute = value.replace(',', " ").parse().unwrap();
            continue;
        }
        if key == "reduce" {
            settings.reduce_dtype = Dtype::from_text(value);
            continue;
        }
        if key == "pieces" {
            settings.host_state = value.replace(',', " ").parse().unwrap();
            continue;
        }
        if key == "stays" {
            settings.offload = value.replace(',', " ").parse().unwrap();
            continue;
        }
        let value = Bytes(value.parse().unwrap());
        match key {
            "bucket" => settings.bucket_limit = value,
            "prefetch" => settings.prefetch_limit = value,
            "direct" => {
                let [all_reduce, all_gather, reduce_scatter] = [value; 3];
                let direct = Direct { ranks: 2, all_reduce, all_gather, reduce_scatter };
                settings.direct = DirectAxes::from([("a".to_owned(), direct)]);
            }
            _ => panic!("unknown setting {key}"),
        }
    }
    line.split(' ').filter(|word| !word.contains('=')).map(|name| by_name(name, &settings).unwrap()).collect()
}

/// The program of the changed graph, behind what the observer was told; operators, inputs and places stand above already, modules may be others.
fn outcome(case: &str) -> String {
    let graph = Graph::from_text("case", case).unwrap();
    let mut told = String::new();
    let changed = run(&passes(case), &graph, |outcome| {
        let counts = format!("{} -> {}", outcome.nodes_before, outcome.nodes_after);
        writeln!(told, "{}: {}", outcome.pass, if outcome.changed { counts.as_str() } else { "no change" })
            .unwrap();
    });
    let text = changed.unwrap().to_string();
    let program = text
        .split("\n\n")
        .filter(|part| !["unisono", "op ", "input ", "place "].iter().any(|word| part.starts_with(word)));
    format!("{told}\n{}\n", program.collect::<Vec<_>>().join("\n\n").trim_end())
}

fn check(folder: &str) {
    let mut files: Vec<PathBuf> = fs::read_dir(PathBuf::from("tests/cases").join(folder))
        .unwrap()
        .map(|entry| fs::canonicalize(entry.unwrap().path()).unwrap())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let case = text.split(SEPARATOR).next().unwrap();
        expect_file![&file].assert_eq(&format!("{}{SEPARATOR}{}", case.trim_end(), outcome(case)));
    }
}

#[test]
fn dead_code() {
    check("dead_code");
}

#[test]
fn common_subexpressions() {
    check("common_subexpressions");
}

#[test]
fn cross_entropy() {
    check("cross_entropy");
}

#[test]
fn late_casts() {
    check("late_casts");
}

#[test]
fn drop_aliases() {
    check("drop_aliases");
}

#[test]
fn empty_parts() {
    check("empty_parts");
}

#[test]
fn merge_views() {
    check("merge_views");
}

#[test]
fn group_lists() {
    check("group_lists");
}

#[test]
fn bucket_collectives() {
    check("bucket_collectives");
}

#[test]
fn reduce_dtype() {
    check("reduce_dtype");
}

#[test]
fn order_collectives() {
    check("order_collectives");
}

#[test]
fn join_slices() {
    check("join_slices");
}

#[test]
fn order_stacks() {
    check("order_stacks");
}

#[test]
fn direct_collectives() {
    check("direct_collectives");
}

#[test]
fn start_collectives() {
    check("start_collectives");
}

#[test]
fn offload() {
    check("offload");
}

#[test]
fn host_state() {
    check("host_state");
}

#[test]
fn recompute() {
    check("recompute");
}

#[test]
fn without_collectives() {
    check("without_collectives");
}

#[test]
fn wait_at_once() {
    check("wait_at_once");
}

#[test]
fn turn_shards() {
    check("turn_shards");
}

#[test]
fn draw_by_counter() {
    check("draw_by_counter");
}

#[test]
fn wide_products() {
    check("wide_products");
}

#[test]
fn split_dropout() {
    check("split_dropout");
}

#[test]
fn what_cannot_draw_by_a_counter_is_refused_by_its_line() {
    let text = "unisono graph 2\n\
        op aten::poisson(Tensor self, Generator? generator=None) -> Tensor\n\
        input v0: f32[4] = batch \"batch.x\"\n\
        v1: f32[4] = aten::poisson(v0, none) @p0\n\
        return v1\n\
        place p0 \"train.py\":12\n";
    let graph = unisono_passes::with_key(&Graph::from_text("case", text).unwrap());
    let refused =
        run(&[by_name("draw_by_counter", &Settings::default()).unwrap()], &graph, |_| {}).unwrap_err();
    assert_eq!(refused.code, base::Code::NOT_BY_COUNTER);
    assert_eq!(refused.message, "`aten::poisson` cannot draw by a counter");
    assert_eq!(refused.place.as_ref().map(|place| place.line), Some(12));
    assert!(refused.hint.is_some());
}
