//! What nothing needs is taken out of a function that is called by itself, as `torch.compile` hands it over.

use base::{Id, Result};
use ir::{Arg, Graph, InputId, ValueDef, ValueId, verify};
use memory::{Lifetimes, steps_of};

use crate::{cleaned, facts::Facts, run};

const VIEW: &str = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)";
const CLONE: &str = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor";

/// The function without aliases, chains of views, values computed twice and dead code. Its caller may write into what it is given and into
/// what it returns: what had memory of its own has so still, and what was a tensor of its own is one. A function that writes into tensors
/// stays as it is, and so does one that returns several views of memory that would no longer be its own.
pub fn cleaned_function(graph: &Graph) -> Result<Graph> {
    let facts = Facts::new(graph);
    if graph.order.iter().any(|id| facts.writes(&graph.nodes[*id])) {
        return Ok(graph.clone());
    }
    let mut made = run(&cleaned(false), graph, |_| {})?;
    if !keep_returns_apart(graph, &mut made) {
        return Ok(graph.clone());
    }
    verify(&made)?;
    Ok(made)
}

/// Copies what `after` returns in the memory of something that it did not share memory with in `before`; what has become the same tensor as
/// something else is another view of it. Fails where what is to be copied shared its memory with another return, or has gaps or repeats.
fn keep_returns_apart(before: &Graph, after: &mut Graph) -> bool {
    let [was, is] = [before, after as &Graph].map(|graph| {
        let lifetimes = Lifetimes::of(&steps_of(graph));
        let root = |value: ValueId| ValueId::from_index(lifetimes.root(value.index() as u32) as usize);
        (firsts(graph, root), firsts(graph, |value| value))
    });
    for at in 0..after.returns.len() {
        let (is_joined, is_same) = (was.0[at] != is.0[at], was.1[at] != is.1[at]);
        let value = after.returns[at];
        let ty = after.ty(value).clone();
        if is_joined {
            let others = was.0.iter().enumerate().filter(|(other, _)| *other != at);
            let is_shared = others.map(|(_, first)| first).any(|first| *first == was.0[at]);
            if is_shared || !ty.is_dense() {
                return false;
            }
            after.returns[at] = after.push_value(CLONE, vec![Arg::Value(value), Arg::None], ty);
        } else if is_same {
            let sizes = Arg::Ints(ty.shape.to_vec());
            after.returns[at] = after.push_value(VIEW, vec![Arg::Value(value), sizes], ty);
        }
    }
    true
}

/// Where each return is met first, by what `of` tells of values: as an input, or else as a return.
fn firsts(graph: &Graph, of: impl Fn(ValueId) -> ValueId) -> Vec<(Option<InputId>, usize)> {
    let told: Vec<ValueId> = graph.returns.iter().map(|value| of(*value)).collect();
    let first = |value: &ValueId| match graph.values[*value].def {
        ValueDef::Input(input) => (Some(input), 0),
        ValueDef::Result(..) => (None, told.iter().position(|other| other == value).unwrap_or(0)),
    };
    told.iter().map(first).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATORS: &str = "unisono graph 2
op aten::t(Tensor(a) self) -> Tensor(a)
op aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::relu(Tensor self) -> Tensor
op aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)
op aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)
input v0: f32[2, 3] = batch \"batch.0\"
";

    fn program(nodes: &str) -> String {
        let graph = Graph::from_text("case", &format!("{OPERATORS}{nodes}")).expect("the graph is one");
        let text = cleaned_function(&graph).expect("it runs").to_string();
        let is_program = |line: &&str| line.starts_with('v') || line.starts_with("return");
        text.lines().filter(is_program).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn chains_of_views_that_lead_back_are_what_they_look_at() {
        let found = program(
            "v1: f32[2, 3] = aten::relu(v0)
v2: f32[3, 2]{1, 3} = aten::t(v1)
v3: f32[2, 3] = aten::t(v2)
v4: f32[2, 3] = aten::mul.Tensor(v3, v3)
return v3, v4
",
        );
        assert_eq!(
            found,
            "v1: f32[2, 3] = aten::relu(v0)\nv2: f32[2, 3] = aten::mul.Tensor(v1, v1)\nreturn v1, v2"
        );
    }

    #[test]
    fn what_had_memory_of_its_own_has_so_still() {
        let found = program(
            "v1: f32[2, 3] = aten::mul.Tensor(v0, 1)
v2: f32[2, 3] = aten::relu(v0)
v3: f32[2, 3] = aten::relu(v0)
return v1, v2, v3
",
        );
        let expected = "v1: f32[2, 3] = aten::relu(v0)
v2: f32[2, 3] = aten::clone(v0, none)
v3: f32[2, 3] = aten::clone(v1, none)
return v2, v1, v3";
        assert_eq!(found, expected);
    }

    #[test]
    fn views_of_memory_of_their_own_stay_where_no_copy_is_one() {
        let two = "v1: f32[2, 3] = aten::mul.Tensor(v0, 1)
v2: f32[3, 2]{1, 3} = aten::t(v1)
return v1, v2
";
        let repeated = "v1: f32[2, 3] = aten::mul.Tensor(v0, 1)
v2: f32[4, 2, 3]{0, 3, 1} = aten::expand(v1, [4, 2, 3], false)
return v2
";
        for nodes in [two, repeated] {
            assert_eq!(program(nodes), nodes.trim_end());
        }
    }

    #[test]
    fn what_was_a_tensor_of_its_own_is_one() {
        let found = program(
            "v1: f32[2, 3] = aten::view(v0, [2, 3])
v2: f32[2, 3] = aten::relu(v0)
v3: f32[3, 2]{1, 3} = aten::t(v2)
v4: f32[2, 3] = aten::t(v3)
return v1, v2, v4
",
        );
        let expected = "v1: f32[2, 3] = aten::relu(v0)
v2: f32[2, 3] = aten::view(v0, [2, 3])
v3: f32[2, 3] = aten::view(v1, [2, 3])
return v2, v1, v3";
        assert_eq!(found, expected);
    }

    #[test]
    fn a_function_that_writes_stays_as_it_is() {
        let nodes = "v1: f32[2, 3] = aten::mul.Tensor(v0, 1)
v2: f32[2, 3] = aten::copy_(v0, v1, false)
return v1
";
        assert_eq!(program(nodes), nodes.trim_end());
    }
}
