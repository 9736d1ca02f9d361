//! Charts of a plan's page, as numbers for the template: memory over time, and plans by time and memory.

use std::fmt::Write;

use base::{Bytes, Nanos};

use crate::strips::unit;

/// Memory of a rank over a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// What is held all the time, such as parameters.
    pub state: Bytes,
    /// What is held from a time on, in the order of time, the beginning of the step included.
    pub held: Vec<(Nanos, Bytes)>,
    /// The limit, if there is one.
    pub limit: Option<Bytes>,
    /// The end of the step.
    pub end: Nanos,
}

/// Height of the drawing of memory, in units of the picture.
pub const HEIGHT: u32 = 1000;

/// A limit so many times above the peak is not drawn, because nothing else could be seen beside it.
const FAR: u64 = 4;

/// How memory is drawn: heights are measured from above.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Area {
    /// The outline of what is held, as the `d` of a path.
    pub path: String,
    /// Where the step ends.
    pub width: u32,
    /// The height of what is held all the time.
    pub state: u32,
    /// The height of the limit, if it is drawn.
    pub limit: Option<u32>,
    /// The most that is held.
    pub peak: Bytes,
    /// When.
    pub peak_time: Nanos,
    /// Where, along and down.
    pub peak_at: (u32, u32),
    /// What stands beside the drawing, each at its height.
    pub labels: Vec<Tick>,
}

/// Labels that are nearer to each other could not be read.
const LINE: u32 = HEIGHT / 8;

impl Memory {
    /// The drawing, on a time axis that ends at `end`.
    pub fn area(&self, end: Nanos) -> Area {
        let first = (Nanos(0), self.state);
        // of equals the first
        let (peak_time, peak) =
            self.held.iter().rev().max_by_key(|(_, held)| *held).copied().unwrap_or(first);
        let limit = self.limit.filter(|limit| limit.0 <= peak.0.saturating_mul(FAR));
        let most = limit.unwrap_or(peak).max(peak);
        let top = Bytes(most.0 + most.0 / 16 + 1);
        let down = |bytes: Bytes| HEIGHT - (bytes.0 as f64 / top.0 as f64 * f64::from(HEIGHT)) as u32;
        let mut labels: Vec<Tick> = Vec::new();
        let named =
            [(Some(peak), "peak"), (limit, "limit"), (Some(self.state), "state"), (Some(Bytes(0)), "")];
        for (bytes, name) in named.into_iter().filter_map(|(bytes, name)| Some((bytes?, name))) {
            let at = down(bytes);
            if labels.iter().all(|label| label.at.abs_diff(at) >= LINE) {
                labels.push(Tick { at, text: format!("{name} {bytes}") });
            }
        }
        Area {
            path: outline(&self.columns(end), unit(self.end, end), down),
            width: unit(self.end, end),
            state: down(self.state),
            limit: limit.map(down),
            peak,
            peak_time,
            peak_at: (unit(peak_time, end), down(peak)),
            labels,
        }
    }

    /// Units of the axis with what is held from there on: the most of a unit in which that changes.
    fn columns(&self, end: Nanos) -> Vec<(u32, Bytes)> {
        let mut columns: Vec<(u32, Bytes)> = Vec::new();
        let mut before = Bytes(0);
        for &(time, held) in &self.held {
            let x = unit(time, end);
            match columns.last_mut() {
                Some((column, most)) if *column == x => *most = (*most).max(held),
                Some((column, _)) if *column + 1 < x => {
                    let next = *column + 1;
                    columns.extend([(next, before), (x, held.max(before))]);
                }
                _ => columns.push((x, held.max(before))),
            }
            before = held;
        }
        columns.extend(columns.last().map(|(x, _)| (x + 1, before)));
        columns
    }
}

fn outline(columns: &[(u32, Bytes)], width: u32, down: impl Fn(Bytes) -> u32) -> String {
    let mut path = format!("M0 {HEIGHT}");
    let mut drawn = HEIGHT;
    for &(x, held) in columns {
        let y = down(held);
        if y != drawn {
            let _ = write!(path, "H{x}V{y}");
            drawn = y;
        }
    }
    path + &format!("H{width}V{HEIGHT}Z")
}

/// A plan that was considered, or the one that was chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Considered {
    /// What it is.
    pub label: String,
    /// Predicted time of a step.
    pub step: Nanos,
    /// What of it is waiting for collectives, where it is known.
    pub waiting: Option<Nanos>,
    /// Predicted memory of a rank.
    pub memory: Bytes,
    /// Whether it keeps the memory limit.
    pub fits: bool,
}

/// A point of a chart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    pub x: u32,
    pub y: u32,
    pub class: &'static str,
    pub title: String,
}

/// A place on an axis, with what stands there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tick {
    pub at: u32,
    pub text: String,
}

/// Plans by time, to the right, and memory, upwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scatter {
    pub points: Vec<Point>,
    pub times: Vec<Tick>,
    pub memories: Vec<Tick>,
    pub limit: Option<u32>,
}

/// The inner edges of the chart of plans: left, right, upper, lower.
const EDGES: (f64, f64, f64, f64) = (74.0, 540.0, 12.0, 224.0);

