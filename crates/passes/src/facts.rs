//! What the passes ask about operators and nodes.

use std::collections::BTreeMap;

use aten::Random;
use base::{Id, PrimaryMap, SecondaryMap};
use fixedbitset::FixedBitSet;
use ir::{CollectiveKind, Graph, HostCopy, InputClass, Node, NodeId, Op, OpId, Schema, UNEVEN, ValueId};
use smallvec::SmallVec;

/// What is known of each operator of a graph.
pub struct Facts {
    ops: PrimaryMap<OpId, OpFacts>,
}

/// What is known of an operator.
struct OpFacts {
    kind: Kind,
    /// It matters although nothing uses its results.
    has_effect: bool,
    writes: bool,
    random: Random,
}

/// The operators that passes tell apart.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Collective,
    Transfer,
    Wait,
    View,
    Copy,
    Join,
    Other,
}

impl OpFacts {
    fn new(op: &Op) -> Self {
        let schema = Schema::parse(&op.schema).expect("the schemas of a verified graph parse");
        let kind = match op.name.as_str() {
            name if ir::is_wait(name) => Kind::Wait,
            name if name == CollectiveKind::Broadcast.operator() => Kind::Transfer,
            name if CollectiveKind::of_operator(name).is_some() => Kind::Collective,
            // They stay where they were put.
            name if HostCopy::of_operator(name).is_some() => Kind::Other,
            name if aten::memory(name, &schema).is_shared() => Kind::View,
            name if aten::row(name).is_some_and(|row| row.copies) => Kind::Copy,
            name if aten::row(name).is_some_and(aten::Row::joins) => Kind::Join,
            _ => Kind::Other,
        };
        Self {
            kind,
            has_effect: schema.returns.is_empty() || schema.writes(),
            writes: schema.writes(),
            random: aten::random(&op.name, &schema),
        }
    }
}

impl Facts {
    /// Reads the schemas of a verified graph.
    pub fn new(graph: &Graph) -> Self {
        Self { ops: graph.ops.values().map(OpFacts::new).collect() }
    }

    /// Whether a node matters although nothing uses its results: it checks something, draws random numbers or writes.
    pub fn has_effect(&self, node: &Node) -> bool {
        self.ops[node.op].has_effect || self.draws(node)
    }

    /// Whether a node writes into what it is given.
    pub fn writes(&self, node: &Node) -> bool {
        self.ops[node.op].writes
    }

    /// Whether a node draws from PyTorch's random number generator.
    pub fn draws(&self, node: &Node) -> bool {
        self.ops[node.op].random.draws(&node.args)
    }

    /// Whether a node gives the same for the same operands whenever and however often it runs, alone on its rank.
    pub fn is_pure(&self, node: &Node) -> bool {
        !self.has_effect(node) && !self.is_communication(node)
    }

    /// Whether a node gives its one tensor on in another form: it waits for it, views it, copies or casts it.
    pub fn carries(&self, node: &Node) -> bool {
        let carries = matches!(self.ops[node.op].kind, Kind::Copy | Kind::Wait | Kind::View);
        carries && node.operands().count() == 1
    }

    /// Whether a node looks at the memory of one tensor.
    pub fn is_view(&self, node: &Node) -> bool {
        self.ops[node.op].kind == Kind::View && node.operands().count() == 1
    }

    /// Whether a node puts tensors behind one another.
    pub fn joins(&self, node: &Node) -> bool {
        self.ops[node.op].kind == Kind::Join
    }

    /// Whether a node takes part in communication, waiting included.
    pub fn is_communication(&self, node: &Node) -> bool {
        matches!(self.ops[node.op].kind, Kind::Collective | Kind::Transfer | Kind::Wait)
    }

    /// Whether a node sends to another pipeline stage or receives from one, or waits for that: the other side relies on it, whether its result
    /// is used or not.
    pub fn is_transfer(&self, graph: &Graph, node: &Node) -> bool {
        let kind = |node: &Node| self.ops[node.op].kind;
        let made_by = |value| graph.maker(value).map(|maker| kind(&graph.nodes[maker]));
        kind(node) == Kind::Transfer
            || kind(node) == Kind::Wait && node.operands().any(|value| made_by(value) == Some(Kind::Transfer))
    }

