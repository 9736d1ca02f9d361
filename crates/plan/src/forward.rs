//! What forward leaves for backward, and what a rank holds when where some of it is made again.

use std::{cell::RefCell, collections::BTreeMap};

use aten::Call;
use base::{Id, SecondaryMap};
use cost::Machine;
use fixedbitset::FixedBitSet;
use ir::{Graph, Node, NodeId, PartId, ValueId};
use memory::{Lifetimes, Steps, in_place, steps_of};
use passes::Repeatable;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use solve::Minima;

use crate::{
    chosen::Weighed,
    readings::{Reading, awaited, in_order, in_stage},
    stays::{Copies, Leaving, Link, Ways},
};

/// An operation of forward whose results may be held until backward.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its position in program order.
    pub position: usize,
    /// Which pass it is in, counted from 0.
    pub pass: usize,
    /// What it takes, in picoseconds.
    pub time: i64,
    /// The memory of its results.
    pub bytes: u64,
    /// What a copy of its results to the host takes, or back from there, in picoseconds; none where they cannot be there.
    pub copy: Option<i64>,
    /// Whether it may run again, and gives the same then.
    pub is_repeatable: bool,
    /// Whether others than its own backward part, or another chunk of a pipeline, hold its results anyway.
    pub is_pinned: bool,
    /// The chunk of a pipeline's stage that it is in.
    pub chunk: Option<u32>,
    /// The last position of forward that reads its results.
    pub last_read: usize,
    /// The first and the last position of backward that do.
    pub backward: Option<(usize, usize)>,
    /// The backward part that they are in: what others read is pinned.
    pub backward_part: Option<PartId>,
    /// Positions at which a reader may write over its result, if none reads it later.
    pub taken: SmallVec<[usize; 2]>,
    /// The operations of forward whose results it reads, by number, beside those that backward has anyway.
    pub operands: SmallVec<[usize; 2]>,
}

/// Forward parts of the program that follow each other, with the backward parts behind them.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Its operations, by number.
    pub operations: std::ops::Range<usize>,
    /// The chunk of a stage's program that it is of, where the stage has several.
    pub chunk: Option<u32>,
    /// The positions of its backward parts; of several that do not follow each other, those of the first.
    pub backward: std::ops::Range<usize>,
    /// For each of these positions the operations whose results are read there, by number.
    pub reads: Vec<SmallVec<[usize; 2]>>,
}

/// What a step's forward leaves for backward.
pub struct Forward {
    /// The operations, in program order.
    pub operations: Vec<Operation>,
    /// The parts that they are in.
    pub passes: Vec<Pass>,
    /// For each operation the one that decides for it: that of the last micro-batch, where one does the same for each.
    pub follows: Vec<Option<usize>>,
    /// The link to the host, where something may be there.
    pub link: Option<Link>,
    /// What all other memory comes to at each position.
    others: Vec<u64>,
    /// The positions that count, where not all do.
    moments: Option<FixedBitSet>,
    /// What was found of choices that are weighed in tables: other limits ask for much of it again.
    pub minima: RefCell<BTreeMap<Weighed, Minima>>,
}

/// The first and the last position of backward at which something is read.
type Span = (usize, usize);

/// Where operations that run again read what an operation made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReadAgain {
    span: Span,
    /// Whether the last of them may write over it.
    takes: bool,
}

/// What is alive at the worst moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Most {
    /// How much.
    pub bytes: u64,
    /// The position of the moment.
    pub position: usize,
}

impl Forward {
    /// Of a rank's graph in which no work is done twice.
    pub fn new(graph: &Graph, machine: Machine<'_>, ways: Ways) -> Self {
        let memory = machine.cluster.device.host_memory_bytes;
        // One rank of all stages has the hosts of all.
        let memory = memory.map(|memory| memory.saturating_mul(u64::from(machine.mesh.stages())));
        Reader::new(graph, machine, ways, false).forward(memory)
    }

