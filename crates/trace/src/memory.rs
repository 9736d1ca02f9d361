//! Memory over time: who holds what at the peak, and what grows from step to step.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::Value;
use timeline::Class;

use crate::{
    Frame, Frames,
    source::{Origin, Sources},
    stats::micros,
};

/// Bytes of one origin that are alive at the peak.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtPeak {
    /// What the memory is for, as far as the allocating operator tells.
    pub category: &'static str,
    /// The operator that allocated it.
    pub operator: String,
    /// Where that comes from.
    #[serde(flatten)]
    pub origin: Origin,
    /// Bytes.
    pub bytes: i64,
    /// Allocations.
    pub count: usize,
}

/// Memory of one device of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceMemory {
    /// The rank.
    pub rank: u32,
    /// `cpu`, or `cuda:0` and so on.
    pub device: String,
    /// The most bytes that were alive at once, of those whose allocation the trace saw and of what was alive before.
    pub peak_bytes: i64,
    /// When, in microseconds since the first event.
    pub peak_time: f64,
    /// Bytes that were alive before the trace began, as far as it tells.
    pub before_bytes: i64,
    /// Bytes alive at the end of each step; what grows is not released.
    pub step_ends: Vec<StepEnd>,
    /// Growth of bytes alive from step to step: the least of all steps, so that what comes and goes does not count.
    pub growth_per_step: i64,
    /// Who holds the bytes at the peak, most first.
    pub at_peak: Vec<AtPeak>,
    /// Who allocated what was never released though allocated in the trace, most first.
    pub never_released: Vec<AtPeak>,
    /// Time and bytes alive after each change, thinned to a thousand points.
    pub curve: Vec<(f64, i64)>,
}

/// Bytes alive when a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepEnd {
    /// The step.
    pub step: i64,
    /// Bytes alive.
    pub bytes: i64,
}

/// Memory of every device of every rank that the trace has memory events of.
pub fn memory(frames: &Frames<'_>) -> Vec<DeviceMemory> {
    frames.ranks.iter().flat_map(|frame| of_rank(frame, frames.origin)).collect()
}

fn of_rank(frame: &Frame<'_>, origin: i64) -> Vec<DeviceMemory> {
    let mut devices: BTreeMap<(i32, i32), Vec<usize>> = BTreeMap::new();
    for (number, event) in frame.rank.memory.iter().enumerate().filter(|(_, event)| event.bytes != 0) {
        devices.entry((event.device_type, event.device)).or_default().push(number);
    }
    if devices.is_empty() {
        return Vec::new();
    }
    let owners = Owners::of(frame, origin);
    devices.into_iter().map(|(device, events)| of_device(frame, origin, device, events, &owners)).collect()
}

/// What is alive: number of the allocation and bytes by address.
type Alive = HashMap<u64, (usize, i64)>;

fn of_device(
    frame: &Frame<'_>,
    origin: i64,
    device: (i32, i32),
    mut events: Vec<usize>,
    owners: &Owners<'_, '_>,
) -> DeviceMemory {
    let memory = &frame.rank.memory;
    events.sort_by_key(|&number| (memory[number].time, number));
    let mut ends: Vec<(i64, i64)> = frame.steps.steps.iter().map(|step| (step.end, step.number)).collect();
    ends.sort_unstable();
    let mut next_end = ends.into_iter().peekable();
    let first = memory[events[0]];
    let before = if first.total_allocated >= 0 { first.total_allocated - first.bytes } else { 0 };
    let (mut bytes, mut peak) = (before, (before, 0, 0_usize));
    let (mut step_ends, mut curve) = (Vec::new(), Vec::new());
    for (position, &number) in events.iter().enumerate() {
        let (time, change) = (memory[number].time.0 - origin, memory[number].bytes);
        while let Some((_, step)) = next_end.next_if(|(end, _)| *end <= time) {
            step_ends.push(StepEnd { step, bytes });
        }
        bytes += change;
        curve.push((micros(time), bytes));
        if bytes > peak.0 {
            peak = (bytes, time, position + 1);
        }
    }
    step_ends.extend(next_end.map(|(_, step)| StepEnd { step, bytes }));
    let alive = |count: usize| alive(frame, &events[..count]);
    let growth = step_ends.windows(2).map(|pair| pair[1].bytes - pair[0].bytes).min().unwrap_or(0).max(0);
    DeviceMemory {
        rank: frame.rank.rank,
        device: device_name(device),
        peak_bytes: peak.0,
        peak_time: micros(peak.1),
        before_bytes: before,
        step_ends,
        growth_per_step: growth,
        at_peak: owners.table(&alive(peak.2)),
        never_released: owners.table(&alive(events.len())),
        curve: thin(&curve),
    }
}

fn alive(frame: &Frame<'_>, events: &[usize]) -> Alive {
    let mut alive = Alive::new();
    for &number in events {
        let event = frame.rank.memory[number];
        if event.bytes > 0 {
            alive.insert(event.address, (number, event.bytes));
        } else {
            alive.remove(&event.address);
        }
    }
    alive
}

fn device_name((kind, number): (i32, i32)) -> String {
    match kind {
        0 => "cpu".to_owned(),
        1 => format!("cuda:{number}"),
        20 => format!("privateuse:{number}"),
        other => format!("device type {other}:{number}"),
    }
}

