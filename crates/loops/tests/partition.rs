//! Partitions as text: which operations of a graph become kernels.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;

use expect_test::{Expect, expect};
use ir::Graph;
use unisono_loops::{Item, Partition, Rounding, verify};

fn partition(graph: &Graph) -> Partition {
    unisono_loops::partition(graph, Rounding::AtStores)
}

const OPS: &str = r#"unisono graph 2

op aten::silu(Tensor self) -> Tensor
op aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
op aten::gelu(Tensor self, *, str approximate='none') -> Tensor
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::exp(Tensor self) -> Tensor
op aten::rsqrt(Tensor self) -> Tensor
op aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
op aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
op aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor
op aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor
op aten::neg(Tensor self) -> Tensor
op aten::cat(Tensor[] tensors, int dim=0) -> Tensor
op aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)
op aten::slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor
op aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)
op aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)
op aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)
op aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
op aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor
op aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor
op aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)
op _c10d_functional::all_reduce(Tensor input, str reduce_op, Any group_name) -> Tensor
op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor

"#;

fn check(body: &str, expected: &Expect) {
    check_rounded(body, Rounding::AtStores, expected);
}

fn check_rounded(body: &str, rounding: Rounding, expected: &Expect) {
    let graph: Graph = Graph::from_text("test", &format!("{OPS}{body}")).unwrap();
    let found = unisono_loops::partition(&graph, rounding);
    let mut text = String::new();
    for item in &found.order {
        match item {
            Item::Node(position) => writeln!(text, "{}", graph.op_name(graph.order[*position])).unwrap(),
            Item::Group(number) => {
                let group = &found.groups[*number];
                verify(&group.kernel).unwrap();
                writeln!(text, "group {:?} -> {:?} saves {}", group.reads, group.writes, group.saved.0)
                    .unwrap();
                group.kernel.to_string().lines().for_each(|line| writeln!(text, "  {line}").unwrap());
            }
        }
    }
    for left in &found.left {
        writeln!(text, "left {} of {}: {}", left.count, left.op, left.reason).unwrap();
    }
    expected.assert_eq(&text);
}

