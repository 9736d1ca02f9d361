//! Operations of a graph replaced by others that give the same, both as graphs that were captured for it.

use base::{Code, Diagnostic, Result};
use ir::{
    Arg, Graph, NodeId, PartKind, Patch, Return, ReturnType, TensorType, ValueDef, ValueId, memory_order,
};
use patterns::{Argument, Match, Pattern, Step, Term, find};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::terms::{Terms, results_of};

const PERMUTE: &str = "aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)";
const CLONE: &str = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor";

/// What is looked for and what stands for it, captured for tensors of the same types.
pub struct Replacement {
    /// The operations that are looked for. Its inputs are what they read, and its returns what others may read of them.
    pub search: Graph,
    /// What gives the same of the same.
    pub replace: Graph,
}

/// The graph with operations replaced, and how often they were. Places are found that are like one of `searches` but for numbers and sizes; for the
/// types of what they read `make` gives a replacement, and those are replaced that are as it says, numbers and sizes included.
pub fn replaced(
    graph: &Graph,
    searches: &[Graph],
    mut make: impl FnMut(&[TensorType]) -> Result<Option<Replacement>>,
) -> Result<(Graph, usize)> {
    let terms = Terms::new(graph);
    let loose = searches.iter().map(|search| pattern_of(search, false)).collect::<Result<Vec<_>>>()?;
    let mut tried: FxHashSet<Vec<TensorType>> = FxHashSet::default();
    let mut taken: FxHashSet<NodeId> = FxHashSet::default();
    let mut patch = Patch::new(graph);
    patch.label("replaced");
    let mut count = 0;
    for place in find(&loose, &terms) {
        let Some(types) = types_of(graph, &place) else { continue };
        if !tried.insert(types.clone()) {
            continue;
        }
        let Some(replacement) = make(&types)? else { continue };
        for found in find(&[pattern_of(&replacement.search, true)?], &terms) {
            let is_meant = types_of(graph, &found).as_ref() == Some(&types);
            let is_free = found.ops.iter().all(|op| !taken.contains(op));
            if is_meant && is_free && splice(&mut patch, &found, &replacement).is_some() {
                taken.extend(&found.ops);
                count += 1;
            }
        }
    }
    if count == 0 {
        return Ok((graph.clone(), 0));
    }
    Ok((patch.apply()?, count))
}

/// A captured graph as a pattern; unless it is `exact`, numbers and sizes may be others.
fn pattern_of(graph: &Graph, exact: bool) -> Result<Pattern> {
    let mut terms: FxHashMap<ValueId, Term> = FxHashMap::default();
    let inputs = graph.inputs.values().enumerate();
    terms.extend(inputs.map(|(number, input)| (input.value, Term::Captured(number))));
    let mut steps = Vec::new();
    for (step, id) in graph.order.iter().enumerate() {
        let node = &graph.nodes[*id];
        let argument = |arg: &Arg| match arg {
            Arg::Value(value) => terms[value].clone(),
            Arg::Values(values) => {
                Term::List(values.iter().flatten().map(|value| terms[value].clone()).collect())
            }
            Arg::Int(_) | Arg::Ints(_) | Arg::Float(_) | Arg::Floats(_) if !exact => Term::Any,
            _ => Term::Is(arg.to_string()),
        };
        let arguments = node.args.iter().map(argument).collect();
        let results = results_of(node);
        let made = results.iter().enumerate().filter_map(|(position, value)| Some((position, (*value)?)));
        terms.extend(made.map(|(position, value)| (value, Term::Made((step, position)))));
        let results = (0..results.len()).map(|position| format!("{step}.{position}")).collect();
        steps.push(Step { op: graph.op_name(*id).to_owned(), commutes: false, arguments, results });
    }
    let root = |value: &ValueId| match &terms[value] {
        Term::Made(port) => Ok(*port),
        _ => Err(Diagnostic::new(Code::BAD_GRAPH, "a pattern returns what it is given")),
    };
    let roots = graph.returns.iter().map(root).collect::<Result<_>>()?;
    let captures = graph.inputs.values().map(|input| input.name.clone()).collect();
    let pattern = Pattern { name: String::new(), steps, captures, roots, properties: Vec::new() };
    if pattern.is_connected() {
        return Ok(pattern);
    }
    Err(Diagnostic::new(Code::BAD_GRAPH, "the operations of a pattern are not connected"))
}