    /// Whether a node starts to send to another pipeline stage, or to receive from one.
    pub fn starts_transfer(&self, node: &Node) -> bool {
        self.ops[node.op].kind == Kind::Transfer
    }

    /// Whether a node waits for a collective.
    pub fn is_wait(&self, node: &Node) -> bool {
        self.ops[node.op].kind == Kind::Wait
    }

    /// Whether a node starts a collective that may start earlier than it stands; transfers between stages stay in their order.
    pub fn is_collective(&self, node: &Node) -> bool {
        self.ops[node.op].kind == Kind::Collective
    }
}

/// Whether a node is part of a change of placement from or to shards of different sizes: what it does on one rank says nothing of others.
pub fn is_uneven(graph: &Graph, id: NodeId) -> bool {
    graph.nodes[id].label.is_some_and(|label| graph.labels[label].ends_with(UNEVEN))
}

/// Nodes by value.
pub type Users = SecondaryMap<ValueId, SmallVec<[NodeId; 4]>>;

/// The nodes of the program that use each value, in program order, a node once for each operand that it is.
pub fn users(graph: &Graph) -> Users {
    let mut users = Users::default();
    for id in &graph.order {
        graph.nodes[*id].operands().for_each(|operand| users[operand].push(*id));
    }
    users
}

/// What starts a transfer between pipeline stages, by the group that it is in, in program order.
pub fn transfers(graph: &Graph) -> BTreeMap<&str, Vec<NodeId>> {
    let mut of_group: BTreeMap<&str, Vec<NodeId>> = BTreeMap::new();
    if graph.ops.values().any(|op| op.name == CollectiveKind::Broadcast.operator()) {
        let is_one = |id: &NodeId| graph.op_name(*id) == CollectiveKind::Broadcast.operator();
        for id in graph.order.iter().copied().filter(is_one) {
            of_group.entry(graph.group_name(id).unwrap_or_default()).or_default().push(id);
        }
    }
    of_group
}

/// For each node, how many transfers between pipeline stages start before it.
///
/// What is joined with a later node takes along what depends on it. Only nodes with the same number are joined: no transfer is then moved behind
/// another one, or behind what waits for an answer to it.
pub fn transfers_before(graph: &Graph, facts: &Facts) -> SecondaryMap<NodeId, u32> {
    let mut before: SecondaryMap<NodeId, u32> = SecondaryMap::with_default(0);
    let mut count = 0;
    for id in &graph.order {
        before[*id] = count;
        count += u32::from(facts.starts_transfer(&graph.nodes[*id]));
    }
    before
}

/// The values that the step returns or that inputs are updated to.
pub fn end_values(graph: &Graph) -> FixedBitSet {
    let mut ends = FixedBitSet::with_capacity(graph.values.len());
    graph
        .returns
        .iter()
        .chain(graph.updates.iter().map(|(_, value)| value))
        .for_each(|v| ends.insert(v.index()));
    ends
}

/// The values that depend on nothing but state, gathered or not, through nodes that are not random: they can be computed at any time of
/// the step.
pub fn of_state_alone(graph: &Graph, facts: &Facts) -> FixedBitSet {
    let mut alone = FixedBitSet::with_capacity(graph.values.len());
    let state = |class: InputClass| class.is_state();
    graph
        .inputs
        .values()
        .filter(|input| state(input.class))
        .for_each(|input| alone.insert(input.value.index()));
    for id in &graph.order {
        let node = &graph.nodes[*id];
        let repeats = !facts.has_effect(node) && !facts.is_transfer(graph, node);
        if repeats && node.operands().all(|operand| alone.contains(operand.index())) {
            node.results().for_each(|result| alone.insert(result.index()));
        }
    }
    alone
}
