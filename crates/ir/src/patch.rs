//! Patches: labelled changes to a graph, built aside and applied whole.
//!
//! A patch borrows the graph that it changes and numbers its new nodes and values behind that graph's. Nothing happens until
//! [`Patch::apply`] makes the changed graph, in which the program is put in order again.

use std::{cmp::Reverse, collections::BinaryHeap};

use base::{Diagnostic, Id, Result, SecondaryMap};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Arg, Device, Graph, InputId, LabelId, Module, Node, NodeId, Op, OpId, PartId, Return, ReturnType,
    TensorType, Value, ValueDef, ValueId, build::new_returns,
};

/// Changes to a graph.
#[derive(Clone, Debug)]
pub struct Patch<'g> {
    base: &'g Graph,
    edits: Edits,
    /// The operators by name, filled when the first node is added.
    ops: FxHashMap<String, OpId>,
}

/// The changes of a patch without the graph that they are for.
#[derive(Clone, Default, Debug)]
pub struct Edits {
    ops: Vec<Op>,
    nodes: Vec<Node>,
    values: Vec<Value>,
    labels: Vec<String>,
    /// For each new node, in order, the node whose position it takes.
    sources: Vec<NodeId>,
    replaced: FxHashMap<ValueId, ValueId>,
    replaced_in: FxHashMap<NodeId, Vec<(ValueId, ValueId)>>,
    removed: FxHashSet<NodeId>,
    updates: FxHashMap<InputId, ValueId>,
    modules: FxHashMap<NodeId, Option<Module>>,
    devices: Vec<(ValueId, Device)>,
    order: Option<Vec<(NodeId, PartId)>>,
    is_early: bool,
    changes: Vec<Change>,
}

/// What was done under one label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Why, for the report: the pass and what it met.
    pub label: String,
    /// How many nodes were added.
    pub added: usize,
    /// How many nodes were removed.
    pub removed: usize,
    /// How many values were replaced by others.
    pub replaced: usize,
    id: Option<LabelId>,
}

impl<'g> Patch<'g> {
    /// No changes to `graph`, which is verified.
    pub fn new(graph: &'g Graph) -> Self {
        Self { base: graph, edits: Edits::default(), ops: FxHashMap::default() }
    }

