//! Writing timelines as JSON that trace viewers open (chrome://tracing, Perfetto).

use std::io::{Result, Write};

use serde_json::{Value, json};

use crate::{Lane, NameId, Rank, Timeline};

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

/// Writes one JSON object with the events that `filter` lets through and the counters. Processes of different ranks are kept
/// apart by their names: each is `rank N, process`.
pub fn write(out: &mut dyn Write, timeline: &Timeline, filter: &Filter, counters: &[Counter]) -> Result<()> {
    writeln!(out, "{{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut separator = "";
    // times are appended as text: as numbers they would lose their nanoseconds far from zero
    let mut line = |out: &mut dyn Write, value: &Value, times: &str| {
        let text = value.to_string();
        let result = write!(out, "{separator}{}{times}}}", &text[..text.len() - 1]);
        separator = ",\n";
        result
    };
    for rank in timeline.ranks.iter().filter(|rank| filter.rank.is_none_or(|wanted| wanted == rank.rank)) {
        for track in rank.tracks.values().filter(|track| track.name != NameId::NONE) {
            let name = timeline.names.text(track.name);
            let (process, thread) = lanes(timeline, rank, track.process, track.thread);
            line(
                out,
                &json!({"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}),
                "",
            )?;
        }
        for row in (0..rank.events.len()).filter(|&row| passes(timeline, rank, row, filter)) {
            let (start, duration) = (micros(rank.events.start[row]), micros(rank.events.duration[row]));
            line(out, &event(timeline, rank, row), &format!(",\"ts\":{start},\"dur\":{duration}"))?;
        }
        for counter in counters.iter().filter(|counter| counter.rank == rank.rank) {
            let inside = |time: i64| filter.window.is_none_or(|(begin, end)| begin <= time && time <= end);
            for (time, value) in counter.points.iter().filter(|point| inside(point.0)) {
                let process = format!("rank {}", rank.rank);
                let args = json!({ counter.name.as_str(): value });
                line(
                    out,
                    &json!({"ph": "C", "name": counter.name, "pid": process, "args": args}),
                    &format!(",\"ts\":{}", micros(*time)),
                )?;
            }
        }
    }
    writeln!(out, "\n]}}")
}

fn passes(timeline: &Timeline, rank: &Rank, row: usize, filter: &Filter) -> bool {
    let in_time = filter
        .window
        .is_none_or(|(begin, end)| rank.events.start[row] <= end && rank.events.end(row) >= begin);
    in_time && (filter.name.is_empty() || timeline.names.text(rank.events.name[row]).contains(&filter.name))
}

fn lanes(timeline: &Timeline, rank: &Rank, process: Lane, thread: Lane) -> (String, Value) {
    let text = |lane: Lane| match lane {
        Lane::Number(number) => json!(number),
        Lane::Text(name) => json!(timeline.names.text(name)),
    };
    let process = match text(process) {
        Value::String(text) => text,
        other => other.to_string(),
    };
    (format!("rank {}, {process}", rank.rank), text(thread))
}

fn event(timeline: &Timeline, rank: &Rank, row: usize) -> Value {
    let event = rank.events.get(row);
    let track = rank.tracks[event.track];
    let (process, thread) = lanes(timeline, rank, track.process, track.thread);
    let mut args = serde_json::Map::new();
    for (key, value) in
        [("stream", event.stream), ("correlation", event.correlation), ("External id", event.external)]
    {
        if value != -1 {
            args.insert(key.to_owned(), json!(value));
        }
    }
    json!({
        "ph": "X", "cat": event.category.text(), "name": timeline.names.text(event.name), "pid": process, "tid": thread,
        "args": args,
    })
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
    fn what_is_written_is_read_again_as_the_same_events() {
        let json = r#"[{"ph":"X","cat":"kernel","name":"k \"x\"","pid":0,"tid":7,"ts":1694128201422366.123,"dur":2.25,"args":{"stream":7,"correlation":3}},
            {"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]"#;
        let mut timeline = Timeline::default();
        let (names, rank) = kineto::read_bytes(json.as_bytes().to_vec(), "x").expect("a trace");
        timeline.add(names, rank);
        let mut out = Vec::new();
        let counter = Counter { rank: 0, name: "queue".to_owned(), points: vec![(5_001, 1.0)] };
        write(&mut out, &timeline, &Filter::default(), &[counter]).expect("memory takes everything");
        let (_, again) = kineto::read_bytes(out, "x").expect("a trace");
        let events = &timeline.ranks[0].events;
        assert_eq!((&again.events.start, &again.events.duration), (&events.start, &events.duration));
        assert_eq!(
            (&again.events.correlation, &again.events.category),
            (&events.correlation, &events.category)
        );
        assert_eq!(again.meta.elements, 3);
        let filter = Filter { name: "k ".to_owned(), window: Some((0, i64::MAX)), rank: Some(0) };
        let mut out = Vec::new();
        write(&mut out, &timeline, &filter, &[]).expect("memory takes everything");
        assert_eq!(kineto::read_bytes(out, "x").expect("a trace").1.events.len(), 1);
    }
}
