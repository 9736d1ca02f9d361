//! Machines and graphs for the tests of the simulator.
#![allow(dead_code, reason = "not every test file uses everything")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;

use cluster::Cluster;
use ir::{Graph, Mesh, MeshAxis, testing::Random};

/// A byte that is read, written or sent takes a nanosecond; a collective takes another microsecond.
pub fn cluster(overlap_factor: f64) -> Cluster {
    let link = "{ latency_ns = 1000, bandwidth = 1e9 }";
    let text = format!(
        "version = 1\n[device]\nname = \"test\"\nmemory_bytes = 1\nmemory_bandwidth = 1e9\noperation_ns = 0\n\
         overlap_factor = {overlap_factor:?}\n[device.matmul_flops]\nf32 = 1e9\n[links]\nall_reduce = {link}\n\
         all_gather = {link}\nreduce_scatter = {link}\nall_to_all = {link}\n"
    );
    Cluster::parse(&text, "test").unwrap()
}

/// A mesh of named axes.
pub fn mesh(axes: &[(&str, u32)]) -> Mesh {
    Mesh { axes: axes.iter().map(|(name, size)| MeshAxis::ranks(*name, *size)).collect() }
}

/// The graph whose nodes are `lines`, with an input `v0` of 125 numbers: a microsecond to negate, one and a half to all-reduce on two ranks.
pub fn graph(lines: &str) -> Graph {
    let mut text = String::from(
        "unisono graph 2\n\
         op aten::neg(Tensor self) -> Tensor\n\
         op _c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor\n\
         op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor\n\
         input v0: f32[125] = batch \"batch.0\"\n",
    );
    let mut last = 0;
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        last += 1;
        let (name, operand) = line.split_once(' ').unwrap();
        let (operand, axis) = operand.split_once(' ').unwrap_or((operand, ""));
        let call = match name {
            "neg" => format!("aten::neg({operand})"),
            "wait" => format!("_c10d_functional::wait_tensor({operand})"),
            _ => format!("_c10d_functional::all_reduce({operand}, \"sum\", \"axis:{axis}\")"),
        };
        writeln!(text, "v{last}: f32[125] = {call}").unwrap();
    }
    writeln!(text, "return v{last}").unwrap();
    Graph::from_text("test", &text).unwrap()
}

/// Lines for [`graph`]: operations, collectives along `axes` and waits in a random order.
pub fn random_lines(random: &mut Random, axes: &[&str], count: usize) -> String {
    let mut lines = String::new();
    let mut open: Vec<usize> = Vec::new();
    for value in 1..=count {
        let operand = random.below(value);
        let of_collective =
            lines.lines().nth(operand.wrapping_sub(1)).is_some_and(|l| l.starts_with("reduce"));
        let operand = if of_collective { 0 } else { operand };
        match random.below(4) {
            0 => {
                writeln!(lines, "reduce v{operand} {}", random.pick(axes)).unwrap();
                open.push(value);
            }
            1 if !open.is_empty() => {
                let started = open.swap_remove(random.below(open.len()));
                writeln!(lines, "wait v{started}").unwrap();
            }
            _ => writeln!(lines, "neg v{operand}").unwrap(),
        }
    }
    lines
}
