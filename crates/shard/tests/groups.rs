//! Products of groups of rows, of which each rank has some: text in, the program of the second of two ranks out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use expect_test::expect;
use ir::{Graph, MeshAxis, Placement};
use unisono_shard::{Assignment, Offered, Space, partition};

const PRODUCTS: &str = r#"unisono graph 2
op aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor
op aten::silu(Tensor self) -> Tensor
op aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
input v0: f32[12, 16] = batch "batch.0"
input v1: f32[4, 16, 24] = parameter "params.up"
input v2: f32[4, 24, 16] = parameter "params.down"
input v3: i32[4] = batch "batch.1"
part forward
v4: f32[12, 16] = aten::silu(v0)
v5: i32[4] = aten::cumsum(v3, 0, i32)
v6: f32[12, 24] = aten::_grouped_mm(v4, v1, v5, none, none)
v7: f32[12, 24] = aten::silu(v6)
v8: f32[12, 16] = aten::_grouped_mm(v7, v2, v5, none, none)
return v8
"#;

/// The program of the second of two ranks, where products and what lies between them are in groups, the first operation runs as `before`
/// says, and the last one, if it is no product, as `after` does.
fn program(text: &str, before: Placement, after: Placement) -> String {
    let graph = Graph::from_text("case", text).unwrap();
    let axis = MeshAxis::ranks("a", 2);
    let space = Space::new(&graph, &axis, Offered::Useful);
    let in_groups = |placement: &Placement| matches!(placement, Placement::Groups { .. });
    let mut assignment = Assignment::default();
    for node in &graph.order {
        let strategies = space.strategies(*node);
        let placed = |placement| strategies.iter().find(move |one| one.results.first() == Some(&placement));
        let strategy = match node {
            node if *node == graph.order[0] => placed(before),
            node if graph.op_name(*node) == "aten::neg" => placed(after),
            _ => strategies.iter().find(|one| one.operands.iter().any(in_groups)),
        };
        assignment.nodes.extend(strategy.map(|one| (*node, one.clone())));
    }
    for (name, placement) in
        [("params.up", Placement::shard(0)), ("params.down", Placement::shard(0)), ("batch.0", before)]
    {
        let (id, _) = graph.inputs.iter().find(|(_, input)| input.name == name).unwrap();
        assignment.inputs.insert(id, placement);
    }
    let local = partition(&graph, &assignment, &axis, 1).unwrap().into_renumbered();
    ir::verify(&local).unwrap();
    let text = local.to_string();
    let program: Vec<&str> = text.lines().filter(|line| line.starts_with(['v', '(', 'r'])).collect();
    format!("{}\n", program.join("\n"))
}

#[test]
fn rows_go_into_groups_before_the_first_product_and_out_of_them_behind_the_last() {
    // What runs before the offsets are known is not in groups.
    expect![[r#"
        v4: f32[12, 16] = aten::silu(v0)
        v5: i32[4] = aten::cumsum(v3, 0, i32)
        v6: i64[3] = unisono::group_bounds(v5, 2, 12)
        v7: f32[6, 16] = unisono::own_rows(v4, v6, 0, 1) @l0
        v8: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0)
        v9: i32[1] = aten::slice.Tensor(v8, 0, 2, 3, 1)
        v10: i32[2] = aten::slice.Tensor(v8, 0, 3, 5, 1)
        v11: i32[2] = aten::sub.Tensor(v10, v9, 1)
        v12: f32[6, 24] = aten::_grouped_mm(v7, v1, v11, none, none)
        v13: f32[6, 24] = aten::silu(v12)
        v14: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0)
        v15: i32[1] = aten::slice.Tensor(v14, 0, 2, 3, 1)
        v16: i32[2] = aten::slice.Tensor(v14, 0, 3, 5, 1)
        v17: i32[2] = aten::sub.Tensor(v16, v15, 1)
        v18: f32[6, 16] = aten::_grouped_mm(v13, v2, v17, none, none)
        v19: f32[12, 16] = unisono::for_each_rank(v18, 2) @l1
        v20: f32[12, 16] = unisono::exchange_rows(v19, v6, "groups to whole", 12, 1, "axis:a") @l1
        v21: f32[12, 16] = _c10d_functional::wait_tensor(v20) @l1
        return v21
    "#]]
    .assert_eq(&program(PRODUCTS, Placement::Replicate, Placement::Replicate));
}