    /// The graph that it changes.
    pub const fn base(&self) -> &'g Graph {
        self.base
    }

    /// Begins a change: what follows is done under this label, which new nodes carry.
    pub fn label(&mut self, label: impl Into<String>) -> &mut Self {
        let label = label.into();
        self.edits.changes.push(Change { label, added: 0, removed: 0, replaced: 0, id: None });
        self
    }

    /// What is done, by label.
    pub fn changes(&self) -> &[Change] {
        &self.edits.changes
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        let Edits { sources, replaced, replaced_in, removed, updates, devices, order, .. } = &self.edits;
        let edits = sources.is_empty() && replaced.is_empty() && replaced_in.is_empty();
        let edits = edits && updates.is_empty() && devices.is_empty();
        let same = |order: &Vec<(NodeId, PartId)>| order.iter().map(|(id, _)| id).eq(&self.base.order);
        edits && removed.is_empty() && order.as_ref().is_none_or(same)
    }

    /// The type of a value, old or new.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        let old = self.base.values.get(value);
        &old.unwrap_or_else(|| &self.edits.values[value.index() - self.base.values.len()]).ty
    }

    /// Adds a node that takes the position, place, module and part of `source` (a new node may be a source too). `op` is
    /// its schema, as for [`Graph::push`]. It moves behind its operands where they come later.
    pub fn push(&mut self, source: NodeId, op: &str, args: Vec<Arg>, returns: Vec<ReturnType>) -> NodeId {
        let op = self.op(op);
        let Node { place, module, part, stage, .. } = *self.node(source);
        let node = Node { op, args, returns: Vec::new(), place, module, part, label: None, stage };
        self.add(source, node, returns)
    }

    /// Adds a node, with what it returns and under the current label, at the position of `source`.
    fn add(&mut self, source: NodeId, node: Node, returns: Vec<ReturnType>) -> NodeId {
        let label = Some(self.current_label());
        self.change().added += 1;
        let id = NodeId::from_index(self.base.nodes.len() + self.edits.nodes.len());
        let (first, values) = (self.base.values.len(), &mut self.edits.values);
        let returns = new_returns(id, returns, |value| {
            values.push(value);
            ValueId::from_index(first + values.len() - 1)
        });
        self.edits.nodes.push(Node { returns, label, ..node });
        self.edits.sources.push(source);
        id
    }

    /// Adds a node, as [`push`](Self::push) does, that returns one tensor.
    pub fn push_value(&mut self, source: NodeId, op: &str, args: Vec<Arg>, ty: TensorType) -> ValueId {
        let result = ValueId::from_index(self.base.values.len() + self.edits.values.len());
        self.push(source, op, args, vec![ty.into()]);
        result
    }

    /// Adds a copy of a node of the graph that stands where `source` does, in its part, and reads what `map` gives for its operands. It keeps
    /// its place and module.
    pub fn copy(&mut self, node: NodeId, source: NodeId, mut map: impl FnMut(ValueId) -> ValueId) -> NodeId {
        let base = self.base;
        let Node { args, returns, .. } = &base.nodes[node];
        let mut args = args.clone();
        for arg in &mut args {
            arg.map_values(&mut map);
        }
        let of = |value: &ValueId| base.ty(*value).clone();
        let returns = returns.iter().map(|returned| match returned {
            Return::None => ReturnType::None,
            Return::Value(value) => ReturnType::Tensor(of(value)),
            Return::Values(values) => ReturnType::Tensors(values.iter().map(of).collect()),
        });
        self.copy_with(node, source, args, returns.collect())
    }

    /// The same with other arguments and results.
    pub fn copy_with(
        &mut self,
        node: NodeId,
        source: NodeId,
        args: Vec<Arg>,
        returns: Vec<ReturnType>,
    ) -> NodeId {
        let Node { op, place, module, stage, .. } = self.base.nodes[node];
        let part = self.node(source).part;
        let node = Node { op, args, returns: Vec::new(), place, module, part, label: None, stage };
        self.add(source, node, returns)
    }

    /// A node, old or new.
    pub fn node(&self, id: NodeId) -> &Node {
        let old = self.base.nodes.get(id);
        old.unwrap_or_else(|| &self.edits.nodes[id.index() - self.base.nodes.len()])
    }

    /// Replaces every use of `old` by `new`, which has the same element type and sizes, returns and updates included. The node
    /// that makes `new` goes on reading `old`.
    pub fn replace(&mut self, old: ValueId, new: ValueId) {
        self.change().replaced += 1;
        self.edits.replaced.insert(old, new);
    }

    /// Replaces the uses of `old` by one node.
    pub fn replace_in(&mut self, node: NodeId, old: ValueId, new: ValueId) {
        self.change().replaced += 1;
        self.edits.replaced_in.entry(node).or_default().push((old, new));
    }

    /// Gives an input that is updated another new value.
    pub fn update(&mut self, input: InputId, value: ValueId) {
        self.change().replaced += 1;
        self.edits.updates.insert(input, value);
    }

    /// Puts the tensor of an input on another device.
    pub fn put_input(&mut self, input: InputId, device: Device) {
        self.change().replaced += 1;
        self.edits.devices.push((self.base.inputs[input].value, device));
    }

    /// Says that a node of the graph is of another module, or of none.
    pub fn put_module(&mut self, node: NodeId, module: Option<Module>) {
        self.edits.modules.insert(node, module);
    }

    /// Removes a node, whose results nothing uses in the end.
    pub fn remove(&mut self, node: NodeId) {
        let removed = self.edits.removed.insert(node);
        self.change().removed += usize::from(removed);
    }

    /// Puts the program into another order, before anything else that the patch does. Each node comes with the part that it stands in then.
    pub fn reorder(&mut self, order: Vec<(NodeId, PartId)>) {
        self.edits.order = Some(order);
    }

    /// Brings what makes operands before their readers, where these want to stand before it; without, readers wait for it, and what is ready goes ahead
    /// of them.
    pub const fn bring_operands(&mut self) {
        self.edits.is_early = true;
    }

    /// The changes alone.
    pub fn into_edits(self) -> Edits {
        self.edits
    }

    /// The changed graph, as [`Edits::apply`] gives it.
    pub fn apply(self) -> Result<Graph> {
        self.edits.apply(self.base.clone())
    }

    fn op(&mut self, text: &str) -> OpId {
        if self.ops.is_empty() {
            self.ops = self.base.ops.iter().map(|(id, op)| (op.name.clone(), id)).collect();
        }
        let name = &text[..text.find('(').unwrap_or(text.len())];
        if let Some(id) = self.ops.get(name) {
            return *id;
        }
        let id = OpId::from_index(self.base.ops.len() + self.edits.ops.len());
        self.edits.ops.push(text.parse().expect("a schema in code is well formed"));
        self.ops.insert(name.into(), id);
        id
    }

    fn change(&mut self) -> &mut Change {
        self.edits.changes.last_mut().expect("a label is set before changes are made")
    }

    fn current_label(&mut self) -> LabelId {
        let next = LabelId::from_index(self.base.labels.len() + self.edits.labels.len());
        let change = self.change();
        if let Some(known) = change.id {
            return known;
        }
        change.id = Some(next);
        let label = change.label.clone();
        self.edits.labels.push(label);
        next
    }
}

