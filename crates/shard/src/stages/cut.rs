//! From the program of all stages to that of each.

use std::collections::{BTreeMap, VecDeque};

use aten::{Call, RunTimeSizes};
use base::{Code, Diagnostic, Result, SecondaryMap};
use ir::{
    Dims, Graph, InputId, LabelId, Node, NodeId, PartId, RankGraph, Return, RowOperator, TensorType, Value,
    ValueDef, ValueId,
};
use rustc_hash::FxHashMap;
use schedule::Schedule;

use super::{
    StageSet,
    messages::{Message, Messages},
    needs::{Needs, is_given},
    order::{Flow, Step, orders},
    transfer::{expect, receive, send, wait},
};
use crate::{
    emit::{Emitter, Origin},
    layout::view_strides,
};

/// The graphs that the stages run, of a program whose nodes say where they run and which has been through everything that does not move
/// operations: `held` says which stages have each input that not all have.
///
/// A value is sent right behind what makes it. A stage starts to receive what a part of its program needs one part ahead, and waits
/// for it where it is first used; between two stages, values are received in the order in which they are sent. What was sent is waited for
/// when something has come back that was computed from it, and else at the end: that never waits long.
pub fn stage_graphs(
    graph: &RankGraph,
    held: &BTreeMap<InputId, StageSet>,
    schedule: &Schedule,
) -> Result<Vec<RankGraph>> {
    let stages = schedule.placement.stages;
    let all = StageSet::all(stages);
    let of_input = |id: InputId| held.get(&id).copied().unwrap_or(all);
    let needs = Needs::of(graph, &schedule.placement, of_input);
    let mut on: SecondaryMap<ValueId, StageSet> = SecondaryMap::default();
    for (id, input) in graph.inputs.iter() {
        on[input.value] = if is_given(input.class) { all } else { of_input(id) };
    }
    let flow = Flow { graph, stages, has_chunks: schedule.placement.most() > 1, needs, held: on };
    let orders = orders(&flow, schedule)?;
    let messages = Messages::of(&flow, &orders);
    refuse_run_time_sizes(graph, &messages)?;
    (0..stages)
        .map(|stage| Writer::new(&flow, &messages, stage).written(&orders.of[stage as usize], held))
        .collect()
}

/// What stages send each other has a size that both know.
fn refuse_run_time_sizes(graph: &Graph, messages: &Messages) -> Result<()> {
    let sizes = RunTimeSizes::of(graph);
    let is_read = |value: ValueId| {
        graph.maker(value).is_some_and(|maker| graph.row_operator(maker) == Some(RowOperator::Bounds))
    };
    let mut sent = messages.all.iter().flat_map(|message| message.values.iter().copied());
    match sent.find(|value| sizes.has(*value) || is_read(*value)) {
        None => Ok(()),
        Some(value) => {
            let maker = graph.maker(value);
            let what = maker.map_or("", |maker| graph.op_name(maker));
            let message = format!("a pipeline stage would send rows of its experts to another ({what})");
            let hint = "cut the step between its layers, or let experts be sharded another way";
            let diagnostic = Diagnostic::new(Code::UNSUPPORTED_PLAN, message).hint(hint);
            Err(match maker.and_then(|maker| graph.place(maker)) {
                Some(place) => diagnostic.at(place.clone()),
                None => diagnostic,
            })
        }
    }
}

struct Writer<'a> {
    flow: &'a Flow<'a>,
    messages: &'a Messages,
    stage: u32,
    out: Graph,
    /// This stage's values.
    local: FxHashMap<ValueId, ValueId>,
    /// The messages that have been started to be received, and not yet waited for.
    expected: FxHashMap<usize, ValueId>,
    /// The messages from each stage, in their order, as far as nothing was started.
    coming: BTreeMap<u32, VecDeque<usize>>,
    /// The messages that were sent and not yet waited for, with what is to be waited for.
    open: Vec<(usize, ValueId)>,
    /// What says which message the nodes belong to.
    labels: FxHashMap<usize, LabelId>,
    origin: Origin,
}

impl<'a> Writer<'a> {
    fn new(flow: &'a Flow<'a>, messages: &'a Messages, stage: u32) -> Self {
        let graph = flow.graph;
        let out = Graph {
            ops: graph.ops.clone(),
            places: graph.places.clone(),
            modules: graph.modules.clone(),
            labels: graph.labels.clone(),
            ..Graph::default()
        };
        let mut coming: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
        for (number, message) in messages.all.iter().enumerate().filter(|(_, one)| one.route.to == stage) {
            coming.entry(message.route.from).or_default().push_back(number);
        }
        Self {
            flow,
            messages,
            stage,
            out,
            local: FxHashMap::default(),
            expected: FxHashMap::default(),
            coming,
            open: Vec::new(),
            labels: FxHashMap::default(),
            origin: Origin::default(),
        }
    }

