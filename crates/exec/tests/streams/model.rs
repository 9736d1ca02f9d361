//! What a lowered program does on a device whose work goes on by itself: one stream computes, each group of ranks has one for its
//! collectives, and only a wait orders one behind another. Clocks say what is over when a launch begins.

use std::{collections::BTreeMap, mem::take};

use torch_sys::{Arg, Output, Slot};
use unisono_exec::{Action, Instruction, Program, Role};

/// The number of the stream that computes; those of groups follow.
const COMPUTES: usize = 0;

/// How many launches of each stream are over.
type Clock = BTreeMap<usize, u64>;

/// A launch: its stream, and its number there.
type Launch = (usize, u64);

/// What is left out of a right run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    /// The wait at this position of the body.
    Wait(usize),
    /// Work holds what it reads until it is waited for.
    Hold,
}

/// Memory that was given out: who wrote it last, who has read it since, and by how many names and collectives it is held.
#[derive(Clone, Default)]
struct Block {
    written: Option<Launch>,
    read: Vec<Launch>,
    holders: usize,
}

/// A collective that was issued: its launch, and the memory that it holds.
#[derive(Clone)]
struct Work {
    launch: Launch,
    holds: Vec<usize>,
    started: usize,
}

/// The stream of a copy: there is one for each direction.
pub fn direction(name: &str) -> &str {
    if name.starts_with("unisono::to_host") { "to the host" } else { "from the host" }
}

/// A device that runs one program again and again.
pub struct Device<'a> {
    program: &'a Program,
    fault: Fault,
    streams: BTreeMap<String, usize>,
    clocks: BTreeMap<usize, Clock>,
    blocks: Vec<Block>,
    /// Memory that nobody holds, the last on top, which is what an allocator gives out first.
    free: Vec<usize>,
    slots: Vec<Option<usize>>,
    work: BTreeMap<Slot, Work>,
    /// Accesses that nothing orders.
    pub faults: Vec<String>,
    /// How many instructions computed while a collective was in flight.
    pub beside: usize,
    /// The most streams that had something in flight at once.
    pub at_once: usize,
}

impl<'a> Device<'a> {
    /// A device with state, on which the prologue has run.
    pub fn new(program: &'a Program, fault: Fault) -> Self {
        let mut device = Self {
            program,
            fault,
            streams: BTreeMap::new(),
            clocks: BTreeMap::new(),
            blocks: Vec::new(),
            free: Vec::new(),
            slots: vec![None; program.slots as usize],
            work: BTreeMap::new(),
            faults: Vec::new(),
            beside: 0,
            at_once: 0,
        };
        for slot in &program.state {
            device.allocate(*slot, "state");
        }
        for instruction in &program.prologue {
            device.issue(usize::MAX, instruction);
        }
        device
    }

    /// Runs one step.
    pub fn step(&mut self) {
        let program = self.program;
        for slot in &program.inputs {
            self.allocate(*slot, "an input");
        }
        for (at, instruction) in program.body.iter().enumerate() {
            self.issue(at, instruction);
        }
        for update in &program.updates {
            let (from, to) = (self.block(update.value), self.block(update.state));
            self.launch(COMPUTES, "an update", &[from], &[to]);
        }
        for slot in 0..program.slots {
            self.release(Slot(slot));
        }
    }

    fn issue(&mut self, at: usize, instruction: &Instruction) {
        let name = format!("{} at {at}", self.program.name(instruction));
        match &instruction.action {
            Action::Number { target, .. } | Action::Buffer { target, .. } | Action::Kept { target, .. } => {
                self.allocate(*target, &name);
            }
            Action::Kernel { .. } => unreachable!("devices run no kernels of ours"),
            Action::Call { op, role, args, outputs, .. } => {
                let targets: Vec<Slot> = outputs.iter().flat_map(Output::slots).collect();
                match role {
                    Role::View | Role::Alias => self.share(args, &targets),
                    Role::Wait => self.wait(at, args, &targets),
                    Role::Collective => {
                        let name =
                            |arg: &Arg| if let Arg::Str(group) = arg { Some(group.clone()) } else { None };
                        let group = args.iter().rev().find_map(name).expect("a collective names its group");
                        self.start(at, &group, (*op, args), &targets);
                    }
                    Role::Copy => {
                        self.start(at, direction(&self.program.name(instruction)), (*op, args), &targets);
                    }
                    Role::Compute => self.compute(&name, *op, args, &targets),
                }
            }
        }
        for slot in &instruction.release {
            self.release(*slot);
        }
    }

    fn compute(&mut self, name: &str, op: u32, args: &[Arg], targets: &[Slot]) {
        let program = self.program;
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (argument, arg) in program.schemas[op as usize].arguments.iter().zip(args) {
            let blocks = arg.slots().map(|slot| self.block(slot));
            if argument.written { writes.extend(blocks) } else { reads.extend(blocks) }
        }
        if writes.is_empty() {
            for slot in targets {
                self.allocate(*slot, name);
            }
            writes = targets.iter().map(|slot| self.block(*slot)).collect();
        } else {
            for slot in targets {
                self.hold(*slot, writes[0]);
            }
        }
        self.beside += usize::from(!self.work.is_empty());
        self.launch(COMPUTES, name, &reads, &writes);
    }

