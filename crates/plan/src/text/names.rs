//! Names of parts, operations and values, which stay as they are when something else in the program changes.

use base::SecondaryMap;
use ir::{Graph, NodeId, PartId, ValueDef, ValueId};
use rustc_hash::FxHashMap;

/// Where the inputs of a step stand among the parts that values come from.
pub const INPUTS: &str = "inputs";

/// What stands between an operator and the number of a result that is not its first.
pub const RESULT: char = '@';

/// What a result of an operator is called.
pub fn result_of(operator: &str, result: u32) -> String {
    if result == 0 { operator.to_owned() } else { format!("{operator}{RESULT}{result}") }
}

/// The names of a graph's parts: their kinds, and a number from the second one of a kind on.
pub fn parts(graph: &Graph) -> Vec<String> {
    let mut seen = [0; 3];
    let name = |part: &ir::Part| {
        let count = &mut seen[part.kind as usize];
        *count += 1;
        let kind = part.kind.text();
        if *count == 1 { kind.to_owned() } else { format!("{kind} {count}") }
    };
    graph.parts.values().map(name).collect()
}

/// What an operation is called: a path and its operator, and its number among those that have them in the same part of the program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name<'a> {
    /// The part.
    pub part: PartId,
    /// The path of its module. Of one that belongs to no module, as in an optimizer, what its first operand is called that has a path: an
    /// input's name, or the path of what made it.
    pub path: &'a str,
    /// The operator.
    pub operator: &'a str,
    /// The number.
    pub number: u32,
}

/// The names of a graph's operations.
pub struct Names<'a> {
    graph: &'a Graph,
    of: SecondaryMap<NodeId, Option<Name<'a>>>,
    counts: FxHashMap<(PartId, &'a str, &'a str), u32>,
}

impl<'a> Names<'a> {
    /// Names by program order.
    pub fn new(graph: &'a Graph) -> Self {
        let mut names = Self { graph, of: SecondaryMap::with_default(None), counts: FxHashMap::default() };
        for id in &graph.order {
            let (part, path, operator) = (graph.nodes[*id].part, names.path(*id), graph.op_name(*id));
            let count = names.counts.entry((part, path, operator)).or_insert(0);
            names.of[*id] = Some(Name { part, path, operator, number: *count });
            *count += 1;
        }
        names
    }

    fn path(&self, id: NodeId) -> &'a str {
        let node = &self.graph.nodes[id];
        let module = node.module.map_or("", |module| self.graph.modules[module].as_str());
        if !module.is_empty() {
            return module;
        }
        let mut paths = node.operands().map(|value| match self.graph.values[value].def {
            ValueDef::Input(input) => self.graph.inputs[input].name.as_str(),
            ValueDef::Result(node, _) => self.of[node].map_or("", |name| name.path),
        });
        paths.find(|path| !path.is_empty()).unwrap_or("")
    }

    /// The name of an operation.
    pub fn of(&self, id: NodeId) -> Name<'a> {
        self.of[id].expect("a node in the program order")
    }

    /// How many operations are called the same but for their number.
    pub fn alike(&self, name: &Name<'_>) -> u32 {
        self.counts.get(&(name.part, name.path, name.operator)).copied().unwrap_or(0)
    }

    /// Where a value comes from.
    pub fn origin(&self, value: ValueId) -> Origin<'a> {
        match self.graph.values[value].def {
            ValueDef::Input(input) => Origin::Input(&self.graph.inputs[input].name),
            ValueDef::Result(node, result) => Origin::Result(self.of(node), result),
        }
    }
}

/// Where a value comes from.
pub enum Origin<'a> {
    /// An input, by its name.
    Input(&'a str),
    /// A result of an operation, by its number.
    Result(Name<'a>, u32),
}
