//! What users say of a plan beside its inputs: how what a module gives is read, and collectives that it does without.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use base::Diagnostic;
use cluster::testing::slow;
use indexmap::IndexMap;
use ir::{Graph, NodeId, PartKind, Placement, ValueId, testing::Random};
use unisono_plan::{Effort, Forbid, Pins, PlanSettings, plan_graph, rank_graph};

/// Two blocks of a norm and two products, `0` and `1`, for 16 samples of 16 positions of 256 features.
const MLP: &str = include_str!("steps/mlp.txt");

/// The graph of rank 0 on a mesh such as `a=4`, with pins such as `batch.* a replicate` and what is forbidden such as `a all_to_all`.
fn rank(mesh: &str, pins: &[&str], forbid: &[&str]) -> Result<Graph, Box<Diagnostic>> {
    let graph = Graph::from_text("step.txt", MLP).unwrap();
    let axes = mesh.split(',').map(|axis| axis.split_once('=').unwrap());
    let mut settings = PlanSettings {
        mesh: axes.map(|(name, size)| (name.to_owned(), size.parse().unwrap())).collect(),
        effort: Effort::Quick,
        ..PlanSettings::default()
    };
    let (pinned, forbidden): (&mut Pins, &mut Forbid) = (&mut settings.pins, &mut settings.forbid);
    for pin in pins {
        let [names, axis, placement] = pin.split(' ').collect::<Vec<_>>()[..] else { panic!("{pin}") };
        let placement: Placement = placement.parse().unwrap();
        pinned.entry(names.to_owned()).or_default().insert(axis.to_owned(), placement);
    }
    for one in forbid {
        let (axis, kind) = one.split_once(' ').unwrap();
        forbidden.entry(axis.to_owned()).or_default().push(kind.to_owned());
    }
    let plan = plan_graph(&graph, &slow(), &settings)?;
    rank_graph(&graph, &plan, 0)
}

/// The shapes of activations, not of sums over features, that operations in the norm of the second block read from outside of it in forward.
fn read_by_the_second_norm(graph: &Graph) -> Vec<Vec<i64>> {
    // What changes a placement has a label, and stands where it is needed.
    let is_change = |node: NodeId| graph.nodes[node].label.is_some();
    let is_in_norm = |node: NodeId| {
        let module = graph.nodes[node].module.map(|module| graph.modules[module].as_str());
        module == Some("1.norm") && !is_change(node)
    };
    let is_own = |mut value: ValueId| loop {
        match graph.maker(value) {
            Some(node) if is_change(node) => value = graph.nodes[node].operands().next().unwrap(),
            maker => break maker.is_some_and(is_in_norm),
        }
    };
    let is_forward = |node: &&NodeId| graph.part_kind(**node) == PartKind::Forward;
    let readers = graph.order.iter().filter(is_forward).filter(|node| is_in_norm(**node));
    let read = readers.flat_map(|node| graph.nodes[*node].operands());
    let from_outside = read.filter(|value| !is_own(*value));
    let shapes: BTreeSet<Vec<i64>> = from_outside.map(|value| graph.ty(value).shape.to_vec()).collect();
    let is_of_all_features = |shape: &Vec<i64>| shape.len() == 3 && shape[2] > 1;
    shapes.into_iter().filter(is_of_all_features).collect()
}

/// Each kind of collective of a graph with its axis, once.
fn collectives(graph: &Graph) -> Vec<String> {
    let found = graph.order.iter().filter_map(|node| graph.collective(*node));
    let names: BTreeSet<String> = found.map(|it| format!("{} {}", it.axis, it.kind)).collect();
    names.into_iter().collect()
}

#[test]
fn what_a_module_gives_is_read_as_its_pin_says() {
    for (placement, shape) in [
        ("shard(0)", [4, 16, 256]),
        ("shard(1)", [16, 4, 256]),
        ("shard(2)", [16, 16, 64]),
        ("replicate", [16, 16, 256]),
    ] {
        for batch in ["replicate", "shard(0)"] {
            let pins = [format!("batch.* a {batch}"), format!("outputs.0 a {placement}")];
            let graph = rank("a=4", &pins.each_ref().map(String::as_str), &[]).unwrap();
            assert_eq!(read_by_the_second_norm(&graph), [shape], "{placement} of a batch {batch}");
        }
    }
}

#[test]
fn each_axis_has_its_own_pin_of_an_output() {
    let pins = ["outputs.0 a shard(0)", "outputs.0 b shard(1)"];
    assert_eq!(read_by_the_second_norm(&rank("a=2,b=4", &pins, &[]).unwrap()), [[8, 4, 256]]);
}

