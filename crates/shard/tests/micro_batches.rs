//! What a step in micro-batches becomes: text in, text out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use aten::Strategy;
use expect_test::expect;
use ir::{AxisKind, Graph, Mesh, MeshAxis, NodeId, PartKind, Placement, Reduce};
use unisono_shard::{Assignment, Gathers, Offered, Space, partition_mesh};

/// A layer whose output is centred over the batch, which therefore is needed whole in the middle, with a mask drawn at random.
const STEP: &str = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
op aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
op aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
input v0: f32[4, 4] = parameter "params.w"
input v1: f32[6, 4] = batch "batch.x"
part forward
v2: f32[6, 4] = aten::mm(v1, v0)
v3: f32[1, 4] = aten::sum.dim_IntList(v2, [0], true, none)
v4: f32[6, 4] = aten::sub.Tensor(v2, v3, 1)
v5: f32[6, 4] = aten::bernoulli.p(v1, 0.5, none)
v6: f32[6, 4] = aten::mul.Tensor(v4, v5)
part backward
v7: f32[4, 6]{1, 4} = aten::t(v1)
v8: f32[4, 4] = aten::mm(v7, v6)
part update
v9: f32[4, 4] = aten::sub.Tensor(v0, v8, 1)
return v3
update "params.w" = v9
"#;

/// A layer with two gradients, of which the first is worked on by its rows, so that it must be whole before.
const TWO_GRADIENTS: &str = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::neg(Tensor self) -> Tensor
op aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
input v0: f32[4, 4] = parameter "params.w"
input v1: f32[60, 4] = batch "batch.x"
part forward
v2: f32[60, 4] = aten::mm(v1, v0)
part backward
v3: f32[4, 60]{1, 4} = aten::t(v1)
v4: f32[4, 4] = aten::mm(v3, v2)
v5: f32[4, 4] = aten::neg(v4)
v6: f32[60, 4] = aten::neg(v2)
v7: f32[4, 4] = aten::mm(v3, v6)
part update
v8: f32[4, 4] = aten::add.Tensor(v5, v7, 1)
update "params.w" = v8
"#;

/// Every operation in slices of the batch where it can be.
fn in_slices(graph: &Graph, axis: &MeshAxis) -> Assignment {
    let space = Space::new(graph, axis, Offered::Even);
    let rows = |placement: &Placement| *placement == Placement::shard(0);
    let sum = |placement: &Placement| *placement == Placement::Partial(Reduce::Sum);
    let contracts = |strategy: &&Strategy| {
        strategy.operands.contains(&Placement::shard(1)) && strategy.results.iter().all(sum)
    };
    let keeps_rows = |strategy: &&Strategy| {
        let results = strategy.results.iter();
        strategy.operands.first().is_some_and(rows) && results.clone().all(|one| rows(one) || sum(one))
    };
    let strategy = |id: &NodeId| {
        let all = || space.strategies(*id).iter();
        let is_backward = graph.part_kind(*id) == PartKind::Backward;
        let found = all().find(contracts).filter(|_| is_backward).or_else(|| all().find(keeps_rows));
        found.cloned().map(|strategy| (*id, strategy))
    };
    Assignment { nodes: graph.order.iter().filter_map(strategy).collect(), ..Assignment::default() }
}

