//! A group's operations as a graph of their own, in which they can be run beside its kernel.

use ir::{Arg, Graph, InputClass, Node, NodeId, Return, ReturnType, ValueDef, ValueId};
use rustc_hash::FxHashMap;

use super::{eager::Rounding, partition::Group, views::view};

impl Group {
    /// What is equal for groups of the same operations over tensors that lie alike, in whatever graph, with kernels that round alike.
    pub fn name(&self, graph: &Graph) -> String {
        let print = self.alone(graph).fingerprint();
        match self.rounding {
            Rounding::AtStores => print.to_string(),
            Rounding::AsEager => format!("{print} as eager"),
        }
    }

    /// The operations of the group, and the views between them: inputs are what it reads, in order, and then what
    /// its operations are given beside; returns what it makes, in order.
    pub fn alone(&self, graph: &Graph) -> Graph {
        let mut alone = Alone { from: graph, to: Graph::default(), values: FxHashMap::default() };
        self.reads.iter().for_each(|read| alone.input(*read));
        self.nodes.iter().for_each(|node| alone.node(*node));
        alone.to.returns = self.writes.iter().map(|value| alone.values[value]).collect();
        alone.to
    }
}

struct Alone<'a> {
    from: &'a Graph,
    to: Graph,
    /// What stands for each value of the old graph.
    values: FxHashMap<ValueId, ValueId>,
}

impl Alone<'_> {
    /// Adds a node behind the views that it reads.
    fn node(&mut self, id: NodeId) {
        let Node { op, args, returns, .. } = &self.from.nodes[id];
        let mut args: Vec<Arg> = args.clone();
        for arg in &mut args {
            arg.map_values(|value| self.value(value));
        }
        let ty = |value: &ValueId| self.from.ty(*value).clone();
        let types = returns.iter().map(|returned| match returned {
            Return::None => ReturnType::None,
            Return::Value(value) => ReturnType::Tensor(ty(value)),
            Return::Values(values) => ReturnType::Tensors(values.iter().map(ty).collect()),
        });
        let made = self.to.push(&self.from.ops[*op].to_string(), args, types.collect());
        let made: Vec<ValueId> = self.to.nodes[made].results().collect();
        self.values.extend(self.from.nodes[id].results().zip(made));
    }

    fn value(&mut self, value: ValueId) -> ValueId {
        if let Some(known) = self.values.get(&value) {
            return *known;
        }
        match self.from.values[value].def {
            ValueDef::Result(maker, _) if view(self.from, value).is_some() => self.node(maker),
            // An operation may be given what its kernel does not read.
            _ => self.input(value),
        }
        self.values[&value]
    }

    fn input(&mut self, value: ValueId) {
        let name = format!("batch.{}", self.to.inputs.len());
        let input = self.to.input(InputClass::Batch, name, self.from.ty(value).clone());
        self.values.insert(value, input);
    }
}
