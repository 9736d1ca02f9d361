//! Runs a rank graph on simulated ranks, all at once and node by node. Views share memory and have the strides that PyTorch would
//! give them, which must be those that the graph says.

use std::rc::Rc;

use base::SecondaryMap;
use ir::{Arg, Graph, Node, Return, TensorType, ValueId, testing::Random};

pub const RANKS: usize = 2;

/// A tensor with shared memory.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    data: Rc<Vec<f64>>,
    offset: i64,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

impl Tensor {
    pub fn random(random: &mut Random, ty: &TensorType) -> Self {
        let values = (0..ty.elements()).map(|_| random.below(64) as f64 / 16.0 - 2.0).collect();
        Self::of(values, ty)
    }

    /// A tensor of `values`, in logical order, laid out as `ty` says, perhaps with gaps.
    fn of(values: Vec<f64>, ty: &TensorType) -> Self {
        let mut tensor =
            Self { data: Rc::default(), offset: 0, shape: ty.shape.to_vec(), strides: ty.strides.to_vec() };
        let positions = tensor.positions();
        let mut data = vec![f64::NAN; positions.iter().max().map_or(0, |last| last + 1)];
        positions.into_iter().zip(values).for_each(|(at, value)| data[at] = value);
        tensor.data = Rc::new(data);
        tensor
    }

    /// Where each element is, in logical order.
    fn positions(&self) -> Vec<usize> {
        let mut positions = vec![self.offset];
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            positions = positions.iter().flat_map(|at| (0..*size).map(move |i| at + i * stride)).collect();
        }
        positions.into_iter().map(|at| at as usize).collect()
    }

    fn values(&self) -> Vec<f64> {
        self.positions().into_iter().map(|at| self.data[at]).collect()
    }
}

/// What the graph returns and updates, as logical values, on each rank.
pub fn execute(graph: &Graph, inputs: &[Vec<Tensor>]) -> Vec<Vec<Vec<f64>>> {
    let mut values: Vec<SecondaryMap<ValueId, Option<Tensor>>> =
        vec![SecondaryMap::with_default(None); RANKS];
    for (rank, inputs) in inputs.iter().enumerate() {
        for (input, tensor) in graph.inputs.values().zip(inputs) {
            values[rank][input.value] = Some(tensor.clone());
        }
    }
    for id in &graph.order {
        let node = &graph.nodes[*id];
        let operands: Vec<Vec<Tensor>> = values
            .iter()
            .map(|values| node.operands().map(|value| values[value].clone().unwrap()).collect())
            .collect();
        for (rank, values) in values.iter_mut().enumerate() {
            let made = results(graph, node, &operands, rank);
            for (value, tensor) in node.results().zip(made) {
                let ty = graph.ty(value);
                assert_eq!(tensor.shape[..], ty.shape[..], "{id}");
                // Over a dimension of one element any stride leads to the same places.
                let strides = |strides: &[i64]| -> Vec<i64> {
                    strides.iter().zip(&ty.shape).map(|(stride, size)| stride * (size - 1).min(1)).collect()
                };
                assert_eq!(strides(&tensor.strides), strides(&ty.strides), "{id}");
                values[value] = Some(tensor);
            }
        }
    }
    let ends: Vec<ValueId> =
        graph.returns.iter().copied().chain(graph.updates.iter().map(|(_, value)| *value)).collect();
    values
        .iter()
        .map(|values| ends.iter().map(|value| values[*value].as_ref().unwrap().values()).collect())
        .collect()
}

