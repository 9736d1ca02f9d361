//! What is done to a rank's graph whose groups of operations run as kernels.

use base::Result;
use ir::Graph;
use loops::Partition;
use rustc_hash::FxHashSet;

use crate::{CrossEntropy, LateCasts, Pass, facts::Facts, run};

/// How a graph is made into kernels.
pub type Partitioner = fn(&Graph) -> Partition;

/// The same graph with what pays only as kernels: a [`CrossEntropy`] where all of it becomes kernels, and [`LateCasts`].
pub fn for_kernels(graph: &Graph, partition: Partitioner) -> Result<Graph> {
    let pass: [Box<dyn Pass>; 1] = [Box::new(CrossEntropy)];
    let rewritten = run(&pass, graph, |_| {})?;
    let graph =
        if is_whole(&rewritten, &partition(&rewritten), pass[0].name()) { rewritten } else { graph.clone() };
    run(&[Box::new(LateCasts)], &graph, |_| {})
}

/// Whether all that a pass has made is in kernels, but for views and what has one dimension at most.
fn is_whole(graph: &Graph, partition: &Partition, label: &str) -> bool {
    let facts = Facts::new(graph);
    let grouped: FxHashSet<_> = partition.groups.iter().flat_map(|group| &group.nodes).collect();
    graph.order.iter().all(|id| {
        let node = &graph.nodes[*id];
        let is_new = node.label.is_some_and(|made| graph.labels[made] == label);
        let is_small = || node.results().all(|value| graph.ty(value).rank() < 2);
        !is_new || facts.is_view(node) || is_small() || grouped.contains(id)
    })
}

#[cfg(test)]
mod tests {
    use loops::Rounding;

    use super::*;

    fn partition(graph: &Graph) -> Partition {
        loops::partition(graph, Rounding::AtStores)
    }

    const CASE: &str = include_str!("../tests/cases/cross_entropy/two_numbers_are_kept_for_each_row.txt");

    fn graph(text: &str) -> Graph {
        let text = text.split("\n----\n").next().expect("a case has a graph");
        Graph::from_text("case", text).expect("the graph is one")
    }

    #[test]
    fn a_cross_entropy_is_one_kernel_each_way_and_reads_16_bits() {
        let made = for_kernels(&graph(CASE), partition).expect("it runs");
        let found = partition(&made);
        let groups: Vec<_> = found.groups.iter().filter(|group| group.kernel.points() == 64_000).collect();
        let moved: u64 = groups
            .iter()
            .flat_map(|group| group.reads.iter().chain(&group.writes))
            .map(|value| made.ty(*value).bytes().0)
            .sum();
        assert_eq!(groups.len(), 2, "{}", found.describe(&made));
        // The logits twice and their gradient, in 16 bits, and a few numbers for each row.
        assert!(moved < 3 * 64_000 * 2 + 64 * 64, "{moved}");
    }

    #[test]
    fn a_cross_entropy_whose_rows_are_too_short_stays() {
        let short = CASE.replace("1000", "4");
        assert_eq!(for_kernels(&graph(&short), partition).expect("it runs"), graph(&short));
    }
}
