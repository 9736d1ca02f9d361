//! Compaction: the same program with dead entries gone and every id numbered in program order.

use base::{Id, PrimaryMap, SecondaryMap};

use crate::{Arg, Graph, LabelId, ModuleId, Node, NodeId, OpId, PartId, PlaceId, Return, ValueDef, ValueId};

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

    /// The entries that were asked for, in the new order.
    fn take<V>(&self, table: PrimaryMap<K, V>) -> PrimaryMap<K, V> {
        let mut entries: Vec<Option<V>> = table.into_iter().map(Some).collect();
        let mut taken = |old: &K| entries[old.index()].take().expect("each entry is asked for once");
        self.old.iter().map(&mut taken).collect()
    }
}

struct Renumbering {
    ops: Renumbered<OpId>,
    values: Renumbered<ValueId>,
    places: Renumbered<PlaceId>,
    modules: Renumbered<ModuleId>,
    labels: Renumbered<LabelId>,
    parts: Renumbered<PartId>,
}

impl Graph {
    /// The canonical form of a verified graph: without dead nodes, their values and unused table entries; inputs keep their
    /// order, values are numbered inputs first and then in program order, everything else in the order of first use.
    #[must_use]
    pub fn renumbered(&self) -> Self {
        self.clone().into_renumbered()
    }

    /// This graph as [`renumbered`](Self::renumbered) gives it.
    #[must_use]
    pub fn into_renumbered(mut self) -> Self {
        let mut new = Renumbering {
            ops: Renumbered::new(),
            values: Renumbered::new(),
            places: Renumbered::new(),
            modules: Renumbered::new(),
            labels: Renumbered::new(),
            parts: Renumbered::new(),
        };
        for (_, input) in self.inputs.iter_mut() {
            input.value = new.values.id(input.value);
        }
        let mut order: Renumbered<NodeId> = Renumbered::new();
        for id in &self.order {
            order.id(*id);
            new.node(&mut self.nodes[*id]);
        }
        let nodes = order.take(self.nodes);
        let mut values = new.values.take(self.values);
        for (id, node) in nodes.iter() {
            for (position, result) in node.results().enumerate() {
                values[result].def = ValueDef::Result(id, position as u32);
            }
        }
        self.returns.iter_mut().for_each(|value| *value = new.values.id(*value));
        self.updates.iter_mut().for_each(|(_, value)| *value = new.values.id(*value));
        Self {
            ops: new.ops.take(self.ops),
            inputs: self.inputs,
            values,
            order: nodes.ids().collect(),
            nodes,
            returns: self.returns,
            updates: self.updates,
            places: new.places.take(self.places),
            modules: new.modules.take(self.modules),
            labels: new.labels.take(self.labels),
            parts: new.parts.take(self.parts),
        }
    }
}

impl Renumbering {
    fn node(&mut self, node: &mut Node) {
        node.op = self.ops.id(node.op);
        for arg in &mut node.args {
            arg.map_values(|value| self.values.id(value));
            match arg {
                Arg::Float(number) => *number = one_nan(*number),
                Arg::Floats(numbers) => numbers.iter_mut().for_each(|number| *number = one_nan(*number)),
                _ => {}
            }
        }
        for value in node.returns.iter_mut().flat_map(Return::values_mut) {
            *value = self.values.id(*value);
        }
        node.place = node.place.map(|place| self.places.id(place));
        node.module = node.module.map(|module| self.modules.id(module));
        node.label = node.label.map(|label| self.labels.id(label));
        node.part = self.parts.id(node.part);
    }
}

/// Every not-a-number as the same one, so that equal graphs are equal bytes.
fn one_nan(number: f64) -> f64 {
    if number.is_nan() { f64::NAN } else { number }
}
