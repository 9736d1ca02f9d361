//! What a step in pipeline stages becomes: text in, text out.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use expect_test::expect;
use ir::{Graph, Mesh, MeshAxis, transfer_stages, verify};
use schedule::{Name, Placement, Schedule};
use unisono_shard::{
    Assignment, partition_mesh,
    stages::{stage_graphs, staged},
};

/// Two layers with the same weight, clipped by the norm of its gradient.
const STEP: &str = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::relu(Tensor self) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
op aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
op aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
input v0: f32[4, 4] = parameter "params.tied"
input v1: f32[4, 4] = parameter "params.last"
input v2: f32[6, 4] = batch "batch.x"
v3: f32[6, 4] = aten::mm(v2, v0)
v4: f32[6, 4] = aten::relu(v3)
v5: f32[6, 4] = aten::mm(v4, v1)
v6: f32[6, 4] = aten::mm(v5, v0)
part backward
v7: f32[4, 6]{1, 4} = aten::t(v5)
v8: f32[4, 4] = aten::mm(v7, v6)
v9: f32[4, 6]{1, 4} = aten::t(v4)
v10: f32[4, 4] = aten::mm(v9, v6)
v11: f32[4, 6]{1, 4} = aten::t(v2)
v12: f32[4, 4] = aten::mm(v11, v4)
v13: f32[4, 4] = aten::add.Tensor(v8, v12, 1)
part update
v14: f32[] = aten::linalg_vector_norm(v13, 2, none, false, none)
v15: f32[] = aten::linalg_vector_norm(v10, 2, none, false, none)
v16: f32[] = aten::add.Tensor(v14, v15, 1)
v17: f32[4, 4] = aten::mul.Tensor(v13, v16)
v18: f32[4, 4] = aten::sub.Tensor(v0, v17, 1)
v19: f32[4, 4] = aten::mul.Tensor(v10, v16)
v20: f32[4, 4] = aten::sub.Tensor(v1, v19, 1)
return v6
update "params.tied" = v18
update "params.last" = v20
"#;

fn cut(cuts: &[usize], name: Name) -> Vec<Graph> {
    let chunks = name.chunks(None).unwrap();
    cut_for(cuts, &name.schedule((cuts.len() as u32 + 1) / chunks, chunks, 1))
}

fn cut_for(cuts: &[usize], schedule: &Schedule) -> Vec<Graph> {
    let graph = Graph::from_text("step", STEP).unwrap();
    let staged = staged(&graph, cuts, &schedule.placement).unwrap();
    let (stages, micro_batches) = (schedule.placement.stages, schedule.micro_batches);
    let mesh = Mesh { axes: vec![MeshAxis::ranks("stages", stages), MeshAxis::micro_batches(micro_batches)] };
    let whole = partition_mesh(&staged.graph, &mesh, 0, |_, _| Ok(Assignment::default())).unwrap();
    let graphs = stage_graphs(&whole, &staged.held, schedule).unwrap();
    for graph in &graphs {
        verify(graph).unwrap();
    }
    graphs
}