fn thin(curve: &[(f64, i64)]) -> Vec<(f64, i64)> {
    let every = curve.len().div_ceil(1000).max(1);
    // of each run the highest point stays, so that no peak is lost
    curve.chunks(every).filter_map(|run| run.iter().copied().max_by_key(|point| point.1)).collect()
}

/// Answers which operator allocated something.
struct Owners<'f, 't> {
    frame: &'f Frame<'t>,
    sources: Sources<'f, 't>,
    origin: i64,
}

impl<'f, 't> Owners<'f, 't> {
    fn of(frame: &'f Frame<'t>, origin: i64) -> Self {
        Self { frame, sources: Sources::of(frame), origin }
    }

    /// The innermost operator, and function, at the moment of an allocation on its thread.
    fn owner(&self, number: usize) -> Option<usize> {
        let event = self.frame.rank.memory[number];
        let time = event.time.0 - self.origin;
        let rows = self.sources.stacks.threads.get(&event.track)?;
        let behind = rows.partition_point(|&row| self.frame.begin[row as usize] <= time);
        let last = *rows[..behind].last()? as usize;
        self.sources.stacks.path(last).find(|&row| self.frame.end(row) >= time)
    }

    fn table(&self, alive: &Alive) -> Vec<AtPeak> {
        let mut groups: BTreeMap<(&'static str, String, Origin), (i64, usize)> = BTreeMap::new();
        for &(number, bytes) in alive.values() {
            let owner = self.owner(number);
            let path = || owner.into_iter().flat_map(|row| self.sources.stacks.path(row));
            let operator = path().find(|&row| self.frame.class(row) == Class::Operator);
            let name =
                operator.map_or_else(|| "(outside of operators)".to_owned(), |row| self.outermost(row));
            let category = category(path().map(|row| self.frame.text(row)));
            let origin = owner.map(|row| self.sources.origin(row)).unwrap_or_default();
            let group = groups.entry((category, name, origin)).or_default();
            *group = (group.0 + bytes, group.1 + 1);
        }
        let row = |((category, operator, origin), (bytes, count))| AtPeak {
            category,
            operator,
            origin,
            bytes,
            count,
        };
        let mut table: Vec<AtPeak> = groups.into_iter().map(row).collect();
        table.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        table.truncate(20);
        table
    }

    /// The name of the outermost operator around `row`: what the user called.
    fn outermost(&self, row: usize) -> String {
        let operators = self.sources.stacks.path(row).filter(|&row| self.frame.class(row) == Class::Operator);
        let named = operators.filter(|&row| !self.frame.text(row).starts_with("autograd::engine"));
        named.last().map_or_else(String::new, |row| self.frame.text(row).to_owned())
    }
}

/// What memory is for, from the names of what was running when it was allocated, innermost first.
fn category<'n>(names: impl Iterator<Item = &'n str>) -> &'static str {
    let names: Vec<&str> = names.collect();
    let any = |parts: &[&str]| names.iter().any(|name| parts.iter().any(|part| name.contains(part)));
    if any(&["Optimizer.step", "optim/", "_foreach_", "_fused_adam"]) {
        "optimizer"
    } else if any(&["AccumulateGrad"]) {
        "gradient"
    } else if any(&["autograd::engine", "Backward"]) {
        "backward"
    } else if any(&["c10d::", "nccl:", "gloo:", "DistributedDataParallel"]) {
        "communication"
    } else if any(&["nn.Module", "aten::"]) {
        "forward"
    } else {
        "other"
    }
}

/// Bytes of each category after each moment, from the profiler's own memory timeline: `[time, action, bytes, category]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CategoryCurve {
    /// Names of the columns.
    pub categories: [&'static str; 8],
    /// Time in nanoseconds and the bytes of each category.
    pub points: Vec<(i64, [i64; 8])>,
    /// The most bytes of all categories together.
    pub peak_bytes: i64,
}

/// Sums up the profiler's memory timeline. Moments before 0 count for the first one behind it. `None` if it is no such.
pub fn categories(raw: &Value) -> Option<CategoryCurve> {
    const NAMES: [&str; 8] =
        ["Parameter", "Optimizer", "Input", "Temporary", "Activation", "Gradient", "Autograd", "Unknown"];
    let mut rows = Vec::new();
    for row in raw.as_array()? {
        let [time, _, bytes, category] = row.as_array()?.as_slice() else { return None };
        rows.push((
            time.as_i64()?,
            bytes.as_i64()?,
            usize::try_from(category.as_u64()?).ok().filter(|&c| c < 8)?,
        ));
    }
    let first = rows.iter().map(|row| row.0).filter(|&time| time > 0).min().unwrap_or(0);
    let mut times: BTreeMap<i64, [i64; 8]> = BTreeMap::new();
    for (time, bytes, category) in rows {
        times.entry(if time < 0 { first } else { time }).or_default()[category] += bytes;
    }
    let mut sums = [0; 8];
    let points: Vec<(i64, [i64; 8])> = times
        .into_iter()
        .map(|(time, changes)| {
            sums.iter_mut().zip(changes).for_each(|(sum, change)| *sum += change);
            (time, sums)
        })
        .collect();
    let peak_bytes = points.iter().map(|(_, sums)| sums.iter().sum()).max().unwrap_or(0);
    Some(CategoryCurve { categories: NAMES, points, peak_bytes })
}
