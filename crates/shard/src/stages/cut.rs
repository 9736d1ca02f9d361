//! From the program of all stages to that of each.

use std::collections::{BTreeMap, VecDeque};

use base::{Diagnostic, Result, SecondaryMap};
use ir::{
    Dims, Graph, InputId, Node, NodeId, PartId, RankGraph, Return, TensorType, Value, ValueDef, ValueId,
};
use rustc_hash::FxHashMap;

use super::{
    Schedule, StageSet,
    needs::{Needs, is_given},
    order::{Flow, orders},
    transfer::{Route, expect, receive, send, wait},
};
use crate::emit::{Emitter, Origin};

/// The graphs that the stages run, of a program whose nodes say where they run and which has been through everything that does not move
/// operations: `held` says which stages have each input that not all have.
///
/// A value is sent right behind what makes it. A stage starts to receive what a part of its program needs one part ahead, and waits
/// for it where it is first used; between two stages, values are received in the order in which they are sent. What was sent is waited for
/// when something has come back that was computed from it, and else at the end: that never waits long.
pub fn stage_graphs(
    graph: &RankGraph,
    stages: u32,
    held: &BTreeMap<InputId, StageSet>,
    schedule: Schedule,
) -> Result<Vec<RankGraph>> {
    let all = StageSet::all(stages);
    let of_input = |id: InputId| held.get(&id).copied().unwrap_or(all);
    let needs = Needs::of(graph, stages, of_input);
    let mut on: SecondaryMap<ValueId, StageSet> = SecondaryMap::default();
    for (id, input) in graph.inputs.iter() {
        on[input.value] = if is_given(input.class) { all } else { of_input(id) };
    }
    let flow = Flow { graph, stages, needs, held: on };
    let orders = orders(&flow, schedule)?;
    let plan = Transfers::of(&flow, &orders);
    (0..stages).map(|stage| Writer::new(&flow, &plan, stage).written(&orders[stage as usize], held)).collect()
}

/// All transfers: where each begins, and when what was sent has been received for sure.
struct Transfers {
    /// What each route carries, in the order in which it is sent.
    on: FxHashMap<(u32, u32), Vec<ValueId>>,
    /// For a value that was sent, the value whose arrival says that it has been received.
    confirmed: FxHashMap<(ValueId, u32), ValueId>,
}

impl Transfers {
    fn of(flow: &Flow<'_>, orders: &[Vec<NodeId>]) -> Self {
        let graph = flow.graph;
        let inputs: Vec<ValueId> = graph.inputs.values().map(|input| input.value).collect();
        let mut on: FxHashMap<(u32, u32), Vec<ValueId>> = FxHashMap::default();
        // The position in a stage's order at which a value is made (0 for inputs), or first used, counted from 1.
        let mut made: FxHashMap<(u32, ValueId), usize> = FxHashMap::default();
        let mut used: FxHashMap<(u32, ValueId), usize> = FxHashMap::default();
        for (stage, order) in (0..).zip(orders) {
            let results = order.iter().enumerate().flat_map(|(at, id)| {
                graph.nodes[*id].results().map(move |value| (at + 1, value)).collect::<Vec<_>>()
            });
            for (at, value) in inputs.iter().map(|value| (0, *value)).chain(results) {
                made.insert((stage, value), at);
                if flow.sender(value) == Some(stage) {
                    for to in flow.sent_to(value).stages() {
                        on.entry((stage, to)).or_default().push(value);
                    }
                }
            }
            for (at, id) in order.iter().enumerate() {
                for value in graph.nodes[*id].operands() {
                    used.entry((stage, value)).or_insert(at + 1);
                }
            }
        }
        let mut confirmed = FxHashMap::default();
        for ((from, to), values) in &on {
            let Some(back) = on.get(&(*to, *from)) else { continue };
            let mut back = back.iter().filter(|value| used.contains_key(&(*from, **value))).peekable();
            for value in values {
                let Some(received) = used.get(&(*to, *value)) else { continue };
                // Both are in the order of time.
                while back.peek().is_some_and(|other| {
                    made[&(*to, **other)] < *received || used[&(*from, **other)] <= made[&(*from, *value)]
                }) {
                    back.next();
                }
                if let Some(other) = back.peek() {
                    confirmed.insert((*value, *to), **other);
                }
            }
        }
        Self { on, confirmed }
    }
}

