//! Patches: built aside, applied whole, the program in order again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use expect_test::{Expect, expect};
use unisono_ir::{
    Arg, Graph, NodeId, Patch, ValueId,
    testing::{Random, random_graph},
    verify,
};

const GRAPH: &str = r#"unisono graph 2
op aten::relu(Tensor self) -> Tensor
op aten::neg(Tensor self) -> Tensor
input v0: f32[4] = parameter "params.w"
v1: f32[4] = aten::relu(v0) @p0 m0
part backward
v2: f32[4] = aten::neg(v1)
part update
v3: f32[4] = aten::relu(v0) @p1
part forward
v4: f32[4] = aten::neg(v3)
return v2, v4
update "params.w" = v3
place p0 "train.py":1
place p1 "train.py":2
module m0 "body"
"#;
const EXP: &str = "aten::exp(Tensor self) -> Tensor";

/// The program part of the graph that `change` makes.
fn changed(change: impl FnOnce(&mut Patch<'_>), expected: &Expect) {
    let graph = Graph::from_text("test", GRAPH).unwrap();
    let mut patch = Patch::new(&graph);
    change(patch.label("test: a change"));
    let text = match patch.apply() {
        Ok(graph) => {
            verify(&graph).unwrap();
            let text = graph.to_string();
            text[text.find("\nv1").unwrap() + 1..].to_owned()
        }
        Err(diagnostic) => diagnostic.message,
    };
    expected.assert_eq(&text);
}

#[test]
fn a_new_node_takes_position_place_module_and_part_of_its_source() {
    changed(
        |patch| {
            let new =
                patch.push_value(NodeId(0), EXP, vec![Arg::Value(ValueId(0))], patch.ty(ValueId(1)).clone());
            patch.replace(ValueId(1), new);
            patch.remove(NodeId(0));
        },
        &expect![[r#"
            v1: f32[4] = aten::exp(v0) @p0 m0 l0
            part backward
            v2: f32[4] = aten::neg(v1)
            part update
            v3: f32[4] = aten::relu(v0) @p1
            part forward
            v4: f32[4] = aten::neg(v3)

            return v2, v4

            update "params.w" = v3

            place p0 "train.py":1
            place p1 "train.py":2

            module m0 "body"

            label l0 "test: a change"
        "#]],
    );
}

#[test]
fn users_move_behind_a_node_that_needs_more() {
    // The node that replaces v1 reads v4, so that v2 has to wait.
    changed(
        |patch| {
            let new =
                patch.push_value(NodeId(0), EXP, vec![Arg::Value(ValueId(4))], patch.ty(ValueId(1)).clone());
            patch.replace(ValueId(1), new);
            patch.remove(NodeId(0));
        },
        &expect![[r#"
            v1: f32[4] = aten::relu(v0) @p0
            part forward
            v2: f32[4] = aten::neg(v1)
            v3: f32[4] = aten::exp(v2) @p1 m0 l0
            v4: f32[4] = aten::neg(v3)

            return v4, v2

            update "params.w" = v1

            place p0 "train.py":2
            place p1 "train.py":1

            module m0 "body"

            label l0 "test: a change"
        "#]],
    );
}

#[test]
fn chains_of_replacements_are_followed_and_a_wrapper_reads_what_it_wraps() {
    changed(
        |patch| {
            patch.replace(ValueId(3), ValueId(1));
            let new =
                patch.push_value(NodeId(0), EXP, vec![Arg::Value(ValueId(1))], patch.ty(ValueId(1)).clone());
            patch.replace(ValueId(1), new);
            patch.remove(NodeId(2));
        },
        &expect![[r#"
            v1: f32[4] = aten::relu(v0) @p0 m0
            v2: f32[4] = aten::exp(v1) @p0 m0 l0
            part backward
            v3: f32[4] = aten::neg(v2)
            part forward
            v4: f32[4] = aten::neg(v2)

            return v3, v4

            update "params.w" = v2

            place p0 "train.py":1

            module m0 "body"

            label l0 "test: a change"
        "#]],
    );
}

#[test]
fn one_use_can_be_replaced() {
    changed(
        |patch| patch.replace_in(NodeId(3), ValueId(3), ValueId(1)),
        &expect![[r#"
        v1: f32[4] = aten::relu(v0) @p0 m0
        part backward
        v2: f32[4] = aten::neg(v1)
        part update
        v3: f32[4] = aten::relu(v0) @p1
        part forward
        v4: f32[4] = aten::neg(v1)

        return v2, v4

        update "params.w" = v3

        place p0 "train.py":1
        place p1 "train.py":2

        module m0 "body"
    "#]],
    );
}

#[test]
fn impossible_changes_are_refused() {
    changed(|patch| patch.remove(NodeId(0)), &expect!["a patch removes v1, which n1 (aten::neg) uses"]);
    changed(
        |patch| patch.replace_in(NodeId(0), ValueId(0), ValueId(2)),
        &expect!["a patch makes n0 (aten::relu) depend on itself"],
    );
}

#[test]
fn circles_and_other_types_are_refused() {
    changed(
        |patch| {
            patch.replace(ValueId(1), ValueId(3));
            patch.replace(ValueId(3), ValueId(1));
        },
        &expect!["a patch replaces v3 in a circle"],
    );
    changed(
        |patch| {
            let ty = unisono_ir::TensorType::contiguous(unisono_ir::Dtype::F32, [5].as_slice());
            let new = patch.push_value(NodeId(0), EXP, vec![Arg::Value(ValueId(0))], ty);
            patch.replace(ValueId(1), new);
        },
        &expect!["a patch replaces v1 of f32[4] by v5 of f32[5]"],
    );
}

#[test]
fn an_empty_patch_and_renewing_every_node_change_nothing_but_labels() {
    for seed in 0..60 {
        let graph = random_graph(seed, 30);
        assert!(Patch::new(&graph).is_empty());
        assert_eq!(Patch::new(&graph).apply().unwrap().to_bytes(), graph.to_bytes());
        let mut renewed = renew_some(&graph, seed);
        verify(&renewed).unwrap();
        let ids: Vec<NodeId> = renewed.nodes.ids().collect();
        let mut plain = graph.clone();
        for id in ids {
            renewed.nodes[id].label = None;
        }
        for (_, node) in plain.nodes.iter_mut() {
            node.label = None;
        }
        assert_eq!(renewed.to_string(), plain.to_string(), "seed {seed}");
    }
}

/// Replaces random nodes by copies of themselves, in random order.
fn renew_some(graph: &Graph, seed: u64) -> Graph {
    let mut random = Random::new(seed);
    let mut nodes = graph.order.clone();
    random.shuffle(&mut nodes);
    nodes.retain(|_| random.once_in(2));
    let mut patch = Patch::new(graph);
    for id in nodes {
        let node = &graph.nodes[id];
        let types = |value: &ValueId| graph.ty(*value).clone();
        let returns = node.returns.iter().map(|returned| match returned {
            unisono_ir::Return::None => unisono_ir::ReturnType::None,
            unisono_ir::Return::Value(value) => types(value).into(),
            unisono_ir::Return::Values(values) => {
                unisono_ir::ReturnType::Tensors(values.iter().map(types).collect())
            }
        });
        let new = patch.label("again").push(
            id,
            &graph.ops[node.op].to_string(),
            node.args.clone(),
            returns.collect(),
        );
        let results: Vec<ValueId> = patch.node(new).results().collect();
        for (old, new) in node.results().zip(results) {
            patch.replace(old, new);
        }
        patch.remove(id);
    }
    patch.apply().unwrap()
}
