//! `unisono simulate` from the outside, and a simulated step beside a measured one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Files, fast, slow};
use serde_json::Value;

/// A product of a batch with a weight, whose mean is returned: on two ranks each has half of the batch.
const GRAPH: &str = r#"unisono graph 2

op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor

input v0: f32[64, 64] = parameter "params.w"
input v1: f32[1024, 64] = batch "batch.x"

v2: f32[1024, 64] = aten::mm(v1, v0) @p0
v3: f32[] = aten::sum(v2, none) @p1

return v3

place p0 "train.py":3
place p1 "train.py":4
"#;

/// A step with its plan for two ranks.
fn files(test: &str) -> Files {
    let mut cluster = slow(fast(2e6));
    cluster.links_mut().all_to_all = fast(3e6);
    let files = Files::new(&format!("simulate-{test}"), GRAPH, &cluster);
    succeed(&files, "plan step.txt --ranks 2 --cluster cluster.toml -o plan.toml");
    files
}

/// What a command line that succeeds prints.
fn succeed(files: &Files, line: &str) -> String {
    let (status, printed, errors) = files.run(line);
    assert_eq!(status, 0, "{line}: {errors}");
    printed
}

/// Writes a simulated timeline as if it had been measured, with a product that took twice the time.
fn as_measured(files: &Files, from: &str, to: &str) {
    let mut json: Value = serde_json::from_slice(&std::fs::read(files.0.join(from)).unwrap()).unwrap();
    json["distributedInfo"].as_object_mut().unwrap().remove("backend");
    for event in json["traceEvents"].as_array_mut().unwrap() {
        if event["name"] == "aten::mm" {
            event["dur"] = Value::from(2.0 * event["dur"].as_f64().unwrap());
        }
    }
    files.write(to, &json.to_string());
}

#[test]
fn a_plan_is_simulated_for_one_rank_and_for_all() {
    let files = files("figures");
    let one = succeed(&files, "simulate step.txt plan.toml --cluster cluster.toml -o rank0.json");
    // 2 * 512 * 64 * 64 operations at 1e8 a second, then half of the product summed, then the exchange of a number
    assert!(one.starts_with("rank 0: 45.3 ms a step; 43.3 ms in "), "{one}");
    assert!(one.contains("2 ms waiting; 2 ms in 1 collectives"), "{one}");
    let all = succeed(&files, "simulate step.txt plan.toml --cluster cluster.toml --all");
    assert_eq!(all, format!("{one}{}", one.replace("rank 0", "rank 1")));
    assert!(succeed(&files, "trace overlap rank0.json").contains("exposed communication"));
}

#[test]
fn the_memory_of_a_simulated_step_has_the_peak_of_its_plan() {
    let files = files("memory");
    succeed(&files, "simulate step.txt plan.toml --cluster cluster.toml -o rank0.json");
    let found: Value = serde_json::from_str(&succeed(&files, "trace memory rank0.json --json")).unwrap();
    let plan: toml::Table = std::fs::read_to_string(files.0.join("plan.toml")).unwrap().parse().unwrap();
    let prediction = |name: &str| plan["prediction"][name].as_integer().unwrap();
    let memory = &found["memory"][0];
    assert_eq!(memory["peak_bytes"], prediction("peak_bytes"), "{memory}");
    let standing = prediction("state_bytes") + prediction("batch_bytes") + prediction("kept_bytes");
    assert_eq!(memory["before_bytes"], standing, "{memory}");
    assert!(
        memory["at_peak"].as_array().unwrap().iter().any(|row| row["operator"] == "aten::sum"),
        "{memory}"
    );
}

#[test]
fn a_simulated_step_stands_beside_a_measured_one_by_operation_and_collective() {
    let files = files("beside");
    succeed(&files, "simulate step.txt plan.toml --cluster cluster.toml -o predicted.json");
    as_measured(&files, "predicted.json", "measured.json");
    let text = succeed(&files, "trace diff predicted.json measured.json");
    assert!(text.starts_with("step\n  of a rank     predicted, ms   measured, ms"), "{text}");
    let found: Value =
        serde_json::from_str(&succeed(&files, "trace diff predicted.json measured.json --json")).unwrap();
    let (first, collective) = (&found["prediction"]["operations"][0], &found["prediction"]["collectives"][0]);
    assert_eq!(first["operation"], "aten::mm");
    let ratio = first["measured"].as_f64().unwrap() / first["predicted"].as_f64().unwrap();
    assert!((ratio - 2.0).abs() < 1e-9, "{first}");
    assert_eq!(
        (&collective["operation"], &collective["group"]),
        (&"all_reduce".into(), &"axis:ranks".into())
    );
    assert!(collective["cause"].as_str().unwrap().contains("partial"), "{collective}");
    assert_eq!(collective["measured"], collective["predicted"]);
}
