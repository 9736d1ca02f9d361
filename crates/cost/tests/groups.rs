//! Prices of collectives in groups that were measured, and in others beside them.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test fails by panicking, and times are whole picoseconds"
)]

use base::Bytes;
use cluster::Cluster;
use ir::{Collective, CollectiveKind, Mesh, MeshAxis};
use unisono_cost::{Machine, collective_time, direct_limit, wires};

const LINKS: &str = r#"
version = 1
[device]
name = "made up"
memory_bytes = 1000000000
memory_bandwidth = 1e12
operation_ns = 0.0
matmul_flops = { f32 = 1e12 }
[links]
all_reduce = { latency_ns = 1000.0, bandwidth = 1e9 }
all_gather = { latency_ns = 1000.0, bandwidth = 1e9 }
reduce_scatter = { latency_ns = 1000.0, bandwidth = 1e9 }
all_to_all = { latency_ns = 1000.0, bandwidth = 1e9 }
"#;

const LEVELS: &str = r#"
version = 1
[device]
name = "made up"
memory_bytes = 1000000000
memory_bandwidth = 1e12
operation_ns = 0.0
matmul_flops = { f32 = 1e12 }
[network]
start_ns = 1000.0
tree_share = 0.0
[[network.levels]]
name = "node"
ranks = 4
bandwidth = 1e9
hop_ns = 100.0
small_hop_ns = 100.0
small_bandwidth = 1e9
[[network.levels]]
name = "fabric"
ranks = 16
bandwidth = 1e8
hop_ns = 200.0
small_hop_ns = 200.0
small_bandwidth = 1e8
"#;

/// Nanoseconds along each axis of a mesh, from the outermost on.
fn nanos(text: &str, sizes: &[u32], kind: CollectiveKind, bytes: u64) -> Vec<f64> {
    let cluster = Cluster::parse(text, "text").unwrap();
    let axes: Vec<MeshAxis> =
        sizes.iter().enumerate().map(|(i, size)| MeshAxis::ranks(format!("a{i}"), *size)).collect();
    let mesh = Mesh { axes };
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let time = |axis: &MeshAxis| {
        let collective = Collective { kind, reduction: None, axis: &axis.name, bytes: Bytes(bytes) };
        collective_time(machine, collective) as f64 / 1e3
    };
    mesh.axes.iter().map(time).collect()
}

#[test]
fn a_group_that_was_measured_takes_what_was_measured() {
    let text = format!(
        "{LINKS}[[groups]]\nshape = [2]\nall_reduce = {{ latency_ns = 100.0, bandwidth = 4e9, measured = [[256, 150.0], [1024, 1150.0]] }}\n"
    );
    let reduce = CollectiveKind::AllReduce;
    assert_eq!(nanos(&text, &[2, 2], reduce, 256), [150.0, 150.0]);
    assert_eq!(nanos(&text, &[2, 2], reduce, 640), [650.0, 650.0]);
    // Beyond what was measured by the bandwidth: each rank sends as much as the tensor has.
    assert_eq!(nanos(&text, &[2, 2], reduce, 5024), [2150.0, 2150.0]);
    // What was not measured of the group is what the links say: half of the tensor at a gigabyte a second.
    assert_eq!(nanos(&text, &[2, 2], CollectiveKind::AllGather, 2000), [2000.0, 2000.0]);
    assert_eq!(nanos(LINKS, &[2, 2], reduce, 256), [1256.0, 1256.0]);
}

#[test]
fn a_group_beside_it_takes_as_much_more_as_the_links_say() {
    let text = format!(
        "{LINKS}[[groups]]\nshape = [2]\nall_gather = {{ latency_ns = 500.0, bandwidth = 1e9, measured = [[4000, 1500.0]] }}\n"
    );
    // By the links 3000 ns for half of 4000 bytes, and 4000 ns for three quarters.
    assert_eq!(nanos(&text, &[2], CollectiveKind::AllGather, 4000), [1500.0]);
    assert_eq!(nanos(&text, &[4], CollectiveKind::AllGather, 4000), [1500.0 / 3.0 * 4.0]);
}

