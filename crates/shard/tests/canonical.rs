//! What operations become before they are sharded: text in, text out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use expect_test::{Expect, expect};
use ir::Graph;
use unisono_shard::canonical;

/// Compares the program, behind operators and inputs, of what becomes of a graph.
fn becomes(text: &str, expected: &Expect) {
    let graph = canonical(&Graph::from_text("case", text).unwrap());
    ir::verify(&graph).unwrap();
    let text = graph.renumbered().to_string();
    let program = text.split("\n\n").filter(|part| {
        !["unisono", "op ", "input ", "place ", "module "].iter().any(|word| part.starts_with(word))
    });
    expected.assert_eq(&format!("{}\n", program.collect::<Vec<_>>().join("\n\n").trim_end()));
}

#[test]
fn a_loss_counts_its_targets_apart_from_the_sum() {
    becomes(
        r#"unisono graph 2
op aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)
op aten::ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
op aten::nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor
input v0: f32[6, 4] = batch "batch.0"
input v1: i64[6] = batch "batch.1"
part forward
(v2: f32[], v3: f32[]) = aten::nll_loss_forward(v0, v1, none, 1, -100)
part backward
v4: f32[] = aten::ones_like(v2, none, none, none, false, none)
v5: f32[6, 4] = aten::nll_loss_backward(v4, v0, v1, none, 1, -100, v3)
return v2, v5
"#,
        &expect![[r#"
            (v2: f32[], v3: f32[]) = aten::nll_loss_forward(v0, v1, none, 2, -100)
            v4: bool[6] = aten::ne.Scalar(v1, -100)
            v5: f32[6] = aten::_to_copy(v4, f32, none, none, none, false, none)
            v6: f32[] = aten::sum.dim_IntList(v5, [0], false, none)
            v7: f32[] = aten::div.Tensor(v2, v6)
            part backward
            v8: f32[] = aten::full([], 1, f32, none, device(cpu), none)
            v9: f32[] = aten::div.Tensor(v8, v6)
            v10: f32[6, 4] = aten::nll_loss_backward(v9, v0, v1, none, 2, -100, v6)

            return v7, v10
        "#]],
    );
}

#[test]
fn class_weights_are_added_up_by_the_loss_itself() {
    becomes(
        r#"unisono graph 2
op aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)
input v0: f32[6, 4] = batch "batch.0"
input v1: i64[6] = batch "batch.1"
input v2: f32[4] = buffer "buffers.weight"
(v3: f32[], v4: f32[]) = aten::nll_loss_forward(v0, v1, v2, 1, -100)
return v3
"#,
        &expect![[r#"
            (v3: f32[], v4: f32[]) = aten::nll_loss_forward(v0, v1, v2, 2, -100)
            v5: f32[] = aten::div.Tensor(v3, v4)

            return v5
        "#]],
    );
}

#[test]
fn what_is_made_in_the_shape_of_another_is_a_constant_that_lies_in_memory_as_before() {
    becomes(
        r#"unisono graph 2
op aten::neg(Tensor self) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
op aten::zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
op aten::full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
op aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
op aten::new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
input v0: f32[6, 4] = batch "batch.0"
v1: f32[6, 4] = aten::neg(v0)
v2: f32[4, 6]{1, 4} = aten::t(v1)
v3: f32[4, 6]{1, 4} = aten::empty_like(v2, none, none, none, none, none)
v4: bool[6, 4] = aten::full_like(v1, true, bool, none, none, none, none)
v5: f64[2, 3] = aten::new_full(v1, [2, 3], 0.5, f64, none, none, none)
v6: f32[6, 4] = aten::zeros_like(v0, none, none, none, none, none)
return v3, v4, v5, v6
"#,
        &expect![[r#"
            v1: f32[6, 4] = aten::neg(v0)
            v2: f32[4, 6]{1, 4} = aten::t(v1)
            v3: f32[6, 4] = aten::empty.memory_format([6, 4], f32, none, device(cpu), none, none)
            v4: f32[4, 6]{1, 4} = aten::permute(v3, [1, 0])
            v5: bool[6, 4] = aten::full([6, 4], true, bool, none, device(cpu), none)
            v6: f64[2, 3] = aten::full([2, 3], 0.5, f64, none, device(cpu), none)
            v7: f32[6, 4] = aten::zeros_like(v0, none, none, none, none, none)

            return v4, v5, v6, v7
        "#]],
    );
}

#[test]
fn dropout_as_one_kernel_is_a_mask_drawn_from_nothing_and_a_product() {
    becomes(
        r#"unisono graph 2
op aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)
input v0: f32[6, 4] cuda:0 = batch "batch.0"
(v1: f32[6, 4] cuda:0, v2: bool[6, 4] cuda:0) = aten::native_dropout(v0, 0.5, true)
return v1, v2
"#,
        &expect![[r#"
            v1: f32[6, 4] cuda:0 = aten::empty.memory_format([6, 4], f32, none, device(cuda:0), none, none)
            (v2: f32[6, 4] cuda:0, v3: bool[6, 4] cuda:0) = aten::native_dropout(v1, 0.5, true)
            v4: f32[6, 4] cuda:0 = aten::native_dropout_backward(v0, v3, 2.0)

            return v4, v3
        "#]],
    );
}

#[test]
fn dropout_of_everything_stays_one_operation() {
    becomes(
        r#"unisono graph 2
op aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)
input v0: f32[6] cuda:0 = batch "batch.0"
(v1: f32[6] cuda:0, v2: bool[6] cuda:0) = aten::native_dropout(v0, 1.0, true)
return v1
"#,
        &expect![[r#"
            (v1: f32[6] cuda:0, v2: bool[6] cuda:0) = aten::native_dropout(v0, 1.0, true)

            return v1
        "#]],
    );
}

#[test]
fn tensors_that_are_joined_with_an_empty_one_have_the_element_type_of_all() {
    becomes(
        r#"unisono graph 2
op aten::cat(Tensor[] tensors, int dim=0) -> Tensor
input v0: f32[0] = constant "constants.0"
input v1: bf16[2, 3] = batch "batch.0"
part forward
v2: f32[2, 3] = aten::cat([v0, v1], -2)
return v2
"#,
        &expect![[r#"
            v2: f32[2, 3] = aten::_to_copy(v1, f32, none, none, none, false, none)
            v3: f32[2, 3] = aten::cat([v2], -2)

            return v3
        "#]],
    );
}

#[test]
fn empty_tensors_that_are_joined_with_others_are_left_out() {
    becomes(
        r#"unisono graph 2
op aten::cat(Tensor[] tensors, int dim=0) -> Tensor
input v0: f32[0] = constant "constants.0"
input v1: f32[2, 3] = batch "batch.0"
part forward
v2: f32[2, 3] = aten::cat([v0, v1], -2)
v3: f32[0] = aten::cat([v0, v0], 0)
return v2, v3
"#,
        &expect![[r#"
            v2: f32[2, 3] = aten::cat([v1], -2)
            v3: f32[0] = aten::cat([v0, v0], 0)

            return v2, v3
        "#]],
    );
}

#[test]
fn the_largest_of_all_elements_is_that_of_the_largest_of_each_element_of_the_first_dimension() {
    becomes(
        r#"unisono graph 2
op aten::max(Tensor self) -> Tensor
op aten::_is_all_true(Tensor self) -> Tensor
input v0: f32[4, 3, 2] = batch "batch.0"
input v1: bool[4, 2] = batch "batch.1"
input v2: f32[4] = batch "batch.2"
part forward
v3: f32[] = aten::max(v0)
v4: bool[] = aten::_is_all_true(v1)
v5: f32[] = aten::max(v2)
return v3, v4, v5
"#,
        &expect![[r#"
            v3: f32[4] = aten::amax(v0, [1, 2], false)
            v4: f32[] = aten::amax(v3, [0], false)
            v5: bool[4] = aten::all.dims(v1, [1], false)
            v6: bool[] = aten::all.dims(v5, [0], false)
            v7: f32[] = aten::max(v2)

            return v4, v6, v7
        "#]],
    );
}

#[test]
fn conjugates_are_computed_and_not_resolved_again() {
    becomes(
        r#"unisono graph 2
op aten::_conj(Tensor self) -> Tensor
op aten::resolve_conj(Tensor self) -> Tensor
input v0: c64[4, 3] = batch "batch.0"
part forward
v1: c64[4, 3] = aten::_conj(v0)
v2: c64[4, 3] = aten::resolve_conj(v1)
v3: c64[4, 3] = aten::resolve_conj(v0)
return v2, v3
"#,
        &expect![[r#"
            v1: c64[4, 3] = aten::conj_physical(v0)
            v2: c64[4, 3] = aten::resolve_conj(v0)

            return v1, v2
        "#]],
    );
}
