//! Each coefficient that somebody has put in twice or half as large is found and named from one timeline, and mended.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;

use cluster::Cluster;
use ir::{Graph, Mesh, MeshAxis, testing::Random};
use trace::{Frames, Mode, Selection};
use unisono_refit::{Calls, Seen, Term, observe, refit};

/// A step of a rank that does some of everything: each operation and collective in several sizes, some of them beside each other.
struct Step {
    inputs: String,
    lines: String,
    values: usize,
}

const OPS: &str = "unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::neg(Tensor self) -> Tensor
op aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha) -> Tensor
op aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p, bool is_causal, *, Tensor? attn_mask, float? scale) -> (Tensor output, Tensor logsumexp)
op unisono::to_host(Tensor self) -> Tensor
op unisono::wait_copy(Tensor self) -> Tensor
op _c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor
op _c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor
op _c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name) -> Tensor
op _c10d_functional::all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] input_split_sizes, str group_name) -> Tensor
op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor
";

impl Step {
    fn input(&mut self, ty: &str) -> usize {
        let value = self.values;
        writeln!(self.inputs, "input v{value}: {ty} = batch \"batch.{value}\"").unwrap();
        self.values += 1;
        value
    }

    fn line(&mut self, ty: &str, call: &str) -> usize {
        let value = self.values;
        writeln!(self.lines, "v{value}: {ty} = {call}").unwrap();
        self.values += 1;
        value
    }

    fn collective(&mut self, kind: &str, elements: u32, axis: &str, ranks: u32) -> (usize, String) {
        let input = self.input(&format!("f32[{elements}]"));
        let (elements, call) = match kind {
            "all_gather_into_tensor" => (elements * ranks, format!("(v{input}, {ranks}, \"axis:{axis}\")")),
            "reduce_scatter_tensor" => {
                (elements / ranks, format!("(v{input}, \"sum\", {ranks}, \"axis:{axis}\")"))
            }
            "all_to_all_single" => (elements, format!("(v{input}, [], [], \"axis:{axis}\")")),
            _ => (elements, format!("(v{input}, \"sum\", \"axis:{axis}\")")),
        };
        let ty = format!("f32[{elements}]");
        (self.line(&ty, &format!("_c10d_functional::{kind}{call}")), ty)
    }

    fn wait(&mut self, value: usize, ty: &str) {
        self.line(ty, &format!("_c10d_functional::wait_tensor(v{value})"));
    }

    fn of(axes: &[(&str, u32)]) -> Graph {
        let mut step = Self { inputs: String::new(), lines: String::new(), values: 0 };
        for size in [16, 64, 192, 384, 1024, 2048] {
            for dtype in ["f32", "bf16"] {
                let ty = format!("{dtype}[{size}, {size}]");
                let square = step.input(&ty);
                step.line(&ty, &format!("aten::mm(v{square}, v{square})"));
                step.line(&ty, &format!("aten::neg(v{square})"));
                let row = step.input(&format!("{dtype}[{size}]"));
                step.line(&ty, &format!("aten::add.Tensor(v{square}, v{row}, 1)"));
                let ty = format!("{dtype}[2, 4, {size}, 64]");
                let query = step.input(&ty);
                let (value, name) = (step.values, "aten::_scaled_dot_product_flash_attention_for_cpu");
                writeln!(
                    step.lines,
                    "(v{value}: {ty}, v{}: f32[2, 4, {size}]) = {name}(v{query}, v{query}, v{query}, 0.0, false, none, none)",
                    value + 1
                )
                .unwrap();
                step.values += 2;
            }
            let there = step.input(&format!("f32[{size}, {size}] cuda:0"));
            let ty = format!("f32[{size}, {size}]");
            let copy = step.line(&ty, &format!("unisono::to_host(v{there})"));
            step.line(&ty, &format!("unisono::wait_copy(v{copy})"));
        }
        let kinds = ["all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"];
        for (axis, ranks) in axes {
            for elements in [64, 1 << 12, 1 << 16, 1 << 20, 1 << 23] {
                for kind in kinds {
                    let (value, ty) = step.collective(kind, elements, axis, *ranks);
                    step.wait(value, &ty);
                }
                let (value, ty) = step.collective("all_reduce", 2 * elements, axis, *ranks);
                let square = step.input("f32[512, 512]");
                for _ in 0..4 {
                    step.line("f32[512, 512]", &format!("aten::mm(v{square}, v{square})"));
                }
                step.wait(value, &ty);
                let (value, ty) = step.collective("all_reduce", 2 * elements, axis, *ranks);
                for _ in 0..6 {
                    step.line("f32[512, 512]", &format!("aten::neg(v{square})"));
                }
                step.wait(value, &ty);
            }
        }
        let text = format!("{OPS}{}{}return v{}\n", step.inputs, step.lines, step.values - 1);
        Graph::from_text("step", &text).unwrap()
    }
}

