//! The event table: typed columns per rank, one table of names for all ranks.

use base::{Diagnostic, Nanos, PrimaryMap, define_id};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::{Category, NameId, Names, Renaming, side::Sides, tensors::TensorUse};

define_id!(
    /// A lane of a rank: a thread of a process, or a stream of a device.
    TrackId, "t"
);

/// The process or thread of an event: traces use numbers, and texts for lanes of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Lane {
    /// A process, thread, device or stream number.
    Number(i64),
    /// A text such as `Spans`.
    Text(NameId),
}

/// A lane of a rank, with what metadata says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Track {
    /// The process, or the device of a stream.
    pub process: Lane,
    /// The thread, or the stream.
    pub thread: Lane,
    /// What the trace calls the thread, [`NameId::NONE`] where it does not say.
    pub name: NameId,
}

/// One event as it goes into the table.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Event {
    /// When it begins, in the clock of its rank.
    pub start: Nanos,
    /// How long it takes. Damaged traces have negative ones: they are kept as they are and analyses say what they do.
    pub duration: Nanos,
    /// What it is called.
    pub name: NameId,
    /// What kind of thing it is.
    pub category: Category,
    /// Where it runs.
    pub track: TrackId,
    /// Its position in the source, from 0, counting everything that the source holds.
    pub index: u32,
    /// The device stream, -1 where there is none.
    pub stream: i64,
    /// What joins a launch and its kernel, -1 where there is none.
    pub correlation: i64,
    /// What joins an operator and what it caused, -1 where there is none.
    pub external: i64,
}

/// The columns of a rank's events, all of one length, in the order of the source.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Events {
    /// Begin of each event in nanoseconds.
    pub start: Vec<i64>,
    /// Duration of each event in nanoseconds.
    pub duration: Vec<i64>,
    /// Name of each event.
    pub name: Vec<NameId>,
    /// Category of each event.
    pub category: Vec<Category>,
    /// Lane of each event.
    pub track: Vec<TrackId>,
    /// Position of each event in the source.
    pub index: Vec<u32>,
    /// Stream of each event, -1 where there is none.
    pub stream: Vec<i64>,
    /// Correlation of each event, -1 where there is none.
    pub correlation: Vec<i64>,
    /// External id of each event, -1 where there is none.
    pub external: Vec<i64>,
}

impl Events {
    /// How many events there are.
    pub fn len(&self) -> usize {
        self.start.len()
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.start.is_empty()
    }

    /// Appends an event.
    pub fn push(&mut self, event: Event) {
        self.start.push(event.start.0);
        self.duration.push(event.duration.0);
        self.name.push(event.name);
        self.category.push(event.category);
        self.track.push(event.track);
        self.index.push(event.index);
        self.stream.push(event.stream);
        self.correlation.push(event.correlation);
        self.external.push(event.external);
    }

    /// When the event of `row` ends.
    pub fn end(&self, row: usize) -> i64 {
        self.start[row].saturating_add(self.duration[row])
    }

    /// The event of `row`.
    pub fn get(&self, row: usize) -> Event {
        Event {
            start: Nanos(self.start[row]),
            duration: Nanos(self.duration[row]),
            name: self.name[row],
            category: self.category[row],
            track: self.track[row],
            index: self.index[row],
            stream: self.stream[row],
            correlation: self.correlation[row],
            external: self.external[row],
        }
    }

    /// Gives back the room that growing took in advance.
    pub fn shrink(&mut self) {
        self.start.shrink_to_fit();
        self.duration.shrink_to_fit();
        self.name.shrink_to_fit();
        self.category.shrink_to_fit();
        self.track.shrink_to_fit();
        self.index.shrink_to_fit();
        self.stream.shrink_to_fit();
        self.correlation.shrink_to_fit();
        self.external.shrink_to_fit();
    }
}

/// An allocation (positive bytes) or a release (negative bytes) that the profiler saw.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MemoryEvent {
    /// When.
    pub time: Nanos,
    /// How many bytes came (positive) or went (negative).
    pub bytes: i64,
    /// The address, 0 where the trace does not say.
    pub address: u64,
    /// Bytes in use on the device after it, -1 where the trace does not say.
    pub total_allocated: i64,
    /// Bytes that the allocator holds after it, -1 where the trace does not say.
    pub total_reserved: i64,
    /// Device type as `PyTorch` numbers it (0 processor, 1 CUDA), -1 unknown.
    pub device_type: i32,
    /// Device number, -1 for the processor.
    pub device: i32,
    /// The thread that asked.
    pub track: TrackId,
}

/// One end of a forward-backward arrow.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Flow {
    /// What joins begin and end.
    pub id: i64,
    /// When, on `track`.
    pub time: Nanos,
    /// Where.
    pub track: TrackId,
    /// Whether it is the begin (forward) of the arrow.
    pub begin: bool,
}

/// What the source says of itself, and what the reader saw besides events.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Metadata {
    /// Rank that the source names.
    pub rank: Option<u32>,
    /// How many ranks there are according to the source.
    pub world_size: Option<u32>,
    /// Communication backend.
    pub backend: Option<String>,
    /// Process groups: name, description and ranks.
    pub groups: Vec<Group>,
    /// Names of the devices.
    pub devices: Vec<String>,
    /// Nanoseconds since 1970 of time 0 of the events, 0 where the source does not say.
    pub base_time: i64,
    /// Elements of the source's event list, kept or not.
    pub elements: u64,
    /// Whether any element's time is not an integer of microseconds, or is missing.
    pub fractional_times: bool,
    /// Bytes of JSON that were read.
    pub bytes: u64,
}

/// A process group.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its short name, as collectives name it.
    pub name: String,
    /// Its description.
    pub description: String,
    /// Its ranks.
    pub ranks: Vec<u32>,
}

