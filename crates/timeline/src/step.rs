//! The timeline of one step of a rank's graph: simulated and measured steps have the same lanes, names and arguments.
//!
//! A rank has one lane for its operations, starts of collectives and waits among them, one for the collectives of each group, and one for the
//! copies in each direction between device and host.

use std::borrow::Cow;

use base::Nanos;
use indexmap::IndexMap;
use ir::{CollectiveKind, Graph, HostCopy, NodeId};
pub use ir::{is_communication, is_wait};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Category, CollectiveArgs, Event, Lane, MemoryEvent, NameId, Names, NodeArgs, Rank, Timeline, Track,
    TrackId,
};

/// What names on lanes of groups begin with.
const COLLECTIVE: &str = "unisono:";
/// What names of copies between device and host begin with.
pub const COPY: &str = "copy:";
/// The annotation around the step.
const STEP: &str = "ProfilerStep#0";
/// [`Metadata::backend`](crate::Metadata::backend) of what nobody measured.
const SIMULATED: &str = "simulated";

/// How much an operation does, which is all that a cost model has to know of it beside its name.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Work {
    /// The element type that it computes in.
    pub dtype: Cow<'static, str>,
    /// The element type that it reads, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Cow<'static, str>>,
    /// Floating-point operations; none for what only reads and writes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub flops: f64,
    /// Bytes that it reads and writes; of a copy between a device and its host those that it copies.
    pub bytes: u64,
    /// Tensors that it reads and writes.
    pub tensors: usize,
    /// Whether its tensors differ in shape or order.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uneven: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(number: &f64) -> bool {
    *number <= 0.0
}

/// Says how much a node does, if it takes time.
pub type Works<'g> = &'g dyn Fn(&Graph, NodeId) -> Option<Work>;

/// Whether a rank's step was simulated rather than measured.
pub fn is_simulated(rank: &Rank) -> bool {
    rank.meta.backend.as_deref() == Some(SIMULATED)
}

/// Begin and end, from the start of the step.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Span {
    /// Begin.
    pub start: Nanos,
    /// End.
    pub end: Nanos,
}

/// Memory that comes (positive bytes) or goes (negative bytes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// When.
    pub time: Nanos,
    /// How much.
    pub bytes: i64,
    /// Which of the memories of the step it is.
    pub owner: usize,
}

/// Puts a rank's step together.
pub struct StepTimeline<'g> {
    graph: &'g Graph,
    works: Works<'g>,
    names: Names,
    rank: Rank,
    operations: TrackId,
    groups: IndexMap<String, (TrackId, i64)>,
    end: Nanos,
}

impl<'g> StepTimeline<'g> {
    /// Of `rank`, which runs `graph`; `works` says how much its nodes do.
    pub fn new(graph: &'g Graph, rank: u32, works: Works<'g>) -> Self {
        let (mut names, mut made) = (Names::new(), Rank::new(rank));
        let operations = track(&mut names, &mut made, "operations");
        let step = names.intern(STEP);
        let mut this =
            Self { graph, works, names, rank: made, operations, groups: IndexMap::new(), end: Nanos(0) };
        this.push(Category::UserAnnotation, step, operations, Span::default());
        this
    }

    /// Adds an operation that no node of the graph stands for.
    pub fn other(&mut self, name: &str, span: Span) {
        let name = self.names.intern(name);
        self.push(Category::CpuOp, name, self.operations, span);
    }

    /// Adds what the node at `position` of the program order takes of the rank's own time.
    pub fn operation(&mut self, position: usize, span: Span) {
        let work = (self.works)(self.graph, self.graph.order[position]);
        self.on_the_rank(position, span, work);
    }

    /// Adds a kernel of several operations, the last of which is the node at `position` of the program order.
    pub fn kernel(&mut self, position: usize, span: Span) {
        self.on_the_rank(position, span, None);
    }

    fn on_the_rank(&mut self, position: usize, span: Span, work: Option<Work>) {
        let name = self.names.intern(self.graph.op_name(self.graph.order[position]));
        let row = self.push(Category::CpuOp, name, self.operations, span);
        self.node(row, position, work);
    }

