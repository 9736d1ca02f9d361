//! What a plan file says, and that it is read back as it was meant.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::Fingerprint;
use expect_test::expect;
use ir::{CollectiveKind, Graph, Mesh, MeshAxis, PartId, Placement, ValueDef, ValueId, testing::Random};
use shard::{Assignment, Offered, Space, canonical, partition_mesh};
use unisono_plan::Plan;

/// Two layers with a residual, a weight that is used twice, and an update.
const LAYERS: &str = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::relu(Tensor self) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
op aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
op aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
input v0: f32[8, 8] = parameter "params.blocks.0.w"
input v1: f32[8, 8] = parameter "params.blocks.1.w"
input v2: f32[16, 8] = batch "batch.x"
part forward
v3: f32[16, 8] = aten::mm(v2, v0) @m0
v4: f32[16, 8] = aten::relu(v3) @m0
v5: f32[16, 8] = aten::mm(v4, v1) @m1
v6: f32[16, 8] = aten::relu(v5) @m1
part backward
v7: f32[8, 16]{1, 8} = aten::t(v6) @m1
v8: f32[8, 8] = aten::mm(v7, v6) @m1
v9: f32[8, 16]{1, 8} = aten::t(v4) @m0
v10: f32[8, 8] = aten::mm(v9, v4) @m0
part update
v11: f32[8, 8] = aten::sub.Tensor(v0, v10, 1)
v12: f32[8, 8] = aten::sub.Tensor(v1, v8, 1)
return v6
update "params.blocks.0.w" = v11
update "params.blocks.1.w" = v12
module m0 "blocks.0"
module m1 "blocks.1"
"#;

fn fingerprint() -> Fingerprint {
    base::Fingerprinter::new().finish()
}

/// The plan that assignments are, as text and read again.
fn written(graph: &Graph, mesh: &Mesh, assignments: &[Assignment]) -> Plan {
    let plan = Plan::new(graph, (fingerprint(), fingerprint()), mesh, assignments).unwrap();
    let again = Plan::parse(&plan.text(), "plan.toml").unwrap();
    assert_eq!(again.text(), plan.text());
    again
}

/// Any strategies, any storage, and any placements in which values enter parts.
fn any(random: &mut Random, graph: &Graph, mesh: &Mesh, axis: &MeshAxis) -> Assignment {
    let offered = if mesh.may_be_uneven(&axis.name) { Offered::Useful } else { Offered::Even };
    let space = Space::new(graph, axis, offered);
    let mut assignment = Assignment::default();
    let changes = random.below(4) != 0;
    for id in &graph.order {
        let strategy = random.pick(space.strategies(*id)).clone();
        if changes || random.once_in(3) {
            assignment.nodes.insert(*id, strategy);
        }
    }
    let mut placement = |value| {
        let offers = &space.offers[value];
        if offers.is_empty() || random.once_in(2) {
            return Placement::Replicate;
        }
        *random.pick(offers)
    };
    for (id, input) in graph.inputs.iter() {
        assignment.inputs.insert(id, placement(input.value));
    }
    for id in &graph.order {
        let node = &graph.nodes[*id];
        for value in node.operands().filter(|value| made_in(graph, *value) != node.part) {
            assignment.kept.insert((value, node.part), placement(value));
        }
    }
    if random.once_in(3) {
        assignment.without = vec![CollectiveKind::AllToAll];
    }
    assignment
}

/// The part of the program that makes a value.
fn made_in(graph: &Graph, value: ValueId) -> PartId {
    match graph.values[value].def {
        ValueDef::Input(_) => PartId(0),
        ValueDef::Result(node, _) => graph.nodes[node].part,
    }
}

#[test]
fn any_decisions_are_read_back_as_they_were_meant() {
    let (mut tried, mut lines, mut exchanges) = (0, 0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let graph = canonical(&ir::testing::random_graph(seed, 1 + random.below(40)));
        let sizes = [2, 4];
        let axes = (0..=random.below(2)).map(|i| MeshAxis::ranks(format!("a{i}"), *random.pick(&sizes)));
        let mesh = Mesh { axes: axes.collect() };
        let mut assignments = Vec::new();
        let decided = partition_mesh(&graph, &mesh, 0, |graph, axis| {
            assignments.push(any(&mut random, graph, &mesh, axis));
            Ok(assignments.last().unwrap().clone())
        });
        // Some changes of placement are not possible.
        let Ok(decided) = decided else { continue };
        let exchanged = decided.order.iter().filter_map(|id| decided.collective(*id));
        for collective in exchanged.filter(|one| one.kind == CollectiveKind::AllToAll) {
            let along = mesh.axes.iter().position(|axis| axis.name == collective.axis).unwrap();
            assert!(assignments[along].without.is_empty(), "seed {seed}");
            exchanges += 1;
        }
        let plan = written(&graph, &mesh, &assignments);
        assert_eq!(
            plan.partition(&graph, fingerprint(), 0).unwrap().to_string(),
            decided.to_string(),
            "seed {seed}"
        );
        tried += 1;
        lines += plan
            .axes
            .values()
            .flat_map(|axis| axis.operations.values())
            .map(indexmap::IndexMap::len)
            .sum::<usize>();
    }
    assert!(
        tried > 100 && lines > 500 && exchanges > 20,
        "{tried} graphs, {lines} lines, {exchanges} exchanges"
    );
}

