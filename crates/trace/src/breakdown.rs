//! Where the device's time goes: busy and idle, by kind of kernel, by kernel, and how far communication is hidden.

use indexmap::IndexMap;
use serde::Serialize;

use crate::{
    Frame, Frames, Kind, Mode,
    interval::{Union, time_by_mask, time_by_sum},
    stats::{Moments, micros, percent, quantile, round},
};

/// Busy and idle time of one rank's devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Temporal {
    /// The rank.
    pub rank: u32,
    /// Time in which nothing runs, between the first and the last event.
    #[serde(rename = "idle_time(us)")]
    pub idle: f64,
    /// Time in which computation runs.
    #[serde(rename = "compute_time(us)")]
    pub compute: f64,
    /// Time in which something runs and no computation.
    #[serde(rename = "non_compute_time(us)")]
    pub non_compute: f64,
    /// From the first to the last event.
    #[serde(rename = "kernel_time(us)")]
    pub total: f64,
    /// `idle` in per cent of `total`.
    #[serde(rename = "idle_time_pctg")]
    pub idle_percent: f64,
    /// `compute` in per cent of `total`.
    #[serde(rename = "compute_time_pctg")]
    pub compute_percent: f64,
    /// `non_compute` in per cent of `total`.
    #[serde(rename = "non_compute_time_pctg")]
    pub non_compute_percent: f64,
}

/// Busy and idle time of every rank that has device events.
pub fn temporal(frames: &Frames<'_>) -> Vec<Temporal> {
    frames.ranks.iter().filter_map(temporal_of).collect()
}

fn temporal_of(frame: &Frame<'_>) -> Option<Temporal> {
    let rows = frame.device_rows();
    let busy = Union::of_sorted(rows.iter().map(|&row| frame.interval(row)));
    let (first, last) = busy.span()?;
    let total = last - first;
    let idle = total - busy.length();
    let compute = of_kind(frame, &rows, Kind::Computation).length();
    let non_compute = total - compute - idle;
    let share = |part: i64| percent(part as f64, total as f64, 2);
    Some(Temporal {
        rank: frame.rank.rank,
        idle: micros(idle),
        compute: micros(compute),
        non_compute: micros(non_compute),
        total: micros(total),
        idle_percent: share(idle),
        compute_percent: share(compute),
        non_compute_percent: share(non_compute),
    })
}

/// When device events of `kind` run; `rows` ascend by begin.
pub fn of_kind(frame: &Frame<'_>, rows: &[usize], kind: Kind) -> Union {
    Union::of_sorted(rows.iter().filter(|&&row| frame.kind(row) == kind).map(|&row| frame.interval(row)))
}

/// Time of each combination of kinds that run at once, over all ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindTime {
    /// The kinds, joined by "overlapping".
    pub kernel_type: String,
    /// Microseconds.
    pub sum: f64,
    /// Share of the table.
    pub percentage: f64,
}

/// One kernel's time on one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelTime {
    /// The kernel; "others" for those beyond the limits.
    pub name: String,
    /// Microseconds.
    #[serde(rename = "sum (us)")]
    pub sum: f64,
    /// Longest.
    #[serde(rename = "max (us)")]
    pub max: f64,
    /// Shortest.
    #[serde(rename = "min (us)")]
    pub min: f64,
    /// Sample deviation, 0 of one.
    pub stddev: f64,
    /// Mean.
    #[serde(rename = "mean (us)")]
    pub mean: f64,
    /// Kind of the kernel, absent for annotations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_type: Option<&'static str>,
    /// The rank.
    pub rank: u32,
    /// How many calls; not part of HTA's table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// How much of a table to show before "others".
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Share of the time that named rows cover.
    pub duration_ratio: f64,
    /// How many rows have names.
    pub num_kernels: usize,
}

/// Time by kind over all ranks, and time by kernel of each rank.
pub fn kernels(
    frames: &Frames<'_>,
    limits: Limits,
    include_memory: bool,
) -> (Vec<KindTime>, Vec<KernelTime>) {
    let kinds = if include_memory { &Kind::TABLED[..] } else { &Kind::TABLED[..2] };
    let mut times = vec![0; 1 << kinds.len()];
    let mut table = Vec::new();
    for frame in &frames.ranks {
        let rows = frame.device_rows();
        let unions: Vec<Union> = kinds.iter().map(|&kind| of_kind(frame, &rows, kind)).collect();
        let of_rank = if frame.mode == Mode::Hta { time_by_sum(&unions) } else { time_by_mask(&unions) };
        times.iter_mut().zip(of_rank).for_each(|(sum, time)| *sum += time);
        for &kind in kinds {
            let of_kind = rows.iter().copied().filter(|&row| frame.kind(row) == kind);
            table.extend(by_name(frame, of_kind, limits, Some(kind.text())));
        }
    }
    table.sort_by(|a, b| (a.kernel_type, &a.name, a.rank).cmp(&(b.kernel_type, &b.name, b.rank)));
    (kind_times(&times, kinds), table)
}