#[test]
fn in_steps_a_collective_takes_as_many_times_as_long_as_was_seen_there() {
    let reduce = CollectiveKind::AllReduce;
    let alone = nanos(LINKS, &[2], reduce, 1000)[0];
    let seen = "[[in_steps]]\nshape = [2]\nlate_ns = 10.0\nall_reduce = [[1000, 1.5], [4000, 3.0]]\n\
                [[in_steps]]\nshape = [16]\nall_reduce = [[1000, 5.0]]\n";
    let in_steps = |ranks: u32, bytes| nanos(&format!("{LINKS}{seen}"), &[ranks], reduce, bytes)[0];
    assert_eq!(in_steps(2, 1000), 1.5 * alone);
    assert_eq!(in_steps(2, 9000), 3.0 * nanos(LINKS, &[2], reduce, 9000)[0]);
    assert_eq!(
        in_steps(4, 1000),
        1.5 * nanos(LINKS, &[4], reduce, 1000)[0],
        "as the most like of those seen"
    );
    assert_eq!(in_steps(8, 1000), 5.0 * nanos(LINKS, &[8], reduce, 1000)[0]);
}

#[test]
fn axes_on_different_levels_take_what_was_measured_there() {
    let group = |shape: &str, nanos: f64| {
        format!(
            "[[groups]]\nshape = {shape}\nall_gather = {{ latency_ns = 1.0, bandwidth = 1e9, measured = [[4000, {nanos}]] }}\n"
        )
    };
    let text =
        [LEVELS.to_owned(), group("[4, 1]", 5000.0), group("[1, 4]", 90_000.0), group("[2, 4]", 70_000.0)]
            .concat();
    let gather = CollectiveKind::AllGather;
    assert_eq!(nanos(&text, &[4, 4], gather, 4000), [90_000.0, 5000.0]);
    assert_eq!(nanos(&text, &[8, 2], gather, 4000)[0], 70_000.0);
    // Two ranks of a node are most like four of a node: by the levels 1000 + 100 + 2000 ns, and 1000 + 300 + 3000 ns.
    assert_eq!(nanos(&text, &[8, 2], gather, 4000)[1], (5000.0 / 4300.0 * 3100.0 * 1e3_f64).round() / 1e3);
    // A kind that was measured nowhere is what the levels say: twice the start, hops around four, and what leaves a node.
    let bytes = 4000;
    assert_eq!(
        nanos(&text, &[4, 4], CollectiveKind::AllToAll, bytes),
        nanos(LEVELS, &[4, 4], CollectiveKind::AllToAll, bytes)
    );
}

#[test]
fn without_trees_an_all_reduce_is_a_ring() {
    // 2 rounds of 3 hops, and 2 x 3/4 of the bytes at 0.1 GB/s.
    assert_eq!(nanos(LEVELS, &[4, 4], CollectiveKind::AllReduce, 4000)[0], 1000.0 + 6.0 * 200.0 + 60_000.0);
    assert_eq!(
        nanos(LEVELS, &[16], CollectiveKind::AllReduce, 0)[0],
        1000.0 + 2.0 * (12.0 * 100.0 + 3.0 * 200.0)
    );
}

#[test]
fn between_curves_the_limit_of_direct_exchanges_is_where_it_first_loses() {
    let text = format!(
        "{LINKS}[[groups]]\nshape = [2]\n\
         all_gather = {{ latency_ns = 1000.0, bandwidth = 1e9, measured = [[1000, 1000.0], [2000, 5000.0], [4000, 5000.0]] }}\n\
         all_to_all = {{ latency_ns = 500.0, bandwidth = 1e9, measured = [[1000, 500.0], [2000, 4500.0], [3000, 6000.0]] }}\n"
    );
    let cluster = Cluster::parse(&text, "text").unwrap();
    let mesh = Mesh { axes: vec![MeshAxis::ranks("a", 2), MeshAxis::ranks("b", 2)] };
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let limit = direct_limit(machine, CollectiveKind::AllGather, &mesh.axes[0]).0;
    // An exchange of `bytes` with the copy of twice as many at 1 TB/s: 4500 + 1.5 x 333 ns at 2333 bytes.
    assert!((2320..2340).contains(&limit), "{limit}");
}