/// The types of what a place reads, in the order of the pattern's inputs.
fn types_of(graph: &Graph, place: &Match<ValueId, NodeId>) -> Option<Vec<TensorType>> {
    let ty = |captured: &Argument<ValueId>| match captured {
        Argument::Value(value) => Some(graph.ty(*value).clone()),
        _ => None,
    };
    place.captured.iter().map(ty).collect()
}

/// Puts the replacement where a place is; nothing where its results lie otherwise and cannot be put in order.
fn splice(patch: &mut Patch<'_>, found: &Match<ValueId, NodeId>, replacement: &Replacement) -> Option<()> {
    let base = patch.base();
    let Replacement { search, replace } = replacement;
    let olds = search.returns.iter().map(|value| {
        let ValueDef::Result(maker, position) = search.values[*value].def else { return None };
        let step = search.order.iter().position(|id| *id == maker)?;
        base.nodes[found.ops[step]].results().nth(position as usize)
    });
    let olds: Vec<ValueId> = olds.collect::<Option<_>>()?;
    let fits = |(old, new): (&ValueId, &ValueId)| {
        let (old, new) = (base.ty(*old), replace.ty(*new));
        let is_same = old.dtype == new.dtype && old.shape == new.shape;
        is_same && (old.strides == new.strides || old.is_dense())
    };
    (olds.len() == replace.returns.len() && olds.iter().zip(&replace.returns).all(fits)).then_some(())?;
    let values = copied(patch, found, replace)?;
    for (old, new) in olds.iter().zip(&replace.returns) {
        let mut made = values[new];
        if base.ty(*old).strides != replace.ty(*new).strides {
            let maker = base.maker(*old)?;
            made = laid_out(patch, maker, made, base.ty(*old));
        }
        patch.replace(*old, made);
    }
    found.ops.iter().for_each(|op| patch.remove(*op));
    Some(())
}

/// The same tensor with its elements in the order in which those of a type lie.
fn laid_out(patch: &mut Patch<'_>, at: NodeId, value: ValueId, ty: &TensorType) -> ValueId {
    let order = memory_order(&ty.strides);
    let back = ir::inverse(&order);
    let dims = |order: &[usize]| Arg::Ints(order.iter().map(|dim| *dim as i64).collect());
    let turned = |ty: &TensorType| TensorType {
        shape: order.iter().map(|dim| ty.shape[*dim]).collect(),
        strides: order.iter().map(|dim| ty.strides[*dim]).collect(),
        ..ty.clone()
    };
    let (now, then) = (turned(patch.ty(value)), turned(ty));
    let seen = patch.push_value(at, PERMUTE, vec![Arg::Value(value), dims(&order)], now);
    let format = Arg::MemoryFormat("contiguous".into());
    let copied = patch.push_value(at, CLONE, vec![Arg::Value(seen), format], then);
    patch.push_value(at, PERMUTE, vec![Arg::Value(copied), dims(&back)], ty.clone())
}

/// Adds the operations of a replacement, and gives what stands for each of its values.
fn copied(
    patch: &mut Patch<'_>,
    found: &Match<ValueId, NodeId>,
    replace: &Graph,
) -> Option<FxHashMap<ValueId, ValueId>> {
    let base = patch.base();
    let mut values: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    for (number, input) in replace.inputs.values().enumerate() {
        values.insert(input.value, found.value(number)?);
    }
    for id in &replace.order {
        let node = &replace.nodes[*id];
        let mut args = node.args.clone();
        for arg in &mut args {
            arg.map_values(|value| values[&value]);
        }
        let ty = |value: &ValueId| replace.ty(*value).clone();
        let types = node.returns.iter().map(|returned| match returned {
            Return::None => ReturnType::None,
            Return::Value(value) => ReturnType::Tensor(ty(value)),
            Return::Values(values) => ReturnType::Tensors(values.iter().map(ty).collect()),
        });
        let source = anchor(base, found, replace.part_kind(*id))?;
        let made = patch.push(source, &replace.ops[node.op].to_string(), args, types.collect());
        let made: Vec<ValueId> = patch.node(made).results().collect();
        values.extend(node.results().zip(made));
    }
    Some(values)
}

/// The last operation of a place in a kind of part, or of all.
fn anchor(graph: &Graph, found: &Match<ValueId, NodeId>, kind: PartKind) -> Option<NodeId> {
    let position = |id: &NodeId| graph.order.iter().position(|known| known == id);
    let in_part = |id: &&NodeId| graph.part_kind(**id) == kind;
    let of_part = found.ops.iter().filter(in_part).max_by_key(|id| position(id));
    of_part.or_else(|| found.ops.iter().max_by_key(|id| position(id))).copied()
}