fn kind_times(times: &[i64], kinds: &[Kind]) -> Vec<KindTime> {
    let total: i64 = times.iter().sum();
    let label = |mask: usize| {
        let running = kinds.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        running.map(|(_, kind)| kind.text()).collect::<Vec<_>>().join(" overlapping ")
    };
    let mut rows: Vec<KindTime> = (1..times.len())
        .filter(|&mask| times[mask] > 0)
        .map(|mask| KindTime {
            kernel_type: label(mask),
            sum: micros(times[mask]),
            percentage: percent(times[mask] as f64, total as f64, 1),
        })
        .collect();
    rows.sort_by(|a, b| b.sum.total_cmp(&a.sum));
    rows
}

/// Groups rows by name; beyond the limits, names are put together as "others".
///
/// As in HTA, a shortened table has statistics of the names' sums, not of the calls. Exact mode keeps those of the calls.
pub fn by_name(
    frame: &Frame<'_>,
    rows: impl Iterator<Item = usize>,
    limits: Limits,
    kind: Option<&'static str>,
) -> Vec<KernelTime> {
    let mut groups: IndexMap<_, Moments, rustc_hash::FxBuildHasher> = IndexMap::default();
    for row in rows {
        groups.entry(frame.name(row)).or_default().add(frame.duration[row]);
    }
    let mut named: Vec<(&str, Moments)> =
        groups.into_iter().map(|(name, moments)| (frame.timeline.names.text(name), moments)).collect();
    named.sort_by(|a, b| (b.1.sum, a.0).cmp(&(a.1.sum, b.0)));
    let whole = named.len() <= limits.num_kernels;
    let exact = frame.mode == crate::Mode::Exact;
    let (named, others) = if whole { (named, Vec::new()) } else { cut(named, limits) };
    let mut table: Vec<KernelTime> = Vec::new();
    let mut push = |name: &str, moments: Moments| {
        table.push(kernel_time(name, &moments, kind, frame.rank.rank, exact));
    };
    for (name, moments) in named {
        push(name, if whole || exact { moments } else { Moments::of([moments.sum]) });
    }
    if !others.is_empty() {
        push("others", Moments::of(others));
    }
    table
}

type Named<'n> = Vec<(&'n str, Moments)>;

/// Splits names in descending order of their sums into those within the limits and the sums of the rest.
fn cut(mut named: Named<'_>, limits: Limits) -> (Named<'_>, Vec<i64>) {
    let mut total = 0.0;
    let cumulative: Vec<f64> = named
        .iter()
        .map(|(_, moments)| {
            total += moments.sum as f64;
            total
        })
        .collect();
    let mut sorted = cumulative.clone();
    sorted.sort_by(f64::total_cmp);
    let limit = quantile(&sorted, limits.duration_ratio);
    let within = |position: usize| cumulative[position] <= limit && position < limits.num_kernels;
    let keep = (0..named.len()).take_while(|&position| within(position)).count();
    let others = named.split_off(keep).into_iter().map(|(_, moments)| moments.sum).collect();
    (named, others)
}

fn kernel_time(
    name: &str,
    moments: &Moments,
    kind: Option<&'static str>,
    rank: u32,
    exact: bool,
) -> KernelTime {
    let deviation = moments.deviation() / 1000.0;
    KernelTime {
        name: name.to_owned(),
        sum: micros(moments.sum),
        max: micros(moments.max),
        min: micros(moments.min),
        stddev: if deviation.is_nan() { 0.0 } else { deviation },
        mean: moments.mean() / 1000.0,
        kernel_type: kind,
        rank,
        count: exact.then_some(moments.count),
    }
}

/// How much of the communication computation hides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlap {
    /// The rank.
    pub rank: u32,
    /// Per cent of the communication's time in which computation runs; nothing without communication.
    #[serde(rename = "comp_comm_overlap_pctg")]
    pub percent: f64,
}

/// How much of the communication computation hides, per rank.
pub fn overlap(frames: &Frames<'_>) -> Vec<Overlap> {
    let of = |frame: &Frame<'_>| {
        let rows = frame.device_rows();
        let communication = of_kind(frame, &rows, Kind::Communication);
        let hidden = communication.intersect(&of_kind(frame, &rows, Kind::Computation)).length();
        round(100.0 * hidden as f64 / communication.length() as f64, 2)
    };
    frames.ranks.iter().map(|frame| Overlap { rank: frame.rank.rank, percent: of(frame) }).collect()
}