/// Nodes of four ranks, of which each could send 0.4 GB/s, through wires that carry a quarter of that.
fn oversubscribed() -> String {
    LEVELS.replace("bandwidth = 1e8\nhop_ns", "bandwidth = 4e8\noversubscription = 4.0\nhop_ns")
}

#[test]
fn wires_that_all_share_carry_what_is_left_for_each() {
    for kind in [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::AllToAll] {
        for mesh in [&[16][..], &[4, 4], &[8, 2], &[2, 8]] {
            let plain = LEVELS.replace("small_bandwidth = 1e8", "small_bandwidth = 1e7");
            let shared = oversubscribed().replace("small_bandwidth = 1e8", "small_bandwidth = 1e7");
            assert_eq!(
                nanos(&shared, mesh, kind, 1 << 20),
                nanos(&plain, mesh, kind, 1 << 20),
                "{kind:?} {mesh:?}"
            );
        }
    }
}

#[test]
fn who_sends_while_others_of_its_unit_do_not_has_their_part_of_the_wires() {
    for kind in [CollectiveKind::Permute, CollectiveKind::Broadcast] {
        // Of the ring of all ranks only one rank of four sends out of its node: at all that it can.
        assert_eq!(nanos(&oversubscribed(), &[16], kind, 4000)[0], 1000.0 + 200.0 + 10_000.0);
        // Two of four: twice what is left for each.
        assert_eq!(nanos(&oversubscribed(), &[8, 2], kind, 4000)[0], 1000.0 + 200.0 + 20_000.0);
        // All four: what is left for each.
        assert_eq!(
            nanos(&oversubscribed(), &[4, 4], kind, 4000),
            [1000.0 + 200.0 + 40_000.0, 1000.0 + 100.0 + 4000.0]
        );
    }
}

#[test]
fn a_transfer_takes_what_was_measured_between_two_nodes_where_some_stages_are_on_different_ones() {
    let group = |shape: &str, nanos: f64| {
        format!(
            "[[groups]]\nshape = {shape}\ntransfer = {{ latency_ns = 1.0, bandwidth = 1e9, measured = [[4000, {nanos}]] }}\n"
        )
    };
    let text = [LEVELS.to_owned(), group("[2, 1]", 5000.0), group("[1, 2]", 90_000.0)].concat();
    let transfer = CollectiveKind::Broadcast;
    assert_eq!(nanos(&text, &[4, 4], transfer, 4000), [90_000.0, 5000.0]);
    assert_eq!(nanos(&text, &[8, 2], transfer, 4000), [90_000.0, 5000.0]);
}

#[test]
fn collectives_use_the_wires_of_the_levels_that_they_cross_for_a_part_of_their_time() {
    let cluster = Cluster::parse(LEVELS, "text").unwrap();
    let mesh = Mesh {
        axes: vec![MeshAxis::ranks("outer", 4), MeshAxis::ranks("half", 2), MeshAxis::ranks("inner", 2)],
    };
    let used = |mesh: &Mesh, axis: &str, kind, bytes| {
        let machine = Machine { cluster: &cluster, mesh };
        let collective = Collective { kind, reduction: None, axis, bytes: Bytes(bytes) };
        wires(machine, collective, collective_time(machine, collective)).0
    };
    let gather = CollectiveKind::AllGather;
    // Between nodes 1600 ns of 31600 are latency.
    assert_eq!(used(&mesh, "outer", gather, 4000), [0, 949, 0, 0]);
    assert_eq!(used(&mesh, "inner", gather, 4000), [645, 0, 0, 0]);
    assert_eq!(used(&mesh, "inner", CollectiveKind::AllToAll, 0), [0; 4]);
    // What two ranks of each node send between nodes takes a fifth of what they could send to each other.
    let mesh = Mesh { axes: vec![MeshAxis::ranks("outer", 8), MeshAxis::ranks("inner", 2)] };
    assert_eq!(used(&mesh, "outer", gather, 8_000_000), [200, 1000, 0, 0]);
    assert_eq!(used(&Mesh::along("a", 16), "a", gather, 8_000_000), [0; 4], "nothing runs beside it");
}
