//! The verifier: each invariant, broken once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::{Code, Place};
use expect_test::{Expect, expect};
use unisono_ir::{
    Arg, Dtype, Graph, InputClass, InputId, LabelId, NodeId, OpId, Return, TensorType, ValueDef, ValueId,
    verify,
};

fn matrix() -> TensorType {
    TensorType::contiguous(Dtype::F32, [4, 4].as_slice())
}

/// `w` becomes `relu(x @ w)`, and `x @ w` is returned.
fn graph() -> Graph {
    let mut graph = Graph::default();
    let w = graph.input(InputClass::Parameter, "params.w", matrix());
    let x = graph.input(InputClass::Batch, "batch.0", matrix());
    let mm = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
    let y = graph.push_value(mm, vec![Arg::Value(x), Arg::Value(w)], matrix());
    let z = graph.push_value("aten::relu(Tensor self) -> Tensor", vec![Arg::Value(y)], matrix());
    let place = graph.places.push(Place { file: "train.py".into(), line: 7, column: 0 });
    graph.nodes[NodeId(1)].place = Some(place);
    graph.returns = vec![y];
    graph.updates = vec![(InputId(0), z)];
    graph
}

/// Verifies what each of `breakings` makes of a good graph.
fn refused(breakings: &[fn(&mut Graph)], expected: &Expect) {
    let message = |breaking: &fn(&mut Graph)| {
        let mut graph = graph();
        verify(&graph).unwrap();
        breaking(&mut graph);
        let diagnostic = verify(&graph).unwrap_err();
        assert_eq!(diagnostic.code, Code::BAD_GRAPH);
        format!("{diagnostic}\n")
    };
    expected.assert_eq(&breakings.iter().map(message).collect::<String>());
}

#[test]
fn programs_define_before_use_and_once() {
    refused(
        &[
            |g| g.order.reverse(),
            |g| g.order.push(NodeId(0)),
            |g| g.order.push(NodeId(9)),
            |g| g.order.truncate(1),
            |g| g.order.clear(),
        ],
        &expect![[r#"
            error[U0014]: n1 (aten::relu): v2 is used before it is defined
              at train.py:7
            error[U0014]: n0 (aten::mm): it is in the program twice
            error[U0014]: n9 is in the program but not in the table
            error[U0014]: "params.w" is updated to v3, which the program does not make
            error[U0014]: v2 is returned, but the program does not make it
        "#]],
    );
}

#[test]
fn ids_are_in_range_and_definitions_agree() {
    refused(
        &[
            |g| g.nodes[NodeId(1)].args[0] = Arg::Value(ValueId(9)),
            |g| g.nodes[NodeId(1)].args[0] = Arg::Values(vec![None, Some(ValueId(9))]),
            |g| g.nodes[NodeId(1)].op = OpId(7),
            |g| g.nodes[NodeId(1)].label = Some(LabelId(0)),
            |g| g.nodes[NodeId(1)].returns = vec![Return::Value(ValueId(2))],
            |g| g.values[ValueId(0)].def = ValueDef::Result(NodeId(0), 0),
            |g| g.inputs[InputId(1)].value = ValueId(0),
            |g| g.returns.push(ValueId(9)),
            |g| g.updates.push((InputId(9), ValueId(0))),
        ],
        &expect![[r#"
            error[U0014]: n1 (aten::relu): argument `self`: v9 is not in the table
              at train.py:7
            error[U0014]: n1 (aten::relu): argument `self`: v9 is not in the table
              at train.py:7
            error[U0014]: n1 (an unknown operator): op7 is not in the table
              at train.py:7
            error[U0014]: n1 (aten::relu): its place, module, label or part is not in the table
              at train.py:7
            error[U0014]: n1 (aten::relu): its result 0, v2, has another definition
              at train.py:7
            error[U0014]: v0: its definition, Result(n0, 0), does not make it
            error[U0014]: v1: its definition, Input(i1), does not make it
            error[U0014]: v9 is returned, but the program does not make it
            error[U0014]: i9 is updated but is not in the table
        "#]],
    );
}

#[test]
fn nodes_follow_their_schema() {
    refused(
        &[
            |g| g.nodes[NodeId(1)].args.push(Arg::None),
            |g| g.nodes[NodeId(1)].returns.push(Return::None),
            |g| g.nodes[NodeId(1)].returns = vec![Return::Values(vec![ValueId(3)])],
            |g| g.nodes[NodeId(1)].args[0] = Arg::Layout("a b".into()),
            |g| g.ops[OpId(1)].schema = "(Tensor".into(),
            |g| g.ops[OpId(1)].name = "relu".into(),
            |g| g.ops[OpId(1)] = g.ops[OpId(0)].clone(),
        ],
        &expect![[r#"
            error[U0014]: n1 (aten::relu): 2 arguments, and its schema has 1
              at train.py:7
            error[U0014]: n1 (aten::relu): 2 returns, and its schema has 1
              at train.py:7
            error[U0014]: n1 (aten::relu): return 0 is not what its schema says
              at train.py:7
            error[U0014]: n1 (aten::relu): argument `self`: "a b" is no name of a layout or memory format
              at train.py:7
            error[U0014]: op1: the schema of aten::relu cannot be parsed: (Tensor
            error[U0014]: op1: "relu" is no operator's name, such as `aten::add.Tensor`
            error[U0014]: op1: the operator aten::mm is in the table twice
        "#]],
    );
}

#[test]
fn types_are_sizes_that_exist() {
    refused(
        &[
            |g| g.values[ValueId(2)].ty.shape[0] = -1,
            |g| g.values[ValueId(2)].ty.shape[0] = i64::MAX,
            |g| g.values[ValueId(2)].ty.strides[0] = i64::MAX,
            |g| g.values[ValueId(2)].ty.strides = [1].as_slice().into(),
            |g| g.values[ValueId(2)].ty.shape = vec![1; 65].into(),
        ],
        &expect![[r#"
            error[U0014]: v2: sizes [-1, 4] are negative or too large
            error[U0014]: v2: sizes [9223372036854775807, 4] are negative or too large
            error[U0014]: v2: strides [9223372036854775807, 1] are negative or too large
            error[U0014]: v2: 1 strides for 2 dimensions
            error[U0014]: v2: 65 dimensions, and at most 64 are possible
        "#]],
    );
}

#[test]
fn inputs_have_one_name_and_one_update_of_their_type() {
    refused(
        &[
            |g| g.inputs[InputId(1)].name = "params.w".into(),
            |g| g.updates.push((InputId(0), ValueId(2))),
            |g| g.values[ValueId(0)].ty.dtype = Dtype::Bf16,
            |g| g.values[ValueId(0)].ty = TensorType::contiguous(Dtype::F32, [2, 8].as_slice()),
        ],
        &expect![[r#"
            error[U0014]: i0 and i1 have the same name, "params.w"
            error[U0014]: "params.w" is updated twice
            error[U0014]: "params.w" of bf16[4, 4] is updated to f32[4, 4]
            error[U0014]: "params.w" of f32[2, 8] is updated to f32[4, 4]
        "#]],
    );
}