/// Everything of one rank.
#[derive(Clone, Default, Debug)]
pub struct Rank {
    /// The rank.
    pub rank: u32,
    /// Where it was read from; empty for what was computed.
    pub source: String,
    /// What the source says of itself.
    pub meta: Metadata,
    /// Lanes.
    pub tracks: PrimaryMap<TrackId, Track>,
    /// Events.
    pub events: Events,
    /// Arguments that only some events have.
    pub sides: Sides,
    /// Allocations and releases in the order of the source.
    pub memory: Vec<MemoryEvent>,
    /// Forward-backward arrows in the order of the source.
    pub flows: Vec<Flow>,
    /// Which tensors operators read and write, in the order of the operators; from an execution trace beside the source.
    pub tensors: Vec<TensorUse>,
    /// What is wrong with the source and was put up with.
    pub notes: Vec<Diagnostic>,
}

impl Rank {
    /// A rank without events.
    pub fn new(rank: u32) -> Self {
        Self { rank, ..Self::default() }
    }

    /// Appends what was read later from the same source, with names of another table.
    pub fn append(&mut self, other: Self, renaming: &Renaming) {
        let offset = u32::try_from(self.events.len()).expect("at most u32::MAX events");
        let first = self.meta.elements as u32;
        let mut lanes = Lanes::of(&self.tracks);
        let tracks: Vec<TrackId> = other
            .tracks
            .values()
            .map(|track| {
                let id = lanes.track(
                    &mut self.tracks,
                    rename(track.process, renaming),
                    rename(track.thread, renaming),
                );
                if track.name != NameId::NONE {
                    self.tracks[id].name = renaming.apply(track.name);
                }
                id
            })
            .collect();
        let place = |track: TrackId| tracks[track.0 as usize];
        let events = other.events;
        self.events.start.extend(events.start);
        self.events.duration.extend(events.duration);
        self.events.name.extend(events.name.into_iter().map(|name| renaming.apply(name)));
        self.events.category.extend(events.category);
        self.events.track.extend(events.track.into_iter().map(place));
        self.events.index.extend(events.index.into_iter().map(|index| index + first));
        self.events.stream.extend(events.stream);
        self.events.correlation.extend(events.correlation);
        self.events.external.extend(events.external);
        self.sides.append(other.sides, offset, renaming);
        self.memory
            .extend(other.memory.into_iter().map(|event| MemoryEvent { track: place(event.track), ..event }));
        self.flows.extend(other.flows.into_iter().map(|flow| Flow { track: place(flow.track), ..flow }));
        self.notes.extend(other.notes);
        self.meta.elements += other.meta.elements;
        self.meta.fractional_times |= other.meta.fractional_times;
    }

    /// Replaces all names by those of another table.
    #[must_use]
    pub fn rename(mut self, renaming: &Renaming) -> Self {
        for name in &mut self.events.name {
            *name = renaming.apply(*name);
        }
        for (_, track) in self.tracks.iter_mut() {
            *track = Track {
                process: rename(track.process, renaming),
                thread: rename(track.thread, renaming),
                name: renaming.apply(track.name),
            };
        }
        let sides = std::mem::take(&mut self.sides);
        self.sides.append(sides, 0, renaming);
        self
    }

    /// First begin and last end of all events; `None` without events.
    pub fn span(&self) -> Option<(Nanos, Nanos)> {
        let first = *self.events.start.iter().min()?;
        let last = (0..self.events.len()).map(|row| self.events.end(row)).max()?;
        Some((Nanos(first), Nanos(last)))
    }
}

fn rename(lane: Lane, renaming: &Renaming) -> Lane {
    match lane {
        Lane::Number(number) => Lane::Number(number),
        Lane::Text(name) => Lane::Text(renaming.apply(name)),
    }
}

/// Finds the track of a process and thread.
#[derive(Clone, Default, Debug)]
pub struct Lanes {
    ids: FxHashMap<(Lane, Lane), TrackId>,
    last: Option<((Lane, Lane), TrackId)>,
}

impl Lanes {
    /// Of tracks that exist already.
    pub fn of(tracks: &PrimaryMap<TrackId, Track>) -> Self {
        let ids = tracks.iter().map(|(id, track)| ((track.process, track.thread), id)).collect();
        Self { ids, last: None }
    }

    /// The track of `process` and `thread`, added to `tracks` if it is new.
    pub fn track(&mut self, tracks: &mut PrimaryMap<TrackId, Track>, process: Lane, thread: Lane) -> TrackId {
        let key = (process, thread);
        if let Some((_, id)) = self.last.filter(|(last, _)| *last == key) {
            return id;
        }
        let id = *self
            .ids
            .entry(key)
            .or_insert_with(|| tracks.push(Track { process, thread, name: NameId::NONE }));
        self.last = Some((key, id));
        id
    }
}

/// What the simulator predicts, the executor measures and the profiler records: events of all ranks.
#[derive(Clone, Default, Debug)]
pub struct Timeline {
    /// All names of all ranks.
    pub names: Names,
    /// The ranks, in ascending order.
    pub ranks: Vec<Rank>,
    /// What is wrong with the set of ranks and was put up with.
    pub notes: Vec<Diagnostic>,
}

impl Timeline {
    /// Adds a rank whose names are in a table of its own.
    pub fn add(&mut self, names: Names, rank: Rank) {
        if self.names.is_empty() {
            self.names = names;
            self.ranks.push(rank);
            return;
        }
        let renaming = self.names.absorb(&names);
        self.ranks.push(rank.rename(&renaming));
    }

    /// How many events all ranks have.
    pub fn events(&self) -> usize {
        self.ranks.iter().map(|rank| rank.events.len()).sum()
    }
}
