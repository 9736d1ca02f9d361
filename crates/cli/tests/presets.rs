//! Plans for clusters that nobody has here, and their figures as JSON.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Files, fast, slow};
use serde_json::Value;

/// Two layers that learn from tokens: 4096 words, 16 sequences of 512.
const GRAPH: &str = r#"unisono graph 2

op aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor
op aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
op aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor

input v0: bf16[4096, 4096] = parameter "params.layers.0.weight"
input v1: bf16[4096, 4096] = parameter "params.layers.1.weight"
input v2: i64[16, 512] = batch "batch.tokens"
input v3: bf16[4096, 4096] = parameter "params.words"

v4: bf16[16, 512, 4096] = aten::embedding(v3, v2, -1, false, false)
v5: bf16[8192, 4096] = aten::view(v4, [8192, 4096])
v6: bf16[8192, 4096] = aten::mm(v5, v0)
v7: bf16[8192, 4096] = aten::mm(v6, v1)
part backward
v8: bf16[4096, 8192]{1, 4096} = aten::t(v6)
v9: bf16[4096, 4096] = aten::mm(v8, v7)
v10: bf16[4096, 8192]{1, 4096} = aten::t(v5)
v11: bf16[4096, 4096] = aten::mm(v10, v6)
part update
v12: bf16[4096, 4096] = aten::sub.Tensor(v0, v11, 0.1)
v13: bf16[4096, 4096] = aten::sub.Tensor(v1, v9, 0.1)

update "params.layers.0.weight" = v12
update "params.layers.1.weight" = v13
"#;

fn files(test: &str) -> Files {
    Files::new(&format!("presets-{test}"), GRAPH, &slow(fast(100.0)))
}

