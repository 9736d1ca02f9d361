//! Which state the update alone reads, and what of the update works on it: what may be elsewhere for the rest of the step.
//!
//! An operation on lists does the same to each entry by itself, so entries are told apart. What is computed from the same state is a unit: an
//! optimizer's is what it does to one parameter. Nothing here knows an optimizer.

use std::collections::BTreeMap;

use base::{Id, SecondaryMap};
use fixedbitset::FixedBitSet;
use ir::{Arg, Graph, InputClass, InputId, NodeId, PartKind, Return, ValueId};

use crate::facts::{Facts, Users, end_values, users};

/// An entry of an operation on lists, or an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entry {
    /// Its node.
    pub node: NodeId,
    /// Which entry of the lists; 0 where the node has none.
    pub at: usize,
}

/// State that only a part of the update reads, with that part.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The state.
    pub state: Vec<InputId>,
    /// What reads it, and what is computed of that, in program order.
    pub entries: Vec<Entry>,
    /// The bytes of the state.
    pub bytes: u64,
}

/// The units of a verified rank's graph, in the order in which the program comes to them.
pub fn state_units(graph: &Graph) -> Vec<Unit> {
    let facts = Facts::new(graph);
    let users = users(graph);
    let mut state = candidates(graph, &facts, &users);
    // What becomes of state must be made of it: without what is not, others may be units.
    while !state.is_empty() {
        match Units::new(graph, &facts, &state).found() {
            Ok(units) => return units,
            Err(wrong) => state.retain(|input, _| !wrong.contains(input)),
        }
    }
    Vec::new()
}

/// How many entries the lists of a node have, if its entries can be told apart.
pub fn entries(graph: &Graph, id: NodeId) -> Option<usize> {
    let node = &graph.nodes[id];
    aten::row(graph.op_name(id)).filter(|row| row.entrywise || !row.list_of.is_empty())?;
    let of_lists = node
        .args
        .iter()
        .filter_map(|arg| if let Arg::Values(values) = arg { Some(values.len()) } else { None });
    let returned = node
        .returns
        .iter()
        .filter_map(|one| if let Return::Values(values) = one { Some(values.len()) } else { None });
    let lengths: Vec<usize> = of_lists.chain(returned).filter(|length| *length > 0).collect();
    let by_entry = |arg: &Arg| {
        matches!(arg, Arg::Ints(list) if !list.is_empty()) || matches!(arg, Arg::Floats(_) | Arg::Bools(_))
    };
    let single = |one: &Return| matches!(one, Return::Value(_));
    let count = *lengths.first()?;
    let is_alike = lengths.iter().all(|length| *length == count);
    (is_alike && !node.args.iter().any(by_entry) && !node.returns.iter().any(single)).then_some(count)
}

/// State that only the update reads, with its new value.
fn candidates(graph: &Graph, facts: &Facts, users: &Users) -> BTreeMap<InputId, ValueId> {
    let mut updated: BTreeMap<ValueId, u32> = BTreeMap::new();
    graph.updates.iter().for_each(|(_, value)| *updated.entry(*value).or_default() += 1);
    let of_update = |id: &NodeId| graph.part_kind(*id) == PartKind::Update;
    let is_one = |input: InputId, new: ValueId| {
        let ir::Input { class, value, .. } = graph.inputs[input];
        let ty = graph.ty(value);
        let reads = |id: &NodeId| {
            of_update(id) && !facts.is_communication(&graph.nodes[*id]) && graph.host_copy(*id).is_none()
        };
        matches!(class, InputClass::Optimizer | InputClass::Parameter)
            // Numbers, such as counts, stay. What shards have does not matter: it is another number of elements on other ranks.
            && ty.rank() > 0
            && ty.is_dense()
            && !users[value].is_empty()
            && users[value].iter().all(reads)
            && graph.maker(new).is_some_and(|maker| of_update(&maker))
            && updated[&new] == 1
            && !graph.returns.contains(&value)
            && !graph.returns.contains(&new)
    };
    let (ends, sent) = (end_values(graph), sent(graph, facts));
    let goes_out = |input: InputId| {
        let value = graph.inputs[input].value.index();
        ends.contains(value) || sent.contains(value)
    };
    graph.updates.iter().copied().filter(|(input, new)| is_one(*input, *new) && !goes_out(*input)).collect()
}

