//! Writing timelines as JSON that trace viewers open (chrome://tracing, Perfetto).
//!
//! What was read from a file is copied from it, so that nothing is lost that the table does not hold; what was computed is
//! written from the table. Curves and arrows come on top.

mod copy;

use std::{
    collections::BTreeMap,
    io::{Result, Write},
};

use rustc_hash::FxHashSet;
use serde_json::{Map, Value, json};

use crate::{CollectiveArgs, Lane, MemoryEvent, NameId, Rank, Timeline, TrackId};
pub use copy::copy;

/// Which events to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this rank.
    pub rank: Option<u32>,
    /// Only events that overlap begin and end, in nanoseconds of the timeline's clock.
    pub window: Option<(i64, i64)>,
    /// Only events whose name contains this.
    pub name: String,
}

impl Filter {
    fn ranks<'t>(&self, timeline: &'t Timeline) -> Vec<&'t Rank> {
        timeline.ranks.iter().filter(|rank| self.rank.is_none_or(|wanted| wanted == rank.rank)).collect()
    }

    fn overlaps(&self, begin: i64, end: i64) -> bool {
        self.window.is_none_or(|(from, to)| begin <= to && end >= from)
    }

    fn passes(&self, name: &str, begin: i64, end: i64) -> bool {
        self.overlaps(begin, end) && (self.name.is_empty() || name.contains(&self.name))
    }
}

/// A curve drawn over the events of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    /// The rank.
    pub rank: u32,
    /// What the curve is called.
    pub name: String,
    /// Nanoseconds of the timeline's clock, and the value from then on.
    pub points: Vec<(i64, f64)>,
}

/// One end of an arrow: a moment of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The rank.
    pub rank: u32,
    /// The lane.
    pub track: TrackId,
    /// When, in nanoseconds of the timeline's clock: not behind the event's end, or viewers do not find the event.
    pub time: i64,
}

/// An arrow from one event to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrow {
    /// What it is called.
    pub name: &'static str,
    /// Where it begins.
    pub from: Moment,
    /// Where it ends.
    pub to: Moment,
}

/// What is drawn over the events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    /// Curves.
    pub counters: Vec<Counter>,
    /// Arrows of the critical path.
    pub arrows: Vec<Arrow>,
    /// For each rank, positions in the source of events that get the argument `critical`.
    pub critical: BTreeMap<u32, FxHashSet<u32>>,
}

/// Writes elements of the list of events with commas between them.
struct List<'o> {
    out: &'o mut dyn Write,
    separator: &'static str,
}

impl List<'_> {
    fn element(&mut self, text: &[u8]) -> Result<()> {
        self.out.write_all(self.separator.as_bytes())?;
        self.separator = ",\n";
        self.out.write_all(text)
    }

    /// Times are appended as text: as numbers they would lose their nanoseconds far from zero.
    fn timed(&mut self, value: &Value, times: &str) -> Result<()> {
        let text = value.to_string();
        self.element(format!("{}{times}}}", &text[..text.len() - 1]).as_bytes())
    }

    fn extras(&mut self, timeline: &Timeline, filter: &Filter, extras: &Extras) -> Result<()> {
        let ranks = filter.ranks(timeline);
        let apart = ranks.len() > 1;
        for counter in &extras.counters {
            let Some(rank) = ranks.iter().find(|rank| rank.rank == counter.rank) else { continue };
            let process = if apart { format!("rank {}", rank.rank) } else { "counters".to_owned() };
            for &(time, value) in counter.points.iter().filter(|point| filter.overlaps(point.0, point.0)) {
                let args = json!({ counter.name.as_str(): value });
                let event = json!({"ph": "C", "name": counter.name, "pid": process, "args": args});
                self.timed(&event, &format!(",\"ts\":{}", micros(time)))?;
            }
        }
        // ids of the trace's own arrows are correlations, or counted from 1
        for (arrow, id) in extras.arrows.iter().zip(1_u64 << 48..) {
            let inside = |moment: &Moment| filter.overlaps(moment.time, moment.time);
            if !inside(&arrow.from) || !inside(&arrow.to) {
                continue;
            }
            for (phase, moment) in [("s", &arrow.from), ("f", &arrow.to)] {
                let Some(rank) = ranks.iter().find(|rank| rank.rank == moment.rank) else { continue };
                let track = rank.tracks[moment.track];
                let (process, thread) = lanes(timeline, rank, track.process, track.thread, apart);
                let event = json!({"ph": phase, "bp": "e", "id": id, "cat": "critical_path", "name": arrow.name,
                    "pid": process, "tid": thread});
                self.timed(&event, &format!(",\"ts\":{}", micros(moment.time)))?;
            }
        }
        Ok(())
    }
}

