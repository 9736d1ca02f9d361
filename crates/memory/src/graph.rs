//! A graph as far as memory goes: what its operations' rows say.

use aten::{Call, Memory, Random, RunTimeSizes};
use base::{Id, PrimaryMap};
use ir::{
    Arg, CollectiveKind, Graph, HostCopy, InputId, Node, NodeId, OpId, PartKind, Return, Schema, TensorType,
    Value, ValueDef, ValueId,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{Effect, Info, Step, Steps};

/// The steps of a verified graph; values are numbered as in the graph.
pub fn steps_of(graph: &Graph) -> Steps {
    let ops: PrimaryMap<OpId, Operator> = graph.ops.values().map(Operator::of).collect();
    let number = |value: ValueId| value.index() as u32;
    let (state, inputs): (Vec<_>, Vec<_>) = graph.inputs.values().partition(|input| input.class.is_state());
    Steps {
        values: infos(graph, &ops),
        state: state.into_iter().map(|input| number(input.value)).collect(),
        inputs: inputs.into_iter().map(|input| number(input.value)).collect(),
        steps: graph.order.iter().map(|id| step(graph, *id, &ops)).collect(),
        updates: graph
            .updates
            .iter()
            .map(|(input, v)| (number(graph.inputs[*input].value), number(*v)))
            .collect(),
        returns: graph.returns.iter().map(|value| number(*value)).collect(),
    }
}

fn infos(graph: &Graph, ops: &PrimaryMap<OpId, Operator>) -> Vec<Info> {
    let (sizes, state) = (RunTimeSizes::of(graph), graph.inputs_on_host());
    let mut types: FxHashMap<(&TensorType, bool), u32> = FxHashMap::default();
    graph
        .values
        .iter()
        .map(|(id, value)| {
            let (next, varies) = (types.len() as u32, sizes.has(id));
            Info {
                bytes: storage(graph, value, ops),
                elements: value.ty.elements(),
                alike: Some(*types.entry((&value.ty, varies)).or_insert(next)),
                dense: !varies && value.ty.is_contiguous(),
                on_host: is_on_host(graph, value, &state),
            }
        })
        .collect()
}

/// Whether a value is in memory of the host: a copy, or one of these inputs.
fn is_on_host(graph: &Graph, value: &Value, state: &[InputId]) -> bool {
    match value.def {
        ValueDef::Input(input) => state.binary_search(&input).is_ok(),
        ValueDef::Result(id, _) => graph.host_copy(id).is_some_and(HostCopy::is_out),
    }
}

/// The bytes of a value's memory where it has its own.
fn storage(graph: &Graph, value: &Value, ops: &PrimaryMap<OpId, Operator>) -> u64 {
    let bytes = value.ty.bytes().0;
    let ValueDef::Result(id, _) = value.def else { return bytes };
    let node = &graph.nodes[id];
    let full_size = ops[node.op].row.is_some_and(|row| row.full_size) && value.ty.device.kind.is_cpu();
    match node.operands().next() {
        Some(operand) if full_size => graph.ty(operand).bytes().0.max(bytes),
        _ => bytes,
    }
}

/// What is known of an operator.
struct Operator {
    row: Option<&'static aten::Row>,
    effect: Effect,
    /// Whether results share memory with the first operand.
    shares: bool,
    pure: bool,
    holds: bool,
}

impl Operator {
    fn of(op: &ir::Op) -> Self {
        let name = op.name.as_str();
        let schema = Schema::parse(&op.schema).expect("the schemas of a verified graph parse");
        let memory = aten::memory(name, &schema);
        let is_plain = name.starts_with("aten::") || name.starts_with("prims::") || ir::is_kernel(name);
        let copy = HostCopy::of_operator(name);
        let is_communication = ir::is_communication(name) || copy.is_some();
        let effect = match memory {
            _ if ir::is_wait(name) || copy == Some(HostCopy::Wait) => Effect::Wait,
            _ if is_communication => Effect::Collective,
            Memory::View => Effect::View,
            Memory::Repeating => Effect::Repeating,
            Memory::Alias => Effect::Alias,
            Memory::Own | Memory::Hidden => Effect::Compute,
        };
        Self {
            row: aten::row(name),
            effect,
            shares: effect.is_shared() || memory == Memory::Hidden,
            pure: is_plain && !schema.writes() && aten::random(name, &schema) == Random::No,
            holds: !name.starts_with("aten::") && !is_communication && !ir::is_kernel(name),
        }
    }
}

fn step(graph: &Graph, id: NodeId, ops: &PrimaryMap<OpId, Operator>) -> Step {
    let node = &graph.nodes[id];
    let operator = &ops[node.op];
    let reads: SmallVec<[u32; 4]> = node.operands().map(|value| value.index() as u32).collect();
    let makes: SmallVec<[u32; 2]> = node.results().map(|value| value.index() as u32).collect();
    Step {
        effect: operator.effect,
        shares: reads.first().copied().filter(|_| operator.shares),
        overwrites: operator.row.and_then(|row| overwrites(row, node)).unwrap_or_default(),
        writes: SmallVec::new(),
        into: operator.row.is_some_and(|row| row.out.is_some()),
        writes_state: graph.part_kind(id) == PartKind::Update,
        pure: operator.pure,
        holds: operator.holds,
        workspace: workspace(graph, id, operator),
        reads,
        makes,
    }
}

/// What the kernel of an operation allocates for itself.
fn workspace(graph: &Graph, id: NodeId, operator: &Operator) -> u64 {
    if operator.effect == Effect::Collective {
        return collective_workspace(graph, id);
    }
    let workspace = operator.row.and_then(|row| row.workspace);
    workspace.map_or(0, |workspace| workspace(&Call::new(graph, id)).0)
}

/// What gloo copies: it gathers into memory of its own first, and where a rank wants its part of a reduction it reduces all of it.
fn collective_workspace(graph: &Graph, id: NodeId) -> u64 {
    let node = &graph.nodes[id];
    let bytes = |values: &mut dyn Iterator<Item = ValueId>| -> u64 {
        let types = values.map(|value| graph.ty(value)).filter(|ty| ty.device.kind.is_cpu());
        types.map(|ty| ty.bytes().0).sum()
    };
    match graph.collective(id).map(|collective| collective.kind) {
        Some(CollectiveKind::ReduceScatter) => bytes(&mut node.operands()),
        Some(CollectiveKind::AllGather) => bytes(&mut node.results()),
        _ => 0,
    }
}

/// What the form in place of an operation writes: each operand with the result that would be there.
fn overwrites(row: &aten::Row, node: &Node) -> Option<Vec<(u32, Option<u32>)>> {
    let mut pairs = Vec::new();
    for (position, returned) in node.returns.iter().enumerate().filter(|_| row.in_place) {
        let unscaled =
            |(grads, scale): (usize, usize)| grads == position && node.args.get(scale) == Some(&Arg::None);
        if row.scaled.is_some_and(unscaled) {
            continue;
        }
        let number = |value: &ValueId| value.index() as u32;
        match (node.args.get(position)?, returned) {
            (Arg::Value(from), Return::Value(to)) => pairs.push((number(from), Some(number(to)))),
            (Arg::Values(from), Return::Values(to)) if from.len() == to.len() => {
                for (from, to) in from.iter().zip(to) {
                    pairs.push((number(from.as_ref()?), Some(number(to))));
                }
            }
            (Arg::Values(from), Return::None) => {
                let from: Option<Vec<u32>> = from.iter().map(|value| value.as_ref().map(number)).collect();
                pairs.extend(from?.into_iter().map(|from| (from, None)));
            }
            _ => return None,
        }
    }
    Some(pairs)
}
