//! Small programs with the events that were computed by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fmt::Write;

use common::{cluster, graph, mesh};
use expect_test::{Expect, expect};
use ir::Graph;
use timeline::{NameId, Timeline, chrome, kineto, step::Figures};
use unisono_sim::{Machine, predict, predict_stages, simulate};

/// A line for each event: the rank, the lane, begin and end in nanoseconds, the name.
fn table(timeline: &Timeline) -> String {
    let mut text = String::new();
    for rank in &timeline.ranks {
        for row in 0..rank.events.len() {
            let name = |id: NameId| timeline.names.text(id);
            let lane = name(rank.tracks[rank.events.track[row]].name);
            let (start, end) = (rank.events.start[row], rank.events.end(row));
            let name = name(rank.events.name[row]);
            let name = name.rsplit("::").next().unwrap();
            writeln!(text, "{} {lane:10} {start:5} .. {end:5}  {name}", rank.rank).unwrap();
        }
    }
    text
}

fn check(graphs: &[&str], axes: &[(&str, u32)], factor: f64, expected: &Expect) {
    let graphs: Vec<Graph> = graphs.iter().map(|lines| graph(lines)).collect();
    let (cluster, mesh) = (cluster(factor), mesh(axes));
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let graphs: Vec<&Graph> = graphs.iter().collect();
    expected.assert_eq(&table(&simulate(&graphs, machine).unwrap()));
}