    /// Issues a collective or a copy to its stream, behind what has been issued to the one that computes. A copy may write into an operand.
    fn start(&mut self, at: usize, stream: &str, (op, args): (u32, &[Arg]), targets: &[Slot]) {
        let schema = &self.program.schemas[op as usize];
        let (over, read): (Vec<_>, Vec<_>) =
            schema.arguments.iter().zip(args).partition(|(one, _)| one.written);
        let over: Vec<Slot> = over.into_iter().flat_map(|(_, arg)| arg.slots()).collect();
        let read: Vec<Slot> = read.into_iter().flat_map(|(_, arg)| arg.slots()).collect();
        let name = &format!("{} at {at}", self.program.name(&self.program.body[at]));
        let next = self.streams.len() + 1;
        let stream = *self.streams.entry(stream.to_owned()).or_insert(next);
        for slot in targets {
            self.allocate(*slot, name);
        }
        let targets = if over.is_empty() { targets } else { &over };
        let reads: Vec<usize> = read.into_iter().map(|slot| self.block(slot)).collect();
        let writes: Vec<usize> = targets.iter().map(|slot| self.block(*slot)).collect();
        self.join(stream, COMPUTES);
        let launch = self.launch(stream, name, &reads, &writes);
        let holds = if self.fault == Fault::Hold { Vec::new() } else { [reads, writes].concat() };
        for block in &holds {
            self.blocks[*block].holders += 1;
        }
        for (index, slot) in targets.iter().enumerate() {
            let holds = if index == 0 { holds.clone() } else { Vec::new() };
            self.work.insert(*slot, Work { launch, holds, started: at });
        }
        let streams: std::collections::BTreeSet<usize> =
            self.work.values().map(|work| work.launch.0).collect();
        self.at_once = self.at_once.max(streams.len());
    }

    /// Has the stream that computes go on only when a collective is over.
    fn wait(&mut self, at: usize, args: &[Arg], targets: &[Slot]) {
        self.share(args, targets);
        let Some(Arg::Tensor(slot)) = args.first() else { return };
        let Some(work) = self.work.remove(slot) else { return };
        if self.fault != Fault::Wait(at) {
            self.knows(COMPUTES, work.launch);
        }
        for block in &work.holds {
            self.let_go(*block);
        }
    }

    /// Gives results the memory of the first operand.
    fn share(&mut self, args: &[Arg], targets: &[Slot]) {
        let from = args.iter().flat_map(Arg::slots).next().map(|slot| self.block(slot));
        for slot in targets {
            self.hold(*slot, from.expect("a view has an operand"));
        }
    }

    /// Accesses memory on a stream; what is not ordered behind what it needs is a fault.
    fn launch(&mut self, stream: usize, name: &str, reads: &[usize], writes: &[usize]) -> Launch {
        let clock = self.clocks.entry(stream).or_default();
        let time = clock.get(&stream).copied().unwrap_or(0) + 1;
        clock.insert(stream, time);
        let over = |launch: &Launch| clock.get(&launch.0).is_some_and(|time| *time >= launch.1);
        for block in reads {
            if !self.blocks[*block].written.iter().all(over) {
                self.faults.push(format!("{name} reads what is still written"));
            }
        }
        for block in writes {
            if !self.blocks[*block].written.iter().chain(&self.blocks[*block].read).all(over) {
                self.faults.push(format!("{name} writes what is still in use"));
            }
        }
        for block in reads {
            self.blocks[*block].read.push((stream, time));
        }
        for block in writes {
            (self.blocks[*block].written, self.blocks[*block].read) = (Some((stream, time)), Vec::new());
        }
        (stream, time)
    }

    /// Has a stream go on behind all that was issued to another one.
    fn join(&mut self, stream: usize, other: usize) {
        let known = self.clocks.get(&other).cloned().unwrap_or_default();
        let clock = self.clocks.entry(stream).or_default();
        for (one, time) in known {
            let before = clock.entry(one).or_default();
            *before = time.max(*before);
        }
    }

    /// Has a stream go on behind one launch of another, and behind all that this one was behind.
    fn knows(&mut self, stream: usize, launch: Launch) {
        let later = self.clocks[&launch.0].get(&launch.0).copied().unwrap_or(0) > launch.1;
        if later {
            let clock = self.clocks.entry(stream).or_default();
            let before = clock.entry(launch.0).or_default();
            *before = launch.1.max(*before);
        } else {
            self.join(stream, launch.0);
        }
    }

    fn block(&self, slot: Slot) -> usize {
        self.slots[slot.0 as usize].expect("a slot that is read has memory")
    }

    /// New memory for a slot: the last that was freed, which the stream that computes uses from now on.
    fn allocate(&mut self, slot: Slot, name: &str) {
        let block = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block::default());
            self.blocks.len() - 1
        });
        let before = self.faults.len();
        self.launch(COMPUTES, name, &[], &[block]);
        for fault in &mut self.faults[before..] {
            fault.push_str(", which is given out again");
        }
        self.hold(slot, block);
    }

    fn hold(&mut self, slot: Slot, block: usize) {
        self.blocks[block].holders += 1;
        if let Some(before) = self.slots[slot.0 as usize].replace(block) {
            self.let_go(before);
        }
    }

    fn release(&mut self, slot: Slot) {
        if self.program.is_pinned(slot) {
            return;
        }
        if let Some(block) = take(&mut self.slots[slot.0 as usize]) {
            self.let_go(block);
        }
    }

    fn let_go(&mut self, block: usize) {
        self.blocks[block].holders -= 1;
        if self.blocks[block].holders == 0 {
            self.free.push(block);
        }
    }

    /// The positions at which the collectives in flight were issued.
    pub fn in_flight(&self) -> Vec<usize> {
        self.work.values().map(|work| work.started).collect()
    }
}
