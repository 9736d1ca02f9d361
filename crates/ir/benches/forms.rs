//! A graph of 10,000 nodes between its forms: bytes, text, verified graph.

use divan::{Bencher, black_box};
use unisono_ir::{Graph, testing::random_graph, verify};

const NODES: usize = 10_000;

fn main() {
    divan::main();
}

fn graph() -> Graph {
    random_graph(1, NODES)
}

#[divan::bench]
fn bytes_to_verified_graph(bencher: Bencher) {
    let bytes = graph().to_bytes();
    bencher.bench_local(|| Graph::from_bytes(black_box(&bytes)).expect("the bytes are a graph's"));
}

#[divan::bench]
fn graph_to_bytes(bencher: Bencher) {
    let graph = graph();
    bencher.bench_local(|| black_box(&graph).to_bytes());
}

#[divan::bench]
fn verified(bencher: Bencher) {
    let graph = graph();
    bencher.bench_local(|| verify(black_box(&graph)).expect("the graph is valid"));
}

#[divan::bench]
fn renumbered(bencher: Bencher) {
    let graph = graph();
    bencher.bench_local(|| black_box(&graph).renumbered());
}

#[divan::bench]
fn fingerprint(bencher: Bencher) {
    let graph = graph();
    bencher.bench_local(|| black_box(&graph).fingerprint());
}

#[divan::bench]
fn print(bencher: Bencher) {
    let graph = graph();
    bencher.bench_local(|| black_box(&graph).to_string());
}

#[divan::bench]
fn parse(bencher: Bencher) {
    let text = graph().to_string();
    bencher.bench_local(|| Graph::from_text("bench", black_box(&text)).expect("the text is a graph's"));
}
