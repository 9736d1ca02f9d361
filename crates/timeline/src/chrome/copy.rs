//! Copying traces element by element: every argument and every kind of event stays, whether the table knows it or not.

use std::{
    io::{Error, Result, Write},
    path::Path,
};

use super::{Extras, Filter, List, header, table};
use crate::{
    Rank, Timeline, files,
    kineto::{
        event::{RawEvent, RawLane},
        scan::{Scan, Scanner, Text},
        visit::{Piece, visit},
    },
};

/// Writes one JSON object with the events of the ranks' sources that `filter` lets through, and the extras. Metadata stays
/// whatever the filter. With several ranks, processes are kept apart by their names, each `rank N, process`, and ids of
/// arrows by their numbers. Ranks without a source are written from the table.
pub fn copy(out: &mut dyn Write, timeline: &Timeline, filter: &Filter, extras: &Extras) -> Result<()> {
    let ranks = filter.ranks(timeline);
    let apart = ranks.len() > 1;
    let mut members = Vec::new();
    let mut own_header = true;
    if let [rank] = &ranks[..]
        && !rank.source.is_empty()
    {
        members = root_members(rank)?;
        own_header = members.is_empty();
    }
    if own_header {
        header(out, &ranks)?;
    } else {
        write!(out, "{{{}\n\"traceEvents\":[\n", String::from_utf8_lossy(&members))?;
    }
    let mut list = List { out, separator: "" };
    for (number, rank) in ranks.iter().enumerate() {
        if rank.source.is_empty() {
            table(&mut list, timeline, rank, filter, apart)?;
            continue;
        }
        let copier =
            Copier { rank, apart: apart.then_some((number as i64, ranks.len() as i64)), filter, extras };
        let mut source = files::open(Path::new(&rank.source)).map_err(Error::other)?;
        visit(&mut *source, &mut |piece| copier.piece(&mut list, &piece))?;
    }
    list.extras(timeline, filter, extras)?;
    writeln!(out, "\n]}}")
}

/// The members of the root object of a rank's source but for its events, each followed by a comma.
fn root_members(rank: &Rank) -> Result<Vec<u8>> {
    let mut members = Vec::new();
    let mut source = files::open(Path::new(&rank.source)).map_err(Error::other)?;
    visit(&mut *source, &mut |piece| {
        if let Piece::Member { key, value } = piece {
            members.extend([b"\n\"", key, b"\": ", value, b","].concat());
        }
        Ok(())
    })?;
    Ok(members)
}

/// Copies the elements of one rank.
struct Copier<'a> {
    rank: &'a Rank,
    /// With several ranks, the number of this one and how many there are.
    apart: Option<(i64, i64)>,
    filter: &'a Filter,
    extras: &'a Extras,
}

impl Copier<'_> {
    fn piece(&self, list: &mut List<'_>, piece: &Piece<'_>) -> Result<()> {
        let Piece::Element { index, fields, text } = piece else { return Ok(()) };
        if !self.wanted(fields) {
            return Ok(());
        }
        let critical = self.extras.critical.get(&self.rank.rank).is_some_and(|rows| rows.contains(index));
        if self.apart.is_none() && !critical {
            return list.element(text);
        }
        list.element(&self.changed(text, fields, critical))
    }

    fn wanted(&self, fields: &RawEvent<'_>) -> bool {
        if fields.phase == b'M' {
            return true;
        }
        let start = fields.start.some().map_or(0, |micros| micros.nanos);
        let end = start.saturating_add(fields.duration.some().map_or(0, |micros| micros.nanos));
        let name = fields.name.map(Text::decode).unwrap_or_default();
        self.filter.passes(&name, start, end)
    }

    /// The element with another process and id, or with the argument `critical`.
    fn changed(&self, text: &[u8], fields: &RawEvent<'_>, critical: bool) -> Vec<u8> {
        let mut changed = Vec::with_capacity(text.len() + 32);
        let mut copied = 0;
        let places = places(text).unwrap_or_default();
        for (key, from, to) in places {
            let value = match (key, self.apart) {
                (b"pid", Some(_)) => serde_json::Value::from(self.process(fields)).to_string(),
                (b"id", Some((number, count))) => match fields.id {
                    Some(id) => id.wrapping_mul(count).wrapping_add(number).to_string(),
                    None => continue,
                },
                (b"args", _) if critical && text[from] == b'{' => {
                    let empty = text[from + 1..to - 1].iter().all(u8::is_ascii_whitespace);
                    let comma = if empty { "" } else { "," };
                    format!("{{\"critical\":1{comma}{}", String::from_utf8_lossy(&text[from + 1..to]))
                }
                _ => continue,
            };
            changed.extend_from_slice(&text[copied..from]);
            changed.extend_from_slice(value.as_bytes());
            copied = to;
        }
        changed.extend_from_slice(&text[copied..]);
        changed
    }

    fn process(&self, fields: &RawEvent<'_>) -> String {
        let process = match fields.process {
            Some(RawLane::Number(number)) => number.to_string(),
            Some(RawLane::Text(text)) => text.decode().into_owned(),
            None => String::new(),
        };
        format!("rank {}, {process}", self.rank.rank)
    }
}