#[test]
fn shards_of_rows_are_exchanged_for_groups_and_back() {
    let text = PRODUCTS.replace("return v8", "v9: f32[12, 16] = aten::neg(v8)\nreturn v9");
    let text = text.replace("op aten::cumsum", "op aten::neg(Tensor self) -> Tensor\nop aten::cumsum");
    expect![[r#"
        v4: f32[6, 16] = aten::silu(v0)
        v5: i32[4] = aten::cumsum(v3, 0, i32)
        v6: i64[3] = unisono::group_bounds(v5, 2, 12)
        v7: f32[6, 16] = unisono::exchange_rows(v4, v6, "shards to groups", 12, 1, "axis:a") @l0
        v8: f32[6, 16] = _c10d_functional::wait_tensor(v7) @l0
        v9: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0)
        v10: i32[1] = aten::slice.Tensor(v9, 0, 2, 3, 1)
        v11: i32[2] = aten::slice.Tensor(v9, 0, 3, 5, 1)
        v12: i32[2] = aten::sub.Tensor(v11, v10, 1)
        v13: f32[6, 24] = aten::_grouped_mm(v8, v1, v12, none, none)
        v14: f32[6, 24] = aten::silu(v13)
        v15: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0)
        v16: i32[1] = aten::slice.Tensor(v15, 0, 2, 3, 1)
        v17: i32[2] = aten::slice.Tensor(v15, 0, 3, 5, 1)
        v18: i32[2] = aten::sub.Tensor(v17, v16, 1)
        v19: f32[6, 16] = aten::_grouped_mm(v14, v2, v18, none, none)
        v20: f32[6, 16] = unisono::exchange_rows(v19, v6, "groups to shards", 12, 1, "axis:a") @l1
        v21: f32[6, 16] = _c10d_functional::wait_tensor(v20) @l1
        v22: f32[6, 16] = aten::neg(v21)
        v23: f32[12, 16] = _c10d_functional::all_gather_into_tensor(v22, 2, "axis:a") @l2
        v24: f32[12, 16] = _c10d_functional::wait_tensor(v23) @l2
        return v24
    "#]]
    .assert_eq(&program(&text, Placement::shard(0), Placement::shard(0)));
}

#[test]
fn shards_of_columns_are_exchanged_for_groups_and_back() {
    let text = PRODUCTS.replace("return v8", "v9: f32[12, 16] = aten::neg(v8)\nreturn v9");
    let text = text.replace("op aten::cumsum", "op aten::neg(Tensor self) -> Tensor\nop aten::cumsum");
    expect![[r#"
        v4: f32[12, 8] = aten::silu(v0)
        v5: i32[4] = aten::cumsum(v3, 0, i32)
        v6: i64[3] = unisono::group_bounds(v5, 2, 12)
        v7: f32[12, 8] = unisono::exchange_rows(v4, v6, "whole to groups", 12, 1, "axis:a") @l0
        v8: f32[12, 8] = _c10d_functional::wait_tensor(v7) @l0
        v9: f32[6, 16] = unisono::join_columns(v8, 1, 2) @l0
        v10: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0)
        v11: i32[1] = aten::slice.Tensor(v10, 0, 2, 3, 1)
        v12: i32[2] = aten::slice.Tensor(v10, 0, 3, 5, 1)
        v13: i32[2] = aten::sub.Tensor(v12, v11, 1)
        v14: f32[6, 24] = aten::_grouped_mm(v9, v1, v13, none, none)
        v15: f32[6, 24] = aten::silu(v14)
        v16: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0)
        v17: i32[1] = aten::slice.Tensor(v16, 0, 2, 3, 1)
        v18: i32[2] = aten::slice.Tensor(v16, 0, 3, 5, 1)
        v19: i32[2] = aten::sub.Tensor(v18, v17, 1)
        v20: f32[6, 16] = aten::_grouped_mm(v15, v2, v19, none, none)
        v21: f32[12, 8] = unisono::deal_columns(v20, 1, 2) @l1
        v22: f32[12, 8] = unisono::exchange_rows(v21, v6, "groups to whole", 12, 1, "axis:a") @l1
        v23: f32[12, 8] = _c10d_functional::wait_tensor(v22) @l1
        v24: f32[12, 8] = aten::neg(v23)
        v25: f32[24, 8] = _c10d_functional::all_gather_into_tensor(v24, 2, "axis:a") @l2
        v26: f32[24, 8] = _c10d_functional::wait_tensor(v25) @l2
        v27: f32[2, 12, 1, 8] = aten::view(v26, [2, 12, 1, 8]) @l2
        v28: f32[12, 1, 2, 8]{8, 8, 96, 1} = aten::permute(v27, [1, 2, 0, 3]) @l2
        v29: f32[12, 1, 2, 8] = aten::clone(v28, format(contiguous)) @l2
        v30: f32[12, 16] = aten::view(v29, [12, 16]) @l2
        return v30
    "#]]
    .assert_eq(&program(&text, Placement::shard(1), Placement::shard(1)));
}
