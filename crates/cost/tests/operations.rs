//! Operations take what was measured of them, divided as a strategy divides what they do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use aten::{Call, replicated};
use cluster::Cluster;
use ir::{Graph, Mesh, MeshAxis, Placement, Reduce};
use unisono_cost::{Machine, local_time, operation_time};

const GRAPH: &str = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::relu(Tensor self) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
input v0: f32[8, 4] = batch "batch.x"
input v1: f32[4, 16] = parameter "params.weight"
v2: f32[8, 16] = aten::mm(v0, v1)
v3: f32[8, 16] = aten::relu(v2)
v4: f32[16, 8]{1, 16} = aten::t(v3)
return v4
"#;

/// Products take a nanosecond for each operation and ten for each byte; nothing is said of `relu`.
const MEASURED: &str = r#"
preset = "cpu"
[device]
operation_ns = 500.0
memory_bandwidth = 1e9
[device.operations."aten::mm".f32]
flop_ps = 1000.0
byte_ps = 10000.0
"#;

#[test]
fn measured_operations_take_what_was_fitted_and_others_what_the_rates_say() {
    let cluster = Cluster::parse(MEASURED, "cluster.toml").unwrap();
    let mesh = Mesh { axes: vec![MeshAxis::ranks("a", 2)] };
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let graph = Graph::from_text("graph", GRAPH).unwrap();
    let times: Vec<i64> = graph.order.iter().map(|id| local_time(machine, &Call::new(&graph, *id))).collect();
    let (flops, bytes) = (2 * 8 * 4 * 16, 4 * (8 * 4 + 4 * 16 + 8 * 16));
    // 1024 bytes at one a nanosecond, and the start of an operation; a view takes nothing.
    assert_eq!(times, [flops * 1000 + bytes * 10_000, (1024 + 500) * 1000, 0]);
}

#[test]
fn a_shard_takes_what_its_part_of_the_operation_takes() {
    let cluster = Cluster::parse(MEASURED, "cluster.toml").unwrap();
    let mesh = Mesh { axes: vec![MeshAxis::ranks("a", 2)] };
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let graph = Graph::from_text("graph", GRAPH).unwrap();
    let call = Call::new(&graph, graph.order[0]);
    let (whole, first, second) = (Placement::Replicate, shard(0), shard(1));
    let time = |operands: [Placement; 2], result: Placement| {
        let mut strategy = replicated(&call);
        strategy.operands.copy_from_slice(&operands);
        strategy.results[0] = result;
        operation_time(machine, &call, &strategy, &mesh.axes[0])
    };
    // All of it; rows of the first; columns of the second; both in the middle, which leaves a sum.
    assert_eq!(time([whole, whole], whole), 1024 * 1000 + 4 * (32 + 64 + 128) * 10_000);
    assert_eq!(time([first, whole], first), 512 * 1000 + 4 * (16 + 64 + 64) * 10_000);
    assert_eq!(time([whole, second], second), 512 * 1000 + 4 * (32 + 32 + 64) * 10_000);
    assert_eq!(
        time([second, first], Placement::Partial(Reduce::Sum)),
        512 * 1000 + 4 * (16 + 32 + 128) * 10_000
    );
}

fn shard(dim: u8) -> Placement {
    Placement::Shard { dim, blocks: 1, chunk: 0 }
}

/// What pairs of a query and a key count, by trying each.
fn seen(queries: u64, keys: u64, causal: bool) -> u64 {
    let pairs = (0..queries).flat_map(|query| (0..keys).map(move |key| (query, key)));
    pairs.filter(|(query, key)| !causal || key <= query).count() as u64
}

#[test]
fn attention_counts_the_pairs_that_its_mask_leaves_and_runs_at_a_rate_of_its_own() {
    let with_rate = "preset = \"cpu\"\n[device]\noperation_ns = 0.0\nmemory_bandwidth = 1e18\nattention_flops = { bf16 = 1e12 }\n";
    let cluster = Cluster::parse(with_rate, "cluster.toml").unwrap();
    let mesh = Mesh { axes: vec![MeshAxis::ranks("a", 2)] };
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    for (queries, keys, causal) in [(4, 4, true), (4, 4, false), (3, 7, true), (7, 3, true), (1, 5, true)] {
        let text = format!(
            "unisono graph 2\n\
             op aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p, bool is_causal, \
             *, Tensor? attn_mask, float? scale) -> (Tensor output, Tensor logsumexp)\n\
             input v0: bf16[2, 4, {queries}, 8] = batch \"batch.q\"\n\
             input v1: bf16[2, 4, {keys}, 8] = batch \"batch.k\"\n\
             input v2: bf16[2, 4, {keys}, 8] = batch \"batch.v\"\n\
             (v3: bf16[2, 4, {queries}, 8], v4: f32[2, 4, {queries}]) = \
             aten::_scaled_dot_product_flash_attention_for_cpu(v0, v1, v2, 0.0, {causal}, none, none)\n\
             return v3\n"
        );
        let graph = Graph::from_text("graph", &text).unwrap();
        let time = local_time(machine, &Call::new(&graph, graph.order[0]));
        // Two products of eight features for each of eight heads, a picosecond for each operation.
        assert_eq!(time as u64, 2 * 2 * 8 * 8 * seen(queries, keys, causal), "{queries} x {keys}, {causal}");
    }
}