#[test]
fn a_collective_is_hidden_behind_what_stands_between_its_start_and_its_wait() {
    let expected = expect![[r#"
        0 operations     0 ..  3500  ProfilerStep#0
        0 operations     0 ..  1000  neg
        0 operations  1000 ..  1000  all_reduce
        0 operations  1000 ..  2000  neg
        0 axis:a      1000 ..  2500  unisono:all_reduce
        0 operations  2000 ..  2500  wait_tensor
        0 operations  2500 ..  3500  neg
    "#]];
    check(&["neg v0 \n reduce v1 a \n neg v0 \n wait v2 \n neg v4"], &[("a", 2)], 1.0, &expected);
}

#[test]
fn the_last_rank_comes_later_by_a_part_of_the_time_since_ranks_last_met() {
    // 100 ns always, and a tenth of what has passed since the collective before began: 100 + 200 where nothing did.
    let text = "[[in_steps]]\nshape = [2]\nlate_ns = 100.0\nlate = 0.1\n";
    let cluster = cluster::Cluster::parse(&(cluster(1.0).text() + text), "test").unwrap();
    let (graph, mesh) = (
        graph("neg v0 \n neg v0 \n reduce v2 a \n wait v3 \n neg v4 \n reduce v5 a \n wait v6"),
        mesh(&[("a", 2)]),
    );
    let timeline = simulate(&[&graph], Machine { cluster: &cluster, mesh: &mesh }).unwrap();
    expect![[r#"
        0 operations     0 ..  6650  ProfilerStep#0
        0 operations     0 ..  1000  neg
        0 operations  1000 ..  2000  neg
        0 operations  2000 ..  2000  all_reduce
        0 axis:a      2300 ..  3800  unisono:all_reduce
        0 operations  2000 ..  3800  wait_tensor
        0 operations  3800 ..  4800  neg
        0 operations  4800 ..  4800  all_reduce
        0 axis:a      5150 ..  6650  unisono:all_reduce
        0 operations  4800 ..  6650  wait_tensor
    "#]]
    .assert_eq(&table(&timeline));
}

#[test]
fn collectives_of_one_group_run_one_after_the_other_in_the_order_of_their_starts() {
    let expected = expect![[r#"
        0 operations     0 ..  3000  ProfilerStep#0
        0 operations     0 ..     0  all_reduce
        0 operations     0 ..     0  all_reduce
        0 operations     0 ..  1000  neg
        0 axis:a         0 ..  1500  unisono:all_reduce
        0 axis:a      1500 ..  3000  unisono:all_reduce
        0 operations  1000 ..  3000  wait_tensor
        0 operations  3000 ..  3000  wait_tensor
    "#]];
    check(&["reduce v0 a \n reduce v0 a \n neg v0 \n wait v2 \n wait v1"], &[("a", 2)], 1.0, &expected);
}

#[test]
fn collectives_of_two_groups_run_beside_each_other() {
    let expected = expect![[r#"
        0 operations     0 ..  1800  ProfilerStep#0
        0 operations     0 ..     0  all_reduce
        0 operations     0 ..     0  all_reduce
        0 axis:a         0 ..  1500  unisono:all_reduce
        0 axis:b         0 ..  1800  unisono:all_reduce
        0 operations     0 ..  1800  wait_tensor
        0 operations  1800 ..  1800  wait_tensor
    "#]];
    check(&["reduce v0 a \n reduce v0 b \n wait v2 \n wait v1"], &[("a", 2), ("b", 5)], 1.0, &expected);
}

#[test]
fn an_operation_and_a_collective_are_both_slower_while_they_run_beside_each_other() {
    let expected = expect![[r#"
        0 operations     0 ..  3000  ProfilerStep#0
        0 operations     0 ..     0  all_reduce
        0 operations     0 ..  1500  neg
        0 axis:a         0 ..  2000  unisono:all_reduce
        0 operations  1500 ..  2000  wait_tensor
        0 operations  2000 ..  3000  neg
    "#]];
    check(&["reduce v0 a \n neg v0 \n wait v1 \n neg v3"], &[("a", 2)], 1.5, &expected);
}

#[test]
fn a_step_ends_when_collectives_that_nobody_waits_for_have_ended() {
    let expected = expect![[r#"
        0 operations     0 ..  1500  ProfilerStep#0
        0 operations     0 ..     0  all_reduce
        0 operations     0 ..  1000  neg
        0 axis:a         0 ..  1500  unisono:all_reduce
        0 operations  1000 ..  1500  wait_tensor
    "#]];
    check(&["reduce v0 a \n neg v0"], &[("a", 2)], 1.0, &expected);
}

#[test]
fn a_rank_that_is_late_keeps_the_others_waiting() {
    let expected = expect![[r#"
        0 operations     0 ..  3500  ProfilerStep#0
        0 operations     0 ..     0  all_reduce
        0 axis:a      1000 ..  2500  unisono:all_reduce
        0 operations     0 ..  2500  wait_tensor
        0 operations  2500 ..  3500  neg
        1 operations     0 ..  3500  ProfilerStep#0
        1 operations     0 ..  1000  neg
        1 operations  1000 ..  1000  all_reduce
        1 axis:a      1000 ..  2500  unisono:all_reduce
        1 operations  1000 ..  2500  wait_tensor
        1 operations  2500 ..  3500  neg
    "#]];
    let (early, late) = ("reduce v0 a \n wait v1 \n neg v0", "neg v0 \n reduce v0 a \n wait v2 \n neg v0");
    check(&[early, late], &[("a", 2)], 1.0, &expected);
}

#[test]
fn each_row_of_a_mesh_of_two_axes_has_a_group_of_its_own() {
    let expected = expect![[r#"
        0 operations     0 ..  1500  ProfilerStep#0
        0 operations     0 ..     0  all_reduce
        0 axis:b of rank 0     0 ..  1500  unisono:all_reduce
        0 operations     0 ..  1500  wait_tensor
        1 operations     0 ..  1500  ProfilerStep#0
        1 operations     0 ..     0  all_reduce
        1 axis:b of rank 0     0 ..  1500  unisono:all_reduce
        1 operations     0 ..  1500  wait_tensor
        2 operations     0 ..  2500  ProfilerStep#0
        2 operations     0 ..     0  all_reduce
        2 axis:b of rank 2  1000 ..  2500  unisono:all_reduce
        2 operations     0 ..  2500  wait_tensor
        3 operations     0 ..  2500  ProfilerStep#0
        3 operations     0 ..  1000  neg
        3 operations  1000 ..  1000  all_reduce
        3 axis:b of rank 2  1000 ..  2500  unisono:all_reduce
        3 operations  1000 ..  2500  wait_tensor
    "#]];
    let (early, late) = ("reduce v0 b \n wait v1", "neg v0 \n reduce v0 b \n wait v2");
    check(&[early, early, early, late], &[("a", 2), ("b", 2)], 1.0, &expected);
}

fn refused(graphs: &[&str], axes: &[(&str, u32)], expected: &Expect) {
    let graphs: Vec<Graph> = graphs.iter().map(|lines| graph(lines)).collect();
    let (cluster, mesh) = (cluster(1.0), mesh(axes));
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let graphs: Vec<&Graph> = graphs.iter().collect();
    expected.assert_eq(&simulate(&graphs, machine).unwrap_err().to_string());
}

#[test]
fn ranks_that_wait_for_each_other_without_end_are_refused() {
    let (one, other) = (
        "reduce v0 a \n wait v1 \n reduce v2 b \n wait v3",
        "reduce v0 b \n wait v1 \n reduce v2 a \n wait v3",
    );
    let axes = [("a", 2), ("b", 2)];
    refused(
        &[one, other, other, one],
        &axes,
        &expect![[r#"
        error[U0014]: ranks wait for each other's collectives without end
          because ranks 0, 1, 2, 3 wait for collectives that others start only after their own waits"#]],
    );
}

#[test]
fn ranks_that_start_other_collectives_are_refused() {
    refused(
        &["reduce v0 a \n wait v1", "neg v0"],
        &[("a", 2)],
        &expect![[r#"
        error[U0014]: collective 0 of `axis:a` on rank 1 is not that of rank 0
          because ranks of a group must start the same collectives in the same order"#]],
    );
}

/// A stage that sends two results of one size, or receives them, in the order of their labels.
fn stage(first: &str, second: &str) -> Graph {
    let text = format!(
        "unisono graph 2\n\
         op _c10d_functional::broadcast(Tensor input, int src, str group_name) -> Tensor\n\
         op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor\n\
         input v0: f32[125] = batch \"batch.0\"\n\
         v1: f32[125] = _c10d_functional::broadcast(v0, 0, \"axis:stages:0>1\") @{first}\n\
         v2: f32[125] = _c10d_functional::broadcast(v0, 0, \"axis:stages:0>1\") @{second}\n\
         v3: f32[125] = _c10d_functional::wait_tensor(v1) @{first}\n\
         v4: f32[125] = _c10d_functional::wait_tensor(v2) @{second}\n\
         return v3, v4\n\
         label l0 \"transfer v7 of aten::mm from stage 0 to stage 1\"\n\
         label l1 \"transfer v8 of aten::mm from stage 0 to stage 1\"\n"
    );
    Graph::from_text("stage", &text).unwrap()
}

#[test]
fn stages_that_take_one_transfer_for_another_of_its_size_are_refused() {
    let (cluster, mesh) = (cluster(1.0), mesh(&[("stages", 2)]));
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let (sent, turned) = (stage("l0", "l1"), stage("l1", "l0"));
    assert!(predict_stages(&[&sent, &sent], machine).is_ok());
    let refused = predict_stages(&[&sent, &turned], machine).unwrap_err().to_string();
    expect![[r#"
        error[U0014]: collective 0 of `axis:stages:0>1` on rank 1 is not that of rank 0
          because ranks of a group must start the same collectives in the same order"#]]
    .assert_eq(&refused);
}

#[test]
fn a_group_that_the_mesh_does_not_have_is_refused() {
    refused(
        &["reduce v0 c \n wait v1"],
        &[("a", 2)],
        &expect![[r#"
        error[U0205]: `_c10d_functional::all_reduce` is on the group `axis:c`, which the mesh does not have
          hint: groups are called `axis:` and the name of a mesh axis"#]],
    );
}

#[test]
fn graphs_must_be_one_or_those_of_all_ranks() {
    refused(
        &["neg v0", "neg v0"],
        &[("a", 3)],
        &expect![[r#"
        error[U0205]: 2 graphs for a mesh of 3 ranks
          hint: pass one graph, or that of every rank"#]],
    );
}

#[test]
fn a_timeline_is_written_and_read_again_with_nodes_groups_and_figures() {
    let lines = "neg v0 \n reduce v1 a \n neg v0 \n wait v2 \n neg v4";
    let (graph, cluster, mesh) = (graph(lines), cluster(1.0), mesh(&[("a", 2)]));
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let timeline = simulate(&[&graph], machine).unwrap();
    let mut text = Vec::new();
    chrome::write(&mut text, &timeline, &chrome::Filter::default(), &chrome::Extras::default()).unwrap();
    let (names, rank) = kineto::read_bytes(text, "x").unwrap();
    let nodes: Vec<u32> = rank.sides.node.values.iter().map(|args| args.node).collect();
    assert_eq!(nodes, timeline.ranks[0].sides.node.values.iter().map(|args| args.node).collect::<Vec<_>>());
    let collective = rank.sides.collective.values[0];
    assert_eq!((names.text(collective.group), collective.group_size), ("axis:a", 2));
    assert!(timeline::step::is_simulated(&rank));
    let mut again = Timeline::default();
    again.add(names, rank);
    assert_eq!(Figures::of(&again, &again.ranks[0]), predict(&graph, machine).unwrap().time);
}
