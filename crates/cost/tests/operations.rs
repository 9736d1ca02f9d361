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
