//! Programs of random graphs with their groups: everything is in them once, and behind what it reads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;

use base::SecondaryMap;
use ir::{Graph, ValueDef, ValueId, testing::Random};
use unisono_loops::{Item, Partition, Rounding, partition};

const GRAPHS: u64 = 100;
const OPERATIONS: u64 = 60;
const OPS: &str = r"unisono graph 2

op aten::silu(Tensor self) -> Tensor
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
op aten::mm(Tensor self, Tensor mat2) -> Tensor

";

/// Functions of points, sums of rows and of columns, and products, each of what is already there.
fn graph(seed: u64) -> Graph {
    let mut random = Random::new(seed);
    let mut text = OPS.to_owned();
    // By their sizes: points, one for each row, one for each column.
    let mut values: [Vec<u64>; 3] = [vec![0, 1], vec![2], vec![3]];
    let sizes = ["[64, 64]", "[64, 1]", "[1, 64]"];
    for (value, size) in [0, 0, 1, 2].into_iter().enumerate() {
        writeln!(text, "input v{value}: f32{} = batch \"batch.{value}\"", sizes[size]).unwrap();
    }
    for value in 4..4 + OPERATIONS {
        let mut one = |kind: usize| *random.pick(&values[kind]);
        let (a, b, row, column) = (one(0), one(0), one(1), one(2));
        let (size, call) = match random.below(8) {
            0 => (0, format!("aten::silu(v{a})")),
            1 | 2 => (0, format!("aten::mul.Tensor(v{a}, v{b})")),
            3 => (0, format!("aten::mul.Tensor(v{a}, v{row})")),
            4 => (0, format!("aten::mul.Tensor(v{a}, v{column})")),
            5 => (1, format!("aten::sum.dim_IntList(v{a}, [1], true, none)")),
            6 => (2, format!("aten::sum.dim_IntList(v{a}, [0], true, none)")),
            _ => (0, format!("aten::mm(v{a}, v{b})")),
        };
        writeln!(text, "v{value}: f32{} = {call}", sizes[size]).unwrap();
        values[size].push(value);
    }
    let returned: Vec<String> = (0..3).map(|kind| format!("v{}", values[kind].last().unwrap())).collect();
    writeln!(text, "return {}", returned.join(", ")).unwrap();
    Graph::from_text("test", &text).unwrap()
}

/// What an item of a program reads and makes.
fn ends(graph: &Graph, found: &Partition, item: Item) -> (Vec<ValueId>, Vec<ValueId>) {
    match item {
        Item::Node(position) => {
            let node = &graph.nodes[graph.order[position]];
            (node.operands().collect(), node.results().collect())
        }
        Item::Group(number) => {
            let group = &found.groups[number];
            (group.reads.clone(), group.writes.clone())
        }
    }
}

#[test]
fn everything_is_in_the_program_once_and_behind_what_it_reads() {
    for seed in 0..GRAPHS {
        let graph = graph(seed);
        let found = partition(&graph, Rounding::AtStores);
        let mut is_there = SecondaryMap::with_default(false);
        for value in graph.values.ids().filter(|id| matches!(graph.values[*id].def, ValueDef::Input(_))) {
            is_there[value] = true;
        }
        let mut operations = 0;
        for item in &found.order {
            let (reads, makes) = ends(&graph, &found, *item);
            assert!(reads.iter().all(|value| is_there[*value]), "graph {seed}: {item:?} comes too early");
            for value in makes {
                is_there[value] = true;
            }
            operations += match item {
                Item::Node(_) => 1,
                Item::Group(number) => found.groups[*number].nodes.len(),
            };
        }
        assert_eq!(operations, graph.order.len(), "graph {seed}: something is missing or there twice");
    }
}