    /// Of the program of all stages of a pipeline, which have several micro-batches under way: what counts is what is held when backward begins.
    pub fn of_stages(graph: &Graph, machine: Machine<'_>) -> Self {
        let mut forward = Self::new(graph, machine, Ways::AGAIN);
        let begins =
            forward.passes.iter().filter(|pass| !pass.reads.is_empty()).map(|pass| pass.backward.start);
        forward.moments = Some(begins.collect());
        forward
    }

    /// Of the program of a pipeline stage, of which nothing runs again: several micro-batches are under way in it.
    pub fn of_stage(graph: &Graph, machine: Machine<'_>) -> Self {
        let memory = machine.cluster.device.host_memory_bytes;
        Reader::new(graph, machine, Ways::HOST, true).forward(memory)
    }

    /// Says how much of the host's memory other things take.
    pub const fn take_on_host(&mut self, taken: u64) {
        if let Some(link) = self.link.as_mut() {
            link.taken = taken;
        }
    }

    /// Which operations run again with these: those that backward, or another one of them, reads.
    pub fn needed(&self, again: &FixedBitSet) -> FixedBitSet {
        let mut needed = FixedBitSet::with_capacity(self.operations.len());
        let mut read = FixedBitSet::with_capacity(self.operations.len());
        for (number, operation) in self.operations.iter().enumerate().rev() {
            if again.contains(number) && (operation.backward.is_some() || read.contains(number)) {
                needed.insert(number);
                operation.operands.iter().for_each(|operand| read.insert(*operand));
            }
        }
        needed
    }

    /// What it takes that these operations run again, all of them needed, and that results of others are on the host, copies of
    /// some of them waited for at once: picoseconds beyond what
    /// forward no longer computes because only they had read it, the most that is alive, and the copies that are made.
    pub fn counted(&self, again: &FixedBitSet, host: (&FixedBitSet, &FixedBitSet)) -> (i64, Most, Copies) {
        let runs = self.runs(again);
        let read = self.read_again(again);
        let spans: Vec<Option<Span>> = (0..self.operations.len()).map(|one| self.span(one, &read)).collect();
        let copies = self.copies(host, &spans);
        let twice = again.ones().filter(|number| runs.contains(*number));
        let time: i64 = twice.map(|number| self.operations[number].time).sum();
        let most = self.most((again, &copies), &runs, &read);
        (time + copies.time, most, copies)
    }

    /// The copies of these operations' results, of some of which they are waited for at once, as far as backward reads them.
    fn copies(&self, (host, awaited): (&FixedBitSet, &FixedBitSet), spans: &[Option<Span>]) -> Copies {
        let Some(link) = self.link.as_ref().filter(|_| !host.is_clear()) else { return Copies::default() };
        let leaving = host.ones().filter_map(|number| {
            let Operation { position, last_read, bytes, copy, .. } = self.operations[number];
            let (time, (first, _)) = (copy?, spans[number]?);
            let awaited = awaited.contains(number);
            Some(Leaving { number, made: position, last_read, first, bytes, time, awaited })
        });
        link.copies(&leaving.collect::<Vec<_>>())
    }

    /// Where backward, or what runs again for it, reads what an operation made.
    fn span(&self, number: usize, read: &[Option<ReadAgain>]) -> Option<Span> {
        both(read[number].map(|read| read.span), self.operations[number].backward)
    }