/// The chart of plans, the chosen one first.
pub fn scatter(plans: &[Considered], limit: Option<Bytes>) -> Scatter {
    let (left, right, upper, lower) = EDGES;
    let most = plans.iter().map(|plan| plan.memory).max().unwrap_or_default();
    let limit = limit.filter(|limit| limit.0 <= most.0.saturating_mul(FAR));
    let times = Scale::of(plans.iter().map(|plan| plan.step.0 as f64), 1.0, (left, right));
    let held = plans.iter().map(|plan| plan.memory).chain(limit).map(|bytes| bytes.0 as f64);
    // The largest power of 1024 that is not above the most: ticks are round numbers of it.
    let unit = 1024_f64.powf((most.0.max(1) as f64).log(1024.0).floor());
    let memories = Scale::of(held, unit, (lower, upper));
    let point = |(number, plan): (usize, &Considered)| Point {
        x: times.at(plan.step.0 as f64),
        y: memories.at(plan.memory.0 as f64),
        class: match (number, plan.fits) {
            (0, _) => "chosen",
            (_, true) => "fits",
            (_, false) => "over",
        },
        title: format!("{}: {}, {}", plan.label, plan.step, plan.memory),
    };
    Scatter {
        points: plans.iter().enumerate().map(point).collect(),
        times: times.ticks(|time| Nanos(time as i64).to_string()),
        memories: memories.ticks(|bytes| Bytes(bytes as u64).to_string()),
        limit: limit.map(|limit| memories.at(limit.0 as f64)),
    }
}

/// From values to places; logarithmic, because one plan may take many times what another one takes.
struct Scale {
    low: f64,
    high: f64,
    unit: f64,
    places: (f64, f64),
}

impl Scale {
    /// A scale that has room for `values` and some more, whose ticks are round numbers of `unit`.
    fn of(values: impl Iterator<Item = f64>, unit: f64, places: (f64, f64)) -> Self {
        let (low, high) =
            values.fold((f64::INFINITY, 1.0), |(low, high), value| (value.min(low), value.max(high)));
        let (low, high) = (low.clamp(1.0, high), high);
        let room = (high / low).powf(0.1).max(1.05);
        Self { low: low / room, high: high * room, unit, places }
    }

    fn at(&self, value: f64) -> u32 {
        let share = (value.max(1.0) / self.low).ln() / (self.high / self.low).ln();
        let (from, to) = self.places;
        (from + share * (to - from)).round() as u32
    }

    /// A few round numbers on the scale.
    fn ticks(&self, text: impl Fn(f64) -> String) -> Vec<Tick> {
        let round = if self.high > 4.0 * self.low { doubling } else { evenly };
        let values = round(self.low / self.unit, self.high / self.unit);
        let tick = |value: f64| Tick { at: self.at(value * self.unit), text: text(value * self.unit) };
        values.into_iter().map(tick).collect()
    }
}

/// 1, 2 and 5 times powers of ten.
fn doubling(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().floor() as i32;
    let values = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
    values.filter(|value| (low..=high).contains(value)).collect()
}

/// At most six multiples of a round number.
fn evenly(low: f64, high: f64) -> Vec<f64> {
    let step = round_above((high - low) / 6.0);
    let counts = (low / step).ceil() as i64..=(high / step).floor() as i64;
    counts.map(|count| count as f64 * step).collect()
}

/// The least of 1, 2 and 5 times powers of ten that is not below a value.
fn round_above(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|round| *round >= value)
        .unwrap_or(10.0 * power)
}

/// Round times along an axis that ends at `end`, with their share of it in percent.
pub fn time_ticks(end: Nanos) -> Vec<(f64, String)> {
    let values = evenly(0.0, end.0.max(1) as f64).into_iter();
    let tick = |time: f64| (time / end.0.max(1) as f64 * 100.0, Nanos(time as i64).to_string());
    values.map(tick).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(limit: Option<u64>) -> Memory {
        let held = [(0, 100), (10, 300), (11, 200), (500, 50)];
        let held = held.map(|(time, bytes)| (Nanos(time), Bytes(bytes))).to_vec();
        Memory { state: Bytes(50), held, limit: limit.map(Bytes), end: Nanos(1000) }
    }

    #[test]
    fn the_area_keeps_the_peak_of_a_unit_and_falls_behind_it() {
        let area = memory(None).area(Nanos(8_000_000));
        assert_eq!((area.peak, area.peak_time, area.peak_at.0), (Bytes(300), Nanos(10), 0));
        assert_eq!(area.path.matches('V').count(), 3, "{}", area.path);
        let labels: Vec<_> = area.labels.iter().map(|label| label.text.as_str()).collect();
        assert_eq!(labels, ["peak 300 B", "state 50 B", " 0 B"]);
    }

    #[test]
    fn a_limit_far_above_the_peak_is_not_drawn() {
        assert_eq!(memory(Some(10_000)).area(Nanos(1000)).limit, None);
        let near = memory(Some(600)).area(Nanos(1000));
        assert!(near.limit.is_some_and(|limit| limit < near.peak_at.1));
    }

    #[test]
    fn plans_lie_by_their_time_and_memory() {
        let plan = |step, memory, fits| Considered {
            label: "data parallel".into(),
            waiting: None,
            step: Nanos(step),
            memory: Bytes(memory),
            fits,
        };
        let plans =
            [plan(2_000_000, 3 << 30, true), plan(9_000_000, 1 << 30, true), plan(1_000_000, 9 << 30, false)];
        let drawn = scatter(&plans, Some(Bytes(4 << 30)));
        let classes: Vec<_> = drawn.points.iter().map(|point| point.class).collect();
        assert_eq!(classes, ["chosen", "fits", "over"]);
        assert!(drawn.points[2].x < drawn.points[0].x && drawn.points[0].x < drawn.points[1].x);
        let limit = drawn.limit.expect("a limit near the plans");
        assert!(drawn.points[2].y < limit && limit < drawn.points[0].y);
        let texts: Vec<_> = drawn.memories.iter().map(|tick| tick.text.as_str()).collect();
        assert_eq!(texts, ["1 GiB", "2 GiB", "5 GiB", "10 GiB"]);
    }

    #[test]
    fn ticks_are_round_and_few() {
        let texts: Vec<_> = time_ticks(Nanos(13_971_187)).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["0 ns", "5 ms", "10 ms"]);
    }
}