fn program(graph: &Graph) -> String {
    let text = graph.to_string();
    let lines = text.lines().filter(|line| !line.starts_with("op ") && !line.starts_with("unisono"));
    lines.filter(|line| !line.is_empty()).fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn a_tied_weight_an_activation_and_norms_are_sent_where_they_are_used() {
    let graphs = cut(&[2], Name::OneForwardOneBackward);
    expect![[r#"
        input v0: f32[4, 4] = parameter "params.tied"
        input v1: f32[0] = parameter "params.last"
        input v2: f32[6, 4] = batch "batch.x"
        v3: f32[4, 4] = _c10d_functional::broadcast(v0, 0, "axis:stages:0>1") @l0
        v4: f32[6, 4] = aten::empty.memory_format([6, 4], f32, none, device(cpu), none, none) @l1
        v5: f32[6, 4] = _c10d_functional::broadcast(v4, 1, "axis:stages:1>0") @l1
        v6: f32[4, 4] = aten::empty.memory_format([4, 4], f32, none, device(cpu), none, none) @l2
        v7: f32[4, 4] = _c10d_functional::broadcast(v6, 1, "axis:stages:1>0") @l2
        v8: f32[6, 4] = aten::mm(v2, v0)
        v9: f32[6, 4] = aten::relu(v8)
        v10: f32[6, 4] = _c10d_functional::broadcast(v9, 0, "axis:stages:0>1") @l3
        part backward
        v11: f32[] = aten::empty.memory_format([], f32, none, device(cpu), none, none) @l4
        v12: f32[] = _c10d_functional::broadcast(v11, 1, "axis:stages:1>0") @l4
        v13: f32[4, 6]{1, 4} = aten::t(v2)
        v14: f32[4, 4] = aten::mm(v13, v9)
        v15: f32[4, 4] = _c10d_functional::wait_tensor(v7) @l2
        v16: f32[4, 4] = _c10d_functional::wait_tensor(v3) @l0
        v17: f32[6, 4] = _c10d_functional::wait_tensor(v10) @l3
        v18: f32[4, 4] = aten::add.Tensor(v15, v14, 1)
        part update
        v19: f32[] = aten::linalg_vector_norm(v18, 2, none, false, none)
        v20: f32[] = _c10d_functional::wait_tensor(v12) @l4
        v21: f32[] = aten::add.Tensor(v19, v20, 1)
        v22: f32[] = _c10d_functional::broadcast(v21, 0, "axis:stages:0>1") @l5
        v23: f32[4, 4] = aten::mul.Tensor(v18, v21)
        v24: f32[4, 4] = aten::sub.Tensor(v0, v23, 1)
        v25: f32[6, 4] = _c10d_functional::wait_tensor(v5) @l1
        v26: f32[] = _c10d_functional::wait_tensor(v22) @l5
        return v25
        update "params.tied" = v24
        label l0 "transfer params.tied from stage 0 to stage 1"
        label l1 "transfer v6 of aten::mm from stage 1 to stage 0"
        label l2 "transfer v8 of aten::mm from stage 1 to stage 0"
        label l3 "transfer v4 of aten::relu from stage 0 to stage 1"
        label l4 "transfer v15 of aten::linalg_vector_norm from stage 1 to stage 0"
        label l5 "transfer v16 of aten::add.Tensor from stage 0 to stage 1"
    "#]]
    .assert_eq(&program(&graphs[0]));
    expect![[r#"
        input v0: f32[0] = parameter "params.tied"
        input v1: f32[4, 4] = parameter "params.last"
        input v2: f32[6, 4] = batch "batch.x"
        v3: f32[4, 4] = aten::empty.memory_format([4, 4], f32, none, device(cpu), none, none) @l0
        v4: f32[4, 4] = _c10d_functional::broadcast(v3, 0, "axis:stages:0>1") @l0
        v5: f32[6, 4] = aten::empty.memory_format([6, 4], f32, none, device(cpu), none, none) @l1
        v6: f32[6, 4] = _c10d_functional::broadcast(v5, 0, "axis:stages:0>1") @l1
        v7: f32[6, 4] = _c10d_functional::wait_tensor(v6) @l1
        v8: f32[6, 4] = aten::mm(v7, v1)
        v9: f32[4, 4] = _c10d_functional::wait_tensor(v4) @l0
        v10: f32[6, 4] = aten::mm(v8, v9)
        v11: f32[6, 4] = _c10d_functional::broadcast(v10, 1, "axis:stages:1>0") @l2
        part backward
        v12: f32[] = aten::empty.memory_format([], f32, none, device(cpu), none, none) @l3
        v13: f32[] = _c10d_functional::broadcast(v12, 0, "axis:stages:0>1") @l3
        v14: f32[4, 6]{1, 4} = aten::t(v8)
        v15: f32[4, 4] = aten::mm(v14, v10)
        v16: f32[4, 4] = _c10d_functional::broadcast(v15, 1, "axis:stages:1>0") @l4
        v17: f32[4, 6]{1, 4} = aten::t(v7)
        v18: f32[4, 4] = aten::mm(v17, v10)
        part update
        v19: f32[] = aten::linalg_vector_norm(v18, 2, none, false, none)
        v20: f32[] = _c10d_functional::broadcast(v19, 1, "axis:stages:1>0") @l5
        v21: f32[] = _c10d_functional::wait_tensor(v13) @l3
        v22: f32[4, 4] = _c10d_functional::wait_tensor(v16) @l4
        v23: f32[] = _c10d_functional::wait_tensor(v20) @l5
        v24: f32[4, 4] = aten::mul.Tensor(v18, v21)
        v25: f32[4, 4] = aten::sub.Tensor(v1, v24, 1)
        v26: f32[6, 4] = _c10d_functional::wait_tensor(v11) @l2
        return v10
        update "params.last" = v25
        label l0 "transfer params.tied from stage 0 to stage 1"
        label l1 "transfer v4 of aten::relu from stage 0 to stage 1"
        label l2 "transfer v6 of aten::mm from stage 1 to stage 0"
        label l3 "transfer v16 of aten::add.Tensor from stage 0 to stage 1"
        label l4 "transfer v8 of aten::mm from stage 1 to stage 0"
        label l5 "transfer v15 of aten::linalg_vector_norm from stage 1 to stage 0"
    "#]]
    .assert_eq(&program(&graphs[1]));
}

#[test]
fn what_is_sent_is_received_in_the_same_order_wherever_the_program_is_cut() {
    for first in 1..4 {
        for second in first + 1..4 {
            let graphs = cut(&[first, second], Name::GPipe);
            for from in 0..3 {
                for to in (0..3).filter(|to| *to != from) {
                    let on_route = |graph: &Graph| -> Vec<(u64, String)> {
                        let sent = graph.order.iter().filter(|id| {
                            graph.group_name(**id).and_then(transfer_stages) == Some((from, to))
                        });
                        let of = |id: &ir::NodeId| {
                            let value = graph.nodes[*id].results().next().unwrap();
                            let label = graph.nodes[*id].label.unwrap();
                            (graph.ty(value).bytes().0, graph.labels[label].clone())
                        };
                        sent.map(of).collect()
                    };
                    assert_eq!(on_route(&graphs[from as usize]), on_route(&graphs[to as usize]));
                    let other = (0..3).find(|one| *one != from && *one != to).unwrap();
                    assert!(on_route(&graphs[other as usize]).is_empty());
                }
            }
        }
    }
}

#[test]
fn cuts_behind_the_forward_part_are_refused() {
    let graph = Graph::from_text("step", STEP).unwrap();
    for cuts in [&[0_usize][..], &[4], &[2, 2], &[3, 1]] {
        let placement = Placement::in_turn(cuts.len() as u32 + 1, 1);
        let refused = staged(&graph, cuts, &placement).map(|_| ()).unwrap_err();
        assert!(refused.message.contains("the forward part has 4 operations"), "{}", refused.message);
    }
}

/// Rows of groups that a rank takes, computes on, and puts back.
const ROWS: &str = "unisono graph 2
op unisono::group_bounds(Tensor offsets, int ranks, int size) -> Tensor
op unisono::own_rows(Tensor(a) self, Tensor bounds, int dim, int rank) -> Tensor(a)
op unisono::among_zeros(Tensor self, Tensor bounds, int dim, int rank, int size) -> Tensor
op aten::relu(Tensor self) -> Tensor
op aten::mm(Tensor self, Tensor mat2) -> Tensor
input v0: f32[4, 4] = parameter \"params.w\"
input v1: i32[4] = batch \"batch.offsets\"
input v2: f32[12, 4] = batch \"batch.x\"
v3: f32[12, 4] = aten::mm(v2, v0)
v4: i64[3] = unisono::group_bounds(v1, 2, 12)
v5: f32[6, 4] = unisono::own_rows(v3, v4, 0, 0)
v6: f32[6, 4] = aten::relu(v5)
v7: f32[12, 4] = unisono::among_zeros(v6, v4, 0, 0, 12)
v8: f32[12, 4] = aten::mm(v7, v0)
part backward
v9: f32[12, 4] = aten::relu(v8)
return v9
";

#[test]
fn stages_do_not_send_each_other_what_has_a_size_of_run_time() {
    let graph = Graph::from_text("step", ROWS).unwrap();
    let schedule = Name::OneForwardOneBackward.schedule(2, 1, 1);
    let sent = |cut: usize| {
        let staged = staged(&graph, &[cut], &schedule.placement).unwrap();
        let mesh = Mesh { axes: vec![MeshAxis::ranks("stages", 2), MeshAxis::micro_batches(1)] };
        let whole = partition_mesh(&staged.graph, &mesh, 0, |_, _| Ok(Assignment::default())).unwrap();
        stage_graphs(&whole, &staged.held, &schedule)
    };
    let refused = sent(4).unwrap_err();
    assert!(refused.message.contains("rows of its experts"), "{}", refused.message);
    assert_eq!(sent(5).unwrap().len(), 2);
}
