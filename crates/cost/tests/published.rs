//! The network of presets beside published figures.
//!
//! Of H100 nodes, from the cost models of meta-pytorch/autoparallel (a54c252): what NCCL 2.27.5 logs as its own estimate for rings by
//! shape (latency and bandwidth of the global tensor's bytes), and fits to nccl-tests at 1 GB within a node. Of MI300X and NVIDIA's
//! others, bus bandwidths of all-reduces that stas00/ml-engineering measured.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::Bytes;
use cluster::Cluster;
use ir::{Collective, CollectiveKind, Mesh, MeshAxis};
use unisono_cost::{Machine, collective_time};

const GIGABYTE: f64 = 1e9;

/// Microseconds of a collective of some bytes over `nodes` x `each` ranks of a cluster with nodes of 8.
fn micros(preset: &str, kind: CollectiveKind, (nodes, each): (u32, u32), bytes: f64) -> f64 {
    let cluster = Cluster::preset(preset).unwrap();
    let axis = |name: &str, size| MeshAxis::ranks(name, size);
    // Ranks of a node that are not of the group belong to the axes inside and between.
    let mesh =
        Mesh { axes: vec![axis("group", nodes * each), axis("rest", if nodes > 1 { 8 / each } else { 1 })] };
    let collective = Collective { kind, reduction: None, axis: "group", bytes: Bytes(bytes as u64) };
    collective_time(Machine { cluster: &cluster, mesh: &mesh }, collective) as f64 / 1e6
}

/// Asserts that a prediction is within some percent of a published number.
fn near(what: &str, predicted: f64, published: f64, percent: f64) {
    let error = (predicted / published - 1.0) * 100.0;
    assert!(
        error.abs() <= percent,
        "{what}: {predicted:.1} predicted, {published:.1} published, {error:.1} %"
    );
}

#[test]
fn rings_over_nodes_take_what_nccl_expects() {
    let rings: [((u32, u32), f64, f64); 13] = [
        ((2, 8), 70.0, 409.6),
        ((4, 8), 145.6, 396.4),
        ((8, 8), 296.8, 390.1),
        ((16, 8), 599.2, 387.0),
        ((32, 8), 1204.0, 385.5),
        ((2, 1), 22.4, 96.0),
        ((4, 1), 50.4, 64.0),
        ((8, 1), 106.4, 54.9),
        ((16, 1), 218.4, 51.2),
        ((32, 1), 442.4, 49.5),
        ((8, 2), 133.6, 102.4),
        ((8, 4), 188.0, 198.2),
        ((32, 4), 768.8, 193.5),
    ];
    for (shape, latency, gigabytes) in rings {
        let preset = format!("h100:{}x8", shape.0);
        let predicted = micros(&preset, CollectiveKind::AllGather, shape, GIGABYTE);
        // Within a node our ring is that of nccl-tests, which is slower than the tuner's.
        let bandwidth = if shape.1 == 8 {
            gigabytes.min(345.0 * 8.0 * f64::from(shape.0) / (8.0 * f64::from(shape.0) - 1.0))
        } else {
            gigabytes
        };
        near(&format!("ring {shape:?}"), predicted, latency + 1e6 / bandwidth, 1.0);
    }
}

#[test]
fn small_messages_take_the_protocol_of_small_latency() {
    for (shape, latency) in [((2, 8), 23.3), ((4, 8), 42.7), ((8, 8), 81.5), ((32, 8), 314.3), ((8, 1), 41.6)]
    {
        let predicted = micros(&format!("h100:{}x8", shape.0), CollectiveKind::AllGather, shape, 0.0);
        near(&format!("small {shape:?}"), predicted, latency, 6.0);
    }
}

#[test]
fn all_reduces_over_nodes_take_the_better_of_ring_and_tree() {
    // Ring at half the bandwidth of a gather, or NVLSTree: 53 us and 266.7 GB/s on two nodes, 109 us and 160 GB/s on eight.
    for (nodes, tree) in [(2, (53.0, 266.7)), (4, (81.0, 160.0)), (8, (109.0, 160.0))] {
        let small = micros(&format!("h100:{nodes}x8"), CollectiveKind::AllReduce, (nodes, 8), 4e6);
        assert!(small < (tree.0 + 4e6 / tree.1 / 1e3) * 1.25, "{nodes} nodes: {small:.1} us for 4 MB");
    }
}

#[test]
fn collectives_within_a_node_take_what_was_measured() {
    let tests = [
        (CollectiveKind::AllGather, 2, 537.0, 32.0),
        (CollectiveKind::AllGather, 4, 434.0, 10.0),
        (CollectiveKind::AllGather, 8, 394.0, 3.0),
        (CollectiveKind::AllReduce, 2, 324.0, 10.0),
        (CollectiveKind::AllReduce, 4, 236.0, 5.0),
        (CollectiveKind::AllReduce, 8, 267.0, 3.0),
        (CollectiveKind::AllToAll, 8, 380.0, 5.0),
    ];
    for (kind, ranks, gigabytes, percent) in tests {
        let predicted = micros(&format!("h100:{ranks}"), kind, (1, ranks), GIGABYTE);
        near(&format!("{kind:?} of {ranks}"), predicted, 1e6 / gigabytes, percent);
    }
}

/// Bus bandwidth of an all-reduce of 8 GiB within a node, in GB/s.
fn bus(preset: &str, ranks: u32) -> f64 {
    let bytes = f64::from(1_u32 << 30) * 8.0;
    let n = f64::from(ranks);
    let micros = micros(&format!("{preset}:{ranks}"), CollectiveKind::AllReduce, (1, ranks), bytes);
    2.0 * (n - 1.0) / n * bytes / micros / 1e3
}

#[test]
fn wires_between_each_two_make_small_groups_slow() {
    near("MI300X, 2", bus("mi300x", 2), 47.7, 1.0);
    near("MI300X, 8", bus("mi300x", 8), 312.9, 1.0);
    near("H200, 4", bus("h200", 4), 363.3, 1.0);
    near("H200, 8", bus("h200", 8), 473.1, 1.0);
    near("B200, 8", bus("b200", 8), 838.0, 1.0);
    near("A100, 8", bus("a100", 8), 235.0, 1.0);
}

#[test]
fn a_rank_that_lies_alone_in_its_node_has_its_own_share_of_the_network() {
    let cluster = Cluster::preset("h100:8x8").unwrap();
    let axis = |name: &str, size| MeshAxis::ranks(name, size);
    let mesh = Mesh { axes: vec![axis("outer", 8), axis("inner", 8)] };
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let time = |axis, kind| {
        let collective = Collective { kind, reduction: None, axis, bytes: Bytes(1_000_000_000) };
        collective_time(machine, collective) as f64 / 1e6
    };
    near("between nodes", time("outer", CollectiveKind::AllGather), 106.4 + 1e6 / 54.9, 1.0);
    near("within a node", time("inner", CollectiveKind::AllGather), 1e6 / 394.0, 3.0);
    assert!(time("outer", CollectiveKind::AllToAll) > 6.0 * time("inner", CollectiveKind::AllToAll));
}
