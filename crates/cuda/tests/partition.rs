//! Which operations are kernels on a device.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ir::Graph;
use loops::Rounding;
use unisono_cuda::partition;

const OPS: &str = r#"unisono graph 2

op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
op aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor
op aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor
op aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor

"#;

/// How many kernels there are, or why there is none, for operations on two tensors of so many rows and columns on CUDA.
fn kernels(rows: usize, columns: usize, body: &str) -> String {
    let ty = format!("f32[{rows}, {columns}] cuda:0");
    let body = body.replace("TENSOR", &ty).replace("ROWS", &format!("f32[{rows}] cuda:0"));
    let inputs = format!("input v0: {ty} = batch \"x\"\ninput v1: {ty} = batch \"y\"\n");
    let graph = Graph::from_text("test", &format!("{OPS}{inputs}\n{body}")).unwrap();
    let found = partition(&graph, Rounding::AtStores);
    let left = found.left.iter().map(|left| left.reason.clone());
    let kernels = (!found.groups.is_empty()).then(|| format!("{} kernels", found.groups.len()));
    kernels.into_iter().chain(left).collect::<Vec<_>>().join(", ")
}

const SOFTMAX: &str = "v2: TENSOR = aten::_softmax(v0, -1, false)\n\nreturn v2\n";
const BACKWARD: &str = "v2: TENSOR = aten::_softmax_backward_data(v0, v1, -1, f32)\n\nreturn v2\n";
const OF_LOGARITHMS: &str = "v2: TENSOR = aten::_log_softmax_backward_data(v0, v1, -1, f32)\n\nreturn v2\n";
const DOT: &str = "v2: TENSOR = aten::mul.Tensor(v0, v1)\nv3: ROWS = aten::sum.dim_IntList(v2, [1], false, none)\n\nreturn v3\n";

#[test]
fn rows_that_pytorch_reads_twice_are_kernels_where_registers_hold_them() {
    for body in [SOFTMAX, BACKWARD] {
        assert_eq!(kernels(4096, 4096, body), "1 kernels");
    }
    let as_little = "PyTorch's own kernel moves as little";
    assert_eq!(kernels(4096, 32_000, SOFTMAX), as_little);
    assert_eq!(kernels(64, 4096, SOFTMAX), as_little);
    assert_eq!(kernels(4096, 4096, OF_LOGARITHMS), as_little);
}

#[test]
fn few_rows_that_are_long_are_left_to_pytorch() {
    assert_eq!(kernels(4096, 32_000, DOT), "1 kernels");
    assert_eq!(kernels(4, 4096, DOT), "1 kernels");
    let reasons = kernels(4, 1 << 20, DOT);
    assert_eq!(reasons, "few rows, which are long, few rows, which are long");
}