impl Edits {
    /// `graph`, which the patch was made for, with the changes. Fails with a bug where a value that is used was removed, where a
    /// value is replaced by one of another type, or where the changes make a circle.
    pub fn apply(mut self, mut graph: Graph) -> Result<Graph> {
        let first = graph.nodes.len();
        graph.ops.extend(std::mem::take(&mut self.ops));
        graph.labels.extend(std::mem::take(&mut self.labels));
        graph.nodes.extend(std::mem::take(&mut self.nodes));
        graph.values.extend(std::mem::take(&mut self.values));
        let resolved = self.resolve(&graph)?;
        self.put_modules(&mut graph);
        let order = match self.order.take() {
            None => std::mem::take(&mut graph.order),
            Some(order) => {
                for (id, part) in &order {
                    graph.nodes[*id].part = *part;
                }
                order.into_iter().map(|(id, _)| id).collect()
            }
        };
        let positions = self.positions(&order, first);
        for (_, id) in &positions {
            self.redirect(*id, &mut graph, &resolved);
        }
        let through = |value: &mut ValueId| *value = *resolved.get(value).unwrap_or(value);
        graph.returns.iter_mut().for_each(through);
        graph.updates.iter_mut().map(|(_, value)| value).for_each(through);
        for (input, value) in &mut graph.updates {
            *value = self.updates.get(input).copied().unwrap_or(*value);
        }
        for (value, device) in std::mem::take(&mut self.devices) {
            graph.values[value].ty.device = device;
        }
        graph.order = in_order(&graph, &positions, self.is_early)?;
        keep_parts_together(&mut graph);
        Ok(graph)
    }

    fn put_modules(&mut self, graph: &mut Graph) {
        let mut put: Vec<_> = std::mem::take(&mut self.modules).into_iter().collect();
        put.sort_unstable_by_key(|(node, _)| *node);
        for (node, module) in put {
            graph.nodes[node].module = module.map(|module| {
                let known = graph.modules.iter().find(|(_, known)| **known == module).map(|(id, _)| id);
                known.unwrap_or_else(|| graph.modules.push(module))
            });
        }
    }

    /// What each replaced value becomes, chains followed to their end.
    fn resolve(&self, graph: &Graph) -> Result<FxHashMap<ValueId, ValueId>> {
        let mut resolved = FxHashMap::default();
        for (old, first) in &self.replaced {
            let mut new = *first;
            let mut steps = 0;
            while let Some(next) = self.replaced.get(&new) {
                new = *next;
                steps += 1;
                if steps > self.replaced.len() {
                    return Err(Diagnostic::bug(format!("a patch replaces {old} in a circle")));
                }
            }
            let (was, is) = (graph.ty(*old), graph.ty(new));
            if (was.dtype, &was.shape) != (is.dtype, &is.shape) {
                return Err(Diagnostic::bug(format!("a patch replaces {old} of {was} by {new} of {is}")));
            }
            resolved.insert(*old, new);
        }
        Ok(resolved)
    }

    /// The nodes of the new program with the positions that they want: old nodes their own, new ones, numbered from `first` on, right
    /// behind their source's.
    fn positions(&self, order: &[NodeId], first: usize) -> Vec<((usize, usize), NodeId)> {
        let mut wanted: SecondaryMap<NodeId, usize> = SecondaryMap::with_default(order.len());
        order.iter().enumerate().for_each(|(at, id)| wanted[*id] = at);
        let kept = order.iter().enumerate().filter(|(_, id)| !self.removed.contains(id));
        let mut positions: Vec<_> = kept.map(|(at, id)| ((at, 0), *id)).collect();
        for (number, source) in self.sources.iter().enumerate() {
            let id = NodeId::from_index(first + number);
            wanted[id] = wanted[*source];
            if !self.removed.contains(&id) {
                positions.push(((wanted[*source], number + 1), id));
            }
        }
        positions.sort_unstable();
        positions
    }

    /// Replaces the operands of a node.
    fn redirect(&self, id: NodeId, graph: &mut Graph, resolved: &FxHashMap<ValueId, ValueId>) {
        let here = self.replaced_in.get(&id);
        let values = &graph.values;
        let map = |value: ValueId| {
            let value = here
                .and_then(|here| here.iter().find(|(old, _)| *old == value))
                .map_or(value, |(_, new)| *new);
            let new = resolved.get(&value).copied().unwrap_or(value);
            let own = matches!(values[new].def, ValueDef::Result(maker, _) if maker == id);
            if own { value } else { new }
        };
        graph.nodes[id].args.iter_mut().for_each(|arg| arg.map_values(map));
    }
}