    fn written(mut self, order: &[Step], held: &BTreeMap<InputId, StageSet>) -> Result<RankGraph> {
        let graph = self.flow.graph;
        let runs: Vec<&[Step]> = order.chunk_by(|a, b| (a.part, a.cell) == (b.part, b.cell)).collect();
        let first = runs.first().map_or(PartId(0), |run| run[0].part);
        if let Some(part) = graph.parts.get(first) {
            self.origin.part = self.out.begin_part_of(*part);
        }
        self.inputs(held);
        for (number, run) in runs.iter().enumerate() {
            if number > 0 {
                self.origin =
                    Origin { part: self.out.begin_part_of(graph.parts[run[0].part]), ..Origin::default() };
            }
            for wanted in runs.iter().skip(number).take(2) {
                self.expect_for(wanted);
            }
            for step in *run {
                self.node(step.id)?;
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
    fn expect_for(&mut self, run: &[Step]) {
        for step in run {
            for value in self.flow.graph.nodes[step.id].operands() {
                self.expect(value);
            }
        }
    }

    /// Starts to receive the message with a value, and all that come before it from the same stage.
    fn expect(&mut self, value: ValueId) {
        let Some(message) = self.messages.with(value, self.stage) else { return };
        if self.local.contains_key(&value) || self.expected.contains_key(&message) {
            return;
        }
        let route = self.messages.all[message].route;
        while let Some(next) = self.coming.get_mut(&route.from).and_then(VecDeque::pop_front) {
            let types = self.types(next);
            let started = expect(&mut self.emitter(next), &types, route);
            self.expected.insert(next, started);
            if next == message {
                break;
            }
        }
    }

    fn types(&self, message: usize) -> Vec<TensorType> {
        self.messages.all[message].values.iter().map(|value| self.flow.graph.ty(*value).clone()).collect()
    }

    /// This stage's value, waited for where it is sent.
    fn value(&mut self, value: ValueId) -> Result<ValueId> {
        if let Some(local) = self.local.get(&value) {
            return Ok(*local);
        }
        self.expect(value);
        let message = self.messages.with(value, self.stage);
        let started = message.and_then(|message| Some((message, self.expected.remove(&message)?)));
        let missing =
            || Diagnostic::bug(format!("{value} is neither made on stage {} nor sent to it", self.stage));
        let (message, started) = started.ok_or_else(missing)?;
        let types = self.types(message);
        let received = receive(&mut self.emitter(message), started, &types);
        self.local.extend(self.messages.all[message].values.iter().copied().zip(received));
        let (done, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(sent, _)| self.messages.confirmation(*sent) == Some(message));
        self.open = open;
        for (sent, started) in done {
            wait(&mut self.emitter(sent), started);
        }
        Ok(self.local[&value])
    }

    /// Sends the messages that a value is the last of.
    fn send(&mut self, value: ValueId) {
        if self.flow.sender(value) != Some(self.stage) {
            return;
        }
        for to in self.flow.sent_to(value).stages() {
            let Some(number) = self.messages.with(value, to) else { continue };
            let Message { values, route, .. } = &self.messages.all[number];
            if values.last() == Some(&value) {
                let local: Vec<ValueId> = values.iter().map(|value| self.local[value]).collect();
                let types = self.types(number);
                let started = send(&mut self.emitter(number), &local, &types, *route);
                self.open.push((number, started));
            }
        }
    }

    /// Writes nodes of a message, which come from where the first of its values is made.
    fn emitter(&mut self, message: usize) -> Emitter<'_> {
        let graph = self.flow.graph;
        let Message { route, values, .. } = &self.messages.all[message];
        let first = values[0];
        let (maker, name) = match graph.values[first].def {
            ValueDef::Result(maker, _) => {
                (Some(&graph.nodes[maker]), format!("{first} of {}", graph.op_name(maker)))
            }
            ValueDef::Input(input) => (None, graph.inputs[input].name.clone()),
        };
        let batch = maker.and_then(|node| graph.parts[node.part].micro_batch);
        let batch = batch.map_or_else(String::new, |number| format!(" of micro-batch {number}"));
        let more = if values.len() > 1 { format!(" and {} more", values.len() - 1) } else { String::new() };
        let text = || format!("transfer {name}{more}{batch} from stage {} to stage {}", route.from, route.to);
        let labels = &mut self.out.labels;
        let label = *self.labels.entry(message).or_insert_with(|| labels.push(text()));
        let origin = Origin {
            place: maker.and_then(|node| node.place),
            module: maker.and_then(|node| node.module),
            label: Some(label),
            ..self.origin
        };
        Emitter::new(&mut self.out, origin)
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
            let made = Value { ty: self.type_of_result(id, value), def };
            let made = self.out.values.push(made);
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
            stage: self.flow.needs.chunks[id].filter(|_| self.flow.has_chunks),
        };
        self.out.nodes.push(node);
        self.out.order.push(new);
        for value in graph.nodes[id].results() {
            self.send(value);
        }
        Ok(())
    }

    /// The type of a result: where the operand of a view has come with other strides, since a part of a tensor is sent without gaps, those that
    /// follow from them.
    fn type_of_result(&self, id: NodeId, value: ValueId) -> TensorType {
        let graph = self.flow.graph;
        let ty = graph.ty(value).clone();
        let Some(first) = graph.nodes[id].operands().next() else { return ty };
        let operand = self.out.ty(self.local[&first]);
        if operand == graph.ty(first) {
            return ty;
        }
        match view_strides(&Call::new(graph, id), operand, &ty.shape) {
            Some(strides) => TensorType { strides, ..ty },
            None => ty,
        }
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
        for (sent, started) in std::mem::take(&mut self.open) {
            wait(&mut self.emitter(sent), started);
        }
        Ok(())
    }
}