#[test]
fn what_differs_between_slices_runs_in_loops_that_end_where_all_is_needed() {
    let graph = Graph::from_text("step", STEP).unwrap();
    let mesh = Mesh { axes: vec![MeshAxis::micro_batches(2)] };
    let program = partition_mesh(&graph, &mesh, 0, |graph, axis| Ok(in_slices(graph, axis))).unwrap();
    ir::verify(&program).unwrap();
    let text = program.to_string();
    let program: Vec<&str> = text.split("\n\n").skip(3).collect();
    expect![[r#"
        part forward 0
        v2: f32[3, 4] = aten::slice.Tensor(v1, 0, 0, 3, 1) @l0
        v3: f32[3, 4] = aten::mm(v2, v0)
        v4: f32[1, 4] = aten::sum.dim_IntList(v3, [0], true, none)
        part forward 1
        v5: f32[3, 4] = aten::slice.Tensor(v1, 0, 3, 6, 1) @l0
        v6: f32[3, 4] = aten::mm(v5, v0)
        v7: f32[1, 4] = aten::sum.dim_IntList(v6, [0], true, none)
        v8: f32[1, 4] = aten::add.Tensor(v4, v7, 1) @l1
        part forward
        v9: f32[6, 4] = aten::bernoulli.p(v1, 0.5, none)
        part backward
        v10: f32[4, 6]{1, 4} = aten::t(v1)
        part forward 0
        v11: f32[3, 4] = aten::sub.Tensor(v3, v8, 1)
        v12: f32[3, 4] = aten::slice.Tensor(v9, 0, 0, 3, 1) @l2
        v13: f32[3, 4] = aten::mul.Tensor(v11, v12)
        part backward 0
        v14: f32[4, 3]{1, 4} = aten::slice.Tensor(v10, 1, 0, 3, 1) @l3
        v15: f32[4, 3] = aten::clone(v14, format(contiguous)) @l3
        v16: f32[4, 4] = aten::mm(v15, v13)
        part forward 1
        v17: f32[3, 4] = aten::sub.Tensor(v6, v8, 1)
        v18: f32[3, 4] = aten::slice.Tensor(v9, 0, 3, 6, 1) @l2
        v19: f32[3, 4] = aten::mul.Tensor(v17, v18)
        part backward 1
        v20: f32[4, 3]{1, 4} = aten::slice.Tensor(v10, 1, 3, 6, 1) @l3
        v21: f32[4, 3] = aten::clone(v20, format(contiguous)) @l3
        v22: f32[4, 4] = aten::mm(v21, v19)
        v23: f32[4, 4] = aten::add.Tensor(v16, v22, 1) @l4
        part update
        v24: f32[4, 4] = aten::sub.Tensor(v0, v23, 1)

        return v8

        update "params.w" = v24

        label l0 "reshard batch.x on micro_batches: replicate -> shard(0)"
        label l1 "reshard v3 of aten::sum.dim_IntList in `` on micro_batches: partial(sum) -> replicate"
        label l2 "reshard v5 of aten::bernoulli.p in `` on micro_batches: replicate -> shard(0)"
        label l3 "reshard v7 of aten::t in `` on micro_batches: replicate -> shard(1)"
        label l4 "reshard v8 of aten::mm in `` on micro_batches: partial(sum) -> replicate"
    "#]]
    .assert_eq(&program.join("\n\n"));
}

#[test]
fn backward_does_not_wait_for_a_gradient_that_must_be_whole() {
    let graph = Graph::from_text("step", TWO_GRADIENTS).unwrap();
    let mesh = Mesh { axes: vec![MeshAxis::micro_batches(2)] };
    let program = partition_mesh(&graph, &mesh, 0, |graph, axis| Ok(in_slices(graph, axis))).unwrap();
    ir::verify(&program).unwrap();
    let text = program.to_string();
    let program: Vec<&str> = text.split("\n\n").skip(3).collect();
    expect![[r#"
        part backward
        v2: f32[4, 60]{1, 4} = aten::t(v1)
        part forward 0
        v3: f32[30, 4] = aten::slice.Tensor(v1, 0, 0, 30, 1) @l0
        v4: f32[30, 4] = aten::mm(v3, v0)
        part backward 0
        v5: f32[4, 30]{1, 4} = aten::slice.Tensor(v2, 1, 0, 30, 1) @l1
        v6: f32[4, 30] = aten::clone(v5, format(contiguous)) @l1
        v7: f32[4, 4] = aten::mm(v6, v4)
        v8: f32[1, 2, 2, 4] = aten::view(v7, [1, 2, 2, 4]) @l2
        v9: f32[2, 1, 2, 4]{8, 16, 4, 1} = aten::permute(v8, [1, 0, 2, 3]) @l2
        v10: f32[4, 4] = aten::view(v9, [4, 4]) @l2
        v11: f32[30, 4] = aten::neg(v4)
        v12: f32[4, 4] = aten::mm(v6, v11)
        part forward 1
        v13: f32[30, 4] = aten::slice.Tensor(v1, 0, 30, 60, 1) @l0
        v14: f32[30, 4] = aten::mm(v13, v0)
        part backward 1
        v15: f32[4, 30]{1, 4} = aten::slice.Tensor(v2, 1, 30, 60, 1) @l1
        v16: f32[4, 30] = aten::clone(v15, format(contiguous)) @l1
        v17: f32[4, 4] = aten::mm(v16, v14)
        v18: f32[1, 2, 2, 4] = aten::view(v17, [1, 2, 2, 4]) @l2
        v19: f32[2, 1, 2, 4]{8, 16, 4, 1} = aten::permute(v18, [1, 0, 2, 3]) @l2
        v20: f32[4, 4] = aten::view(v19, [4, 4]) @l2
        v21: f32[4, 4] = aten::add.Tensor(v10, v20, 1) @l2
        v22: f32[30, 4] = aten::neg(v14)
        v23: f32[4, 4] = aten::mm(v16, v22)
        v24: f32[4, 4] = aten::add.Tensor(v12, v23, 1) @l3
        part backward
        v25: f32[2, 4] = aten::slice.Tensor(v21, 0, 0, 2, 1) @l2
        v26: f32[2, 4] = aten::slice.Tensor(v21, 0, 2, 4, 1) @l2
        part backward 0
        v27: f32[2, 4] = aten::neg(v25)
        part backward 1
        v28: f32[2, 4] = aten::neg(v26)
        part update
        v29: f32[4, 4] = aten::cat([v27, v28], 0) @l4
        v30: f32[4, 4] = aten::add.Tensor(v29, v24, 1)

        update "params.w" = v30

        label l0 "reshard batch.x on micro_batches: replicate -> shard(0)"
        label l1 "reshard v3 of aten::t in `` on micro_batches: replicate -> shard(1)"
        label l2 "reshard v4 of aten::mm in `` on micro_batches: partial(sum) -> shard(0)"
        label l3 "reshard v7 of aten::mm in `` on micro_batches: partial(sum) -> replicate"
        label l4 "reshard v5 of aten::neg in `` on micro_batches: shard(0) -> replicate"
    "#]]
    .assert_eq(&program.join("\n\n"));
}

/// What the second of two ranks reads of samples that both have whole, in both of their pieces.
const PIECE: &str = r#"unisono graph 2
op aten::neg(Tensor self) -> Tensor
op aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)
op aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
input v0: f32[8, 4] = batch "batch.x"
part forward
v1: f32[8, 4] = aten::neg(v0)
v2: f32[4, 4] = aten::slice.Tensor(v1, 0, -4, 9223372036854775807, 1)
v3: f32[4, 4] = aten::neg(v2)
v4: f32[] = aten::sum(v3, none)
return v4
"#;

#[test]
fn a_slice_that_begins_before_all_takes_the_first_piece() {
    let slices =
        [("-4, 8", 4, Some(1)), ("-100, 4", 4, Some(0)), ("none, 4", 4, Some(0)), ("-3, 8", 3, None)];
    for (span, size, number) in slices {
        let text =
            PIECE.replace("-4, 9223372036854775807", span).replace("f32[4, 4]", &format!("f32[{size}, 4]"));
        let graph = Graph::from_text("step", &text).unwrap();
        assert_eq!(
            aten::piece_of(&aten::Call::new(&graph, graph.order[1])),
            number.map(|at| (0, at)),
            "{span}"
        );
    }
}

/// All rows of a piece in slices, and what it is a piece of in as many blocks as there are pieces.
fn in_pieces(graph: &Graph, axis: &MeshAxis) -> Assignment {
    let space = Space::new(graph, axis, Offered::Even);
    let blocks = |blocks| Placement::Shard { dim: 0, blocks, chunk: 0 };
    let wanted = [(blocks(2), blocks(2)), (blocks(2), blocks(1)), (blocks(1), blocks(1))];
    let sum = (blocks(1), Placement::Partial(Reduce::Sum));
    let pairs = graph.order.iter().zip(wanted.into_iter().chain([sum]));
    let chosen = pairs.filter_map(|(id, (operand, result))| {
        let is_wanted = |one: &&Strategy| one.operands[0] == operand && one.results[0] == result;
        Some((*id, space.strategies(*id).iter().find(is_wanted)?.clone()))
    });
    Assignment { nodes: chosen.collect(), ..Assignment::default() }
}

#[test]
fn each_iteration_takes_its_part_of_one_of_several_pieces() {
    let graph = Graph::from_text("step", PIECE).unwrap();
    let assignment = in_pieces(&graph, &MeshAxis::micro_batches(2));
    assert_eq!(assignment.nodes.len(), 4, "no strategy takes a piece");
    let mesh = Mesh { axes: vec![MeshAxis::micro_batches(2)] };
    let program = partition_mesh(&graph, &mesh, 0, |graph, axis| Ok(in_pieces(graph, axis))).unwrap();
    ir::verify(&program).unwrap();
    let text = program.to_string();
    let program: Vec<&str> = text.split("\n\n").skip(2).collect();
    expect![[r#"
        input v0: f32[8, 4] = batch "batch.x"

        v1: f32[2, 2, 2, 4] = aten::view(v0, [2, 2, 2, 4]) @l0
        part forward 0
        v2: f32[2, 2, 4]{16, 4, 1} = aten::select.int(v1, 1, 0) @l0
        v3: f32[2, 2, 4] = aten::clone(v2, format(contiguous)) @l0
        v4: f32[4, 4] = aten::view(v3, [4, 4]) @l0
        v5: f32[4, 4] = aten::neg(v4)
        v6: f32[2, 4] = aten::slice.Tensor(v5, 0, 2, 4, 1)
        v7: f32[2, 4] = aten::neg(v6)
        v8: f32[] = aten::sum(v7, none)
        part forward 1
        v9: f32[2, 2, 4]{16, 4, 1} = aten::select.int(v1, 1, 1) @l0
        v10: f32[2, 2, 4] = aten::clone(v9, format(contiguous)) @l0
        v11: f32[4, 4] = aten::view(v10, [4, 4]) @l0
        v12: f32[4, 4] = aten::neg(v11)
        v13: f32[2, 4] = aten::slice.Tensor(v12, 0, 2, 4, 1)
        v14: f32[2, 4] = aten::neg(v13)
        v15: f32[] = aten::sum(v14, none)
        v16: f32[] = aten::add.Tensor(v8, v15, 1) @l1

        return v16

        label l0 "reshard batch.x on micro_batches: replicate -> shard(0, 2)"
        label l1 "reshard v4 of aten::sum in `` on micro_batches: partial(sum) -> replicate"
    "#]]
    .assert_eq(&program.join("\n\n"));
}

/// A layer whose weight, and its gradient, ranks along an outer axis hold shards of.
const LAYER: &str = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
input v0: f32[4, 4] = parameter "params.w"
input v1: f32[8, 4] = batch "batch.x"
part forward
v2: f32[8, 4] = aten::mm(v1, v0)
part backward
v3: f32[4, 8]{1, 4} = aten::t(v1)
v4: f32[4, 4] = aten::mm(v3, v2)
part update
v5: f32[4, 4] = aten::sub.Tensor(v0, v4, 1)
update "params.w" = v5
"#;

/// The program of a layer in two slices on two ranks, each of which holds half of its weight.
fn sharded(gathers: Gathers, is_summed_behind: bool) -> String {
    let graph = Graph::from_text("step", LAYER).unwrap();
    let mesh = Mesh { axes: vec![MeshAxis::ranks("ranks", 2), MeshAxis::micro_batches(2)] };
    let decide = |graph: &Graph, axis: &MeshAxis| {
        let mut decided = in_slices(graph, axis);
        let space = Space::new(graph, axis, Offered::Even);
        let (is_time, is_sum) = (axis.kind == AxisKind::Time, Placement::Partial(Reduce::Sum));
        for id in &graph.order {
            let name = graph.op_name(*id);
            let operand = match graph.part_kind(*id) {
                _ if name == "aten::t" => Some(Placement::shard(0)),
                PartKind::Update if is_time => {
                    Some(is_sum).filter(|_| is_summed_behind && name != "aten::sub.Tensor")
                }
                _ if is_time && graph.is_communication(*id) => None,
                _ => continue,
            };
            let mut strategies = space.strategies(*id).iter();
            match strategies.find(|strategy| operand.is_some_and(|operand| strategy.operands[0] == operand)) {
                Some(found) => decided.nodes.insert(*id, found.clone()),
                None => decided.nodes.remove(id),
            };
        }
        if !is_time {
            decided.inputs = graph.inputs.ids().map(|id| (id, Placement::shard(0))).collect();
        }
        decided.gathers = gathers;
        Ok(decided)
    };
    let program = partition_mesh(&graph, &mesh, 0, decide).unwrap();
    ir::verify(&program).unwrap();
    let text = program.to_string();
    let program: Vec<&str> = text.split("\n\n").skip(3).collect();
    program.join("\n\n").split("\n\nlabel").next().unwrap_or_default().to_owned() + "\n"
}

#[test]
fn what_outer_axes_shard_is_gathered_once() {
    expect![[r#"
        v2: f32[4, 4] = _c10d_functional::all_gather_into_tensor(v0, 2, "axis:ranks") @l0
        v3: f32[4, 4] = _c10d_functional::wait_tensor(v2) @l0
        part forward 0
        v4: f32[2, 4] = aten::slice.Tensor(v1, 0, 0, 2, 1) @l1
        v5: f32[2, 4] = aten::mm(v4, v3)
        part backward 0
        v6: f32[4, 2]{1, 4} = aten::t(v4)
        v7: f32[4, 4] = aten::mm(v6, v5)
        part forward 1
        v8: f32[2, 4] = aten::slice.Tensor(v1, 0, 2, 4, 1) @l1
        v9: f32[2, 4] = aten::mm(v8, v3)
        part backward 1
        v10: f32[4, 2]{1, 4} = aten::t(v8)
        v11: f32[4, 4] = aten::mm(v10, v9)
        v12: f32[4, 4] = aten::add.Tensor(v7, v11, 1) @l2
        part update
        v13: f32[1, 2, 2, 4] = aten::view(v12, [1, 2, 2, 4]) @l3
        v14: f32[2, 1, 2, 4]{8, 16, 4, 1} = aten::permute(v13, [1, 0, 2, 3]) @l3
        v15: f32[4, 4] = aten::view(v14, [4, 4]) @l3
        v16: f32[2, 4] = _c10d_functional::reduce_scatter_tensor(v15, "sum", 2, "axis:ranks") @l3
        v17: f32[2, 4] = _c10d_functional::wait_tensor(v16) @l3
        v18: f32[2, 4] = aten::sub.Tensor(v0, v17, 1)

        update "params.w" = v18
    "#]]
    .assert_eq(&sharded(Gathers::Once, false));
}

#[test]
fn what_outer_axes_shard_is_gathered_in_each_slice_where_that_is_decided() {
    expect![[r#"
        part forward 0
        v2: f32[4, 4] = _c10d_functional::all_gather_into_tensor(v0, 2, "axis:ranks") @l0
        v3: f32[4, 4] = _c10d_functional::wait_tensor(v2) @l0
        v4: f32[2, 4] = aten::slice.Tensor(v1, 0, 0, 2, 1) @l1
        v5: f32[2, 4] = aten::mm(v4, v3)
        part backward 0
        v6: f32[4, 2]{1, 4} = aten::t(v4)
        v7: f32[4, 4] = aten::mm(v6, v5)
        v8: f32[1, 2, 2, 4] = aten::view(v7, [1, 2, 2, 4]) @l2
        v9: f32[2, 1, 2, 4]{8, 16, 4, 1} = aten::permute(v8, [1, 0, 2, 3]) @l2
        v10: f32[4, 4] = aten::view(v9, [4, 4]) @l2
        v11: f32[2, 4] = _c10d_functional::reduce_scatter_tensor(v10, "sum", 2, "axis:ranks") @l2
        v12: f32[2, 4] = _c10d_functional::wait_tensor(v11) @l2
        part forward 1
        v13: f32[4, 4] = _c10d_functional::all_gather_into_tensor(v0, 2, "axis:ranks") @l0
        v14: f32[4, 4] = _c10d_functional::wait_tensor(v13) @l0
        v15: f32[2, 4] = aten::slice.Tensor(v1, 0, 2, 4, 1) @l1
        v16: f32[2, 4] = aten::mm(v15, v14)
        part backward 1
        v17: f32[4, 2]{1, 4} = aten::t(v15)
        v18: f32[4, 4] = aten::mm(v17, v16)
        v19: f32[1, 2, 2, 4] = aten::view(v18, [1, 2, 2, 4]) @l2
        v20: f32[2, 1, 2, 4]{8, 16, 4, 1} = aten::permute(v19, [1, 0, 2, 3]) @l2
        v21: f32[4, 4] = aten::view(v20, [4, 4]) @l2
        v22: f32[2, 4] = _c10d_functional::reduce_scatter_tensor(v21, "sum", 2, "axis:ranks") @l2
        v23: f32[2, 4] = _c10d_functional::wait_tensor(v22) @l2
        v24: f32[2, 4] = aten::add.Tensor(v12, v23, 1) @l3
        part update
        v25: f32[2, 4] = aten::sub.Tensor(v0, v24, 1)

        update "params.w" = v25
    "#]]
    .assert_eq(&sharded(Gathers::Each, true));
}

/// What ranks along another axis slice from samples, and gather of them.
const SLICED: &str = r#"
unisono graph 2
op aten::neg(Tensor self) -> Tensor
op aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)
op _c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor
op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor
input v0: f32[16, 4] = batch "batch.0"
part forward
v1: f32[16, 4] = aten::neg(v0)
v2: f32[8, 4] = aten::slice.Tensor(v1, 0, 0, 8, 1)
v3: f32[8, 4] = aten::neg(v2)
v4: f32[16, 4] = _c10d_functional::all_gather_into_tensor(v3, 2, "axis:outer")
v5: f32[16, 4] = _c10d_functional::wait_tensor(v4)
v6: f32[16, 4] = aten::neg(v5)
return v6
"#;

#[test]
fn what_has_as_many_samples_as_slices_is_not_shared_between_ranks_however_it_came_about() {
    let graph = Graph::from_text("step", SLICED).unwrap();
    let space = Space::in_slices(&graph, &MeshAxis::ranks("inner", 2), Offered::Even, 8);
    let is_offered = |number: usize| {
        let value = graph.nodes[graph.order[number]].results().next().unwrap();
        space.offers[value].contains(&Placement::shard(0))
    };
    assert_eq!((0..6).map(is_offered).collect::<Vec<_>>(), [true, false, false, true, true, true]);
}

/// A product of samples with a mask that follows from no batch.
const MASKED: &str = r#"
unisono graph 2
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
input v0: f32[16, 4] = batch "batch.0"
input v1: f32[16, 4] = buffer "mask"
part forward
v2: f32[16, 4] = aten::mul.Tensor(v0, v1)
return v2
"#;

#[test]
fn a_mask_leads_to_no_sharding_of_samples_that_leaves_nothing_to_slice() {
    let graph = Graph::from_text("step", MASKED).unwrap();
    let sharded_results = |slices| {
        let space = Space::in_slices(&graph, &MeshAxis::ranks("inner", 4), Offered::Even, slices);
        let strategies = space.strategies(graph.order[0]).iter().map(|one| one.results[0]);
        strategies.filter(|one| *one == Placement::shard(0)).count()
    };
    assert!(sharded_results(4) > 0, "four slices of what four ranks have of sixteen samples");
    assert_eq!(sharded_results(8), 0);
}