    /// Adds the collective that the node at `position` starts, on the lane of `group`.
    pub fn collective(&mut self, position: usize, group: &Group<'_>, span: Span) {
        let name = self.graph.op_name(self.graph.order[position]);
        let operation = name.rsplit_once("::").map_or(name, |(_, short)| short);
        let (lane, sequence) = self.lane(group.name);
        let event = self.names.intern(&format!("{COLLECTIVE}{operation}"));
        let row = self.push(Category::UserAnnotation, event, lane, span);
        let args = self.collective_args(self.graph.order[position], operation, group, sequence);
        self.rank.sides.collective.push(row, args);
        self.node(row, position, None);
    }

    /// Adds the copy between device and host that the node at `position` starts, on the lane of its direction.
    pub fn copy(&mut self, position: usize, direction: &str, span: Span) {
        let name = self.graph.op_name(self.graph.order[position]);
        let short = name.rsplit_once("::").map_or(name, |(_, short)| short);
        let (lane, _) = self.lane(direction);
        let event = self.names.intern(&format!("{COPY}{short}"));
        let row = self.push(Category::UserAnnotation, event, lane, span);
        self.node(row, position, (self.works)(self.graph, self.graph.order[position]));
    }

    /// Adds memory that was there `before` the step, in bytes, and what comes and goes in it, in the order of time.
    pub fn memory(&mut self, before: u64, changes: impl IntoIterator<Item = Change>) {
        let elsewhere = |value| !self.graph.ty(value).device.kind.is_cpu();
        let on_device = self.graph.inputs.values().any(|input| elsewhere(input.value));
        let (device_type, device) = if on_device { (1, 0) } else { (0, -1) };
        let mut total = before as i64;
        for Change { time, bytes, owner } in changes {
            total += bytes;
            self.rank.memory.push(MemoryEvent {
                time,
                bytes,
                address: owner as u64 + 1,
                total_allocated: total,
                total_reserved: -1,
                device_type,
                device,
                track: self.operations,
            });
        }
    }

    /// The timeline, with the step around everything.
    pub fn finish(mut self, simulated: bool) -> (Names, Rank) {
        self.rank.events.duration[0] = self.end.0;
        self.rank.meta.elements = self.rank.events.len() as u64;
        self.rank.meta.backend = simulated.then(|| SIMULATED.to_owned());
        (self.names, self.rank)
    }

    fn lane(&mut self, group: &str) -> (TrackId, i64) {
        if let Some((lane, count)) = self.groups.get_mut(group) {
            *count += 1;
            return (*lane, *count);
        }
        let lane = track(&mut self.names, &mut self.rank, group);
        self.groups.insert(group.to_owned(), (lane, 0));
        (lane, 0)
    }

    fn push(&mut self, category: Category, name: NameId, track: TrackId, span: Span) -> u32 {
        self.end = self.end.max(span.end);
        let (start, duration) = (span.start, Nanos(span.end.0 - span.start.0));
        let index = self.rank.events.len() as u32;
        let (stream, correlation, external) = (-1, -1, -1);
        let event = Event { start, duration, name, category, track, index, stream, correlation, external };
        self.rank.events.push(event);
        index
    }

    fn node(&mut self, row: u32, position: usize, work: Option<Work>) {
        let id = self.graph.order[position];
        let place = self.graph.place(id).map(|place| format!("{}:{}", place.file, place.line));
        let cause = self.graph.nodes[id].label.map(|label| self.graph.labels[label].as_str());
        let args = NodeArgs {
            node: position as u32,
            place: place.map_or(NameId::NONE, |place| self.names.intern(&place)),
            cause: cause.map_or(NameId::NONE, |cause| self.names.intern(cause)),
            work: work.map_or(NameId::NONE, |work| self.names.intern(&json!(work).to_string())),
        };
        self.rank.sides.node.push(row, args);
    }