struct Writer<'a> {
    flow: &'a Flow<'a>,
    transfers: &'a Transfers,
    stage: u32,
    out: Graph,
    /// This stage's values.
    local: FxHashMap<ValueId, ValueId>,
    /// What has been started to be received, and not yet waited for.
    expected: FxHashMap<ValueId, ValueId>,
    /// What each route brings here, in its order, as far as nothing was started.
    coming: BTreeMap<u32, VecDeque<ValueId>>,
    /// What was sent and not yet waited for, by what confirms it; without any, at the end.
    open: Vec<(Option<ValueId>, ValueId)>,
    origin: Origin,
}

impl<'a> Writer<'a> {
    fn new(flow: &'a Flow<'a>, transfers: &'a Transfers, stage: u32) -> Self {
        let graph = flow.graph;
        let out = Graph {
            ops: graph.ops.clone(),
            places: graph.places.clone(),
            modules: graph.modules.clone(),
            labels: graph.labels.clone(),
            ..Graph::default()
        };
        let coming = transfers.on.iter().filter(|((_, to), _)| *to == stage);
        let coming = coming.map(|((from, _), values)| (*from, values.iter().copied().collect())).collect();
        Self {
            flow,
            transfers,
            stage,
            out,
            local: FxHashMap::default(),
            expected: FxHashMap::default(),
            coming,
            open: Vec::new(),
            origin: Origin::default(),
        }
    }

    fn written(mut self, order: &[NodeId], held: &BTreeMap<InputId, StageSet>) -> Result<RankGraph> {
        let graph = self.flow.graph;
        let runs: Vec<&[NodeId]> =
            order.chunk_by(|a, b| graph.nodes[*a].part == graph.nodes[*b].part).collect();
        let first = runs.first().map_or(PartId(0), |run| graph.nodes[run[0]].part);
        if let Some(part) = graph.parts.get(first) {
            self.origin.part = self.out.begin_part_of(*part);
        }
        self.inputs(held);
        for (number, run) in runs.iter().enumerate() {
            if number > 0 {
                self.origin = Origin {
                    part: self.out.begin_part_of(graph.parts[graph.nodes[run[0]].part]),
                    ..Origin::default()
                };
            }
            for wanted in runs.iter().skip(number).take(2) {
                self.expect_for(wanted);
            }
            for id in *run {
                self.node(*id)?;
            }
        }
        self.finish(held)?;
        Ok(self.out.into_renumbered())
    }

    /// Inputs that other stages hold are there without an element, so that all ranks have the same ones.
    fn inputs(&mut self, held: &BTreeMap<InputId, StageSet>) {
        for (id, input) in self.flow.graph.inputs.iter() {
            let mut ty = self.flow.graph.ty(input.value).clone();
            let is_here = held.get(&id).is_none_or(|stages| stages.has(self.stage));
            if !is_here {
                ty = TensorType { shape: Dims::from_slice(&[0]), strides: Dims::from_slice(&[1]), ..ty };
            }
            let local = self.out.input(input.class, input.name.clone(), ty);
            if is_here {
                self.local.insert(input.value, local);
            }
        }
        for input in self.flow.graph.inputs.values() {
            self.send(input.value);
        }
    }

    /// Starts to receive what the operations of a part use.
    fn expect_for(&mut self, run: &[NodeId]) {
        for id in run {
            for value in self.flow.graph.nodes[*id].operands() {
                self.expect(value);
            }
        }
    }

    /// Starts to receive a value, and all that come before it from the same stage.
    fn expect(&mut self, value: ValueId) {
        if self.local.contains_key(&value) || self.expected.contains_key(&value) {
            return;
        }
        let Some(from) = self.flow.sender(value).filter(|_| self.flow.sent_to(value).has(self.stage)) else {
            return;
        };
        while let Some(next) = self.coming.get_mut(&from).and_then(VecDeque::pop_front) {
            let ty = self.flow.graph.ty(next).clone();
            let route = Route { from, to: self.stage };
            let mut out = self.emitter(next, route);
            let started = expect(&mut out, &ty, route);
            self.expected.insert(next, started);
            if next == value {
                break;
            }
        }
    }

