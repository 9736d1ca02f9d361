//! Each pass, applied, on a random graph of 10,000 nodes; and the whole pipeline with verification.

use divan::{Bencher, black_box};
use ir::{Graph, testing::random_graph};
use unisono_passes::{Settings, by_name, pipeline, run};

const NAMES: [&str; 7] = [
    "drop_aliases",
    "merge_views",
    "common_subexpressions",
    "dead_code",
    "group_lists",
    "bucket_collectives",
    "order_collectives",
];

fn main() {
    divan::main();
}

fn graph() -> Graph {
    random_graph(1, 10_000).renumbered()
}

#[divan::bench(args = NAMES)]
fn pass(bencher: Bencher, name: &str) {
    let graph = graph();
    let pass = by_name(name, &Settings::default()).expect("the names are those of passes");
    bencher.bench_local(|| {
        let patch = pass.run(black_box(&graph)).expect("the graph is valid");
        patch.apply().expect("a pass makes a program")
    });
}

#[divan::bench(sample_count = 20)]
fn whole_pipeline(bencher: Bencher) {
    let graph = graph();
    let passes = pipeline(&Settings::default());
    bencher.bench_local(|| run(&passes, black_box(&graph), |_| {}).expect("the graph is valid"));
}
