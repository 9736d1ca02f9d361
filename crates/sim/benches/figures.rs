//! What a simulation takes: a rank's graph of 14,079 nodes, with a gather before and a reduction after each stretch of operations.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::fmt::Write;

use cluster::Cluster;
use divan::{Bencher, black_box};
use ir::{Graph, Mesh, MeshAxis};
use unisono_sim::{Machine, predict, simulate};

const STRETCHES: usize = 320;

fn main() {
    divan::main();
}

/// Stretches of 44 nodes: a gather of a weight, products and what stands between them, a reduction that is waited for one stretch later.
fn graph() -> Graph {
    let mut text = String::from(
        "unisono graph 2\n\
         op aten::mm(Tensor self, Tensor mat2) -> Tensor\n\
         op aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor\n\
         op aten::t(Tensor(a) self) -> Tensor(a)\n\
         op aten::silu(Tensor self) -> Tensor\n\
         op _c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor\n\
         op _c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor\n\
         op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor\n\
         input v0: f32[128, 1024] = parameter \"params.w\"\n\
         input v1: f32[1024, 1024] = batch \"batch.x\"\n",
    );
    let (mut next, mut x, mut reduced) = (2, 1, None);
    let mut node = |text: &mut String, call: String| {
        writeln!(text, "v{next}: f32[1024, 1024]{call}").unwrap();
        next += 1;
        next - 1
    };
    for _ in 0..STRETCHES {
        let gather = " = _c10d_functional::all_gather_into_tensor(v0, 8, \"axis:a\")".to_owned();
        let gathered = node(&mut text, gather);
        let weight = node(&mut text, format!(" = _c10d_functional::wait_tensor(v{gathered})"));
        for _ in 0..10 {
            let turned = node(&mut text, format!("{{1, 1024}} = aten::t(v{weight})"));
            let product = node(&mut text, format!(" = aten::mm(v{x}, v{turned})"));
            let passed = node(&mut text, format!(" = aten::silu(v{product})"));
            x = node(&mut text, format!(" = aten::add.Tensor(v{passed}, v{x}, 1)"));
        }
        if let Some(before) = reduced {
            node(&mut text, format!(" = _c10d_functional::wait_tensor(v{before})"));
        }
        reduced =
            Some(node(&mut text, format!(" = _c10d_functional::all_reduce(v{x}, \"sum\", \"axis:a\")")));
    }
    writeln!(text, "return v{x}").unwrap();
    Graph::from_text("bench", &text).unwrap()
}

fn cluster() -> Cluster {
    let link = "{ latency_ns = 10000, bandwidth = 3e11 }";
    let text = format!(
        "version = 1\n[device]\nname = \"fast\"\nmemory_bytes = 80000000000\nmemory_bandwidth = 3e12\noperation_ns = 1000\n\
         overlap_factor = 1.15\n[device.matmul_flops]\nf32 = 6e14\n[links]\nall_reduce = {link}\nall_gather = {link}\n\
         reduce_scatter = {link}\nall_to_all = {link}\n"
    );
    Cluster::parse(&text, "bench").unwrap()
}

fn mesh() -> Mesh {
    Mesh { axes: vec![MeshAxis::ranks("a", 8)] }
}

#[divan::bench]
fn figures_of_one_rank(bencher: Bencher<'_, '_>) {
    let (graph, cluster, mesh) = (graph(), cluster(), mesh());
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    bencher.bench_local(|| predict(black_box(&graph), machine).unwrap());
}

#[divan::bench]
fn timeline_of_one_rank(bencher: Bencher<'_, '_>) {
    let (graph, cluster, mesh) = (graph(), cluster(), mesh());
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    bencher.bench_local(|| simulate(&[black_box(&graph)], machine).unwrap());
}

#[divan::bench]
fn timeline_of_eight_ranks(bencher: Bencher<'_, '_>) {
    let (graph, cluster, mesh) = (graph(), cluster(), mesh());
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    bencher.bench_local(|| simulate(&[black_box(&graph); 8], machine).unwrap());
}