    /// This stage's value, waited for where it is sent.
    fn value(&mut self, value: ValueId) -> Result<ValueId> {
        if let Some(local) = self.local.get(&value) {
            return Ok(*local);
        }
        self.expect(value);
        let missing =
            || Diagnostic::bug(format!("{value} is neither made on stage {} nor sent to it", self.stage));
        let started = self.expected.remove(&value).ok_or_else(missing)?;
        let ty = self.flow.graph.ty(value).clone();
        let from = self.flow.sender(value).unwrap_or_default();
        let route = Route { from, to: self.stage };
        let local = receive(&mut self.emitter(value, route), started, &ty);
        self.local.insert(value, local);
        let (done, open): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|(confirmed, _)| *confirmed == Some(value));
        self.open = open;
        for (_, sent) in done {
            wait(&mut self.emitter(value, route), sent);
        }
        Ok(local)
    }

    /// Sends a value wherever it is needed.
    fn send(&mut self, value: ValueId) {
        if self.flow.sender(value) != Some(self.stage) {
            return;
        }
        for to in self.flow.sent_to(value).stages() {
            let local = self.local[&value];
            let route = Route { from: self.stage, to };
            let started = send(&mut self.emitter(value, route), local, route);
            self.open.push((self.transfers.confirmed.get(&(value, to)).copied(), started));
        }
    }

    /// Writes nodes of a transfer, which come from where the value is made.
    fn emitter(&mut self, value: ValueId, route: Route) -> Emitter<'_> {
        let maker = match self.flow.graph.values[value].def {
            ValueDef::Result(maker, _) => Some(&self.flow.graph.nodes[maker]),
            ValueDef::Input(_) => None,
        };
        let name = match self.flow.graph.values[value].def {
            ValueDef::Result(maker, _) => format!("{value} of {}", self.flow.graph.op_name(maker)),
            ValueDef::Input(input) => self.flow.graph.inputs[input].name.clone(),
        };
        let text = format!("transfer {name} from stage {} to stage {}", route.from, route.to);
        let label = self.out.labels.push(text);
        let origin = Origin {
            place: maker.and_then(|node| node.place),
            module: maker.and_then(|node| node.module),
            label: Some(label),
            ..self.origin
        };
        Emitter { graph: &mut self.out, origin }
    }

    fn node(&mut self, id: NodeId) -> Result<()> {
        let graph = self.flow.graph;
        let Node { op, args, returns, place, module, label, .. } = &graph.nodes[id];
        let mut args = args.clone();
        for value in graph.nodes[id].operands() {
            self.value(value)?;
        }
        for arg in &mut args {
            arg.map_values(|value| self.local[&value]);
        }
        let new = self.out.nodes.next_id();
        for (position, value) in graph.nodes[id].results().enumerate() {
            let def = ValueDef::Result(new, position as u32);
            let made = self.out.values.push(Value { ty: graph.ty(value).clone(), def });
            self.local.insert(value, made);
        }
        let returns = returns.iter().map(|returned| match returned {
            Return::None => Return::None,
            Return::Value(value) => Return::Value(self.local[value]),
            Return::Values(values) => Return::Values(values.iter().map(|value| self.local[value]).collect()),
        });
        let node = Node {
            op: *op,
            args,
            returns: returns.collect(),
            place: *place,
            module: *module,
            part: self.origin.part,
            label: *label,
            stage: None,
        };
        self.out.nodes.push(node);
        self.out.order.push(new);
        for value in graph.nodes[id].results() {
            self.send(value);
        }
        Ok(())
    }

    /// What the step returns, what state becomes, and waiting for what was sent.
    fn finish(&mut self, held: &BTreeMap<InputId, StageSet>) -> Result<()> {
        let graph = self.flow.graph;
        let here = |input: &InputId| held.get(input).is_none_or(|stages| stages.has(self.stage));
        let updates: Vec<(InputId, ValueId)> =
            graph.updates.iter().copied().filter(|(input, _)| here(input)).collect();
        for (input, value) in updates {
            let value = self.value(value)?;
            self.out.updates.push((input, value));
        }
        for value in &graph.returns {
            let local = self.value(*value)?;
            self.out.returns.push(local);
        }
        for (_, sent) in std::mem::take(&mut self.open) {
            let mut out = Emitter { graph: &mut self.out, origin: self.origin };
            wait(&mut out, sent);
        }
        Ok(())
    }
}
