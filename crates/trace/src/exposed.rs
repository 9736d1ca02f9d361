//! Communication that no computation hides, by operation, module and source line.

use std::collections::BTreeMap;

use serde::Serialize;
use timeline::{Class, step::is_communication};

use crate::{
    Frame, Frames, Kind,
    breakdown::of_kind,
    collective::parts,
    interval::Union,
    source::{Origin, Sources},
    stats::{micros, percent},
};

/// Exposed communication of one origin on one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exposed {
    /// The rank.
    pub rank: u32,
    /// The operation.
    pub operation: String,
    /// Where it comes from.
    #[serde(flatten)]
    pub origin: Origin,
    /// How many collectives.
    pub count: usize,
    /// Their time in microseconds.
    pub time: f64,
    /// The time in which nothing computes, in microseconds.
    pub exposed: f64,
    /// The exposed time in per cent of the rank's trace.
    pub percent: f64,
}

/// Exposed communication of every rank, most first.
pub fn exposed(frames: &Frames<'_>) -> Vec<Exposed> {
    let mut table: Vec<Exposed> =
        frames.ranks.iter().enumerate().flat_map(|(number, frame)| of_rank(frame, number)).collect();
    table.sort_by(|a, b| b.exposed.total_cmp(&a.exposed).then(a.rank.cmp(&b.rank)));
    table
}

fn of_rank(frame: &Frame<'_>, number: usize) -> Vec<Exposed> {
    let parts = parts(frame, number);
    if parts.is_empty() {
        return Vec::new();
    }
    let computing = computing(frame);
    let sources = Sources::of(frame);
    let span = frame.rows().map(|row| frame.end(row)).max().unwrap_or(0)
        - frame.rows().map(|row| frame.begin[row]).min().unwrap_or(0);
    let mut groups: BTreeMap<(String, Origin), (usize, i64, i64)> = BTreeMap::new();
    // a moment in which several communicate counts for the one that began first
    let mut until = i64::MIN;
    for (key, part, _) in parts {
        let origin = sources.origin(part.call.unwrap_or(part.row));
        let own = Union { pieces: vec![(part.begin.max(until), part.end.max(until))] };
        until = until.max(part.end);
        let group = groups.entry((key.operation, origin)).or_default();
        *group = (group.0 + 1, group.1 + part.duration(), group.2 + own.subtract(&computing).length());
    }
    groups
        .into_iter()
        .map(|((operation, origin), (count, time, exposed))| Exposed {
            rank: frame.rank.rank,
            operation,
            origin,
            count,
            time: micros(time),
            exposed: micros(exposed),
            percent: percent(exposed as f64, span.max(1) as f64, 2),
        })
        .collect()
}

/// When a rank computes: kernels, or operators of a rank without device.
pub fn computing(frame: &Frame<'_>) -> Union {
    let rows = frame.device_rows();
    if !rows.is_empty() {
        return of_kind(frame, &rows, Kind::Computation);
    }
    let issues = frame.timeline.names.map(|name| name.starts_with("c10d::") || is_communication(name));
    let communicates = |row: usize| frame.communicates(row) || issues[frame.name(row).0 as usize];
    let computes = |row: &usize| frame.class(*row) == Class::Operator && !communicates(*row);
    Union::of(frame.rows().filter(computes).map(|row| frame.interval(row)))
}