fn results(graph: &Graph, node: &Node, operands: &[Vec<Tensor>], rank: usize) -> Vec<Tensor> {
    let own = &operands[rank];
    let name = graph.ops[node.op].name.as_str();
    let types: Vec<&TensorType> = node.results().map(|value| graph.ty(value)).collect();
    let all = || operands.iter().map(|operands| operands[0].values()).collect::<Vec<_>>();
    let one = |values: Vec<f64>| vec![Tensor::of(values, types[0])];
    match name {
        "_c10d_functional::all_gather_into_tensor" => one(all().concat()),
        "_c10d_functional::all_reduce" => one(reduced(node, all())),
        "_c10d_functional::reduce_scatter_tensor" => {
            let whole = reduced(node, all());
            let part = whole.len() / RANKS;
            one(whole[rank * part..(rank + 1) * part].to_vec())
        }
        "_c10d_functional::all_to_all_single" => {
            let part = own[0].values().len() / RANKS;
            one(all().iter().flat_map(|values| values[rank * part..(rank + 1) * part].to_vec()).collect())
        }
        "_c10d_functional::wait_tensor"
        | "aten::detach"
        | "unisono::to_host"
        | "unisono::from_host"
        | "unisono::wait_copy" => vec![own[0].clone()],
        "unisono::to_host_over" => vec![own[1].clone()],
        "aten::t" => vec![permuted(&own[0], &[1, 0])],
        "aten::permute" => vec![permuted(&own[0], ints(&node.args[1]))],
        "aten::view" => vec![viewed(&own[0], ints(&node.args[1]))],
        "aten::split_with_sizes" => split(&own[0], ints(&node.args[1]), int(&node.args[2])),
        "aten::cat" => one(joined(own, int(&node.args[1]))),
        "aten::stack" => one(stacked(own, int(&node.args[1]))),
        "aten::slice.Tensor" => vec![sliced(&own[0], &node.args[1..])],
        "aten::slice_scatter" => one(written(&own[0], &own[1], &node.args[2..])),
        "aten::copy" => one(own[1].values()),
        "aten::mm" => one(product(&own[0], &own[1])),
        "aten::clone" => one(own[0].values()),
        "aten::sum.dim_IntList" => one(combined(rows(&own[0]), |a, b| a + b)),
        "aten::amax" => one(combined(rows(&own[0]), f64::max)),
        _ => elementwise(name, node, own, &types),
    }
}

fn ints(arg: &Arg) -> &[i64] {
    let Arg::Ints(numbers) = arg else { panic!("{arg:?} is no list of integers") };
    numbers
}

fn int(arg: &Arg) -> usize {
    let Arg::Int(number) = arg else { panic!("{arg:?} is no integer") };
    *number as usize
}

fn reduced(node: &Node, parts: Vec<Vec<f64>>) -> Vec<f64> {
    combined(parts, if node.args[1] == Arg::Str("max".into()) { f64::max } else { |a, b| a + b })
}

fn combined(parts: Vec<Vec<f64>>, combine: fn(f64, f64) -> f64) -> Vec<f64> {
    let add = |a: Vec<f64>, b: Vec<f64>| a.into_iter().zip(b).map(|(a, b)| combine(a, b)).collect();
    parts.into_iter().reduce(add).unwrap()
}

/// The rows of a matrix.
fn rows(matrix: &Tensor) -> Vec<Vec<f64>> {
    matrix.values().chunks(matrix.shape[1] as usize).map(<[f64]>::to_vec).collect()
}

fn permuted(tensor: &Tensor, dims: &[i64]) -> Tensor {
    let pick = |of: &[i64]| dims.iter().map(|dim| of[*dim as usize]).collect();
    Tensor { shape: pick(&tensor.shape), strides: pick(&tensor.strides), ..tensor.clone() }
}

/// A view, as PyTorch has it of a tensor in row-major order; dimensions of size 1 have any stride.
fn viewed(tensor: &Tensor, shape: &[i64]) -> Tensor {
    let mut expected = 1;
    for (size, stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
        assert!(*size == 1 || *stride == expected, "a view of a tensor that is not contiguous");
        expected *= size;
    }
    Tensor { shape: shape.to_vec(), strides: ir::contiguous_strides(shape).to_vec(), ..tensor.clone() }
}

fn split(tensor: &Tensor, sizes: &[i64], dim: usize) -> Vec<Tensor> {
    let mut start = 0;
    let parts = sizes.iter().map(|size| {
        let mut part = tensor.clone();
        part.offset += start * tensor.strides[dim];
        part.shape[dim] = *size;
        start += size;
        part
    });
    parts.collect()
}