/// Machines with all that a description may say. Small collectives are told by other coefficients of a network than large ones, so that
/// few calls tell each.
const LINKS: &str = r#"
version = 1
[device]
name = "test"
memory_bytes = 1000000000
memory_bandwidth = 2e11
uneven_bandwidth = 1e11
operation_ns = 3000.0
overlap_factor = 1.3
host_bandwidth = 2e10
host_latency_ns = 9000.0
[device.overlap]
products = { operation = 1.2, collective = 1.5 }
[device.matmul_flops]
f32 = 5e12
bf16 = 4e13
[device.attention_flops]
f32 = 2e12
bf16 = 1.5e13
[links]
all_reduce = { latency_ns = 40000.0, bandwidth = 2e9 }
all_gather = { latency_ns = 20000.0, bandwidth = 3e9 }
reduce_scatter = { latency_ns = 30000.0, bandwidth = 4e9 }
all_to_all = { latency_ns = 50000.0, bandwidth = 1e9 }
"#;

fn names(cluster: &Cluster) -> Vec<String> {
    let mut names = Vec::new();
    cluster.clone().coefficients(&mut |name, _, _| names.push(name.to_owned()));
    names
}

fn value(cluster: &Cluster, wanted: &str) -> f64 {
    let mut found = f64::NAN;
    cluster.clone().coefficients(&mut |name, _, value| {
        if name == wanted {
            found = *value;
        }
    });
    found
}

fn seen(cluster: &Cluster, mesh: &Mesh, graph: &Graph) -> unisono_refit::Observed {
    let timeline = sim::simulate_one(graph, 0, sim::Machine { cluster, mesh }).unwrap();
    let frames = Frames::new(&timeline, Mode::Exact, Selection::default());
    observe(&[frames], &Calls::default())
}

#[test]
fn what_a_description_says_right_is_not_touched() {
    let mesh = Mesh { axes: vec![MeshAxis::ranks("data", 4)] };
    let cluster = Cluster::parse(LINKS, "cluster.toml").unwrap();
    let seen = seen(&cluster, &mesh, &Step::of(&[("data", 4)]));
    assert_eq!((seen.left_out.len(), seen.unknown.len()), (0, 0));
    let found = refit(&cluster, &seen.seen);
    assert_eq!(found.terms, []);
    assert!(found.error[0] < 1e-3, "{:?}", found.error);
}

#[test]
fn each_wrong_coefficient_of_a_device_and_its_links_is_named_and_mended() {
    let mesh = Mesh { axes: vec![MeshAxis::ranks("data", 4)] };
    let right = Cluster::parse(LINKS, "cluster.toml").unwrap();
    let seen = seen(&right, &mesh, &Step::of(&[("data", 4)]));
    for name in names(&right) {
        for slower in [0.5, 2.0] {
            // As if nothing slowed anything is the fastest.
            let wrong = right.slower(&name, slower);
            let found = refit(&wrong, &seen.seen);
            let named: Vec<&str> = found.terms.iter().map(|term| term.name.as_str()).collect();
            assert_eq!(named, [name.as_str()], "{slower} times {name}: {:?}", found.terms);
            let mended = value(&found.cluster, &name) / value(&right, &name);
            assert!((mended - 1.0).abs() < 0.05, "{slower} times {name}: {mended}");
            assert!(found.error[1] < 0.01, "{slower} times {name}: {:?}", found.error);
        }
    }
}

#[test]
fn several_wrong_coefficients_are_all_named() {
    let mesh = Mesh { axes: vec![MeshAxis::ranks("data", 4)] };
    let right = Cluster::parse(LINKS, "cluster.toml").unwrap();
    let seen = seen(&right, &mesh, &Step::of(&[("data", 4)]));
    let names = ["device.matmul_flops.bf16", "device.memory_bandwidth", "links.all_reduce.bandwidth"];
    let wrong = right.slower(names[0], 2.0).slower(names[1], 0.5).slower(names[2], 3.0);
    let found = refit(&wrong, &seen.seen);
    let mut named: Vec<&str> = found.terms.iter().map(|term| term.name.as_str()).collect();
    named.sort_unstable();
    assert_eq!(named, names, "{:?}", found.terms);
}

/// Calls that predictions move for when a coefficient is changed.
fn moved(right: &Cluster, wrong: &Cluster, seen: &[Seen]) -> usize {
    let moves = |one: &&Seen| (one.predicted(wrong) / one.predicted(right)).ln().abs() > 0.3;
    seen.iter().filter(moves).count()
}

