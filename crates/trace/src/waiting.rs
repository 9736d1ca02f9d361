//! What collectives cost: transfer, the waiting of each rank, who came last and what kept it.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use serde::Serialize;
use timeline::{Class, TrackId};

use crate::{
    Frame, Frames,
    align::{Clock, ClockRow, clocks, row},
    collective::{Collective, Part, matched},
    source::{Origin, Sources},
    stack::{self, NOTHING, Step},
    stats::{median, micros, percent, round},
};

/// One collective across ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveRow {
    /// Process group.
    pub group: String,
    /// Operation.
    pub operation: String,
    /// Number in the group.
    pub number: i64,
    /// Bytes that go in on the first rank.
    pub bytes: i64,
    /// When the first rank arrives, in microseconds since the first event, in the common clock.
    pub begin: f64,
    /// Time that the exchange itself takes: that of the rank that waits least.
    pub transfer: f64,
    /// Waiting of each rank, in microseconds, in the order of `ranks`.
    pub wait: Vec<f64>,
    /// Ranks that took part.
    pub ranks: Vec<u32>,
    /// The ranks in the order in which they arrive.
    pub arrival: Vec<u32>,
    /// The rank that the others wait for.
    pub culprit: u32,
    /// How long the last rank comes after the middle one, in microseconds.
    pub lateness: f64,
    /// Bytes by transfer time, in GB/s; absent without bytes.
    pub algorithm_bandwidth: Option<f64>,
    /// Per-link bandwidth that the operation needs for that, in GB/s.
    pub bus_bandwidth: Option<f64>,
    /// Where it was issued on the culprit.
    pub origin: Origin,
    /// On what the culprit spent more time than the others since the collective before, most of all.
    pub reason: Option<Reason>,
}

/// What kept a rank while others waited.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reason {
    /// The event on which it spent more time than the others.
    pub name: String,
    /// How much more, in microseconds, over all collectives for which it was waited.
    pub extra: f64,
    /// Where the event comes from.
    #[serde(flatten)]
    pub origin: Origin,
}

/// A rank's waiting over all collectives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankWaiting {
    /// The rank.
    pub rank: u32,
    /// Its own waiting in microseconds.
    pub wait: f64,
    /// Waiting of others for it, in microseconds.
    pub caused: f64,
    /// How many times it came last.
    pub last: usize,
    /// Share of all waiting that it caused, in per cent.
    pub caused_percent: f64,
    /// What kept it, most first.
    pub reasons: Vec<Reason>,
}

/// Everything about collectives.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Waiting {
    /// How many collectives were matched.
    pub matched: usize,
    /// Each of them.
    pub collectives: Vec<CollectiveRow>,
    /// Each rank.
    pub ranks: Vec<RankWaiting>,
    /// Each rank's clock.
    pub clocks: Vec<ClockRow>,
}

/// Matches collectives and says who waited for whom.
pub fn waiting(frames: &Frames<'_>) -> Waiting {
    let collectives = matched(frames);
    if collectives.is_empty() {
        return Waiting::default();
    }
    let clocks = clocks(&collectives, frames.ranks.len());
    let threads: Vec<Busy<'_, '_>> = frames.ranks.iter().map(Busy::of).collect();
    let mut previous: Vec<i64> = frames.ranks.iter().map(|frame| first_begin(frame)).collect();
    let mut rows = Vec::with_capacity(collectives.len());
    let mut ranks: Vec<Total> = vec![Total::default(); frames.ranks.len()];
    for collective in &collectives {
        let mut row = collective_row(frames, &threads, &clocks, collective);
        let culprit =
            collective.parts.iter().find(|part| rank_of(frames, part) == row.culprit).expect("took part");
        for (part, wait) in collective.parts.iter().zip(waits(collective)) {
            ranks[part.frame].wait += wait;
            ranks[culprit.frame].caused += wait;
        }
        ranks[culprit.frame].last += 1;
        if row.lateness > 0.0 {
            let found = excess(&threads, collective, culprit, &previous);
            row.reason = found.iter().max_by_key(|found| found.1).map(|(name, extra, event)| Reason {
                name: name.clone(),
                extra: micros(*extra),
                origin: threads[culprit.frame].origin(*event),
            });
            for (name, extra, event) in found {
                ranks[culprit.frame].extra.entry(name).or_insert((0, event)).0 += extra;
            }
        }
        for part in &collective.parts {
            previous[part.frame] = previous[part.frame].max(part.end);
        }
        rows.push(row);
    }
    let all: i64 = ranks.iter().map(|rank| rank.wait).sum();
    Waiting {
        matched: rows.len(),
        collectives: rows,
        ranks: frames
            .ranks
            .iter()
            .zip(&threads)
            .zip(ranks)
            .map(|((frame, busy), total)| total.row(frame, busy, all))
            .collect(),
        clocks: frames.ranks.iter().zip(&clocks).map(|(frame, clock)| row(frame.rank.rank, clock)).collect(),
    }
}