/// The members of the root object that say whose events these are.
fn header(out: &mut dyn Write, ranks: &[&Rank]) -> Result<()> {
    write!(out, "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\"")?;
    if let [rank] = ranks {
        let world = rank.meta.world_size.map_or_else(String::new, |size| format!(",\"world_size\": {size}"));
        let backend = rank.meta.backend.as_ref();
        let backend = backend.map_or_else(String::new, |name| format!(",\"backend\": {}", json!(name)));
        write!(out, ",\"distributedInfo\":{{\"rank\": {}{backend}{world}}}", rank.rank)?;
    }
    writeln!(out, ",\"traceEvents\":[")
}

/// Writes one JSON object with the events of the table that `filter` lets through, and the extras. With several ranks,
/// processes are kept apart by their names: each is `rank N, process`.
pub fn write(out: &mut dyn Write, timeline: &Timeline, filter: &Filter, extras: &Extras) -> Result<()> {
    let ranks = filter.ranks(timeline);
    header(out, &ranks)?;
    let mut list = List { out, separator: "" };
    for rank in &ranks {
        table(&mut list, timeline, rank, filter, ranks.len() > 1)?;
    }
    list.extras(timeline, filter, extras)?;
    writeln!(out, "\n]}}")
}

/// All events of the table as the text of one JSON object.
pub fn text(timeline: &Timeline) -> Result<String> {
    let mut bytes = Vec::new();
    write(&mut bytes, timeline, &Filter::default(), &Extras::default())?;
    String::from_utf8(bytes).map_err(std::io::Error::other)
}

/// Writes the events of one rank's table.
fn table(list: &mut List<'_>, timeline: &Timeline, rank: &Rank, filter: &Filter, apart: bool) -> Result<()> {
    for track in rank.tracks.values().filter(|track| track.name != NameId::NONE) {
        let name = timeline.names.text(track.name);
        let (process, thread) = lanes(timeline, rank, track.process, track.thread, apart);
        let event =
            json!({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}});
        list.timed(&event, "")?;
    }
    for row in 0..rank.events.len() {
        let name = timeline.names.text(rank.events.name[row]);
        if filter.passes(name, rank.events.start[row], rank.events.end(row)) {
            let (start, duration) = (micros(rank.events.start[row]), micros(rank.events.duration[row]));
            list.timed(&event(timeline, rank, row, apart), &format!(",\"ts\":{start},\"dur\":{duration}"))?;
        }
    }
    for change in rank.memory.iter().filter(|change| filter.passes(MEMORY, change.time.0, change.time.0)) {
        let time = format!(",\"ts\":{}", micros(change.time.0));
        list.timed(&memory(timeline, rank, change, apart), &time)?;
    }
    Ok(())
}

/// What the profiler calls what comes and goes of memory.
const MEMORY: &str = "[memory]";

/// What comes or goes of memory, under the profiler's names.
fn memory(timeline: &Timeline, rank: &Rank, change: &MemoryEvent, apart: bool) -> Value {
    let track = rank.tracks[change.track];
    let (process, thread) = lanes(timeline, rank, track.process, track.thread, apart);
    let mut args = Map::new();
    args.insert("Bytes".to_owned(), json!(change.bytes));
    args.insert("Addr".to_owned(), json!(change.address));
    for (key, value) in
        [("Total Allocated", change.total_allocated), ("Total Reserved", change.total_reserved)]
    {
        if value != -1 {
            args.insert(key.to_owned(), json!(value));
        }
    }
    args.insert("Device Type".to_owned(), json!(change.device_type));
    args.insert("Device Id".to_owned(), json!(change.device));
    json!({
        "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": MEMORY, "pid": process, "tid": thread, "args": args,
    })
}

fn lanes(timeline: &Timeline, rank: &Rank, process: Lane, thread: Lane, apart: bool) -> (Value, Value) {
    let value = |lane: Lane| match lane {
        Lane::Number(number) => json!(number),
        Lane::Text(name) => json!(timeline.names.text(name)),
    };
    let process = match (apart, process) {
        (false, process) => value(process),
        (true, Lane::Number(number)) => json!(format!("rank {}, {number}", rank.rank)),
        (true, Lane::Text(name)) => json!(format!("rank {}, {}", rank.rank, timeline.names.text(name))),
    };
    (process, value(thread))
}