fn joined(tensors: &[Tensor], dim: usize) -> Vec<f64> {
    let outer: i64 = tensors[0].shape[..dim].iter().product();
    let values: Vec<Vec<f64>> = tensors.iter().map(Tensor::values).collect();
    let row = |i: usize| {
        values.iter().flat_map(move |values| {
            let length = values.len() / outer as usize;
            values[i * length..(i + 1) * length].to_vec()
        })
    };
    (0..outer as usize).flat_map(row).collect()
}

/// Tensors one behind the other along a new dimension.
fn stacked(tensors: &[Tensor], dim: usize) -> Vec<f64> {
    let mut tensors = tensors.to_vec();
    for tensor in &mut tensors {
        tensor.shape.insert(dim, 1);
        tensor.strides.insert(dim, 0);
    }
    joined(&tensors, dim)
}

/// A view of a slice that the arguments `dim, start, end, step` say.
fn sliced(tensor: &Tensor, slice: &[Arg]) -> Tensor {
    let [dim, start, end, step] = [0, 1, 2, 3].map(|at| int(&slice[at]));
    let mut view = tensor.clone();
    view.offset += start as i64 * view.strides[dim];
    view.shape[dim] = (end.min(tensor.shape[dim] as usize) - start).div_ceil(step) as i64;
    view.strides[dim] *= step as i64;
    view
}

/// The values of a tensor with another one over a slice.
fn written(tensor: &Tensor, over: &Tensor, slice: &[Arg]) -> Vec<f64> {
    let mut values = tensor.values();
    let places = TensorType::contiguous(ir::Dtype::F32, tensor.shape.as_slice());
    let places = Tensor::of((0..values.len()).map(|at| at as f64).collect(), &places);
    let places = sliced(&places, slice).values();
    places.into_iter().zip(over.values()).for_each(|(at, value)| values[at as usize] = value);
    values
}

fn product(left: &Tensor, right: &Tensor) -> Vec<f64> {
    let (rows, inner, columns) = (left.shape[0] as usize, left.shape[1] as usize, right.shape[1] as usize);
    let (left, right) = (left.values(), right.values());
    let entry = |i: usize, j: usize| (0..inner).map(|k| left[i * inner + k] * right[k * columns + j]).sum();
    (0..rows * columns).map(|at| entry(at / columns, at % columns)).collect()
}

/// An elementwise operation on tensors, or on lists of them entry by entry.
fn elementwise(name: &str, node: &Node, own: &[Tensor], types: &[&TensorType]) -> Vec<Tensor> {
    let of_lists = matches!(node.returns[0], Return::Values(_));
    let entries = types.len();
    let short = name.trim_start_matches("aten::").trim_start_matches("_foreach_");
    let function = short.split('.').next().unwrap();
    let mut made = Vec::new();
    for (entry, ty) in types.iter().enumerate() {
        let mut next = 0;
        let mut columns: Vec<Vec<f64>> = Vec::new();
        for arg in &node.args {
            let count = arg.values().count();
            columns.push(match arg {
                Arg::Values(_) if of_lists => own[next + entry].values(),
                Arg::Value(_) => own[next].values(),
                Arg::Float(number) => vec![*number],
                Arg::Int(number) => vec![*number as f64],
                other => panic!("{name} of {other:?}"),
            });
            assert!(count <= 1 || count == entries);
            next += count;
        }
        let at = |i: usize, column: usize| columns[column][if columns[column].len() == 1 { 0 } else { i }];
        let value = |i: usize| match function {
            "neg" => -at(i, 0),
            "abs" => at(i, 0).abs(),
            "mul" => at(i, 0) * at(i, 1),
            "add" if columns.len() == 2 => at(i, 0) + at(i, 1),
            "add" => at(i, 0) + at(i, 2) * at(i, 1),
            other => panic!("{other} is not simulated"),
        };
        made.push(Tensor::of((0..ty.elements() as usize).map(value).collect(), ty));
    }
    made
}