#[test]
fn a_star_pins_what_several_modules_give_and_the_last_pin_decides() {
    let pins = ["outputs.* a shard(2)", "outputs.0 a shard(1)"];
    assert_eq!(read_by_the_second_norm(&rank("a=4", &pins, &[]).unwrap()), [[16, 4, 256]]);
    let pins = ["outputs.0 a shard(1)", "outputs.* a shard(2)"];
    assert_eq!(read_by_the_second_norm(&rank("a=4", &pins, &[]).unwrap()), [[16, 16, 64]]);
}

#[test]
fn a_pin_of_an_output_that_binds_nothing_is_refused_by_name() {
    let error = |pin: &str| rank("a=4", &[pin], &[]).unwrap_err().to_string();
    let unknown = error("outputs.0.nrom a shard(0)");
    assert!(unknown.contains("`outputs.0.nrom` matches no module"), "{unknown}");
    assert!(unknown.contains("did you mean `outputs.0.norm`?"), "{unknown}");
    let impossible = error("outputs.0 a shard(5)");
    assert!(impossible.contains("`outputs.0` binds nothing along `a`"), "{impossible}");
    assert!(
        impossible.contains("read as a tensor of shape [16, 16, 256], and not as `shard(5)`"),
        "{impossible}"
    );
    assert!(error("outputs.1 a shard(5)").contains("of shape [16, 16, 256]"));
}

#[test]
fn a_plan_does_without_what_is_forbidden() {
    let free = rank("a=4", &["batch.* a shard(0)"], &[]).unwrap();
    assert!(collectives(&free).contains(&"a all_reduce".to_owned()), "{:?}", collectives(&free));
    for kind in ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"] {
        for axis in ["a", "*"] {
            let graph = rank("a=4", &["batch.* a shard(0)"], &[&format!("{axis} {kind}")]);
            // A loss of shards is a sum over all.
            let Ok(graph) = graph else {
                assert_eq!(kind, "all_reduce");
                continue;
            };
            assert!(!collectives(&graph).contains(&format!("a {kind}")), "{:?}", collectives(&graph));
        }
    }
}

#[test]
fn plans_of_random_programs_do_without_what_is_forbidden() {
    let (mut planned, mut sent) = (0, 0);
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let graph = ir::testing::random_graph(seed, 10 + random.below(30));
        let kind = *random.pick(&["all_gather", "reduce_scatter", "all_to_all"]);
        let pinned = *random.pick(&[Placement::shard(0), Placement::shard(1)]);
        let settings = PlanSettings {
            mesh: [("a".to_owned(), 2), ("b".to_owned(), 2)].into_iter().collect(),
            pins: Pins::from_iter([("batch.*".to_owned(), IndexMap::from([("a".to_owned(), pinned)]))]),
            forbid: [("*".to_owned(), vec![kind.to_owned()])].into_iter().collect(),
            effort: Effort::Quick,
            ..PlanSettings::default()
        };
        let Ok(plan) = plan_graph(&graph, &slow(), &settings) else { continue };
        let found = collectives(&rank_graph(&graph, &plan, 3).unwrap());
        assert!(found.iter().all(|one| !one.ends_with(kind)), "seed {seed}: {found:?} without {kind}");
        planned += 1;
        sent += found.len();
    }
    assert!(planned > 20 && sent > 40, "{planned} plans, {sent} collectives");
}

#[test]
fn along_a_forbidden_axis_nothing_is_sent() {
    assert_eq!(collectives(&rank("a=4", &[], &["a *"]).unwrap()), Vec::<String>::new());
    let one = rank("a=2,b=2", &[], &["a *"]).unwrap();
    assert!(!collectives(&one).is_empty() && collectives(&one).iter().all(|name| name.starts_with("b ")));
}

#[test]
fn what_micro_batches_add_up_is_no_collective() {
    let graph = Graph::from_text("step.txt", MLP).unwrap();
    let settings = PlanSettings {
        mesh: [("a".to_owned(), 2)].into_iter().collect(),
        micro_batches: Some(2),
        forbid: [("*".to_owned(), vec!["*".to_owned()])].into_iter().collect(),
        effort: Effort::Quick,
        ..PlanSettings::default()
    };
    let plan = plan_graph(&graph, &slow(), &settings).unwrap();
    assert_eq!(plan.micro_batches, 2);
    assert_eq!(collectives(&rank_graph(&graph, &plan, 0).unwrap()), Vec::<String>::new());
}

#[test]
fn what_cannot_be_done_without_is_said() {
    let error = |forbid: &str| {
        rank("a=4", &["batch.* a shard(0)", "params.* a shard(0)"], &[forbid]).unwrap_err().to_string()
    };
    let nothing = error("a *");
    assert!(nothing.contains("no plan does without `all_reduce`, `all_gather`"), "{nothing}");
    assert!(nothing.contains("along `a`") && nothing.contains("forbid less"), "{nothing}");
    assert!(error("b all_gather").contains("names an axis `b` that the mesh does not have"));
    assert!(error("a all_gater").contains("did you mean `all_gather`?"));
}
