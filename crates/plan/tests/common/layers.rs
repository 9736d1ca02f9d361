//! A step of layers that are alike.

use base::Place;
use ir::{Arg, Dtype, Graph, InputClass, InputId, PartKind, TensorType, ValueId};

const MM: &str = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
const T: &str = "aten::t(Tensor(a) self) -> Tensor(a)";
const EXP: &str = "aten::exp(Tensor self) -> Tensor";
const MUL: &str = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";
const ADD: &str = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";

/// Layers of a product and an exponential, with momentum, on so many rows of this width.
pub fn step(layers: usize, (rows, width): (i64, i64)) -> Graph {
    let mut graph = Graph::default();
    let matrix = |rows: i64| TensorType::contiguous(Dtype::F32, [rows, width].as_slice());
    let turned = |ty: &TensorType| {
        let mut ty = ty.clone();
        ty.shape.swap(0, 1);
        ty.strides.swap(0, 1);
        ty
    };
    let named = |graph: &mut Graph, class, name: &str| -> Vec<ValueId> {
        (0..layers).map(|n| graph.input(class, format!("{name}.{n}"), matrix(width))).collect()
    };
    let weights = named(&mut graph, InputClass::Parameter, "params");
    let momenta = named(&mut graph, InputClass::Optimizer, "optimizer");
    let batch = graph.input(InputClass::Batch, "batch.0", matrix(rows));
    let value = Arg::Value;
    // What backward does for an operation of forward stands on its line.
    let lines: Vec<_> = (0..2 * layers as u32)
        .map(|line| graph.places.push(Place { file: "step.py".into(), line, column: 0 }))
        .collect();
    let at = |graph: &mut Graph, line: usize, op: &str, args: Vec<Arg>, ty: TensorType| -> ValueId {
        let made = graph.push_value(op, args, ty);
        let id = graph.maker(made).unwrap();
        graph.nodes[id].place = Some(lines[line]);
        made
    };
    graph.begin_part(PartKind::Forward);
    let mut made = vec![batch];
    for (layer, weight) in weights.iter().enumerate() {
        let read = *made.last().unwrap();
        let product = at(&mut graph, 2 * layer, MM, vec![value(read), value(*weight)], matrix(rows));
        made.push(at(&mut graph, 2 * layer + 1, EXP, vec![value(product)], matrix(rows)));
    }
    graph.begin_part(PartKind::Backward);
    let mut gradient = *made.last().unwrap();
    let mut gradients = Vec::new();
    for (layer, weight) in weights.iter().enumerate().rev() {
        let args = vec![value(gradient), value(made[layer + 1])];
        let here = at(&mut graph, 2 * layer + 1, MUL, args, matrix(rows));
        let line = 2 * layer;
        let read = at(&mut graph, line, T, vec![value(made[layer])], turned(&matrix(rows)));
        gradients.push(at(&mut graph, line, MM, vec![value(read), value(here)], matrix(width)));
        let weight = at(&mut graph, line, T, vec![value(*weight)], turned(&matrix(width)));
        gradient = at(&mut graph, line, MM, vec![value(here), value(weight)], matrix(rows));
    }
    gradients.reverse();
    graph.begin_part(PartKind::Update);
    for n in 0..layers {
        let add = |graph: &mut Graph, one: ValueId, other: ValueId| {
            graph.push_value(ADD, vec![value(one), value(other), Arg::Int(1)], matrix(width))
        };
        let momentum = add(&mut graph, momenta[n], gradients[n]);
        let weight = add(&mut graph, weights[n], momentum);
        graph.updates.push((InputId(n as u32), weight));
        graph.updates.push((InputId((layers + n) as u32), momentum));
    }
    graph
}
