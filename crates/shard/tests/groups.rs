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

#[test]
fn rows_go_into_groups_before_the_first_product_and_out_of_them_behind_the_last() {
    let graph = Graph::from_text("case", PRODUCTS).unwrap();
    let axis = MeshAxis::ranks("a", 2);
    let space = Space::new(&graph, &axis, Offered::Useful);
    let in_groups = |placement: &Placement| matches!(placement, Placement::Groups { .. });
    let mut assignment = Assignment::default();
    for node in &graph.order {
        let strategy = space.strategies(*node).iter().find(|one| one.operands.iter().any(in_groups));
        assignment.nodes.extend(strategy.map(|one| (*node, one.clone())));
    }
    // What runs before the offsets are known is not in groups.
    assert_eq!(assignment.nodes.len(), 3);
    for name in ["params.up", "params.down"] {
        let (id, _) = graph.inputs.iter().find(|(_, input)| input.name == name).unwrap();
        assignment.inputs.insert(id, Placement::shard(0));
    }
    let local = partition(&graph, &assignment, &axis, 1).unwrap().into_renumbered();
    ir::verify(&local).unwrap();
    let text = local.to_string();
    let program: Vec<&str> = text.lines().filter(|line| line.starts_with(['v', '(', 'r'])).collect();
    expect![[r#"
        v4: f32[12, 16] = aten::silu(v0)
        v5: i32[4] = aten::cumsum(v3, 0, i32)
        v6: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0) @l0
        v7: i64[12] = aten::arange(12, i64, none, device(cpu), none) @l0
        v8: i32[1] = aten::slice.Tensor(v6, 0, 2, 3, 1) @l0
        v9: i64[12] = aten::add.Tensor(v7, v8, 1) @l0
        v10: i64[12] = aten::remainder.Scalar(v9, 12) @l0
        v11: f32[12, 16] = aten::index_select(v4, 0, v10) @l0
        v12: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0)
        v13: i32[1] = aten::slice.Tensor(v12, 0, 2, 3, 1)
        v14: i32[2] = aten::slice.Tensor(v12, 0, 3, 5, 1)
        v15: i32[2] = aten::sub.Tensor(v14, v13, 1)
        v16: f32[12, 24] = aten::_grouped_mm(v11, v1, v15, none, none)
        v17: f32[12, 24] = aten::silu(v16)
        v18: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0)
        v19: i32[1] = aten::slice.Tensor(v18, 0, 2, 3, 1)
        v20: i32[2] = aten::slice.Tensor(v18, 0, 3, 5, 1)
        v21: i32[2] = aten::sub.Tensor(v20, v19, 1)
        v22: f32[12, 16] = aten::_grouped_mm(v17, v2, v21, none, none)
        v23: i32[5] = aten::constant_pad_nd(v5, [1, 0], 0) @l1
        v24: i64[12] = aten::arange(12, i64, none, device(cpu), none) @l1
        v25: i32[1] = aten::slice.Tensor(v23, 0, 2, 3, 1) @l1
        v26: i32[1] = aten::slice.Tensor(v23, 0, 4, 5, 1) @l1
        v27: i64[12] = aten::sub.Tensor(v24, v25, 1) @l1
        v28: bool[12] = aten::lt.Tensor(v24, v25) @l1
        v29: bool[12] = aten::ge.Tensor(v24, v26) @l1
        v30: bool[12] = aten::bitwise_or.Tensor(v28, v29) @l1
        v31: i64[12] = aten::remainder.Scalar(v27, 12) @l1
        v32: f32[12, 16] = aten::index_select(v22, 0, v31) @l1
        v33: bool[12, 1] = aten::view(v30, [12, 1]) @l1
        v34: f32[12, 16] = aten::masked_fill.Scalar(v32, v33, 0) @l1
        v35: f32[12, 16] = _c10d_functional::all_reduce(v34, "sum", "axis:a") @l2
        v36: f32[12, 16] = _c10d_functional::wait_tensor(v35) @l2
        return v36
    "#]]
    .assert_eq(&format!("{}\n", program.join("\n")));
}
