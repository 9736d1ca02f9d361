//! What the passes ask about operators and nodes.

use base::{Fingerprint, Fingerprinter, Id, PrimaryMap, SecondaryMap};
use fixedbitset::FixedBitSet;
use ir::{Arg, Graph, InputClass, Node, NodeId, OpId, Schema, ValueDef, ValueId};

/// Random operations whose schema does not say so by an argument for a generator.
const RANDOM: &[&str] = &[
    "aten::native_dropout",
    "aten::_fused_dropout",
    "aten::dropout",
    "aten::alpha_dropout",
    "aten::feature_dropout",
    "aten::rand",
    "aten::randn",
    "aten::randint",
    "aten::randint.low",
    "aten::randperm",
    "aten::rand_like",
    "aten::randn_like",
    "aten::randint_like",
    "aten::randint_like.low_dtype",
    "aten::rrelu_with_noise_functional",
];

/// What is known of each operator of a graph.
pub struct Facts<'g> {
    graph: &'g Graph,
    schemas: PrimaryMap<OpId, Schema<'g>>,
}

impl<'g> Facts<'g> {
    /// Reads the schemas of a verified graph.
    pub fn new(graph: &'g Graph) -> Self {
        let parse = |schema| Schema::parse(schema).expect("the schemas of a verified graph parse");
        Self { graph, schemas: graph.ops.values().map(|op| parse(op.schema.as_str())).collect() }
    }

    /// The schema of a node's operator.
    pub fn schema(&self, node: &Node) -> &Schema<'g> {
        &self.schemas[node.op]
    }

    /// Whether a node draws random numbers.
    pub fn is_random(&self, node: &Node) -> bool {
        let drops = |(parameter, arg): (&ir::Parameter<'_>, &Arg)| {
            let zero = matches!(arg, Arg::None | Arg::Int(0)) || *arg == Arg::Float(0.0);
            parameter.ty.base == "Generator" || (parameter.name == "dropout_p" && !zero)
        };
        RANDOM.contains(&self.graph.ops[node.op].name.as_str())
            || self.schema(node).parameters.iter().zip(&node.args).any(drops)
    }

    /// Whether a node matters although nothing uses its results: it checks something, draws random numbers or writes.
    pub fn has_effect(&self, node: &Node) -> bool {
        let schema = self.schema(node);
        schema.returns.is_empty() || schema.writes() || self.is_random(node)
    }

    /// Whether a node gives the same for the same operands whenever and however often it runs, alone on its rank.
    pub fn is_pure(&self, node: &Node) -> bool {
        !self.has_effect(node) && !self.is_communication(node)
    }

    /// Whether a node is a view: its results share memory with an operand.
    pub fn is_view(&self, node: &Node) -> bool {
        self.schema(node).aliases()
    }

    /// Whether a node gives its one tensor on in another form: it waits for it, views it, copies or casts it.
    pub fn carries(&self, node: &Node) -> bool {
        let copies = matches!(self.graph.ops[node.op].name.as_str(), "aten::clone" | "aten::_to_copy");
        node.operands().count() == 1 && (copies || self.is_wait(node) || self.is_view(node))
    }

    /// Whether a node takes part in communication, waiting included.
    pub fn is_communication(&self, node: &Node) -> bool {
        self.graph.ops[node.op].name.starts_with("_c10d_functional::")
    }

    /// Whether a node waits for a collective.
    pub fn is_wait(&self, node: &Node) -> bool {
        self.graph.ops[node.op].name == "_c10d_functional::wait_tensor"
    }

    /// Whether a node starts a collective.
    pub fn is_collective(&self, node: &Node) -> bool {
        self.is_communication(node) && !self.is_wait(node)
    }
}

/// The node that makes a value; none for inputs.
pub fn maker(graph: &Graph, value: ValueId) -> Option<NodeId> {
    match graph.values[value].def {
        ValueDef::Result(node, _) => Some(node),
        ValueDef::Input(_) => None,
    }
}

/// The nodes of the program that use each value, in program order, a node once for each operand that it is.
pub fn users(graph: &Graph) -> SecondaryMap<ValueId, Vec<NodeId>> {
    let mut users: SecondaryMap<ValueId, Vec<NodeId>> = SecondaryMap::default();
    for id in &graph.order {
        graph.nodes[*id].operands().for_each(|operand| users[operand].push(*id));
    }
    users
}

/// The position of each node in the program.
pub fn positions(graph: &Graph) -> SecondaryMap<NodeId, usize> {
    let mut positions = SecondaryMap::with_default(0);
    for (position, id) in graph.order.iter().enumerate() {
        positions[*id] = position;
    }
    positions
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

/// The values that depend on nothing but state, through nodes that are neither random nor communication: they can be
/// computed at any time of the step.
pub fn of_state_alone(graph: &Graph, facts: &Facts<'_>) -> FixedBitSet {
    let mut alone = FixedBitSet::with_capacity(graph.values.len());
    let state = |class: InputClass| class.is_state();
    graph
        .inputs
        .values()
        .filter(|input| state(input.class))
        .for_each(|input| alone.insert(input.value.index()));
    for id in &graph.order {
        let node = &graph.nodes[*id];
        if facts.is_pure(node) && node.operands().all(|operand| alone.contains(operand.index())) {
            node.results().for_each(|result| alone.insert(result.index()));
        }
    }
    alone
}

/// What is equal for ranks that issue the same collectives in the same order: the fingerprint of their operators, groups, types and sizes.
pub fn issue_order(graph: &Graph) -> Fingerprint {
    let facts = Facts::new(graph);
    let mut print = Fingerprinter::new();
    for node in graph.order.iter().map(|id| &graph.nodes[*id]).filter(|node| facts.is_collective(node)) {
        print.part(graph.ops[node.op].name.as_bytes());
        for arg in &node.args {
            match arg {
                Arg::Str(text) => drop(print.part(text.as_bytes())),
                _ => arg.values().for_each(|value| {
                    let ty = graph.ty(value);
                    print.part(ty.dtype.text().as_bytes()).number(ty.bytes().0);
                }),
            }
        }
    }
    print.finish()
}