fn figures(files: &Files, arguments: &str) -> Value {
    let (status, text, errors) = files.run(&format!("plan step.txt {arguments} --json"));
    assert_eq!(status, 0, "{errors}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn presets_are_listed_and_printed_as_what_a_file_would_say() {
    let files = files("listed");
    let (status, list, _) = files.run("cluster");
    assert_eq!(status, 0);
    assert!(list.contains("h100    NVIDIA H100 SXM") && list.contains("mi300x"), "{list}");
    let (_, description, _) = files.run("cluster h100:2x8");
    files.write("same.toml", &description).write("preset.toml", "preset = \"h100:2x8\"\n");
    let plan = |cluster: &str| files.run(&format!("plan step.txt --cluster {cluster}"));
    assert_eq!(plan("same.toml"), plan("h100:2x8"));
    assert_eq!(plan("preset.toml"), plan("h100:2x8"));
    let (status, _, errors) = files.run("cluster h1000");
    assert!(status == 1 && errors.contains("did you mean `h100`?"), "{errors}");
}

#[test]
fn a_plan_is_for_all_ranks_of_a_preset_within_the_memory_of_its_device() {
    let files = files("all");
    let found = figures(&files, "--cluster h100:2x4");
    assert_eq!((&found["ranks"], found["mesh"].as_object().unwrap().len()), (&8.into(), 2));
    assert_eq!(found["memory_limit"], 80_000_000_000_u64);
    let found = figures(&files, "--cluster h100:2x4 --ranks 2 --memory-limit 70GB");
    assert_eq!((&found["ranks"], &found["memory_limit"]), (&2.into(), &70_000_000_000_u64.into()));
    files.write("small.toml", "preset = \"h100:1\"\ndevice.memory_bytes = 1_000_000\n");
    let (status, _, errors) = files.run("plan step.txt --cluster small.toml");
    assert!(status == 1 && errors.contains("no plan fits into 1000000 bytes"), "{errors}");
    let (status, _, errors) = files.run("plan step.txt --cluster h100:2x4 --mesh a=16");
    assert!(status == 1 && errors.contains("a mesh of 16 ranks on a cluster of 8"), "{errors}");
    let (status, _, errors) = files.run("plan step.txt --cluster cluster.toml");
    assert!(status == 1 && errors.contains("add `--ranks 8`"), "{errors}");
}

#[test]
fn figures_as_json_agree_with_each_other() {
    let files = files("figures");
    let found = figures(&files, "--cluster h100:8 --mesh data=2,tensor=4");
    let number = |name: &str| found[name].as_f64().unwrap();
    assert_eq!(found["tokens_per_step"], 8192);
    let rate = 8192.0 / number("step_ms") * 1e3;
    assert!((number("tokens_per_second") / rate - 1.0).abs() < 1e-9);
    assert!((number("compute_ms") + number("exposed_ms") - number("step_ms")).abs() < 1e-3, "{found}");
    assert!(number("bound_ms") <= number("model_ms") && number("least_ms") <= number("step_ms"), "{found}");
    let layers =
        found["state"].as_array().unwrap().iter().find(|one| one["names"] == "params.layers.*.weight");
    assert!(layers.is_some_and(|one| one["count"] == 2 && one["bytes"] == 67_108_864), "{found}");
    for arguments in [
        "--cluster h100:8 --mesh data=2,tensor=4",
        "--cluster h100:8 --mesh data=8 --micro-batches 2",
        "--cluster h100:8 --mesh stages=2,data=2 --micro-batches 2",
        "--cluster h100:8 --mesh data=2,tensor=4 --memory-limit 150MB",
    ] {
        parts_add_up(&figures(&files, arguments));
    }
}

/// Whether what is said of modules, collectives and categories of memory adds up to what is said of all.
fn parts_add_up(found: &Value) {
    let number = |name: &str| found[name].as_f64().unwrap();
    let list = |of: &Value, name: &str| of[name].as_array().unwrap().clone();
    let sum = |of: &[Value], what: &str| of.iter().map(|one| one[what].as_f64().unwrap()).sum::<f64>();
    let is_near = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} {b}: {found}");
    let collectives = list(found, "collectives");
    is_near(sum(&list(found, "modules"), "ms"), number("compute_ms"));
    is_near(sum(&collectives, "ms"), number("communication_ms"));
    is_near(sum(&collectives, "exposed_ms") + number("idle_ms"), number("exposed_ms"));
    for one in &collectives {
        let causes = list(one, "causes");
        for what in ["ms", "exposed_ms", "count", "bytes"] {
            is_near(sum(&causes, what), one[what].as_f64().unwrap());
        }
        for one in &causes {
            assert!(one["exposed_ms"].as_f64().unwrap() <= one["ms"].as_f64().unwrap() + 1e-6, "{one}");
        }
    }
    let memory = found["memory"].as_object().unwrap();
    is_near(memory.values().map(|bytes| bytes.as_f64().unwrap()).sum(), number("peak_bytes"));
    for category in ["activations", "gradients", "collectives", "temporary"] {
        let held: Vec<Value> =
            list(found, "held").into_iter().filter(|one| one["category"] == category).collect();
        is_near(sum(&held, "bytes"), memory[category].as_f64().unwrap());
    }
}

#[test]
fn more_memory_links_and_devices_are_planned_for_again() {
    let files = files("sensitivity");
    let line = "--cluster h100:8 --mesh data=2,tensor=4";
    let found = figures(&files, &format!("{line} --sensitivity"));
    let others = found["sensitivity"].as_array().unwrap();
    let with: Vec<&str> = others.iter().map(|other| other["with"].as_str().unwrap()).collect();
    // No plan needs more memory than a device has.
    assert_eq!(with, ["links 2 times as fast", "a device 10 % faster"]);
    let step = found["step_ms"].as_f64().unwrap();
    for other in others {
        let (time, saves) = (other["step_ms"].as_f64().unwrap(), other["saves"].as_f64().unwrap());
        assert!(time <= step && (1.0 - time / step - saves).abs() < 1e-9, "{other}");
    }
    let limited = format!("{line} --sensitivity --memory-limit 200MB");
    let found = figures(&files, &limited);
    assert_eq!(found["sensitivity"][0]["with"], "1 GiB more memory of a rank", "{found}");
    let (_, plan, _) = files.run(&format!("plan step.txt {limited}"));
    let (_, text, _) = files.write("plan.toml", &plan).run("explain step.txt plan.toml");
    assert!(plan.contains("# with links 2 times as fast: ") && text.starts_with("plan "), "{plan}");
}