#[derive(Clone, Default)]
struct Total {
    wait: i64,
    caused: i64,
    last: usize,
    /// Extra time by name of the event, with one of its rows.
    extra: IndexMap<String, (i64, u32), FxBuildHasher>,
}

impl Total {
    fn row(mut self, frame: &Frame<'_>, busy: &Busy<'_, '_>, all: i64) -> RankWaiting {
        self.extra.sort_by(|a, x, b, y| (y.0, a).cmp(&(x.0, b)));
        let reason = |(name, (extra, row)): (String, (i64, u32))| Reason {
            origin: busy.origin(row),
            name,
            extra: micros(extra),
        };
        RankWaiting {
            rank: frame.rank.rank,
            wait: micros(self.wait),
            caused: micros(self.caused),
            last: self.last,
            caused_percent: percent(self.caused as f64, all.max(1) as f64, 1),
            reasons: self
                .extra
                .into_iter()
                .filter(|(_, (extra, _))| *extra > 0)
                .take(3)
                .map(reason)
                .collect(),
        }
    }
}

fn first_begin(frame: &Frame<'_>) -> i64 {
    frame.rows().map(|row| frame.begin[row]).min().unwrap_or(0)
}

fn rank_of(frames: &Frames<'_>, part: &Part) -> u32 {
    frames.ranks[part.frame].rank.rank
}

/// The waiting of each part: what it takes longer than the shortest.
fn waits(collective: &Collective) -> impl Iterator<Item = i64> + '_ {
    let transfer = transfer(collective);
    collective.parts.iter().map(move |part| part.duration() - transfer)
}

/// The time of the exchange itself: the rank that arrives last does not wait.
pub fn transfer(collective: &Collective) -> i64 {
    collective.parts.iter().map(Part::duration).min().unwrap_or(0)
}

fn collective_row(
    frames: &Frames<'_>,
    threads: &[Busy<'_, '_>],
    clocks: &[Clock],
    collective: &Collective,
) -> CollectiveRow {
    let arrival = |part: &Part| clocks[part.frame].common(part.begin);
    let mut order: Vec<&Part> = collective.parts.iter().collect();
    order.sort_by_key(|part| (arrival(part), part.frame));
    let culprit = *order.last().expect("two parts at least");
    let mut arrivals: Vec<i64> = order.iter().map(|part| arrival(part)).collect();
    let first = arrivals[0];
    let lateness = arrival(culprit) - median(&mut arrivals);
    let (transfer, bytes) = (transfer(collective), collective.parts[0].bytes);
    let bandwidth = (bytes > 0 && transfer > 0).then(|| bytes as f64 / transfer as f64);
    let factor = bus_factor(&collective.key.operation, collective.group_size);
    let sources = &threads[culprit.frame].sources;
    CollectiveRow {
        group: collective.key.group.clone(),
        operation: collective.key.operation.clone(),
        number: collective.key.number,
        bytes,
        begin: micros(first),
        transfer: micros(transfer),
        wait: waits(collective).map(micros).collect(),
        ranks: collective.parts.iter().map(|part| rank_of(frames, part)).collect(),
        arrival: order.iter().map(|part| rank_of(frames, part)).collect(),
        culprit: rank_of(frames, culprit),
        lateness: micros(lateness),
        algorithm_bandwidth: bandwidth.map(|bandwidth| round(bandwidth, 3)),
        bus_bandwidth: bandwidth.map(|bandwidth| round(bandwidth * factor, 3)),
        origin: sources.origin(culprit.call.unwrap_or(culprit.row)),
        reason: None,
    }
}

/// What share of the bytes each link carries (nccl-tests, PERFORMANCE.md).
fn bus_factor(operation: &str, ranks: usize) -> f64 {
    let n = ranks as f64;
    match operation {
        "all_reduce" => 2.0 * (n - 1.0) / n,
        "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter" => (n - 1.0) / n,
        _ => 1.0,
    }
}

/// What a rank's busiest thread and its streams do at each moment.
struct Busy<'f, 't> {
    frame: &'f Frame<'t>,
    sources: Sources<'f, 't>,
    /// Begin, end and row of the innermost event, ascending, without overlap.
    host: Vec<(i64, i64, u32)>,
    /// Begin, end and row of kernels that compute, ascending by begin.
    device: Vec<(i64, i64, u32)>,
}