    /// Where operations that run again, each right before its first reader in backward, read what each operation made.
    fn read_again(&self, again: &FixedBitSet) -> Vec<Option<ReadAgain>> {
        let mut read: Vec<Option<ReadAgain>> = vec![None; self.operations.len()];
        for (number, operation) in self.operations.iter().enumerate().rev() {
            let reads = self.span(number, &read).filter(|_| again.contains(number));
            let Some((first, _)) = reads else { continue };
            for operand in &operation.operands {
                let takes = self.operations[*operand].taken.contains(&operation.position);
                let with = |known: ReadAgain| {
                    let (from, last) = (known.span.0.min(first), known.span.1.max(first));
                    let takes = match known.span.1 {
                        at if at == first => takes && known.takes,
                        at if at > first => known.takes,
                        _ => takes,
                    };
                    ReadAgain { span: (from, last), takes }
                };
                let alone = ReadAgain { span: (first, first), takes };
                read[*operand] = Some(read[*operand].map_or(alone, with));
            }
        }
        read
    }

    /// The operations that still run in forward: those that something reads there, or that are held from there.
    fn runs(&self, again: &FixedBitSet) -> FixedBitSet {
        let mut runs = FixedBitSet::with_capacity(self.operations.len());
        for (number, operation) in self.operations.iter().enumerate().rev() {
            let is_held = !again.contains(number) && operation.backward.is_some();
            let has_no_reader = operation.backward.is_none() && operation.last_read == operation.position;
            if runs.contains(number) || operation.is_pinned || is_held || has_no_reader {
                runs.insert(number);
                operation.operands.iter().for_each(|operand| runs.insert(*operand));
            }
            if again.contains(number) {
                // Those that it runs again from are held for it.
                let held = operation.operands.iter().filter(|operand| !again.contains(**operand));
                held.for_each(|operand| runs.insert(*operand));
            }
        }
        runs
    }

    /// The most that is alive where operations run again, and these in forward, while copies are made.
    fn most(
        &self,
        (again, copies): (&FixedBitSet, &Copies),
        runs: &FixedBitSet,
        read: &[Option<ReadAgain>],
    ) -> Most {
        let steps = self.others.len();
        let mut change = vec![0_i64; steps + 1];
        let mut hold = |from: usize, to: usize, bytes: u64| {
            change[from.min(steps)] += bytes as i64;
            change[(to + 1).min(steps)] -= bytes as i64;
        };
        for (number, operation) in self.operations.iter().enumerate() {
            let reads = self.span(number, read);
            let until = |last: usize| match read[number] {
                Some(ReadAgain { span: (_, at), takes: true })
                    if at == last && operation.backward.is_none_or(|(_, last)| last < at) =>
                {
                    last - 1
                }
                _ => operation.until(last),
            };
            if again.contains(number) {
                let Some((first, last)) = reads else { continue };
                if runs.contains(number) {
                    hold(operation.position, operation.until(operation.last_read), operation.bytes);
                }
                // What only the next operations read that run again is gone when the first reader in backward runs.
                if last > first || operation.backward.is_some() {
                    hold(first, until(last).max(first), operation.bytes);
                }
            } else if let Some(copied) = copies.of.get(&number) {
                let last = reads.map_or(copied.back + 1, |(_, last)| last);
                hold(operation.position, copied.gone, operation.bytes);
                hold(copied.back + 1, until(last).max(copied.back + 1), operation.bytes);
            } else if runs.contains(number) {
                let last = reads.map_or(operation.last_read, |(_, last)| last.max(operation.last_read));
                hold(operation.position, until(last), operation.bytes);
            }
        }
        let mut alive = 0;
        let mut most = Most { bytes: 0, position: 0 };
        for (position, others) in self.others.iter().enumerate() {
            alive += change[position];
            if self.moments.as_ref().is_some_and(|moments| !moments.contains(position)) {
                continue;
            }
            let bytes = others.saturating_add_signed(alive);
            if bytes > most.bytes {
                most = Most { bytes, position };
            }
        }
        most
    }
}

impl Operation {
    /// The last position at which its result takes memory of its own, where `last` is the last that reads it.
    fn until(&self, last: usize) -> usize {
        if last > self.position && self.taken.contains(&last) { last - 1 } else { last }
    }
}