/// Where the values of an element's members are: key, begin and end.
fn places(text: &[u8]) -> Scan<Vec<(&[u8], usize, usize)>> {
    let mut scanner = Scanner::new(text, 0);
    scanner.expect(b'{', "an object")?;
    let mut places = Vec::new();
    while scanner.more(b'}')? {
        let key = scanner.key()?.raw;
        let from = scanner.pos;
        scanner.skip()?;
        places.push((key, from, scanner.pos));
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chrome::{Arrow, Moment};

    const TRACE: &str = r#"{"distributedInfo": {"rank": RANK, "world_size": 2, "new": [1]}, "traceEvents": [
      {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 7, "tid": 7, "ts": 10.001, "dur": 5, "args": {"unknown": [1, {"x": "}"}]}},
      {"ph": "X", "cat": "kernel", "name": "k", "pid": "dev", "tid": 1, "ts": 20, "dur": 5, "args": {}},
      {"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "pid": 7, "tid": 7, "ts": 11}, {"ph": "X" oops},
      {"ph": "M", "name": "process_labels", "pid": 7, "args": {"labels": "CPU"}}], "trailer": {"b": 2}}"#;

    fn copied(name: &str, ranks: u32, filter: &Filter, extras: &Extras) -> serde_json::Value {
        let folder = std::env::temp_dir().join(format!("unisono-copy-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut files = Vec::new();
        for rank in 0..ranks {
            let file = folder.join(format!("{rank}.json"));
            std::fs::write(&file, TRACE.replace("RANK", &rank.to_string())).expect("a file");
            files.push(file);
        }
        let timeline = files::load(&files, None, &|_, _| {}).expect("traces");
        let mut out = Vec::new();
        copy(&mut out, &timeline, filter, extras).expect("memory takes everything");
        drop(std::fs::remove_dir_all(folder));
        serde_json::from_slice(&out)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)))
    }

    #[test]
    fn a_copy_of_one_rank_holds_everything_that_can_be_read() {
        let copy = copied("one", 1, &Filter::default(), &Extras::default());
        assert_eq!(copy["distributedInfo"]["new"][0], 1);
        assert_eq!(copy["trailer"]["b"], 2);
        let events = copy["traceEvents"].as_array().expect("a list");
        assert_eq!(events.len(), 4);
        assert_eq!(events[0]["args"]["unknown"][1]["x"], "}");
        assert_eq!(events[0]["pid"], 7);
    }

    #[test]
    fn ranks_are_kept_apart_and_what_is_critical_is_marked() {
        let moment = |rank, track, time| Moment { rank, track: crate::TrackId(track), time };
        let arrows = vec![Arrow { name: "sync", from: moment(0, 0, 10_001), to: moment(1, 1, 20_000) }];
        let critical = [(1, [0, 1].into_iter().collect())].into();
        let extras = Extras { arrows, critical, ..Extras::default() };
        let copy = copied("two", 2, &Filter::default(), &extras);
        let events = copy["traceEvents"].as_array().expect("a list");
        assert_eq!(
            (events[0]["pid"].as_str(), events[5]["pid"].as_str()),
            (Some("rank 0, 7"), Some("rank 1, dev"))
        );
        assert_eq!((events[2]["id"].as_i64(), events[6]["id"].as_i64()), (Some(6), Some(7)));
        let marks: Vec<bool> = events.iter().map(|event| event["args"]["critical"] == 1).collect();
        assert_eq!(marks[..8], [false, false, false, false, true, true, false, false]);
        assert_eq!(events[4]["args"]["unknown"][1]["x"], "}");
        assert_eq!((events[8]["ph"].as_str(), events[9]["ph"].as_str()), (Some("s"), Some("f")));
        assert_eq!(
            (events[8]["ts"].as_f64(), events[9]["pid"].as_str()),
            (Some(10.001), Some("rank 1, dev"))
        );
    }

    #[test]
    fn a_filter_lets_metadata_through_and_events_of_its_window_and_name() {
        let filter = Filter { rank: Some(0), window: Some((0, 18_000)), name: String::new() };
        let copy = copied("window", 1, &filter, &Extras::default());
        let names: Vec<_> = copy["traceEvents"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|event| event["name"].clone())
            .collect();
        assert_eq!(names, ["a", "ac2g", "process_labels"]);
        let copy =
            copied("name", 1, &Filter { name: "k".to_owned(), ..Filter::default() }, &Extras::default());
        assert_eq!(copy["traceEvents"].as_array().expect("a list").len(), 2);
    }
}