impl<'f, 't> Busy<'f, 't> {
    fn of(frame: &'f Frame<'t>) -> Self {
        let sources = Sources::of(frame);
        let mut device: Vec<(i64, i64, u32)> = frame
            .rows()
            .filter(|&row| frame.class(row) == Class::Kernel && frame.kind(row) == crate::Kind::Computation)
            .map(|row| (frame.begin[row], frame.end(row), row as u32))
            .collect();
        device.sort_unstable();
        let main = main_thread(frame, &sources);
        let host = main.map(|track| innermost(frame, &sources.stacks.threads[&track])).unwrap_or_default();
        Self { frame, sources, host, device }
    }

    /// Where the event of `row` comes from, if it is one.
    fn origin(&self, row: u32) -> Origin {
        if row == NOTHING { Origin::default() } else { self.sources.origin(row as usize) }
    }

    /// Time by name in `begin..end`, each with one of its rows. Time outside of all events is called idle.
    fn by_name(&self, begin: i64, end: i64) -> BTreeMap<(bool, &'t str), (i64, u32)> {
        let mut times: BTreeMap<(bool, &str), (i64, u32)> = BTreeMap::new();
        for (on_device, segments) in [(false, &self.host), (true, &self.device)] {
            let from = segments.partition_point(|segment| segment.1 <= begin);
            for &(from, to, row) in segments[from..].iter().take_while(|segment| segment.0 < end) {
                let name =
                    if row == NOTHING { "(outside of all events)" } else { self.frame.text(row as usize) };
                let time = times.entry((on_device, name)).or_insert((0, row));
                time.0 += (to.min(end) - from.max(begin)).max(0);
            }
        }
        times
    }
}

/// The thread with the most time in events, workers of backends aside.
fn main_thread(frame: &Frame<'_>, sources: &Sources<'_, '_>) -> Option<TrackId> {
    let time = |rows: &Vec<u32>| -> i64 {
        let top = rows.iter().filter(|&&row| sources.stacks.parent(row as usize).is_none());
        top.map(|&row| frame.duration[row as usize]).sum()
    };
    let is_worker = |rows: &Vec<u32>| rows.iter().all(|&row| frame.communicates(row as usize));
    let threads = sources.stacks.threads.iter().filter(|(_, rows)| !is_worker(rows));
    threads.max_by_key(|(track, rows)| (time(rows), std::cmp::Reverse(**track))).map(|(&track, _)| track)
}

/// The innermost event of a thread at every moment from its first to its last.
fn innermost(frame: &Frame<'_>, rows: &[u32]) -> Vec<(i64, i64, u32)> {
    let mut rows = rows.to_vec();
    let mut segments: Vec<(i64, i64, u32)> = Vec::new();
    let (mut open, mut since): (Vec<u32>, i64) = (Vec::new(), i64::MIN);
    stack::walk(frame, &mut rows, |step| {
        let time = match step {
            Step::Enter(row) => frame.begin[row as usize],
            Step::Leave(row) => frame.end(row as usize),
        };
        if since < time && since > i64::MIN {
            segments.push((since, time, open.last().copied().unwrap_or(NOTHING)));
        }
        since = since.max(time);
        match step {
            Step::Enter(row) => open.push(row),
            Step::Leave(_) => drop(open.pop()),
        }
    });
    segments
}

/// On what the culprit spent more time than the others between the collective before and its arrival: name, how much more, and
/// one of its rows.
fn excess(
    threads: &[Busy<'_, '_>],
    collective: &Collective,
    culprit: &Part,
    previous: &[i64],
) -> Vec<(String, i64, u32)> {
    let spent = |part: &Part| {
        let busy = &threads[part.frame];
        let arrival = part.call.map_or(part.begin, |call| busy.frame.begin[call].max(previous[part.frame]));
        let until = if busy.device.is_empty() { arrival } else { part.begin };
        busy.by_name(previous[part.frame], until)
    };
    let others: Vec<_> =
        collective.parts.iter().filter(|part| part.frame != culprit.frame).map(spent).collect();
    let mut extra = Vec::new();
    for (key, (time, row)) in spent(culprit) {
        let mut usual: Vec<i64> =
            others.iter().map(|times| times.get(&key).map_or(0, |time| time.0)).collect();
        let more = time - median(&mut usual);
        if more > 0 {
            extra.push((key.1.to_owned(), more, row));
        }
    }
    extra
}
