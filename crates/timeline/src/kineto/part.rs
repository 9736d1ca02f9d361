//! A run of elements read into a table of its own: what one thread makes of one chunk.

use std::borrow::Cow;

use base::{Code, Diagnostic, Nanos};

use super::{
    event::{RawArgs, RawEvent, RawLane, RawTime, event, resynchronise},
    scan::{Fault, Scanner, Text},
};
use crate::{
    Category, CollectiveArgs, DeviceArgs, Event, Flow, InputArgs, Lane, Lanes, MemoryEvent, NameId, Names,
    NodeArgs, PythonArgs, Rank, SequenceArgs, TrackId,
};

/// Where reading a chunk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// At the first element that starts at or behind the chunk's end.
    Boundary(usize),
    /// Inside the element that starts here: the data ends.
    Inside(usize),
    /// Behind the bracket that closes the list.
    List(usize),
}

/// A table under construction.
#[derive(Default)]
pub struct Part {
    /// Names of this part.
    pub names: Names,
    /// Events of this part.
    pub rank: Rank,
    /// Elements that were damaged, and the offset of the first.
    pub damaged: Option<(u64, u64)>,
    /// Elements that have a duration and no time.
    pub timeless: u64,
    /// Elements that are objects.
    pub objects: u64,
    lanes: Lanes,
}

impl Part {
    /// Reads the elements of `data` that start in `start..stop`. `base` is the offset of `data` in the source.
    pub fn elements(&mut self, data: &[u8], start: usize, stop: usize, base: u64) -> Ending {
        let mut scanner = Scanner::new(data, start);
        loop {
            let at = match next_element(&mut scanner) {
                Ok(Some(at)) if at >= stop => return Ending::Boundary(at),
                Ok(Some(at)) => at,
                Ok(None) => return Ending::List(scanner.pos),
                Err(_) => return Ending::Inside(scanner.pos),
            };
            match self.element(&mut scanner) {
                Ok(()) => self.rank.meta.elements += 1,
                Err(Fault::End) => return Ending::Inside(at),
                Err(Fault::Bad(_)) => match resynchronise(data, scanner.pos.max(at + 1)) {
                    Some(next) => {
                        self.damage(base + at as u64);
                        scanner.pos = next;
                    }
                    None => return Ending::Inside(at),
                },
            }
        }
    }

