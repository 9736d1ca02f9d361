//! What plans are called: pins make a plan of each family, and the name follows from the placements that come out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cluster::testing::slow;
use indexmap::IndexMap;
use ir::Graph;
use unisono_plan::{Effort, Pins, PlanSettings, Recomputation, plan_graph};

/// Two blocks of a norm and two products, for 16 samples of 16 positions, with momentum.
const MLP: &str = include_str!("steps/mlp.txt");
/// A product for each of eight experts.
const EXPERTS: &str = include_str!("steps/experts.txt");

/// The label of the plan on a mesh such as `a=4` that keeps pins such as `batch.* a shard(0)`.
fn label(step: &str, mesh: &str, pins: &[&str], settings: &PlanSettings) -> String {
    let graph = Graph::from_text("step.txt", step).unwrap();
    let axes = mesh.split(',').map(|axis| axis.split_once('=').unwrap());
    let mut demanded = Pins::default();
    for pin in pins {
        let parts: Vec<&str> = pin.split(' ').collect();
        let [names, axis, placement] = parts.as_slice() else { panic!("{pin}") };
        demanded
            .entry((*names).to_owned())
            .or_default()
            .insert((*axis).to_owned(), placement.parse().unwrap());
    }
    let settings = PlanSettings {
        mesh: axes.map(|(name, size)| (name.to_owned(), size.parse().unwrap())).collect::<IndexMap<_, _>>(),
        pins: demanded,
        effort: Effort::Quick,
        ..settings.clone()
    };
    plan_graph(&graph, &slow(), &settings).unwrap().label
}

fn of_mlp(mesh: &str, pins: &[&str]) -> String {
    label(MLP, mesh, pins, &PlanSettings::default())
}

/// State as one device has it.
const REPLICATED: [&str; 2] = ["params.* a replicate", "optimizer.* a replicate"];
/// A shard of everything on each rank.
const SHARDED: [&str; 3] = ["batch.* a shard(0)", "params.* a shard(0)", "optimizer.* a shard(0)"];
/// The first product of each block by its results, the second one by what it sums over.
const BY_FEATURES: [&str; 4] = [
    "params.*.up.weight a shard(0)",
    "params.*.down.weight a shard(1)",
    "optimizer.*.up* a shard(0)",
    "optimizer.*.down* a shard(1)",
];

#[test]
fn one_axis_is_named_with_its_degree() {
    let with = |pins: &[&str]| of_mlp("a=4", &[&REPLICATED, pins].concat());
    assert_eq!(with(&["batch.* a shard(0)"]), "data parallel 4");
    assert_eq!(with(&["batch.* a shard(1)"]), "sequence parallel 4");
    let scattered = with(&["batch.* a shard(0)", "optimizer.* a shard(0)"]);
    assert_eq!(scattered, "data parallel 4, optimizer state sharded (ZeRO-2)");
    assert_eq!(of_mlp("a=1", &[]), "one rank");
}

#[test]
fn how_often_shards_of_state_are_put_together_is_said() {
    assert_eq!(of_mlp("a=4", &SHARDED), "data parallel 4, state sharded, gathered once");
    let limited = PlanSettings {
        memory_limit: Some(9_000_000),
        recompute: Some(Recomputation::None),
        micro_batches: Some(1),
        ..PlanSettings::default()
    };
    let twice = label(MLP, "a=4", &SHARDED, &limited);
    assert_eq!(twice, "data parallel 4, state sharded, gathered twice (ZeRO-3)");
    let half = ["params.1.* a shard(0)", "optimizer.1.* a shard(0)"];
    let half = of_mlp("a=4", &[&["batch.* a shard(0)"], &REPLICATED[..], &half[..]].concat());
    assert_eq!(half, "data parallel 4, state partly sharded, gathered once");
}

#[test]
fn products_by_features_are_tensor_parallel_whatever_lies_between_them() {
    assert_eq!(of_mlp("a=4", &BY_FEATURES), "tensor parallel 4, samples sharded, state sharded");
    // Two samples are too few.
    let long = MLP.replace("[16, 16, ", "[2, 128, ");
    let long = label(&long, "a=4", &BY_FEATURES, &PlanSettings::default());
    assert_eq!(long, "tensor parallel 4, sequence sharded, state sharded");
    let one_block = ["params.0.up.weight a shard(0)", "params.0.down.weight a shard(1)"];
    let mixed = of_mlp("a=4", &[&["batch.* a replicate"], &REPLICATED[..], &one_block[..]].concat());
    assert_eq!(
        mixed,
        "data parallel 4 (50 %) + tensor parallel 4 (50 %), samples sharded, state partly sharded"
    );
}

#[test]
fn products_with_parameters_of_their_own_are_expert_parallel() {
    let of = |mesh: &str, pins: &[&str]| label(EXPERTS, mesh, pins, &PlanSettings::default());
    assert_eq!(of("a=4", &["params.* a shard(0)"]), "expert parallel 4, state sharded");
    assert_eq!(of("a=4", &["params.* a shard(2)"]), "tensor parallel 4, state sharded");
    let two = of("d=2,a=4", &["params.* a shard(0)", "batch.* d shard(0)"]);
    assert_eq!(two, "data parallel 2 on d; expert parallel 4 on a, state sharded");
}

#[test]
fn each_of_several_axes_has_its_own_phrase() {
    let over_d = ["batch.* d shard(0)", "params.* d shard(0)", "optimizer.* d shard(0)"];
    let two = of_mlp("d=2,a=4", &[&["batch.* a replicate"], &BY_FEATURES[..], &over_d[..]].concat());
    assert_eq!(
        two,
        "data parallel 2 on d, state sharded, gathered once; tensor parallel 4 on a, samples sharded, state sharded"
    );
    let over_s = ["batch.* s shard(1)", "params.* s replicate", "optimizer.* s replicate"];
    let over_d = ["batch.* d shard(0)", "params.* d replicate", "optimizer.* d replicate"];
    let pins = [&["batch.* a replicate"], &BY_FEATURES[..], &over_d[..], &over_s[..]].concat();
    let three = of_mlp("d=2,s=2,a=2", &pins);
    assert_eq!(
        three,
        "data parallel 2 on d; sequence parallel 2 on s; tensor parallel 2 on a, samples sharded, state sharded"
    );
}

#[test]
fn stages_and_micro_batches_are_named_beside_the_axes() {
    let settings = PlanSettings { micro_batches: Some(2), ..PlanSettings::default() };
    let pins = [&["batch.* a shard(0)"], &REPLICATED[..]].concat();
    assert_eq!(label(MLP, "a=4", &pins, &settings), "data parallel 4; 2 micro-batches");
    let settings = PlanSettings { schedule: Some("1f1b".parse().unwrap()), ..settings };
    let staged = label(MLP, "stages=2,a=2", &pins, &settings);
    assert_eq!(staged, "2 pipeline stages (1f1b); data parallel 2; 2 micro-batches");
}