/// The span of two.
fn both(one: Option<(usize, usize)>, other: Option<(usize, usize)>) -> Option<(usize, usize)> {
    match (one, other) {
        (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
        (one, other) => one.or(other),
    }
}

/// For each operation that of the last pass of its chunk which does the same, if one does. Passes differ by what is done once for all
/// micro-batches, and by sums that the first one begins.
fn follows(operations: &[Operation], passes: &[Pass]) -> Vec<Option<usize>> {
    let mut follows = vec![None; operations.len()];
    let what = |number: usize| {
        let Operation { bytes, time, is_repeatable, chunk, .. } = operations[number];
        (bytes, time, is_repeatable, chunk)
    };
    for (number, pass) in passes.iter().enumerate() {
        let later = passes[number + 1..].iter().rev();
        let Some(last) = later.into_iter().find(|one| one.chunk == pass.chunk) else { continue };
        let (mut own, mut leaders) = (pass.operations.clone(), last.operations.clone());
        while let (Some(number), Some(leader)) = (own.clone().next_back(), leaders.clone().next_back()) {
            let is_same = what(number) == what(leader);
            if is_same {
                follows[number] = Some(leader);
            }
            // Where they differ, the longer one has something more.
            let (own_left, leaders_left) = (own.len(), leaders.len());
            if is_same || own_left > leaders_left {
                own.next_back();
            }
            if is_same || own_left <= leaders_left {
                leaders.next_back();
            }
        }
    }
    follows
}

struct Reader<'g> {
    graph: &'g Graph,
    machine: Machine<'g>,
    ways: Ways,
    /// Whether it is the program of a pipeline stage.
    is_stage: bool,
    /// Where what a collective gives is waited for.
    awaited: FxHashMap<ValueId, usize>,
    steps: Steps,
    lifetimes: Lifetimes,
    repeatable: Repeatable,
    /// The operation whose memory a value is in, where forward made it.
    maker: SecondaryMap<ValueId, Option<usize>>,
}

impl<'g> Reader<'g> {
    fn new(graph: &'g Graph, machine: Machine<'g>, ways: Ways, is_stage: bool) -> Self {
        let steps = steps_of(graph);
        let lifetimes = Lifetimes::of(&steps);
        let maker = SecondaryMap::with_default(None);
        let awaited = if is_stage { awaited(graph) } else { FxHashMap::default() };
        let repeatable = Repeatable::new(graph);
        Self { graph, machine, ways, is_stage, awaited, steps, lifetimes, repeatable, maker }
    }

    fn forward(mut self, memory: Option<u64>) -> Forward {
        let graph = self.graph;
        let mut operations: Vec<Operation> = Vec::new();
        let (readings, chunks) = if self.is_stage { in_stage(graph) } else { in_order(graph) };
        let pass = |chunk| Pass { operations: 0..0, chunk, backward: 0..0, reads: Vec::new() };
        let mut passes: Vec<Pass> = chunks.into_iter().map(pass).collect();
        for (position, id) in graph.order.iter().enumerate() {
            let part = graph.nodes[*id].part;
            let reading = readings[part];
            self.read(&mut operations, position, *id, reading);
            match reading {
                Reading::Forward(number) => {
                    let before = operations.len();
                    self.make(&mut operations, number, position, *id);
                    let of_pass = &mut passes[number].operations;
                    let start = if of_pass.start == of_pass.end { before } else { of_pass.start };
                    *of_pass = start..operations.len();
                }
                Reading::Backward(number, _) => {
                    let pass = &mut passes[number];
                    if pass.reads.is_empty() {
                        pass.backward = position..position;
                    }
                    if pass.backward.end == position {
                        pass.backward.end = position + 1;
                        pass.reads.push(self.made_by(*id, part).collect());
                    }
                }
                Reading::Elsewhere => {}
            }
        }
        self.pin_ends(&mut operations);
        let others = self.others(&operations);
        let follows = follows(&operations, &passes);
        let link = self.ways.host.then(|| Link { begins: self.begins(), memory, taken: 0 });
        Forward { operations, passes, follows, link, others, moments: None, minima: RefCell::default() }
    }