    fn element(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Fault> {
        if scanner.peek()? != b'{' {
            return scanner.skip();
        }
        let raw = event(scanner)?;
        self.objects += 1;
        self.rank.meta.fractional_times |= !matches!(raw.start, RawTime::At(micros) if micros.integer);
        self.take(&raw);
        Ok(())
    }

    /// Notes that the element at `offset` is damaged.
    pub fn damage(&mut self, offset: u64) {
        let (count, first) = self.damaged.unwrap_or((0, offset));
        self.damaged = Some((count + 1, first));
    }

    fn take(&mut self, raw: &RawEvent<'_>) {
        match (raw.duration.some(), raw.start.some()) {
            (Some(duration), Some(start)) => {
                let category = raw.category.map_or(Category::Missing, |text| Category::of(text.raw));
                if category != Category::Trace {
                    self.keep(raw, category, Nanos(start.nanos), Nanos(duration.nanos));
                }
            }
            (Some(_), None) => self.timeless += 1,
            (None, Some(start)) => self.instant(raw, Nanos(start.nanos)),
            (None, None) => self.instant(raw, Nanos(0)),
        }
    }

    fn keep(&mut self, raw: &RawEvent<'_>, category: Category, start: Nanos, duration: Nanos) {
        let event = Event {
            start,
            duration,
            name: self.intern(raw.name),
            category,
            track: self.track(raw),
            index: self.rank.meta.elements as u32,
            stream: raw.args.stream.unwrap_or(-1),
            correlation: raw.args.correlation.unwrap_or(-1),
            external: raw.args.external.unwrap_or(-1),
        };
        let row = self.rank.events.len() as u32;
        self.rank.events.push(event);
        self.sides(row, category, &raw.args);
    }

    fn instant(&mut self, raw: &RawEvent<'_>, time: Nanos) {
        let name = raw.name.map_or(&b""[..], |text| text.raw);
        match raw.phase {
            b'i' | b'I' if name == b"[memory]" => {
                let track = self.track(raw);
                self.rank.memory.push(memory_event(&raw.args, time, track));
            }
            b's' | b'f' if raw.category.is_some_and(|text| text.raw == b"fwdbwd") => {
                let track = self.track(raw);
                let id = raw.id.unwrap_or(-1);
                self.rank.flows.push(Flow { id, time, track, begin: raw.phase == b's' });
            }
            b'M' if name == b"thread_name" => {
                let track = self.track(raw);
                self.rank.tracks[track].name = self.intern(raw.args.name);
            }
            _ => {}
        }
    }

    fn sides(&mut self, row: u32, category: Category, args: &RawArgs<'_>) {
        if let Some(device) = device_args(args) {
            self.rank.sides.device.push(row, device);
        }
        if args.dims.or(args.types).or(args.concrete).is_some() {
            let inputs = InputArgs {
                dims: self.intern_json(args.dims),
                types: self.intern_json(args.types),
                strides: self.intern_json(args.strides),
                concrete: self.intern_json(args.concrete),
            };
            self.rank.sides.inputs.push(row, inputs);
        }
        if let Some(number) = args.sequence {
            let forward_thread = args.forward_thread.unwrap_or(-1);
            self.rank.sides.sequence.push(row, SequenceArgs { number, forward_thread });
        }
        if let Some(id) = args.python {
            let (parent, module) = (args.python_parent.unwrap_or(-1), args.module.unwrap_or(-1));
            self.rank.sides.python.push(row, PythonArgs { id, parent, module });
        }
        if args.collective {
            let collective = self.collective_args(args);
            self.rank.sides.collective.push(row, collective);
        }
        if let Some(node) = args.node.and_then(|node| u32::try_from(node).ok()) {
            let (place, cause) = (self.intern_some(args.place), self.intern_some(args.cause));
            let work = self.intern_json(args.work);
            self.rank.sides.node.push(row, NodeArgs { node, place, cause, work });
        }
        if category == Category::CudaProfilerRange {
            let counters = self.counters(args.whole);
            self.rank.sides.counters.push(row, counters);
        }
    }

    fn collective_args(&mut self, args: &RawArgs<'_>) -> CollectiveArgs {
        CollectiveArgs {
            operation: self.intern_some(args.operation),
            group: self.intern_some(args.group),
            ranks: self.intern_json(args.group_ranks),
            dtype: self.intern_some(args.dtype),
            elements_in: args.elements_in.unwrap_or(-1),
            elements_out: args.elements_out.unwrap_or(-1),
            group_size: args.group_size.unwrap_or(-1),
            sequence: args.collective_sequence.unwrap_or(-1),
        }
    }

    /// All numeric arguments of an event with hardware counters, in their order.
    fn counters(&mut self, whole: &[u8]) -> Vec<(NameId, f64)> {
        let members: indexmap::IndexMap<String, serde_json::Value> =
            serde_json::from_slice(whole).unwrap_or_default();
        members.iter().filter_map(|(name, value)| Some((self.names.intern(name), value.as_f64()?))).collect()
    }

    fn track(&mut self, raw: &RawEvent<'_>) -> TrackId {
        let (process, thread) = (self.lane(raw.process), self.lane(raw.thread));
        self.lanes.track(&mut self.rank.tracks, process, thread)
    }

    fn lane(&mut self, lane: Option<RawLane<'_>>) -> Lane {
        match lane {
            Some(RawLane::Number(number)) => Lane::Number(number),
            Some(RawLane::Text(text)) => Lane::Text(self.names.intern(&text.decode())),
            None => Lane::Number(-1),
        }
    }

    fn intern(&mut self, text: Option<Text<'_>>) -> NameId {
        match text.map(Text::decode) {
            Some(Cow::Borrowed(text)) => self.names.intern(text),
            Some(Cow::Owned(text)) => self.names.intern(&text),
            None => self.names.intern(""),
        }
    }

    fn intern_some(&mut self, text: Option<Text<'_>>) -> NameId {
        text.map_or(NameId::NONE, |text| self.intern(Some(text)))
    }

    fn intern_json(&mut self, json: Option<&[u8]>) -> NameId {
        json.map_or(NameId::NONE, |json| self.names.intern(&String::from_utf8_lossy(json)))
    }

    /// Appends what was read from the data behind this part.
    pub fn append(&mut self, other: Self) {
        let renaming = self.names.absorb(&other.names);
        self.rank.append(other.rank, &renaming);
        self.lanes = Lanes::of(&self.rank.tracks);
        self.timeless += other.timeless;
        self.objects += other.objects;
        self.damaged = match (self.damaged, other.damaged) {
            (Some((a, first)), Some((b, _))) => Some((a + b, first)),
            (a, b) => a.or(b),
        };
    }

    /// The finished table, with notes on what was damaged.
    pub fn finish(mut self) -> (Names, Rank) {
        if let Some((count, first)) = self.damaged {
            let note = Diagnostic::new(Code::TRACE_DAMAGED, format!("{count} damaged event(s) were skipped"))
                .because(format!("the first is at byte {first}"));
            self.rank.notes.push(*note);
        }
        if self.timeless > 0 {
            let message = format!("{} event(s) with a duration and no time were skipped", self.timeless);
            self.rank.notes.push(*Diagnostic::new(Code::TRACE_DAMAGED, message));
        }
        self.rank.events.shrink();
        (self.names, self.rank)
    }
}

/// Moves to the next element: its offset, or `None` behind the end of the list.
pub fn next_element(scanner: &mut Scanner<'_>) -> Result<Option<usize>, Fault> {
    loop {
        match scanner.token()? {
            b',' | b'}' => scanner.pos += 1,
            b']' => {
                scanner.pos += 1;
                return Ok(None);
            }
            _ => return Ok(Some(scanner.pos)),
        }
    }
}

fn device_args(args: &RawArgs<'_>) -> Option<DeviceArgs> {
    let any = args.bytes.or(args.wait_stream).or(args.wait_event).or(args.graph_node);
    if any.is_none() && args.bandwidth.is_none() {
        return None;
    }
    Some(DeviceArgs {
        bytes: args.bytes.unwrap_or(-1),
        bandwidth: args.bandwidth.unwrap_or(0.0),
        wait_stream: args.wait_stream.unwrap_or(-1),
        wait_event: args.wait_event.unwrap_or(-1),
        graph_node: args.graph_node.unwrap_or(-1),
    })
}

fn memory_event(args: &RawArgs<'_>, time: Nanos, track: TrackId) -> MemoryEvent {
    MemoryEvent {
        time,
        bytes: args.memory_bytes.unwrap_or(0),
        address: args.address.unwrap_or(0) as u64,
        total_allocated: args.total_allocated.unwrap_or(-1),
        total_reserved: args.total_reserved.unwrap_or(-1),
        device_type: args.device_type.unwrap_or(-1) as i32,
        device: args.device.unwrap_or(-1) as i32,
        track,
    }
}