fn event(timeline: &Timeline, rank: &Rank, row: usize, apart: bool) -> Value {
    let event = rank.events.get(row);
    let track = rank.tracks[event.track];
    let (process, thread) = lanes(timeline, rank, track.process, track.thread, apart);
    let mut args = Map::new();
    for (key, value) in
        [("stream", event.stream), ("correlation", event.correlation), ("External id", event.external)]
    {
        if value != -1 {
            args.insert(key.to_owned(), json!(value));
        }
    }
    if let Some(node) = rank.sides.node.get(row as u32) {
        args.insert("Unisono node".to_owned(), json!(node.node));
        texts(timeline, &mut args, &[("Unisono place", node.place), ("Unisono cause", node.cause)]);
        let work = node.work.some().and_then(|work| serde_json::from_str(timeline.names.text(work)).ok());
        if let Some(work) = work {
            args.insert("Unisono work".to_owned(), work);
        }
    }
    if let Some(collective) = rank.sides.collective.get(row as u32) {
        collective_args(timeline, &mut args, collective);
    }
    json!({
        "ph": "X", "cat": event.category.text(), "name": timeline.names.text(event.name), "pid": process, "tid": thread,
        "args": args,
    })
}

/// Adds the texts that are there.
fn texts(timeline: &Timeline, args: &mut Map<String, Value>, texts: &[(&str, NameId)]) {
    for (key, name) in texts {
        if let Some(name) = name.some() {
            args.insert((*key).to_owned(), json!(timeline.names.text(name)));
        }
    }
}

/// Adds what a collective says of itself, under PyTorch's names.
fn collective_args(timeline: &Timeline, args: &mut Map<String, Value>, collective: &CollectiveArgs) {
    let named = [
        ("Collective name", collective.operation),
        ("Process Group Name", collective.group),
        ("Process Group Ranks", collective.ranks),
        ("dtype", collective.dtype),
    ];
    texts(timeline, args, &named);
    for (key, number) in [
        ("In msg nelems", collective.elements_in),
        ("Out msg nelems", collective.elements_out),
        ("Group size", collective.group_size),
        ("Seq", collective.sequence),
    ] {
        if number != -1 {
            args.insert(key.to_owned(), json!(number));
        }
    }
}

/// Microseconds with exactly three decimals.
fn micros(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    format!("{sign}{}.{:03}", nanos.unsigned_abs() / 1000, nanos.unsigned_abs() % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kineto;

    #[test]
    fn what_is_written_is_read_again_as_the_same_events_of_the_same_rank() {
        let json = r#"{"distributedInfo":{"rank":5,"world_size":8},"traceEvents":[
            {"ph":"X","cat":"kernel","name":"k \"x\"","pid":0,"tid":7,"ts":1694128201422366.123,"dur":2.25,"args":{"stream":7,"correlation":3}},
            {"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]}"#;
        let mut timeline = Timeline::default();
        let (names, rank) = kineto::read_bytes(json.as_bytes().to_vec(), "x").expect("a trace");
        timeline.add(names, rank);
        let mut out = Vec::new();
        let counters = vec![Counter { rank: 5, name: "queue".to_owned(), points: vec![(5_001, 1.0)] }];
        let extras = Extras { counters, ..Extras::default() };
        write(&mut out, &timeline, &Filter::default(), &extras).expect("memory takes everything");
        let (_, again) = kineto::read_bytes(out, "x").expect("a trace");
        let events = &timeline.ranks[0].events;
        assert_eq!((again.rank, again.meta.world_size), (5, Some(8)));
        assert_eq!((&again.events.start, &again.events.duration), (&events.start, &events.duration));
        assert_eq!(
            (&again.events.correlation, &again.events.category),
            (&events.correlation, &events.category)
        );
        assert_eq!(again.meta.elements, 3);
        let filter = Filter { name: "k ".to_owned(), window: Some((0, i64::MAX)), rank: Some(5) };
        let mut out = Vec::new();
        write(&mut out, &timeline, &filter, &Extras::default()).expect("memory takes everything");
        assert_eq!(kineto::read_bytes(out, "x").expect("a trace").1.events.len(), 1);
    }
}