    /// When each position begins, if nothing waits, with the end behind the last.
    fn begins(&self) -> Vec<i64> {
        let mut begin = 0;
        let mut begins = vec![begin];
        for id in &self.graph.order {
            if !self.graph.is_communication(*id) {
                begin += cost::local_time(self.machine, &Call::new(self.graph, *id));
            }
            begins.push(begin);
        }
        begins
    }

    /// What a copy of a node's results to the host takes, if they can be there.
    fn copy(&self, id: NodeId, bytes: u64) -> Option<i64> {
        let is_dense = |value: ValueId| {
            let ty = self.graph.ty(value);
            self.steps.values[value.index()].bytes == ty.bytes().0 && ty.is_dense()
        };
        let may = self.ways.host && bytes > 0 && !self.graph.is_communication(id);
        let may = may && self.graph.nodes[id].results().all(is_dense);
        may.then(|| cost::host_copy_time(self.machine.cluster, bytes))
    }

    /// The operations whose memory a node reads; without what its part gathers itself.
    fn made_by(&self, id: NodeId, part: PartId) -> impl Iterator<Item = usize> + '_ {
        let operands = self.graph.nodes[id].operands();
        let read = operands.filter(move |operand| self.repeatable.twin(part, *operand).is_none());
        read.filter_map(|operand| self.maker[operand])
    }

    /// Notes that a node reads what earlier operations made.
    fn read(&self, operations: &mut [Operation], position: usize, id: NodeId, reading: Reading) {
        let read: SmallVec<[usize; 4]> = self.made_by(id, self.graph.nodes[id].part).collect();
        let step = &self.steps.steps[position];
        let taken = step.overwrites.iter().filter(|(from, to)| {
            let alike = |value: u32| self.steps.values[value as usize].alike;
            let once = step.reads.iter().filter(|read| *read == from).count() == 1;
            once && to.is_some_and(|to| alike(to).is_some() && alike(to) == alike(*from))
        });
        for (from, _) in taken {
            if let Some(number) = self.maker[ValueId::from_index(*from as usize)] {
                operations[number].taken.push(position);
            }
        }
        let Node { stage: chunk, part, .. } = self.graph.nodes[id];
        // What is sent to another stage is held until it is waited for, which may be much later.
        let waits = self.graph.nodes[id].results().filter_map(|result| self.awaited.get(&result)).copied();
        let sent = waits.max().filter(|wait| self.graph.nodes[self.graph.order[*wait]].part != part);
        for number in read {
            let operation = &mut operations[number];
            let is_sent = operation.chunk.zip(chunk).is_some_and(|(from, to)| from != to);
            match reading {
                _ if is_sent => {
                    operation.is_pinned = true;
                    operation.last_read = position;
                }
                _ if sent.is_some() => {
                    operation.is_pinned = true;
                    operation.last_read = operation.last_read.max(sent.unwrap_or(position));
                }
                Reading::Forward(pass) if pass == operation.pass => {
                    operation.last_read = operation.last_read.max(position);
                }
                Reading::Backward(pass, part)
                    if pass == operation.pass
                        && (self.is_stage || operation.backward_part.is_none_or(|known| known == part)) =>
                {
                    operation.backward_part = Some(part);
                    operation.backward = both(operation.backward, Some((position, position)));
                }
                _ => {
                    operation.is_pinned = true;
                    operation.last_read = operation.last_read.max(position);
                }
            }
        }
    }

    /// Adds an operation of forward that makes memory.
    fn make(&mut self, operations: &mut Vec<Operation>, pass: usize, position: usize, id: NodeId) {
        let graph = self.graph;
        let is_own = |value: ValueId| self.lifetimes.root(value.index() as u32) == value.index() as u32;
        if graph.nodes[id].results().all(|result| !is_own(result)) {
            let shared = self.steps.steps[position].shares;
            let of = shared.and_then(|shared| self.maker[ValueId::from_index(shared as usize)]);
            // What shares memory and is no view cannot be made again with it.
            if let Some(number) = of.filter(|_| !self.repeatable.is_view(id)) {
                operations[number].is_pinned = true;
            }
            graph.nodes[id].results().for_each(|result| self.maker[result] = of);
            return;
        }
        let number = operations.len();
        let mut operands: SmallVec<[usize; 2]> = SmallVec::new();
        for operand in graph.nodes[id].operands().filter_map(|operand| self.maker[operand]) {
            if !operands.contains(&operand) {
                operands.push(operand);
            }
        }
        // What backward gathers itself need not be kept for what runs again.
        let twins = graph.nodes[id].operands().filter(|operand| self.repeatable.has_twin(*operand));
        let twins: SmallVec<[usize; 2]> = twins.filter_map(|operand| self.maker[operand]).collect();
        operands.retain(|operand| !twins.contains(operand));
        let bytes = graph.nodes[id].results().filter(|result| is_own(*result));
        let bytes = bytes.map(|result| self.steps.values[result.index()].bytes).sum();
        let is_repeatable = self.ways.again && self.repeatable.contains(id);
        let time = if is_repeatable { cost::local_time(self.machine, &Call::new(graph, id)) } else { 0 };
        let copy = self.copy(id, bytes);
        let last_read = position;
        let (is_pinned, backward) = (false, None);
        graph.nodes[id].results().for_each(|result| self.maker[result] = Some(number));
        operations.push(Operation {
            position,
            pass,
            time,
            bytes,
            copy,
            is_repeatable,
            is_pinned,
            chunk: graph.nodes[id].stage,
            last_read,
            backward,
            backward_part: None,
            taken: SmallVec::new(),
            operands,
        });
    }

    /// What goes out of the step is held until its end.
    fn pin_ends(&self, operations: &mut [Operation]) {
        let graph = self.graph;
        for value in graph.returns.iter().chain(graph.updates.iter().map(|(_, value)| value)) {
            if let Some(number) = self.maker[*value] {
                operations[number].is_pinned = true;
                operations[number].last_read = graph.order.len();
            }
        }
    }

    /// What is alive at each position beside what the operations made. What is written in place takes no memory, but where that was theirs.
    fn others(&self, operations: &[Operation]) -> Vec<u64> {
        let mut by_forward = FixedBitSet::with_capacity(self.steps.steps.len());
        for operation in operations {
            by_forward.insert(operation.position);
        }
        let is_theirs = |value: u32| self.maker[ValueId::from_index(value as usize)].is_some();
        let mut in_place = in_place(&self.steps);
        for (position, step) in self.steps.steps.iter().enumerate() {
            let over_theirs = step.overwrites.iter().any(|(from, _)| is_theirs(*from));
            in_place[position] &= !over_theirs && !by_forward.contains(position);
        }
        let steps = self.steps.written_in_place(&in_place);
        let lifetimes = Lifetimes::of(&steps);
        let count = steps.steps.len();
        let mut change = vec![0_i64; count + 1];
        for (position, step) in steps.steps.iter().enumerate().filter(|(at, _)| !by_forward.contains(*at)) {
            for made in step.makes.iter().filter(|made| lifetimes.root(**made) == **made) {
                let last = lifetimes.last_read(*made).unwrap_or(position).min(count - 1);
                let bytes = steps.values[*made as usize].bytes as i64;
                change[position] += bytes;
                change[last + 1] -= bytes;
            }
        }
        let mut alive = 0;
        let workspaces = steps.steps.iter().map(|step| step.workspace);
        let at = workspaces.zip(change).map(|(workspace, change)| {
            alive += change;
            workspace.saturating_add_signed(alive)
        });
        at.collect()
    }
}