#[test]
fn coefficients_of_levels_are_named_where_some_calls_depend_on_them() {
    let axes = [("data", 2), ("tensor", 8)];
    let mesh = Mesh { axes: axes.iter().map(|(name, size)| MeshAxis::ranks(*name, *size)).collect() };
    let right = Cluster::preset("h100:2x8").unwrap();
    let seen = seen(&right, &mesh, &Step::of(&axes));
    let mut named = 0;
    for name in names(&right).into_iter().filter(|name| name.starts_with("network")) {
        for slower in [0.5, 2.0] {
            let wrong = right.slower(&name, slower);
            if moved(&right, &wrong, &seen.seen) < 2 {
                continue;
            }
            let found = refit(&wrong, &seen.seen);
            assert!(found.error[1] < 0.02, "{slower} times {name}: {:?}", found.error);
            assert_eq!(found.terms[0].name, name, "{slower} times {name}: {:?}", found.terms);
            named += 1;
        }
    }
    assert!(named >= 8, "{named}");
}

#[test]
fn noise_hides_no_wrong_coefficient_and_makes_none() {
    let mesh = Mesh { axes: vec![MeshAxis::ranks("data", 4)] };
    let right = Cluster::parse(LINKS, "cluster.toml").unwrap();
    let mut seen = seen(&right, &mesh, &Step::of(&[("data", 4)])).seen;
    let mut random = Random::new(7);
    for one in &mut seen {
        one.nanos *= 0.85 + 0.3 * random.below(1000) as f64 / 1000.0;
    }
    // Few calls that are all a little late move what tells them, by no more than they are late.
    let is_far = |term: &&Term| term.slower.ln().abs() > 1.16_f64.ln();
    assert_eq!(refit(&right, &seen).terms.iter().filter(is_far).count(), 0);
    for name in names(&right) {
        let found = refit(&right.slower(&name, 2.0), &seen);
        let named: Vec<&str> = found.terms.iter().filter(is_far).map(|term| term.name.as_str()).collect();
        assert_eq!(named, [name.as_str()], "{name}: {:?}", found.terms);
        assert!((0.8..1.25).contains(&(value(&found.cluster, &name) / value(&right, &name))), "{name}");
    }
}

#[test]
fn an_operator_that_was_measured_wrongly_is_named_and_its_rows_are_right() {
    let mesh = Mesh { axes: vec![MeshAxis::ranks("data", 4)] };
    let right = Cluster::parse(LINKS, "cluster.toml").unwrap();
    let step = Step::of(&[("data", 4)]);
    let known = refit(&right, &seen(&right, &mesh, &step).seen).cluster;
    let seen = seen(&known, &mesh, &step).seen;
    let mut wrong = known.clone();
    let fits = wrong.device.operations.get_mut("aten::neg").unwrap();
    let fit = fits.get_mut("f32").unwrap();
    // A size that the step has not, so that it has to be told from the others.
    fit.measured.push((0.0, 4096, 7, 3_000.0));
    *fit = std::mem::take(fit).faster(2.0);
    let found = refit(&wrong, &seen);
    assert_eq!(found.terms.len(), 1, "{:?}", found.terms);
    let term = &found.terms[0];
    assert_eq!(term.name, "device.operations.aten::neg.f32");
    assert!((term.slower - 2.0).abs() < 0.02, "{term:?}");
    assert!(found.error[1] < 1e-3, "{:?}", found.error);
    let row = |cluster: &Cluster| {
        let fit = &cluster.device.operations["aten::neg"]["f32"];
        fit.measured.iter().find(|row| row.2 == 7).unwrap().3
    };
    assert!((row(&found.cluster) / 3_000.0 - 1.0).abs() < 0.02, "{}", row(&found.cluster));
}

#[test]
fn a_group_whose_collectives_were_measured_wrongly_is_named() {
    let mesh = Mesh { axes: vec![MeshAxis::ranks("data", 4)] };
    let rows = "measured = [[256, 30000.0], [65536, 60000.0], [4194304, 2400000.0]]";
    let groups = ["all_reduce", "all_gather"]
        .map(|kind| format!("{kind} = {{ latency_ns = 30000.0, bandwidth = 2e9, {rows} }}\n"));
    let text = format!("{LINKS}[[groups]]\nshape = [4]\n{}", groups.concat());
    let right = Cluster::parse(&text, "cluster.toml").unwrap();
    let seen = seen(&right, &mesh, &Step::of(&[("data", 4)])).seen;
    assert_eq!(refit(&right, &seen).terms, []);
    for kind in ["all_reduce", "all_gather"] {
        let name = format!("groups.[4].{kind}");
        let found = refit(&right.slower(&name, 2.0), &seen);
        let named: Vec<&str> = found.terms.iter().map(|term| term.name.as_str()).collect();
        assert_eq!(named, [name.as_str()], "{:?}", found.terms);
        let curves = [&found.cluster, &right].map(|cluster| cluster.groups[0].clone());
        let [mended, known] =
            curves.map(|group| if kind == "all_reduce" { group.all_reduce } else { group.all_gather });
        for (row, right) in mended.unwrap().measured.iter().zip(known.unwrap().measured) {
            assert!((row.1 / right.1 - 1.0).abs() < 0.05, "{row:?}, {right:?}");
        }
    }
}