#[test]
fn operations_with_a_value_between_them_are_one_kernel() {
    check(
        r#"
input v0: f32[4, 256] = batch "x"
input v1: f32[256] = batch "y"

v2: f32[4, 256] = aten::silu(v0)
v3: f32[4, 256] = aten::mul.Tensor(v2, v1)

return v3
"#,
        &expect![[r#"
            group [v0, v1] -> [v3] saves 8192
              kernel [4, 256]
              read a0: f32 {256, 1}
              read a1: f32 {0, 1}
              write a2: f32 {256, 1}
              %0 = load a0
              %1 = sigmoid %0
              %2 = mul %0 %1
              %3 = load a1
              %4 = mul %2 %3
              store a2 %4
        "#]],
    );
}

#[test]
fn a_group_does_not_pass_what_needs_it_and_is_needed_by_it() {
    check(
        r#"
input v0: f32[4, 4] = batch "x"

v1: f32[4, 4] = aten::silu(v0)
v2: f32[4, 4] = aten::mm(v1, v1)
v3: f32[4, 4] = aten::mul.Tensor(v1, v2)
v4: f32[4, 4] = aten::exp(v3)

return v4
"#,
        &expect![[r#"
            group [v0] -> [v1] saves 0
              kernel [4, 4]
              read a0: f32 {4, 1}
              write a1: f32 {4, 1}
              %0 = load a0
              %1 = sigmoid %0
              %2 = mul %0 %1
              store a1 %2
            aten::mm
            group [v1, v2] -> [v4] saves 128
              kernel [4, 4]
              read a0: f32 {4, 1}
              read a1: f32 {4, 1}
              write a2: f32 {4, 1}
              %0 = load a0
              %1 = load a1
              %2 = mul %0 %1
              %3 = exp %2
              store a2 %3
            left 1 of aten::mm: no formula
        "#]],
    );
}

#[test]
fn kernels_that_match_eager_code_round_behind_each_operation_and_leave_what_has_other_bits() {
    check_rounded(
        r#"
input v0: bf16[4, 64] = batch "x"
input v1: f32[4, 64] = batch "y"

v2: bf16[4, 64] = aten::silu(v0)
v3: bf16[4, 64] = aten::mul.Tensor(v2, v0)
v4: bf16[4, 64] = aten::add.Tensor(v3, 0.3, 1)
v5: f32[4, 64] = aten::mul.Tensor(v4, v1)
v6: bf16[4, 64] = aten::add.Tensor(v4, v3, 0.3)
v7: f32[4, 64] = aten::silu(v5)

return v6, v7
"#,
        Rounding::AsEager,
        &expect![[r#"
            group [v0, v1] -> [v3, v4, v5] saves 2560
              kernel [4, 64]
              read a0: bf16 {64, 1}
              read a1: f32 {64, 1}
              write a2: bf16 {64, 1}
              write a3: bf16 {64, 1}
              write a4: f32 {64, 1}
              %0 = load a0
              %1 = sigmoid %0
              %2 = mul %0 %1
              %3 = round_bf16 %2
              %4 = mul %0 %3
              %5 = round_bf16 %4
              %6 = const 0.30078125
              %7 = add %5 %6
              %8 = round_bf16 %7
              %9 = load a1
              %10 = mul %8 %9
              store a2 %5
              store a3 %8
              store a4 %10
            aten::add.Tensor
            aten::silu
            left 1 of aten::add.Tensor: the factor 0.3, which PyTorch rounds in two ways
            left 1 of aten::silu: other bits than PyTorch's in f32
        "#]],
    );
}

#[test]
fn nothing_passes_a_collective() {
    check(
        r#"
input v0: f32[4] = batch "x"

v1: f32[4] = aten::silu(v0)
v2: f32[4] = _c10d_functional::all_reduce(v0, "sum", "axis:a")
v3: f32[4] = aten::exp(v1)
v4: f32[4] = _c10d_functional::wait_tensor(v2)
v5: f32[4] = aten::add.Tensor(v3, v4, 1)

return v5
"#,
        &expect![[r#"
            group [v0] -> [v1] saves 0
              kernel [4]
              read a0: f32 {1}
              write a1: f32 {1}
              %0 = load a0
              %1 = sigmoid %0
              %2 = mul %0 %1
              store a1 %2
            _c10d_functional::all_reduce
            group [v1] -> [v3] saves 0
              kernel [4]
              read a0: f32 {1}
              write a1: f32 {1}
              %0 = load a0
              %1 = exp %0
              store a1 %1
            _c10d_functional::wait_tensor
            group [v3, v4] -> [v5] saves 0
              kernel [4]
              read a0: f32 {1}
              read a1: f32 {1}
              write a2: f32 {1}
              %0 = load a0
              %1 = load a1
              %2 = add %0 %1
              store a2 %2
            left 1 of _c10d_functional::all_reduce: no formula
            left 1 of _c10d_functional::wait_tensor: no formula
        "#]],
    );
}

#[test]
fn what_is_returned_is_written_and_operations_of_many_elements_alone_stay() {
    check(
        r#"
input v0: f32[8192] = batch "x"
input v1: i64[8192] = batch "y"
input v2: bf16[8192] = batch "z"

v3: f32[8192] = aten::exp(v0)
v4: f32[8192] = aten::pow.Tensor_Scalar(v3, 2)
v5: i64[8192] = aten::mul.Tensor(v1, v1)
v6: f32[8192] = aten::pow.Tensor_Scalar(v0, 0.3)
v7: f32[8192] = aten::_to_copy(v2, f32, none, none, none, false, none)
v8: bf16[8192] = aten::_to_copy(v4, bf16, none, none, none, false, none)

return v3, v5, v6, v7, v8
"#,
        &expect![[r#"
            aten::mul.Tensor
            aten::pow.Tensor_Scalar
            aten::_to_copy
            group [v0] -> [v3, v8] saves 98304
              kernel [8192]
              read a0: f32 {1}
              write a1: f32 {1}
              write a2: bf16 {1}
              %0 = load a0
              %1 = exp %0
              %2 = mul %1 %1
              %3 = round_bf16 %2
              store a1 %1
              store a2 %3
            left 1 of aten::_to_copy: no kernel with it would pay
            left 1 of aten::mul.Tensor: a tensor of i64
            left 1 of aten::pow.Tensor_Scalar: the exponent 0.3
        "#]],
    );
}

#[test]
fn an_operation_of_few_elements_is_a_kernel_even_alone() {
    check(
        r#"
input v0: f32[64] = parameter "w"
input v1: f32[8192] = batch "x"

v2: f32[64] = aten::add.Tensor(v0, 1, 1)
v3: f32[8192] = aten::add.Tensor(v1, 1, 1)

return v2, v3
"#,
        &expect![[r#"
            group [v0] -> [v2] saves 0
              kernel [64]
              read a0: f32 {1}
              write a1: f32 {1}
              %0 = load a0
              %1 = const 1.0
              %2 = add %0 %1
              store a1 %2
            aten::add.Tensor
            left 1 of aten::add.Tensor: no kernel with it would pay
        "#]],
    );
}

#[test]
fn an_operation_that_pytorch_is_slow_at_is_a_kernel_of_its_own() {
    check(
        r#"
input v0: f32[4] = batch "x"

v1: f32[4] = aten::gelu(v0, "tanh")

return v1
"#,
        &expect![[r#"
            group [v0] -> [v1] saves 0
              kernel [4]
              read a0: f32 {1}
              write a1: f32 {1}
              %0 = const 1.5957692
              %1 = load a0
              %2 = mul %0 %1
              %3 = mul %1 %1
              %4 = const 0.044715
              %5 = const 1.0
              %6 = fma %3 %4 %5
              %7 = mul %2 %6
              %8 = sigmoid %7
              %9 = mul %1 %8
              store a1 %9
        "#]],
    );
}

#[test]
fn an_error_function_of_many_points_is_a_kernel_with_what_stands_beside_it() {
    check(
        r#"
input v0: f32[40000] = batch "x"
input v1: f32[40000] = batch "y"

v2: f32[40000] = aten::gelu(v0, "none")
v3: f32[40000] = aten::mul.Tensor(v2, v1)

return v3
"#,
        &expect![[r#"
            group [v0, v1] -> [v3] saves 320000
              kernel [40000]
              read a0: f32 {1}
              read a1: f32 {1}
              write a2: f32 {1}
              %0 = load a0
              %1 = const 0.70710677
              %2 = mul %0 %1
              %3 = erf %2
              %4 = const 0.5
              %5 = fma %3 %4 %4
              %6 = mul %0 %5
              %7 = load a1
              %8 = mul %6 %7
              store a2 %8
        "#]],
    );
}

#[test]
fn the_gradient_of_an_error_function_of_many_points_is_left_to_pytorch_unless_something_is_saved() {
    check(
        r#"
input v0: f32[200, 200] = batch "gradient"
input v1: f32[200, 200] = batch "x"

v2: f32[200, 200] = aten::gelu_backward(v0, v1, "none")

return v2
"#,
        &expect![[r#"
            aten::gelu_backward
            left 1 of aten::gelu_backward: no kernel with it would pay
        "#]],
    );
    let with_sums = "\
input v0: f32[200, 200] = batch \"gradient\"
input v1: f32[200, 200] = batch \"x\"

v2: f32[200, 200] = aten::gelu_backward(v0, v1, \"none\")
v3: f32[200] = aten::sum.dim_IntList(v2, [0], false, none)

return v2, v3
";
    let graph = Graph::from_text("test", &format!("{OPS}{with_sums}")).unwrap();
    assert_eq!(partition(&graph).groups.len(), 1);
}

#[test]
fn a_norm_written_out_is_one_kernel_with_what_stands_beside_it() {
    check(
        r#"
input v0: f32[2, 3, 64] = batch "x"
input v1: f32[2, 3, 64] = batch "y"
input v2: f32[64] = batch "weight"

v3: f32[2, 3, 64] = aten::add.Tensor(v0, v1, 1)
v4: f32[2, 3, 64] = aten::pow.Tensor_Scalar(v3, 2)
v5: f32[2, 3, 1] = aten::mean.dim(v4, [-1], true, none)
v6: f32[2, 3, 1] = aten::add.Tensor(v5, 0.5, 1)
v7: f32[2, 3, 1] = aten::rsqrt(v6)
v8: f32[2, 3, 64] = aten::mul.Tensor(v3, v7)
v9: f32[2, 3, 64] = aten::mul.Tensor(v8, v2)
v10: f32[64] = aten::sum.dim_IntList(v9, [0, 1], false, none)

return v3, v7, v9, v10
"#,
        &expect![[r#"
            group [v0, v1, v2] -> [v3, v7, v9, v10] saves 10872
              kernel [2, 3, 64]
              read a0: f32 {192, 64, 1}
              read a1: f32 {192, 64, 1}
              read a2: f32 {0, 0, 1}
              write a3: f32 {192, 64, 1}
              write a4: f32 {3, 1, 0}
              write a5: f32 {192, 64, 1}
              add a6: f32 {0, 0, 1}
              %0 = load a0
              %1 = const 1.0
              %2 = load a1
              %3 = add %0 %2
              %4 = mul %3 %3
              %5 = row_sum %4
              %6 = const 64.0
              %7 = div %5 %6
              %8 = const 0.5
              %9 = add %7 %8
              %10 = sqrt %9
              %11 = div %1 %10
              %12 = mul %3 %11
              %13 = load a2
              %14 = mul %12 %13
              store a3 %3
              store a4 %11
              store a5 %14
              store a6 %14
        "#]],
    );
}

#[test]
fn rows_that_are_short_and_many_elements_that_lie_apart_do_not_pay() {
    check(
        r#"
input v0: f32[4096, 8] = batch "x"
input v1: f32[8] = batch "y"
input v2: f32[4096, 8]{1, 4096} = batch "z"

v3: f32[4096, 8] = aten::silu(v0)
v4: f32[4096, 8] = aten::mul.Tensor(v3, v1)
v5: f32[4096, 8] = aten::exp(v4)
v6: f32[4096, 8] = aten::exp(v0)
v7: f32[4096, 8] = aten::mul.Tensor(v6, v2)

return v5, v7
"#,
        &expect![[r#"
            aten::silu
            aten::mul.Tensor
            aten::exp
            aten::exp
            aten::mul.Tensor
            left 2 of aten::exp: no kernel with it would pay
            left 2 of aten::mul.Tensor: no kernel with it would pay
            left 1 of aten::silu: no kernel with it would pay
        "#]],
    );
}

#[test]
fn few_elements_that_lie_apart_take_less_than_the_calls_that_are_saved() {
    check(
        r#"
input v0: f32[4, 8] = batch "x"
input v1: f32[8] = batch "y"
input v2: f32[4, 8]{1, 4} = batch "z"

v3: f32[4, 8] = aten::silu(v0)
v4: f32[4, 8] = aten::mul.Tensor(v3, v1)
v5: f32[4, 8] = aten::exp(v4)
v6: f32[4, 8] = aten::exp(v0)
v7: f32[4, 8] = aten::mul.Tensor(v6, v2)

return v5, v7
"#,
        &expect![[r#"
            group [v0, v1, v2] -> [v5, v7] saves 896
              kernel [4, 8]
              read a0: f32 {8, 1}
              read a1: f32 {0, 1}
              read a2: f32 {1, 4}
              write a3: f32 {8, 1}
              write a4: f32 {8, 1}
              %0 = load a0
              %1 = sigmoid %0
              %2 = mul %0 %1
              %3 = load a1
              %4 = mul %2 %3
              %5 = exp %4
              %6 = exp %0
              %7 = load a2
              %8 = mul %6 %7
              store a3 %5
              store a4 %8
        "#]],
    );
}

#[test]
fn few_elements_that_lie_apart_take_less_than_a_call_with_a_number() {
    check(
        r#"
input v0: f32[4, 8]{1, 4} = batch "x"
input v1: f32[64, 32]{1, 64} = batch "y"

v3: f32[4, 8] = aten::pow.Tensor_Scalar(v0, 2)
v4: f32[64, 32] = aten::pow.Tensor_Scalar(v1, 2)

return v3, v4
"#,
        &expect![[r#"
            group [v0] -> [v2] saves 0
              kernel [4, 8]
              read a0: f32 {1, 4}
              write a1: f32 {8, 1}
              %0 = load a0
              %1 = mul %0 %0
              store a1 %1
            aten::pow.Tensor_Scalar
            left 1 of aten::pow.Tensor_Scalar: no kernel with it would pay
        "#]],
    );
}

#[test]
fn halves_of_rows_that_change_places_are_pieces_of_one_kernel() {
    check(
        r#"
input v0: f32[2, 4, 6, 64]{1536, 64, 256, 1} = batch "x"
input v1: f32[1, 1, 6, 64] = batch "cos"
input v2: f32[1, 1, 6, 64] = batch "sin"

v3: f32[2, 4, 6, 64]{1536, 64, 256, 1} = aten::mul.Tensor(v0, v1)
v4: f32[2, 4, 6, 32]{1536, 64, 256, 1} = aten::slice.Tensor(v0, 3, 0, 32, 1)
v5: f32[2, 4, 6, 32]{1536, 64, 256, 1} = aten::slice.Tensor(v0, 3, 32, 9223372036854775807, 1)
v6: f32[2, 4, 6, 32]{768, 32, 128, 1} = aten::neg(v5)
v7: f32[2, 4, 6, 64] = aten::cat([v6, v4], -1)
v8: f32[2, 4, 6, 64] = aten::mul.Tensor(v7, v2)
v9: f32[2, 4, 6, 64]{1536, 64, 256, 1} = aten::add.Tensor(v3, v8, 1)

return v9
"#,
        &expect![[r#"
            group [v0, v1, v2] -> [v9] saves 98304
              kernel [2, 4, 6, 32]
              read a0: f32 {1536, 64, 256, 1}
              read a1: f32 {0, 0, 64, 1}
              read a2: f32 {0, 0, 64, 1}
              write a3: f32 {1536, 64, 256, 1}
              %0 = load a0
              %1 = load a0 +32
              %2 = load a1
              %3 = load a1 +32
              %4 = mul %0 %2
              %5 = mul %1 %3
              %6 = neg %1
              %7 = load a2
              %8 = load a2 +32
              %9 = mul %6 %7
              %10 = mul %0 %8
              %11 = add %4 %9
              %12 = add %5 %10
              store a3 %11
              store a3 +32 %12
        "#]],
    );
}

#[test]
fn parts_of_what_a_kernel_makes_are_filled_up_and_copied_in_another_order() {
    check(
        r#"
input v0: f32[2, 4, 6, 64]{1536, 64, 256, 1} = batch "gradient"
input v1: f32[1, 1, 6, 64] = batch "sin"

v2: f32[2, 4, 6, 64]{1536, 64, 256, 1} = aten::mul.Tensor(v0, v1)
v3: f32[2, 4, 6, 32]{1536, 64, 256, 1} = aten::slice.Tensor(v2, 3, 0, 32, 1)
v4: f32[2, 4, 6, 32]{1536, 64, 256, 1} = aten::slice.Tensor(v2, 3, 32, 64, 1)
v5: f32[2, 4, 6, 32]{768, 32, 128, 1} = aten::neg(v3)
v6: f32[2, 4, 6, 64] = aten::slice_backward(v5, [2, 4, 6, 64], 3, 32, 9223372036854775807, 1)
v7: f32[2, 4, 6, 64] = aten::slice_backward(v4, [2, 4, 6, 64], 3, 0, 32, 1)
v8: f32[2, 4, 6, 64] = aten::add.Tensor(v6, v7, 1)
v9: f32[2, 6, 4, 64]{1536, 64, 384, 1} = aten::transpose.int(v8, 1, 2)
v10: f32[2, 6, 4, 64] = aten::clone(v9, none)

return v10
"#,
        &expect![[r#"
            group [v0, v1] -> [v10] saves 110592
              kernel [2, 4, 6, 32]
              read a0: f32 {1536, 64, 256, 1}
              read a1: f32 {0, 0, 64, 1}
              write a2: f32 {1536, 64, 256, 1}
              %0 = load a0
              %1 = load a0 +32
              %2 = load a1
              %3 = load a1 +32
              %4 = mul %0 %2
              %5 = mul %1 %3
              %6 = neg %4
              %7 = const 0.0
              %8 = add %5 %7
              %9 = add %6 %7
              store a2 %8
              store a2 +32 %9
        "#]],
    );
}

#[test]
fn a_kernel_looks_through_views_of_what_it_makes() {
    check(
        r#"
input v0: f32[2, 3, 64] = batch "x"
input v1: f32[2, 3, 1] = batch "y"

v2: f32[2, 3, 1] = aten::mul.Tensor(v1, 0.5)
v3: f32[2, 3, 64]{3, 1, 0} = aten::expand(v2, [2, 3, 64], false)
v4: f32[2, 3, 64] = aten::mul.Tensor(v3, v0)
v5: f32[6, 64] = aten::view(v4, [6, 64])
v6: f32[64] = aten::sum.dim_IntList(v5, [0], false, none)
v7: f32[6, 64] = aten::exp(v5)
v8: f32[2, 192] = aten::view(v4, [2, 192])

return v6, v7, v8
"#,
        &expect![[r#"
            group [v1, v0] -> [v4, v6, v7] saves 4632
              kernel [2, 3, 64]
              read a0: f32 {3, 1, 0}
              read a1: f32 {192, 64, 1}
              write a2: f32 {192, 64, 1}
              add a3: f32 {0, 0, 1}
              write a4: f32 {192, 64, 1}
              %0 = load a0
              %1 = const 0.5
              %2 = mul %0 %1
              %3 = load a1
              %4 = mul %2 %3
              %5 = exp %4
              store a2 %4
              store a3 %4
              store a4 %5
            aten::view
            left 1 of aten::view: no formula
        "#]],
    );
}

#[test]
fn masks_are_read_as_they_are() {
    check(
        r#"
input v0: f32[4, 64] = batch "gradient"
input v1: bool[4, 64] = batch "mask"

v2: f32[4, 64] = aten::native_dropout_backward(v0, v1, 1.25)
v3: f32[4, 64] = aten::where.self(v1, v2, v0)

return v3
"#,
        &expect![[r#"
            group [v0, v1] -> [v3] saves 3328
              kernel [4, 64]
              read a0: f32 {64, 1}
              read a1: bool {64, 1}
              write a2: f32 {64, 1}
              %0 = load a0
              %1 = load a1
              %2 = mul %0 %1
              %3 = const 1.25
              %4 = mul %2 %3
              %5 = const 0.0
              %6 = lt %5 %1
              %7 = select %6 %4 %0
              store a2 %7
        "#]],
    );
}

#[test]
fn a_norm_without_an_epsilon_takes_the_smallest_difference_of_its_numbers() {
    check(
        r#"input v0: f32[64, 512] = batch "batch.x"

(v1: f32[64, 512], v2: f32[64, 1]) = aten::_fused_rms_norm(v0, [512], none, none)

return v1
"#,
        &expect![[r#"
            group [v0] -> [v1] saves 256
              kernel [64, 512]
              read a0: f32 {512, 1}
              write a1: f32 {512, 1}
              %0 = const 1.0
              %1 = load a0
              %2 = mul %1 %1
              %3 = row_sum %2
              %4 = const 512.0
              %5 = div %3 %4
              %6 = const 1.1920929e-7
              %7 = add %5 %6
              %8 = sqrt %7
              %9 = div %0 %8
              %10 = mul %1 %9
              store a1 %10
        "#]],
    );
}

#[test]
fn what_stays_alone_is_not_covered() {
    let coverage = |body: &str| {
        let partition = partition(&Graph::from_text("test", &format!("{OPS}{body}")).unwrap());
        (partition.coverage.fused.0, partition.coverage.all.0, partition.coverage.percent())
    };
    let inputs = "input v0: f32[200, 200] = batch \"x\"\n\n";
    // A product is nothing that kernels compute.
    let joined = "v1: f32[200, 200] = aten::silu(v0)
v2: f32[200, 200] = aten::mul.Tensor(v1, v0)
v3: f32[200, 200] = aten::mm(v2, v2)

return v3
";
    assert_eq!(coverage(&format!("{inputs}{joined}")), (5 * 160_000, 5 * 160_000, 100));
    let apart = "v1: f32[200, 200] = aten::mm(v0, v0)
v2: f32[200, 200] = aten::exp(v1)
v3: f32[200, 200] = aten::mm(v2, v2)

return v3
";
    assert_eq!(coverage(&format!("{inputs}{apart}")), (0, 2 * 160_000, 0));
}
