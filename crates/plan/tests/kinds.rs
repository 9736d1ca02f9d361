//! Plans for clusters of several kinds of devices.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cluster::Cluster;
use ir::Graph;
use unisono_plan::{Effort, Plan, PlanSettings, explain_plan, plan_graph};

const MLP: &str = include_str!("steps/mlp.txt");

/// Two nodes of two, the second of devices whose table is given.
fn cluster(devices: &str) -> Cluster {
    Cluster::parse(&format!("preset = \"cpu:2x2\"\n{devices}"), "cluster.toml").unwrap()
}

fn settings(axis: &str) -> PlanSettings {
    let mesh = [(axis.to_owned(), 2), ("b".to_owned(), 2)].into_iter().collect();
    PlanSettings { mesh, effort: Effort::Quick, ..PlanSettings::default() }
}

fn planned(cluster: &Cluster) -> Plan {
    plan_graph(&Graph::from_text("step.txt", MLP).unwrap(), cluster, &settings("a")).unwrap()
}

const SLOW: &str = "matmul_flops = { f32 = 1e9 }\nmemory_bytes = 1_000_000_000\n";

#[test]
fn a_step_takes_what_the_slowest_kind_takes_in_the_memory_of_the_smallest() {
    let both = cluster(&format!("[[devices]]\nranks = 2\n[[devices]]\nranks = 2\n{SLOW}"));
    let slow = cluster(&format!("[device]\n{SLOW}"));
    let (of_both, of_slow) = (planned(&both), planned(&slow));
    assert_eq!(of_both.prediction.step_ns, of_slow.prediction.step_ns);
    assert_eq!(of_both.inputs, of_slow.inputs);
    assert!(of_both.prediction.step_ns > planned(&cluster("")).prediction.step_ns);
    assert_eq!(settings("a").memory_limit(&both), Some(1_000_000_000));
}

#[test]
fn operations_that_are_fitted_for_a_kind_take_what_the_slowest_says() {
    let fitted = "[[devices]]\nranks = 2\n[[devices]]\nranks = 2\noperations = { \"aten::mm\" = { f32 = { start_ns = 1e9 } } }\n";
    assert!(planned(&cluster(fitted)).prediction.step_ns > 1_000_000_000);
}

#[test]
fn an_explanation_says_which_kind_limits() {
    let text = format!("[[devices]]\nranks = 2\n[[devices]]\nranks = 2\n{SLOW}")
        .replace("1e9 }", "1e9 }\nname = \"SLOW\"");
    // What has a name is a device of its own.
    let own = "memory_bandwidth = 200e9\noperation_ns = 5000.0\noverlap_factor = 1.5\n";
    let both = cluster(&format!("{text}{own}"));
    let graph = Graph::from_text("step.txt", MLP).unwrap();
    let said = explain_plan(&graph, &planned(&both), Some(&both), None).unwrap();
    let slowest = "  devices   each operation takes what the slowest kind takes, most of all SLOW; the smallest memory is that of SLOW\n";
    assert!(said.contains(slowest), "{said}");
    assert!(
        said.contains("            2 x CPU-32-cores: ") && said.contains("            2 x SLOW: "),
        "{said}"
    );
    let one = cluster("");
    let said = explain_plan(&graph, &planned(&one), Some(&one), None).unwrap();
    assert!(!said.contains("devices "), "{said}");
}

#[test]
fn pipeline_stages_on_several_kinds_are_refused() {
    let both = cluster(&format!("[[devices]]\nranks = 2\n[[devices]]\nranks = 2\n{SLOW}"));
    let graph = Graph::from_text("step.txt", MLP).unwrap();
    let refused = plan_graph(&graph, &both, &settings("stages")).expect_err("it has stages").to_string();
    assert!(
        refused.starts_with(
            "error[U0205]: pipeline stages on several kinds of devices: 2 CPU-32-cores + 2 CPU-32-cores"
        ),
        "{refused}"
    );
    let searched = PlanSettings { ranks: Some(4), effort: Effort::Quick, ..PlanSettings::default() };
    assert!(plan_graph(&graph, &both, &searched).unwrap().stages.is_none());
}