/// A machine whose only figures are these.
fn cluster(device: &str) -> Cluster {
    Cluster::parse(&format!("preset = \"cpu\"\n[device]\noperation_ns = 0.0\n{device}"), "cluster.toml")
        .unwrap()
}

/// What each operation of a graph takes, in picoseconds.
fn times(cluster: &Cluster, text: &str) -> Vec<i64> {
    let mesh = Mesh { axes: vec![MeshAxis::ranks("a", 2)] };
    let machine = Machine { cluster, mesh: &mesh };
    let graph = Graph::from_text("graph", text).unwrap();
    graph.order.iter().map(|id| local_time(machine, &Call::new(&graph, *id))).collect()
}

#[test]
fn a_product_runs_at_the_rate_of_the_numbers_that_it_reads() {
    let cluster = cluster("memory_bandwidth = 1e18\nmatmul_flops = { bf16 = 1e12, f8e4m3 = 2e12 }\n");
    let text = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor
input v0: bf16[64, 32] = batch "batch.a"
input v1: bf16[32, 16] = batch "batch.b"
input v2: f8e4m3[64, 32] = batch "batch.c"
input v3: f8e4m3[32, 16]{1, 32} = batch "batch.d"
input v4: f32[] = batch "batch.scale"
v5: bf16[64, 16] = aten::mm(v0, v1)
v6: bf16[64, 16] = aten::_scaled_mm(v2, v3, v4, v4, none, none, bf16, false)
return v5, v6
"#;
    let flops = 2 * 64 * 32 * 16;
    assert_eq!(times(&cluster, text), [flops, flops / 2]);
}

#[test]
fn what_walks_through_memory_element_by_element_takes_longer_than_a_copy() {
    let text = r#"unisono graph 2
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::mul.Scalar(Tensor self, Scalar other) -> Tensor
op aten::cat(Tensor[] tensors, int dim=0) -> Tensor
op aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor
op aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
input v0: f32[8, 4] = batch "batch.x"
input v1: f32[4] = batch "batch.row"
input v2: f32[8, 4]{1, 8} = batch "batch.other"
input v3: f32[] = batch "batch.number"
v4: f32[8, 4] = aten::mul.Tensor(v0, v0)
v5: f32[8, 4] = aten::mul.Tensor(v0, v3)
v6: bf16[8, 4] = aten::_to_copy(v0, bf16, none, none, none, false, none)
v7: f32[8] = aten::mean.dim(v0, [1], false, none)
v8: f32[8, 4] = aten::mul.Tensor(v0, v1)
v9: f32[8, 4] = aten::mul.Tensor(v0, v2)
v10: f32[16, 4] = aten::cat([v0, v0], 0)
return v4, v5, v6, v7, v8, v9, v10
"#;
    // A byte takes a picosecond, or three.
    let (whole, row, number) = (4 * 8 * 4, 4 * 4, 4);
    let even = [3 * whole, 2 * whole + number, whole + whole / 2, whole + 4 * 8];
    let uneven = [2 * whole + row, 3 * whole, 4 * whole];
    let with = |more: &str| times(&cluster(&format!("memory_bandwidth = 1e12\n{more}")), text);
    assert_eq!(with(""), [&even[..], &uneven[..]].concat());
    let thrice = uneven.map(|bytes| 3 * bytes);
    assert_eq!(with("uneven_bandwidth = 333333333333.0\n"), [&even[..], &thrice[..]].concat());
}

#[test]
fn causal_attention_on_an_accelerator_is_slower_on_short_sequences() {
    let cluster = cluster("memory_bandwidth = 1e18\nattention_flops = { bf16 = 1e12 }\n");
    let time = |positions: u64| {
        let text = format!(
            "unisono graph 2\n\
             op aten::_scaled_dot_product_fused_attention_overrideable(Tensor query, Tensor key, Tensor value, Tensor? attn_bias=None, \
             float dropout_p=0.0, bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor \
             logsumexp)\n\
             input v0: bf16[2, 4, {positions}, 8] cuda:0 = batch \"batch.q\"\n\
             (v1: bf16[2, 4, {positions}, 8] cuda:0, v2: f32[2, 4, {positions}] cuda:0) = \
             aten::_scaled_dot_product_fused_attention_overrideable(v0, v0, v0, none, 0.0, true, false, none)\n\
             return v1\n"
        );
        times(&cluster, &text)[0] as f64 / (2.0 * 2.0 * 8.0 * 8.0 * seen(positions, positions, true) as f64)
    };
    assert!((time(320) - 2.0).abs() < 1e-6, "{}", time(320));
    assert!((time(32) - 11.0).abs() < 1e-6, "{}", time(32));
}
