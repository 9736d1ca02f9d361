//! What was measured of groups: read, written, and refused where it cannot be.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test fails by panicking, and what is read is what was written"
)]

use ir::CollectiveKind;
use unisono_cluster::{Cluster, Interconnect};

const MEASURED: &str = r#"
preset = "h100:2x8"

[[groups]]
shape = [8, 1]
all_reduce = { latency_ns = 100.0, bandwidth = 2e9, error = 0.02, measured = [[1000, 200.0], [3000, 150.0], [5000, 1150.0]] }

[[groups]]
shape = [1, 2]
all_gather = { latency_ns = 7000.0, bandwidth = 1e9 }
transfer = { latency_ns = 300.0, bandwidth = 1e9, measured = [[1000, 200.0]] }
"#;

fn error(text: &str) -> String {
    Cluster::parse(text, "cluster.toml").expect_err("it cannot be used").to_string()
}

#[test]
fn what_was_measured_is_written_as_it_is_read() {
    let cluster = Cluster::parse(MEASURED, "cluster.toml").unwrap();
    assert_eq!(cluster.groups.len(), 2);
    assert_eq!(cluster.groups[0].curve(CollectiveKind::AllReduce).unwrap().error, 0.02);
    assert_eq!(Cluster::parse(&cluster.text(), "text").unwrap(), cluster);
    assert!(!Cluster::preset("h100:2x8").unwrap().text().contains("groups"));
}

#[test]
fn sizes_between_measured_ones_lie_on_lines_between_them_and_larger_ones_on_the_bandwidth() {
    let cluster = Cluster::parse(MEASURED, "cluster.toml").unwrap();
    let nanos =
        |group: usize, kind, bytes, sent| cluster.groups[group].curve(kind).unwrap().nanos(bytes, sent);
    let (reduce, gather, transfer) =
        (CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::Broadcast);
    for (bytes, expected) in [
        (1000.0, 200.0),
        (2000.0, 175.0),
        (3000.0, 150.0),
        (4500.0, 900.0),
        (9000.0, 1150.0 + 3500.0),
        (500.0, 150.0),
    ] {
        assert_eq!(nanos(0, reduce, bytes, 1.75), expected, "{bytes}");
    }
    assert_eq!(nanos(1, gather, 1000.0, 0.5), 7500.0);
    assert_eq!(nanos(1, transfer, 0.0, 1.0), 200.0);
}

#[test]
fn links_twice_as_fast_keep_their_latency() {
    let fast = Cluster::parse(MEASURED, "cluster.toml").unwrap().with_links(2.0);
    let curve = fast.groups[0].curve(CollectiveKind::AllReduce).unwrap();
    assert_eq!(curve.measured, [(1000, 150.0), (3000, 125.0), (5000, 625.0)]);
    assert_eq!(curve.bandwidth, 4e9);
}

#[test]
fn a_group_has_the_shape_in_which_it_lies_on_the_levels() {
    let cluster = Cluster::preset("h100:4x8").unwrap();
    let Interconnect::Levels(network) = &cluster.interconnect else { panic!("a preset has levels") };
    let shapes = [
        (8, 1, [8, 1]),
        (2, 1, [2, 1]),
        (2, 4, [2, 1]),
        (4, 8, [1, 4]),
        (2, 16, [1, 2]),
        (16, 2, [4, 4]),
        (8, 2, [4, 2]),
    ];
    for (ranks, stride, shape) in shapes {
        assert_eq!(network.shape(ranks, stride), Some(shape.to_vec()), "{ranks} {stride}");
    }
    assert_eq!(network.shape(12, 1), None, "the second node has fewer of its ranks");
    assert_eq!(network.shape(4, 3), None, "nodes have three and two of its ranks");
    for (shape, stride) in [([8, 1], 1), ([2, 1], 1), ([1, 4], 8), ([4, 4], 2), ([1, 2], 8)] {
        assert_eq!(network.stride(&shape), stride, "{shape:?}");
    }
}

#[test]
fn what_cannot_be_used_is_named_with_its_line() {
    let begin =
        "`unisono profile` measures a machine, `unisono cluster h100:8x8` prints a preset to begin with";
    let bad = |good: &str, bad: &str, line: u32, what: &str| {
        let text = MEASURED.replacen(good, bad, 1);
        assert_ne!(text, MEASURED);
        let expected = format!("error[U0201]: {what}\n  at cluster.toml:{line}\n  hint: {begin}");
        assert_eq!(error(&text), expected);
    };
    let no_group = "`shape` of a cluster description is no group that an axis of a mesh has on these levels";
    bad("shape = [8, 1]", "shape = [9, 1]", 5, no_group);
    bad("shape = [1, 2]", "shape = [1, 3]", 9, no_group);
    bad("shape = [1, 2]", "shape = [2]", 9, no_group);
    bad(
        "shape = [1, 2]",
        "shape = [1, 1]",
        9,
        "`shape` of a cluster description is no group of several ranks",
    );
    bad("shape = [1, 2]", "shape = [8, 1]", 9, "`shape` of a cluster description is there twice");
    let negative = "`transfer` of a cluster description is with a time that is negative";
    bad("[[1000, 200.0]]", "[[1000, -200.0]]", 11, negative);
    bad("latency_ns = 300.0", "latency_ns = nan", 11, negative);
    bad(
        "bandwidth = 2e9",
        "bandwidth = 0.0",
        6,
        "`all_reduce` of a cluster description is with a rate that is not positive",
    );
    bad(
        "[3000, 150.0], [5000, 1150.0]",
        "[5000, 1150.0], [3000, 150.0]",
        6,
        "`all_reduce` of a cluster description is measured in another order than that of sizes, each once",
    );
}

#[test]
fn what_collectives_take_in_steps_is_read_and_written_and_refused_where_it_cannot_be() {
    let good = format!(
        "{MEASURED}[[in_steps]]\nshape = [8, 1]\nlate_ns = 50.0\nlate = 0.1\nall_reduce = [[8, 1.5], [64, 0.5]]\n"
    );
    let cluster = Cluster::parse(&good, "cluster.toml").unwrap();
    assert_eq!(cluster.in_steps[0].all_reduce, [(8, 1.5), (64, 0.5)]);
    assert_eq!(Cluster::parse(&cluster.text(), "text").unwrap(), cluster);
    for (good_part, bad_part, what) in [
        ("late = 0.1", "late = -0.1", "`late` of a cluster description is a part that is negative"),
        ("late_ns = 50.0", "late_ns = nan", "`late_ns` of a cluster description is a time that is negative"),
        (
            "[8, 1.5]",
            "[8, 0.0]",
            "`all_reduce` of a cluster description is with a factor that is not positive",
        ),
        (
            "[64, 0.5]",
            "[8, 0.5]",
            "`all_reduce` of a cluster description is seen in another order than that of sizes, each once",
        ),
        (
            "shape = [8, 1]\nlate",
            "shape = [9, 1]\nlate",
            "`shape` of a cluster description is no group that an axis",
        ),
    ] {
        let said = error(&good.replacen(good_part, bad_part, 1));
        assert!(said.contains(what), "{said}");
    }
}

#[test]
fn names_that_are_not_known_or_missing_are_said() {
    let unknown = error(&MEASURED.replace("all_gather", "allgather"));
    assert!(unknown.contains("unknown field `allgather`"), "{unknown}");
    assert!(unknown.ends_with("at cluster.toml:10\n  hint: did you mean `all_gather`?"), "{unknown}");
    let missing = error(&MEASURED.replace("bandwidth = 2e9, ", ""));
    assert!(missing.contains("missing field `bandwidth`"), "{missing}");
}
