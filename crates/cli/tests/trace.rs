//! `unisono trace` as a user runs it: every subcommand on a small trace of two ranks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "times are exact thousandths")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

/// Two ranks with two steps each; on rank 1 the kernel is late by `late` microseconds.
fn traces(name: &str, late: i64) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("unisono-cli-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for rank in 0..2_i64 {
        let mut events = Vec::new();
        let mut event = |cat: &str, name: &str, lane: (i64, i64), ts: i64, dur: i64, args: String| {
            let (pid, tid) = lane;
            events.push(format!(
                r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},"args":{{{args}}}}}"#
            ));
        };
        for step in 0..2_i64 {
            let (at, corr) = (1000 * step, 10 * step);
            let late = if rank == 1 { late } else { 0 };
            event("user_annotation", &format!("ProfilerStep#{step}"), (1, 1), at, 900, String::new());
            event("python_function", "train.py(7): step", (1, 1), at + 1, 890, r#""Python id":1"#.into());
            event("cpu_op", "aten::mm", (1, 1), at + 10 + late, 20, r#""Input Dims":[[2,2],[2,2]]"#.into());
            event(
                "cuda_runtime",
                "cudaLaunchKernel",
                (1, 1),
                at + 15 + late,
                5,
                format!(r#""correlation":{}"#, corr + 1),
            );
            event(
                "kernel",
                "gemm",
                (0, 7),
                at + 30 + late,
                100,
                format!(r#""stream":7,"correlation":{}"#, corr + 1),
            );
            event(
                "cuda_runtime",
                "cudaLaunchKernel",
                (1, 1),
                at + 40 + late,
                5,
                format!(r#""correlation":{}"#, corr + 2),
            );
            let args = format!(
                r#""stream":7,"correlation":{},"Collective name":"allreduce","Process Group Name":"0","Seq":{step}"#,
                corr + 2
            );
            event("kernel", "ncclDevKernel_AllReduce", (0, 7), at + 140 + late, 700 - late, args);
        }
        let json = format!(
            r#"{{"distributedInfo":{{"rank":{rank},"world_size":2}},"traceEvents":[{}]}}"#,
            events.join(",")
        );
        fs::write(folder.join(format!("rank{rank}.json")), json).unwrap();
    }
    folder
}

fn run(arguments: &[&str]) -> Output {
    let command = [&["trace"], arguments].concat();
    Command::new(env!("CARGO_BIN_EXE_unisono")).args(command).output().unwrap()
}

fn said(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn object(arguments: &[&str]) -> Value {
    serde_json::from_str(&said(arguments)).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn every_subcommand_answers_with_tables_and_with_json() {
    let folder = traces("all", 300);
    let dir = text(&folder);
    let summary = said(&["summary", dir]);
    assert!(summary.starts_with("1. "), "findings come first: {}", &summary[..200]);
    assert!(summary.contains("rank 1 is late"));
    for command in [
        "kernels",
        "overlap",
        "idle",
        "critical-path",
        "stragglers",
        "collectives",
        "memory",
        "program",
        "events",
    ] {
        said(&[command, dir]);
        assert!(object(&[command, dir, "--json"]).is_object(), "{command}");
    }
    assert_eq!(object(&["collectives", dir, "--json"])["collectives"]["collectives"][0]["culprit"], 1);
    let faster = object(&["what-if", dir, "--change", "kernel:gemm=0.5", "--json"]);
    assert_eq!(
        faster["what_if"]["before"].as_f64().unwrap() - faster["what_if"]["after"].as_f64().unwrap(),
        50.0
    );
    let under = object(&["events", dir, "--rank", "0", "--name", "gemm", "--json"]);
    assert_eq!(under["events"].as_array().unwrap().len(), 2);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn compatible_mode_has_the_keys_and_an_option_for_each_parameter() {
    let folder = traces("compat", 0);
    let options = "--rank 0 --annotation ProfilerStep --instance 0 --duration-ratio 0.9 --num-kernels 5 --include-memory-kernels \
        --consecutive-kernel-delay 20 --max-queue-length 64 --op aten --min-pattern-len 1 --top-k 3 --include-last-step";
    let arguments: Vec<&str> = ["summary", text(&folder), "--compat", "hta", "--json"]
        .into_iter()
        .chain(options.split_whitespace())
        .collect();
    let answer = object(&arguments);
    let keys = "temporal_breakdown kernel_breakdown comm_comp_overlap idle_time_breakdown queue_length_summary memory_bw_summary \
        cuda_kernel_launch_stats user_annotation_breakdown aten_op_kernels_and_delay frequent_kernel_sequences profiler_steps \
        potential_stragglers critical_path blocked_on_full_queue_64";
    for key in keys.split_whitespace() {
        assert!(answer.get(key).is_some(), "{key}");
    }
    assert_eq!(answer["temporal_breakdown"][0]["compute_time(us)"], 200.0);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn two_runs_are_compared_in_both_modes() {
    let (before, after) = (traces("before", 0), traces("after", 200));
    let table = object(&["diff", text(&before), text(&after), "--compat", "hta", "--json"]);
    assert_eq!(table["ops_diff"]["ALL"]["unchanged"].as_array().unwrap().len(), 6);
    assert!(object(&["diff", text(&before), text(&after), "--json"])["diff"]["changes"].is_array());
    assert!(said(&["diff", text(&before), text(&before)]).contains("no operation changed"));
    for folder in [before, after] {
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_page_and_an_export_are_written() {
    let folder = traces("written", 100);
    let (page, file) = (folder.join("page.html"), folder.join("out.txt"));
    said(&["summary", text(&folder), "--html", text(&page)]);
    assert!(fs::read_to_string(page).unwrap().contains("<canvas"));
    said(&["export", text(&folder), "-o", text(&file), "--critical-path", "--counters"]);
    let events: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let has =
        |key: &str, value: &str| events["traceEvents"].as_array().unwrap().iter().any(|e| e[key] == value);
    assert!(has("cat", "critical_path") && has("ph", "C") && has("pid", "rank 1, 0"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_memory_timeline_and_flight_recorders_are_read() {
    let folder = traces("others", 0);
    let memory = folder.join("x.raw.json");
    fs::write(&memory, "[[-1, 0, 100, 0], [5, 1, 50, 4]]").unwrap();
    assert_eq!(object(&["memory", text(&memory), "--json"])["memory_timeline"]["peak_bytes"], 150);
    assert!(said(&["memory", text(&memory)]).contains("Activation"));
    let entry = |sequence: i64, done: bool| {
        format!(
            r#"{{"process_group":["0","d"],"collective_seq_id":{sequence},"profiling_name":"gloo:all_reduce","state":"scheduled","retired":{done},"frames":[{{"filename":"train.py","line":{sequence},"name":"step"}}]}}"#
        )
    };
    let dump = |entries: &[String]| format!(r#"{{"version":"2","entries":[{}]}}"#, entries.join(","));
    let (a, b) = (folder.join("rank0.flight"), folder.join("rank1.flight"));
    fs::write(&a, dump(&[entry(1, true), entry(2, false)])).unwrap();
    fs::write(&b, dump(&[entry(1, true)])).unwrap();
    let hang = object(&["hang", text(&a), text(&b), "--json"]);
    assert_eq!(hang["hang"]["findings"][0]["ranks"][0], 1);
    assert!(said(&["hang", text(&a), text(&b)]).contains("train.py:2"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_no_trace_ends_with_a_diagnostic_and_a_status() {
    let output = run(&["summary", "/nowhere/at/all.json"]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("error[U") && error.contains("all.json"), "{error}");
    assert_eq!(run(&["what-if", "x.json"]).status.code(), Some(2));
}