/// Moves what needs a value of a later part of the program into that part.
fn keep_parts_together(graph: &mut Graph) {
    if graph.order.iter().map(|id| graph.nodes[*id].part).is_sorted() {
        return;
    }
    for id in &graph.order {
        let maker = |value: ValueId| match graph.values[value].def {
            ValueDef::Result(node, _) => graph.nodes[node].part,
            ValueDef::Input(_) => PartId(0),
        };
        let needed = graph.nodes[*id].operands().map(maker).max().unwrap_or(PartId(0));
        let node = &mut graph.nodes[*id];
        node.part = node.part.max(needed);
    }
    let Graph { order, nodes, .. } = graph;
    order.sort_by_key(|id| nodes[*id].part);
}

/// The nodes in the order of their wanted positions, but each behind those that make its operands: that waits for them, or has them come early.
fn in_order(graph: &Graph, positions: &[((usize, usize), NodeId)], is_early: bool) -> Result<Vec<NodeId>> {
    let mut included: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::with_default(None);
    positions.iter().enumerate().for_each(|(rank, (_, id))| included[*id] = Some(rank));
    // Which node uses a result of which, by rank.
    let mut uses: Vec<(usize, usize)> = Vec::with_capacity(2 * positions.len());
    for (rank, (_, id)) in positions.iter().enumerate() {
        for (value, made_by) in
            graph.nodes[*id].operands().filter_map(|value| Some((value, graph.maker(value)?)))
        {
            let Some(made_at) = included[made_by] else {
                let user = graph.op_name(*id);
                return Err(Diagnostic::bug(format!("a patch removes {value}, which {id} ({user}) uses")));
            };
            uses.push((made_at, rank));
        }
    }
    if uses.iter().all(|(made_at, rank)| made_at < rank) {
        return Ok(positions.iter().map(|(_, id)| *id).collect());
    }
    let order = if is_early { brought(positions.len(), &uses) } else { awaited(positions.len(), &uses) };
    let named = |stuck: usize| {
        let stuck = positions[stuck].1;
        Diagnostic::bug(format!("a patch makes {stuck} ({}) depend on itself", graph.op_name(stuck)))
    };
    order.map(|order| order.into_iter().map(|rank| positions[rank].1).collect()).map_err(named)
}

/// So many ranks in their order, but each behind those that it uses, which wait for theirs; one that uses itself is the error.
fn awaited(count: usize, uses: &[(usize, usize)]) -> Result<Vec<usize>, usize> {
    let mut missing: Vec<usize> = vec![0; count];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (made_at, rank) in uses {
        users[*made_at].push(*rank);
        missing[*rank] += 1;
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        missing.iter().enumerate().filter(|(_, n)| **n == 0).map(|(rank, _)| Reverse(rank)).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse(rank)) = ready.pop() {
        order.push(rank);
        for user in std::mem::take(&mut users[rank]) {
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    missing.iter().position(|n| *n > 0).map_or(Ok(order), Err)
}

/// The same where what a rank uses comes right before it, if it has no earlier place.
fn brought(count: usize, uses: &[(usize, usize)]) -> Result<Vec<usize>, usize> {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum State {
        Waiting,
        Entered,
        Placed,
    }
    let mut makers: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (made_at, rank) in uses {
        makers[*rank].push(*made_at);
    }
    for of in &mut makers {
        of.sort_unstable_by_key(|made_at| Reverse(*made_at));
    }
    let mut states = vec![State::Waiting; count];
    let mut order = Vec::with_capacity(count);
    for rank in 0..count {
        let mut todo = vec![rank];
        while let Some(next) = todo.last().copied() {
            let is_placed = |made_at: &&usize| states[**made_at] == State::Placed;
            match states[next] {
                State::Waiting => {
                    todo.extend(makers[next].iter().filter(|made_at| !is_placed(made_at)));
                    states[next] = State::Entered;
                }
                State::Entered if makers[next].iter().all(|made_at| is_placed(&made_at)) => {
                    states[next] = State::Placed;
                    order.push(next);
                    todo.pop();
                }
                State::Entered => return Err(next),
                State::Placed => drop(todo.pop()),
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_wait_for_what_makes_their_operands_or_have_it_come_early() {
        // 1 reads what 3 makes, which reads what 0 makes.
        let uses = [(0, 3), (3, 1)];
        assert_eq!(awaited(5, &uses), Ok(vec![0, 2, 3, 1, 4]));
        assert_eq!(brought(5, &uses), Ok(vec![0, 3, 1, 2, 4]));
        let circle = [(1, 2), (2, 3), (3, 1)];
        assert_eq!(awaited(4, &circle), Err(1));
        assert_eq!(brought(4, &circle), Err(1));
        let twice = [(3, 1), (3, 1), (3, 2), (4, 3)];
        assert_eq!(brought(5, &twice), Ok(vec![0, 4, 3, 1, 2]));
    }
}
