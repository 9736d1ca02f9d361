//! A simulated step beside a measured one: per family of operations, and per collective.

use std::collections::BTreeMap;

use serde::Serialize;
use timeline::{
    Category,
    step::{Figures, is_communication, is_simulated},
};

use crate::{Frame, Frames, collective::operation, stats::micros};

/// What was predicted and what was measured, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Pair {
    /// Of the simulated step.
    pub predicted: f64,
    /// Of the measured step.
    pub measured: f64,
}

/// Operations of one family: those of one name, overloads together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FamilyRow {
    /// The name, without overload.
    pub operation: String,
    /// How many a rank has, predicted and measured. What is the same in every step is computed once, and not measured.
    pub calls: (f64, f64),
    /// Their time on a rank.
    #[serde(flatten)]
    pub time: Pair,
}

/// Collectives of one kind, group and cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveRow {
    /// What they do.
    pub operation: String,
    /// Among whom.
    pub group: String,
    /// What put them into the graph.
    pub cause: String,
    /// How many a rank has.
    pub count: f64,
    /// Their time on a rank, hidden or not.
    #[serde(flatten)]
    pub time: Pair,
}

/// A simulated step beside a measured one; all figures are means over ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The whole step.
    pub step: Pair,
    /// Time in which a rank itself works.
    pub compute: Pair,
    /// Time of collectives, hidden or not.
    pub communication: Pair,
    /// Time in which a rank waits for collectives.
    pub exposed: Pair,
    /// Families of operations, those first of which the prediction is farthest from the measurement.
    pub operations: Vec<FamilyRow>,
    /// Collectives, in the same order.
    pub collectives: Vec<CollectiveRow>,
}

/// Whether `compare` applies: one run is simulated, the other is a measured step of such a program.
pub fn comparable(predicted: &Frames<'_>, measured: &Frames<'_>) -> bool {
    let all = |frames: &Frames<'_>, wanted: &dyn Fn(&Frame<'_>) -> bool| {
        !frames.ranks.is_empty() && frames.ranks.iter().all(wanted)
    };
    all(predicted, &|frame| is_simulated(frame.rank))
        && all(measured, &|frame| !is_simulated(frame.rank) && !frame.rank.sides.node.is_empty())
}

/// Compares a simulated step with a measured one.
pub fn compare(predicted: &Frames<'_>, measured: &Frames<'_>) -> Comparison {
    let (p, m) = (figures(predicted), figures(measured));
    let pair = |number: usize| Pair { predicted: p[number], measured: m[number] };
    let (of_p, of_m) = (totals(predicted), totals(measured));
    Comparison {
        step: pair(0),
        compute: pair(1),
        communication: pair(2),
        exposed: pair(3),
        operations: families(&of_p, &of_m),
        collectives: collectives(&of_p, &of_m),
    }
}

/// Step, computation, communication and waiting in microseconds, as means over ranks.
fn figures(frames: &Frames<'_>) -> [f64; 4] {
    let ranks = frames.ranks.len().max(1) as f64;
    let mut sums = [0.0; 4];
    for frame in &frames.ranks {
        let figures = Figures::of(frames.timeline, frame.rank);
        let of_rank = [figures.step, figures.compute, figures.communication, figures.exposed];
        for (sum, time) in sums.iter_mut().zip(of_rank) {
            *sum += micros(time.0) / ranks;
        }
    }
    sums
}

/// What events are put together under.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Family(String),
    Collective { operation: String, group: String, cause: String },
}

/// Number and microseconds of events, as means over ranks.
type Totals = BTreeMap<Key, (f64, f64)>;

fn totals(frames: &Frames<'_>) -> Totals {
    let ranks = frames.ranks.len().max(1) as f64;
    let mut totals = Totals::new();
    for frame in &frames.ranks {
        for row in frame.rows() {
            if let Some(key) = key(frame, row) {
                let total = totals.entry(key).or_default();
                *total = (total.0 + 1.0 / ranks, total.1 + micros(frame.duration[row]) / ranks);
            }
        }
    }
    totals
}

fn key(frame: &Frame<'_>, row: usize) -> Option<Key> {
    let text = |name| frame.timeline.names.text(name).to_owned();
    let name = frame.text(row);
    if frame.rank.events.category[row] == Category::CpuOp && !is_communication(name) {
        return Some(Key::Family(name.split('.').next().unwrap_or(name).to_owned()));
    }
    let collective = frame.rank.sides.collective.get(row as u32)?;
    let cause = frame.rank.sides.node.get(row as u32).map_or_else(String::new, |node| text(node.cause));
    Some(Key::Collective { operation: operation(name), group: text(collective.group), cause })
}

/// All keys of both runs with what each has of them.
fn joined<'t>(predicted: &'t Totals, measured: &'t Totals) -> Vec<(&'t Key, (f64, f64), Pair)> {
    let mut joined: Vec<(&Key, (f64, f64), Pair)> = predicted
        .keys()
        .chain(measured.keys().filter(|key| !predicted.contains_key(*key)))
        .map(|key| {
            let (p, m) = (predicted.get(key).copied(), measured.get(key).copied());
            let (p, m) = (p.unwrap_or_default(), m.unwrap_or_default());
            (key, (p.0, m.0), Pair { predicted: p.1, measured: m.1 })
        })
        .collect();
    let miss = |pair: &Pair| (pair.measured - pair.predicted).abs();
    joined.sort_by(|a, b| miss(&b.2).total_cmp(&miss(&a.2)).then_with(|| a.0.cmp(b.0)));
    joined
}

fn families(predicted: &Totals, measured: &Totals) -> Vec<FamilyRow> {
    let rows = joined(predicted, measured).into_iter().filter_map(|(key, calls, time)| match key {
        Key::Family(operation) => Some(FamilyRow { operation: operation.clone(), calls, time }),
        Key::Collective { .. } => None,
    });
    rows.collect()
}

fn collectives(predicted: &Totals, measured: &Totals) -> Vec<CollectiveRow> {
    let rows = joined(predicted, measured).into_iter().filter_map(|(key, calls, time)| match key {
        Key::Collective { operation, group, cause } => Some(CollectiveRow {
            operation: operation.clone(),
            group: group.clone(),
            cause: cause.clone(),
            count: calls.0.max(calls.1),
            time,
        }),
        Key::Family(_) => None,
    });
    rows.collect()
}