/// The plan of the layers with weights sharded by columns, which are gathered once.
fn layers() -> (Graph, Plan) {
    let graph = canonical(&Graph::from_text("step", LAYERS).unwrap());
    let mesh = Mesh { axes: vec![MeshAxis::ranks("ranks", 2)] };
    let space = Space::new(&graph, &mesh.axes[0], Offered::Useful);
    let mut assignment = Assignment::default();
    for (id, input) in graph.inputs.iter().filter(|(_, input)| input.name.starts_with("params")) {
        assignment.inputs.insert(id, Placement::shard(1));
        assignment.kept.insert((input.value, graph.last_part()), Placement::shard(1));
    }
    for id in &graph.order {
        let by_rows = |placement: &Placement| *placement == Placement::shard(0);
        let strategies = space.strategies(*id);
        let is_forward = graph.nodes[*id].part == ir::PartId(0);
        let wanted = strategies.iter().find(|strategy| is_forward && strategy.results.iter().all(by_rows));
        assignment.nodes.insert(*id, wanted.unwrap_or(&strategies[0]).clone());
    }
    let plan = written(&graph, &mesh, &[assignment]);
    (graph, plan)
}

#[test]
fn only_what_does_not_follow_is_written_and_layers_are_one_line() {
    let text = layers().1.text();
    let (_, decisions) = text.split_once("[inputs").unwrap();
    expect![[r#"
        .ranks]
        "params.blocks.{0,1}.w" = "shard(1)"

        [axes.ranks]
        check = "9b2521f2cea0cfa8e849879d4f44c7fa"

        [axes.ranks.operations.forward]
        "blocks.{0,1} aten::mm" = "shard(0), replicate -> shard(0)"

        [axes.ranks.operations.backward]
        "blocks.{0,1} aten::t" = "replicate"

        [axes.ranks.operations.update]
        "params.blocks.{0,1}.w aten::sub.Tensor" = "replicate"

        [axes.ranks.entering.update.inputs]
        "params.blocks.{0,1}.w" = "shard(1)"
    "#]]
    .assert_eq(decisions);
}

#[test]
fn a_plan_is_edited_by_hand_where_its_check_is_taken_out() {
    let (graph, plan) = layers();
    let check = plan.axes["ranks"].check.unwrap();
    let edited = plan.text().replace("\"shard(0), replicate -> shard(0)\"", "\"replicate\"");
    assert_ne!(edited, plan.text());
    let partition = |text: &str| Plan::parse(text, "plan.toml").unwrap().partition(&graph, fingerprint(), 0);
    let error = partition(&edited).unwrap_err().to_string();
    assert!(error.contains("take `check` out if you edited it"), "{error}");
    let changed = partition(&edited.replace(&format!("check = \"{check}\"\n"), "")).unwrap();
    assert_ne!(changed.to_string(), partition(&plan.text()).unwrap().to_string());
}

#[test]
fn lines_that_name_nothing_are_errors_that_say_which() {
    let (graph, plan) = layers();
    let text = plan.text();
    for (from, to, part) in [
        ("blocks.{0,1} aten::mm", "blocks.{0..2} aten::mm", "no such `aten::mm` in `blocks.2`"),
        ("blocks.{0,1} aten::mm", "blocks.{0,1} aten::mm#1", "no such `aten::mm` in `blocks.0`"),
        ("blocks.{0,1} aten::mm", "blocks.{0,0} aten::mm", "names what another line names too"),
        ("blocks.{0,1} aten::mm", "blocks.{0,1 aten::mm", "a brace is not closed"),
        ("operations.forward", "operations.foreward", "no part `foreward`"),
        ("shard(0), replicate -> shard(0)", "shard(7), replicate -> shard(0)", "cannot run as `shard(7)"),
    ] {
        let edited = text.replace(from, to);
        assert_ne!(edited, text, "{from}");
        let error =
            Plan::parse(&edited, "plan.toml").and_then(|plan| plan.partition(&graph, fingerprint(), 0));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("U0203") && error.contains(part), "{error}");
    }
    let twice = text.replace("\"params.blocks.{0,1}.w\"", "\"params.blocks.{0,1,1}.w\"");
    let error = Plan::parse(&twice, "plan.toml").unwrap_err().to_string();
    assert!(error.contains("two placements along `ranks`"), "{error}");
}