    fn collective_args(
        &mut self,
        id: NodeId,
        operation: &str,
        group: &Group<'_>,
        sequence: i64,
    ) -> CollectiveArgs {
        let node = &self.graph.nodes[id];
        // Which has the operator of an exchange between all.
        let is_permute = self.graph.collective(id).is_some_and(|of| of.kind == CollectiveKind::Permute);
        let operation = if is_permute { CollectiveKind::Permute.text() } else { operation };
        let elements = |value| self.graph.ty(value).elements() as i64;
        let dtype = node.operands().next().map(|value| self.graph.ty(value).dtype.torch_name());
        CollectiveArgs {
            operation: self.names.intern(operation),
            group: self.names.intern(group.name),
            ranks: match group.members(self.rank.rank) {
                Some(members) => self.names.intern(&json!(members).to_string()),
                None => NameId::NONE,
            },
            dtype: dtype.map_or(NameId::NONE, |dtype| self.names.intern(dtype)),
            elements_in: node.operands().map(elements).sum(),
            elements_out: node.results().map(elements).sum(),
            group_size: if group.size == 0 { -1 } else { i64::from(group.size) },
            sequence,
        }
    }
}

fn track(names: &mut Names, rank: &mut Rank, name: &str) -> TrackId {
    rank.tracks.push(Track {
        process: Lane::Number(i64::from(rank.rank)),
        thread: Lane::Number(rank.tracks.len() as i64),
        name: names.intern(name),
    })
}

/// The ranks among which a collective is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group<'a> {
    /// What it is called, such as `axis:a`.
    pub name: &'a str,
    /// How many ranks it has, 0 where that is not known.
    pub size: u32,
    /// How far apart in number they are, 0 where that is not known.
    pub stride: u32,
}

impl Group<'_> {
    /// The ranks of the group that `rank` is in, if they are known.
    fn members(&self, rank: u32) -> Option<Vec<u32>> {
        let first = rank.checked_sub(rank.checked_div(self.stride)?.checked_rem(self.size)? * self.stride)?;
        Some((0..self.size).map(|member| first + member * self.stride).collect())
    }
}

/// What a step took in few numbers. Operations and waits of one rank do not overlap, so `compute` and `exposed` are parts of `step`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Figures {
    /// From the begin of the step to its end.
    pub step: Nanos,
    /// Time in which the rank itself works.
    pub compute: Nanos,
    /// Time of collectives, hidden or not.
    pub communication: Nanos,
    /// Time in which the rank waits for collectives.
    pub exposed: Nanos,
    /// Time of copies between device and host, hidden or not.
    pub copying: Nanos,
    /// Time in which the rank waits for them.
    pub exposed_copies: Nanos,
    /// Operations.
    pub operations: u32,
    /// Collectives.
    pub collectives: u32,
}

impl Figures {
    /// Those of a rank of a timeline that [`StepTimeline`] made; 0 for any other.
    pub fn of(timeline: &Timeline, rank: &Rank) -> Self {
        let mut figures = Self::default();
        let events = &rank.events;
        for row in 0..events.len() {
            let name = timeline.names.text(events.name[row]);
            let duration = Nanos(events.duration[row]);
            match events.category[row] {
                Category::UserAnnotation if name == STEP => figures.step = duration,
                Category::UserAnnotation if name.starts_with(COLLECTIVE) => figures.collective(duration),
                Category::UserAnnotation if name.starts_with(COPY) => figures.copying += duration,
                Category::CpuOp if ir::is_wait(name) => figures.exposed += duration,
                Category::CpuOp => match HostCopy::of_operator(name) {
                    Some(HostCopy::Wait) => figures.exposed_copies += duration,
                    copy => figures.operation(duration, copy.is_some() || ir::is_communication(name)),
                },
                _ => {}
            }
        }
        figures
    }

    /// Counts a collective.
    pub fn collective(&mut self, duration: Nanos) {
        self.communication += duration;
        self.collectives += 1;
    }

    /// Counts an operation, or the start of a collective.
    pub fn operation(&mut self, duration: Nanos, starts_collective: bool) {
        self.compute += duration;
        self.operations += u32::from(!starts_collective);
    }
}