/// What something is made of that is sent to another pipeline stage: that would be sent later than the other stage expects it.
fn sent(graph: &Graph, facts: &Facts) -> FixedBitSet {
    let mut sent = FixedBitSet::with_capacity(graph.values.len());
    for id in graph.order.iter().rev() {
        let node = &graph.nodes[*id];
        if facts.starts_transfer(node) || node.results().any(|result| sent.contains(result.index())) {
            node.operands().for_each(|operand| sent.insert(operand.index()));
        }
    }
    sent
}

struct Units<'g> {
    graph: &'g Graph,
    state: &'g BTreeMap<InputId, ValueId>,
    /// What is computed of the state, in program order.
    entries: Vec<Entry>,
    /// For each value that is, or is computed of, the state, its place in a union of what belongs together.
    place: SecondaryMap<ValueId, Option<usize>>,
    /// The union: each place points to one before it, the first to itself. State is first, entries follow.
    joined: Vec<usize>,
}

impl<'g> Units<'g> {
    fn new(graph: &'g Graph, facts: &Facts, state: &'g BTreeMap<InputId, ValueId>) -> Self {
        let place = SecondaryMap::with_default(None);
        let mut units = Self { graph, state, entries: Vec::new(), place, joined: (0..state.len()).collect() };
        for (number, input) in state.keys().enumerate() {
            units.place[graph.inputs[*input].value] = Some(number);
        }
        for id in graph.order.iter().filter(|id| graph.part_kind(**id) == PartKind::Update) {
            let node = &graph.nodes[*id];
            let is_of_state = node.operands().any(|operand| units.place[operand].is_some());
            if is_of_state && !facts.is_communication(node) && graph.host_copy(*id).is_none() {
                units.read(*id);
            }
        }
        units
    }

    /// Adds what of a node reads what is of the state.
    fn read(&mut self, id: NodeId) {
        let node = &self.graph.nodes[id];
        let count = entries(self.graph, id);
        for at in 0..count.unwrap_or(1) {
            let reads: Vec<usize> =
                operands(&node.args, count.map(|_| at)).filter_map(|value| self.place[value]).collect();
            if reads.is_empty() {
                continue;
            }
            let own = self.joined.len();
            self.joined.push(own);
            self.entries.push(Entry { node: id, at });
            for read in reads {
                self.join(read, own);
            }
            let results = node.returns.iter().flat_map(|returned| match (returned, count) {
                (Return::Values(values), Some(_)) => values.get(at..=at).unwrap_or_default(),
                (returned, _) => returned.values(),
            });
            for result in results {
                self.place[*result] = Some(own);
            }
        }
    }

    fn root(&self, mut at: usize) -> usize {
        while self.joined[at] != at {
            at = self.joined[at];
        }
        at
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        let first = one.min(other);
        for mut at in [one, other] {
            while self.joined[at] != first && self.joined[at] != at {
                at = std::mem::replace(&mut self.joined[at], first);
            }
            self.joined[at] = first;
        }
    }

    /// The units, or the state whose new value is not made of it.
    fn found(&self) -> Result<Vec<Unit>, Vec<InputId>> {
        let root = |value: ValueId| self.place[value].map(|place| self.root(place));
        let of_itself =
            |(input, new): &(&InputId, &ValueId)| root(**new) == root(self.graph.inputs[**input].value);
        let wrong: Vec<InputId> =
            self.state.iter().filter(|pair| !of_itself(pair)).map(|(input, _)| *input).collect();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let mut units: BTreeMap<usize, Unit> = BTreeMap::new();
        let mut order: Vec<usize> = Vec::new();
        for (number, entry) in self.entries.iter().enumerate() {
            let root = self.root(self.state.len() + number);
            let unit = units.entry(root).or_insert_with(|| {
                order.push(root);
                Unit::default()
            });
            unit.entries.push(*entry);
        }
        for (number, input) in self.state.keys().enumerate() {
            let Some(unit) = units.get_mut(&self.root(number)) else { continue };
            unit.bytes += self.graph.ty(self.graph.inputs[*input].value).bytes().0;
            unit.state.push(*input);
        }
        Ok(order.iter().filter_map(|root| units.remove(root)).collect())
    }
}

/// The tensors that an entry reads, or a whole node.
pub fn operands(args: &[Arg], entry: Option<usize>) -> impl Iterator<Item = ValueId> + '_ {
    args.iter().flat_map(move |arg| match (arg, entry) {
        (Arg::Values(values), Some(at)) => {
            values.get(at..=at).unwrap_or_default().iter().flatten().copied().collect()
        }
        (arg, _) => arg.values().collect::<Vec<_>>(),
    })
}
