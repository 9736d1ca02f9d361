//! Compaction: the same program with dead entries gone and every id numbered in program order.

use base::{Id, PrimaryMap, SecondaryMap};

use crate::{
    Arg, Graph, Input, LabelId, ModuleId, Node, NodeId, OpId, PlaceId, Return, Value, ValueDef, ValueId,
};

/// Maps old ids to new ones, which are given out in the order in which entries are first asked for.
struct Renumbered<K: Id> {
    new: SecondaryMap<K, Option<K>>,
    /// The old ids in the order of the new ones.
    old: Vec<K>,
}

impl<K: Id> Renumbered<K> {
    fn new() -> Self {
        Self { new: SecondaryMap::with_default(None), old: Vec::new() }
    }

    fn id(&mut self, old: K) -> K {
        let next = K::from_index(self.old.len());
        let new = *self.new[old].get_or_insert(next);
        if new == next {
            self.old.push(old);
        }
        new
    }

    fn take<V: Clone>(&self, table: &PrimaryMap<K, V>) -> PrimaryMap<K, V> {
        self.old.iter().map(|old| table[*old].clone()).collect()
    }
}

struct Renumbering {
    ops: Renumbered<OpId>,
    values: Renumbered<ValueId>,
    places: Renumbered<PlaceId>,
    modules: Renumbered<ModuleId>,
    labels: Renumbered<LabelId>,
}

impl Graph {
    /// The canonical form of a verified graph: without dead nodes, their values and unused table entries; inputs keep their
    /// order, values are numbered inputs first and then in program order, everything else in the order of first use.
    #[must_use]
    pub fn renumbered(&self) -> Self {
        let mut new = Renumbering {
            ops: Renumbered::new(),
            values: Renumbered::new(),
            places: Renumbered::new(),
            modules: Renumbered::new(),
            labels: Renumbered::new(),
        };
        let inputs =
            self.inputs.values().map(|i| Input { value: new.values.id(i.value), ..i.clone() }).collect();
        let nodes: PrimaryMap<NodeId, Node> =
            self.order.iter().map(|id| new.node(&self.nodes[*id])).collect();
        let mut values: PrimaryMap<ValueId, Value> = new.values.take(&self.values);
        for (id, node) in nodes.iter() {
            for (position, result) in node.results().enumerate() {
                values[result].def = ValueDef::Result(id, position as u32);
            }
        }
        Self {
            ops: new.ops.take(&self.ops),
            inputs,
            values,
            order: nodes.ids().collect(),
            nodes,
            returns: self.returns.iter().map(|value| new.values.id(*value)).collect(),
            updates: self.updates.iter().map(|(input, value)| (*input, new.values.id(*value))).collect(),
            places: new.places.take(&self.places),
            modules: new.modules.take(&self.modules),
            labels: new.labels.take(&self.labels),
        }
    }
}

impl Renumbering {
    fn node(&mut self, node: &Node) -> Node {
        Node {
            op: self.ops.id(node.op),
            args: node.args.iter().map(|arg| self.arg(arg)).collect(),
            returns: node.returns.iter().map(|returned| self.returned(returned)).collect(),
            place: node.place.map(|place| self.places.id(place)),
            module: node.module.map(|module| self.modules.id(module)),
            phase: node.phase,
            label: node.label.map(|label| self.labels.id(label)),
        }
    }

    fn arg(&mut self, arg: &Arg) -> Arg {
        let mut arg = arg.clone();
        arg.map_values(|value| self.values.id(value));
        match &mut arg {
            Arg::Float(number) => *number = one_nan(*number),
            Arg::Floats(numbers) => numbers.iter_mut().for_each(|number| *number = one_nan(*number)),
            _ => {}
        }
        arg
    }

    fn returned(&mut self, returned: &Return) -> Return {
        match returned {
            Return::None => Return::None,
            Return::Value(value) => Return::Value(self.values.id(*value)),
            Return::Values(values) => {
                Return::Values(values.iter().map(|value| self.values.id(*value)).collect())
            }
        }
    }
}

/// Every not-a-number as the same one, so that equal graphs are equal bytes.
fn one_nan(number: f64) -> f64 {
    if number.is_nan() { f64::NAN } else { number }
}
