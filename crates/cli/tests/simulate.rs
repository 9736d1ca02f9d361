//! `unisono simulate` from the outside, and a simulated step beside a measured one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

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

const CLUSTER: &str = r#"
version = 1
[device]
name = "slow"
memory_bytes = 1000000000
memory_bandwidth = 1e8
operation_ns = 10
[device.matmul_flops]
f32 = 1e8
[links]
all_reduce = { latency_ns = 2000000, bandwidth = 1e10 }
all_gather = { latency_ns = 2000000, bandwidth = 1e10 }
reduce_scatter = { latency_ns = 2000000, bandwidth = 1e10 }
all_to_all = { latency_ns = 3000000, bandwidth = 1e10 }
"#;

/// A folder with a step, its plan for two ranks and a cluster, removed at the end.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("simulate-{test}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("step.txt"), GRAPH).unwrap();
        fs::write(folder.join("cluster.toml"), CLUSTER).unwrap();
        let files = Self(folder);
        files.run("plan step.txt --ranks 2 --cluster cluster.toml -o plan.toml");
        files
    }

    /// What a command line that succeeds prints.
    fn run(&self, line: &str) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
        let output = command.args(line.split(' ')).current_dir(&self.0).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A simulated timeline as if it had been measured, with a product that took twice the time.
    fn as_measured(&self, from: &str, to: &str) {
        let mut json: Value = serde_json::from_slice(&fs::read(self.0.join(from)).unwrap()).unwrap();
        json["distributedInfo"].as_object_mut().unwrap().remove("backend");
        for event in json["traceEvents"].as_array_mut().unwrap() {
            if event["name"] == "aten::mm" {
                event["dur"] = Value::from(2.0 * event["dur"].as_f64().unwrap());
            }
        }
        fs::write(self.0.join(to), json.to_string()).unwrap();
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[test]
fn a_plan_is_simulated_for_one_rank_and_for_all() {
    let files = Files::new("figures");
    let one = files.run("simulate step.txt plan.toml --cluster cluster.toml -o rank0.json");
    // 2 * 512 * 64 * 64 operations at 1e8 a second, then half of the product summed, then the exchange of a number
    assert!(one.starts_with("rank 0: 45.3 ms a step; 43.3 ms in "), "{one}");
    assert!(one.contains("2 ms waiting; 2 ms in 1 collectives"), "{one}");
    let all = files.run("simulate step.txt plan.toml --cluster cluster.toml --all");
    assert_eq!(all, format!("{one}{}", one.replace("rank 0", "rank 1")));
    assert!(files.run("trace overlap rank0.json").contains("exposed communication"));
}

#[test]
fn a_simulated_step_stands_beside_a_measured_one_by_operation_and_collective() {
    let files = Files::new("beside");
    files.run("simulate step.txt plan.toml --cluster cluster.toml -o predicted.json");
    files.as_measured("predicted.json", "measured.json");
    let text = files.run("trace diff predicted.json measured.json");
    assert!(text.starts_with("step\n  of a rank     predicted, ms   measured, ms"), "{text}");
    let found: Value =
        serde_json::from_str(&files.run("trace diff predicted.json measured.json --json")).unwrap();
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
