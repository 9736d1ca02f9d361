//! What PyTorch's caching allocator takes from a device for the memory of a run: more than what is alive, because each result has a place.
//!
//! The allocator is followed by its rules, with segments that expand: sizes are multiples of 512 bytes, results of at most 1 MiB lie among
//! themselves, the smallest gap that suits is taken and what is left of it stays a gap, and where there is none the segment grows by whole
//! pages. The optimizer's state is there from its first use on, in gaps between the gradients of the first step, so that later steps find
//! less room in one piece. Each stream has segments of its own: what is free on one is not taken on another.

use std::collections::{BTreeMap, BTreeSet};

use base::{Bytes, Id};
use ir::{Graph, InputClass, NodeId};
use rustc_hash::FxHashSet;

use crate::{Curve, Steps, curve, steps_of};

/// Sizes are multiples of this.
const UNIT: u64 = 512;
/// The largest result that lies among small ones.
const SMALL: u64 = 1 << 20;
/// The page by which a segment of small results grows.
const SMALL_PAGE: u64 = 2 << 20;
/// The page by which any other segment grows.
const PAGE: u64 = 20 << 20;
/// Steps until nothing changes any more: the first one makes the optimizer's state.
const RUNS: usize = 2;

/// What PyTorch's caching allocator holds on each of so many streams for a verified rank's graph after some steps; none on a processor, which has
/// another one. `stream` is the one on which an operation makes its results; state and kernels' own memory are on the first.
pub fn reserved<const STREAMS: usize>(
    graph: &Graph,
    stream: impl Fn(NodeId) -> usize,
) -> Option<[Bytes; STREAMS]> {
    if graph.inputs.values().all(|input| graph.ty(input.value).device.kind.is_cpu()) {
        return None;
    }
    let made_late = graph.inputs.values().filter(|input| input.class == InputClass::Optimizer);
    let made_late = made_late.map(|input| input.value.index() as u32).collect();
    let streams: Vec<usize> = graph.order.iter().map(|id| stream(*id)).collect();
    let steps = steps_of(graph);
    let held = held(&steps, &curve(&steps, Bytes(0)), &made_late, &streams);
    Some(std::array::from_fn(|stream| held.get(stream).copied().unwrap_or_default()))
}

/// The same of a program, by stream; `made_late` is state that is made where it is first read.
fn held(steps: &Steps, run: &Curve, made_late: &FxHashSet<u32>, streams: &[usize]) -> Vec<Bytes> {
    let mut device = Device::new(1 + streams.iter().max().copied().unwrap_or(0));
    // What is on the host of the state is not the device's.
    let bytes = |value: u32| {
        let info = steps.values[value as usize];
        if info.on_host { 0 } else { info.bytes }
    };
    for value in steps.state.iter().filter(|value| !made_late.contains(value)) {
        device.take(0, bytes(*value));
    }
    device.take(0, run.kept().0);
    let first_reads = first_reads(steps, made_late);
    let (made, freed) = (by_step(steps, run, |span| span.from), by_step(steps, run, |span| span.to));
    for number in 0..RUNS {
        let batch: Vec<Place> = steps.inputs.iter().map(|value| device.take(0, bytes(*value))).collect();
        let mut places: Vec<Option<Place>> = vec![None; run.spans.len()];
        for at in 0..steps.steps.len() {
            for value in first_reads[at].iter().filter(|_| number == 0) {
                device.take(0, bytes(*value));
            }
            for span in &made[at] {
                places[*span] = Some(device.take(streams[at], run.spans[*span].bytes));
            }
            let workspace = device.take(0, run.workspaces[at]);
            device.give_back(workspace);
            let over = freed[at].iter().filter_map(|span| places[*span].take());
            over.for_each(|place| device.give_back(place));
        }
        places.into_iter().flatten().chain(batch).for_each(|place| device.give_back(place));
    }
    device.held()
}

/// For each step the state that is made late and that it reads first.
fn first_reads(steps: &Steps, made_late: &FxHashSet<u32>) -> Vec<Vec<u32>> {
    let mut seen = FxHashSet::default();
    let mut new = |value: &u32| made_late.contains(value) && seen.insert(*value);
    steps.steps.iter().map(|step| step.reads.iter().copied().filter(&mut new).collect()).collect()
}

/// For each step the numbers of the spans on the device that are there.
fn by_step(steps: &Steps, run: &Curve, of: impl Fn(&crate::Span) -> usize) -> Vec<Vec<usize>> {
    let mut found = vec![Vec::new(); steps.steps.len()];
    for (number, span) in run.spans.iter().enumerate().filter(|(_, span)| !span.on_host) {
        if let Some(at) = found.get_mut(of(span)) {
            at.push(number);
        }
    }
    found
}

/// Memory that was taken: in which segment, from where, and how much.
#[derive(Clone, Copy, Debug)]
struct Place {
    segment: usize,
    at: u64,
    bytes: u64,
}

/// A device's segments: of each stream one for small results, then one for all others.
struct Device {
    segments: Vec<Segment>,
}

impl Device {
    fn new(streams: usize) -> Self {
        Self { segments: (0..2 * streams).map(|_| Segment::default()).collect() }
    }

    fn take(&mut self, stream: usize, bytes: u64) -> Place {
        let bytes = bytes.next_multiple_of(UNIT);
        let is_large = bytes > SMALL;
        let (segment, page) = (2 * stream + usize::from(is_large), if is_large { PAGE } else { SMALL_PAGE });
        let at = if bytes == 0 { 0 } else { self.segments[segment].take(bytes, page) };
        Place { segment, at, bytes }
    }

    fn give_back(&mut self, place: Place) {
        if place.bytes > 0 {
            self.segments[place.segment].give_back(place.at, place.bytes);
        }
    }

    /// What each stream holds.
    fn held(&self) -> Vec<Bytes> {
        self.segments.chunks(2).map(|both| Bytes(both.iter().map(|segment| segment.end).sum())).collect()
    }
}

/// Memory from 0 to `end` with its gaps, which are never beside each other.
#[derive(Default)]
struct Segment {
    end: u64,
    /// By their place.
    gaps: BTreeMap<u64, u64>,
    /// By their size, then their place.
    by_size: BTreeSet<(u64, u64)>,
}

impl Segment {
    fn take(&mut self, bytes: u64, page: u64) -> u64 {
        let (size, at) = self.gap(bytes).unwrap_or_else(|| self.grow(bytes, page));
        self.remove(at, size);
        if size > bytes {
            self.insert(at + bytes, size - bytes);
        }
        at
    }

    /// The smallest gap that suits; the last one, which may grow, only where it is the only one.
    fn gap(&self, bytes: u64) -> Option<(u64, u64)> {
        let mut fitting = self.by_size.range((bytes, 0)..).copied();
        let first = fitting.next()?;
        let is_last = first.0 + first.1 == self.end;
        Some(fitting.next().filter(|_| is_last).unwrap_or(first))
    }

    /// Grows until the last gap suits.
    fn grow(&mut self, bytes: u64, page: u64) -> (u64, u64) {
        let last = self.gaps.last_key_value().map(|(at, size)| (*at, *size));
        let (at, size) = last.filter(|(at, size)| at + size == self.end).unwrap_or((self.end, 0));
        if size > 0 {
            self.remove(at, size);
        }
        self.end += (bytes - size).next_multiple_of(page);
        self.insert(at, self.end - at);
        (self.end - at, at)
    }

    fn give_back(&mut self, at: u64, bytes: u64) {
        let (mut at, mut bytes) = (at, bytes);
        if let Some((before, size)) = self.gaps.range(..at).next_back().map(|(at, size)| (*at, *size))
            && before + size == at
        {
            self.remove(before, size);
            (at, bytes) = (before, size + bytes);
        }
        if let Some(size) = self.gaps.get(&(at + bytes)).copied() {
            self.remove(at + bytes, size);
            bytes += size;
        }
        self.insert(at, bytes);
    }

    fn insert(&mut self, at: u64, bytes: u64) {
        self.gaps.insert(at, bytes);
        self.by_size.insert((bytes, at));
    }

    fn remove(&mut self, at: u64, bytes: u64) {
        self.gaps.remove(&at);
        self.by_size.remove(&(bytes, at));
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::{Effect, Info, Step};

    const MIB: u64 = 1 << 20;

    /// A step that reads and makes values.
    fn step(reads: &[u32], makes: &[u32]) -> Step {
        Step {
            reads: reads.iter().copied().collect(),
            makes: makes.iter().copied().collect(),
            effect: Effect::Compute,
            shares: None,
            overwrites: Vec::new(),
            writes: smallvec![],
            into: false,
            writes_state: false,
            pure: true,
            holds: false,
            workspace: 0,
        }
    }

    /// What is held for a program whose values have so many MiB; `state` is made where it is first read.
    fn held_of(mib: &[u64], state: &[u32], inputs: &[u32], steps: Vec<Step>) -> u64 {
        let info = |mib: &u64| Info { bytes: mib * MIB, elements: mib * MIB, ..Info::default() };
        let steps = Steps {
            values: mib.iter().map(info).collect(),
            state: state.to_vec(),
            inputs: inputs.to_vec(),
            steps,
            ..Steps::default()
        };
        let streams = vec![0; steps.steps.len()];
        let held = held(&steps, &curve(&steps, Bytes(0)), &state.iter().copied().collect(), &streams);
        held[0].0 / MIB
    }

    #[test]
    fn a_gap_that_is_too_small_is_held_beside_what_is_alive() {
        // 40, then 100 beside it; the 40 are free when 60 are taken, and do not suit.
        let steps = vec![step(&[0], &[1]), step(&[1], &[2]), step(&[2], &[3]), step(&[2, 3], &[])];
        assert_eq!(held_of(&[20, 40, 100, 60], &[], &[0], steps), 20 + 40 + 100 + 60);
    }

    #[test]
    fn gaps_beside_each_other_are_one() {
        let steps =
            vec![step(&[0], &[1]), step(&[1], &[2]), step(&[1, 2], &[3]), step(&[3], &[4]), step(&[4], &[])];
        assert_eq!(held_of(&[20, 40, 60, 20, 100], &[], &[0], steps), 20 + 40 + 60 + 20);
    }

    #[test]
    fn the_last_gap_grows_before_anything_is_taken_behind_it() {
        let steps = vec![step(&[0], &[1]), step(&[1], &[]), step(&[0], &[2]), step(&[2], &[])];
        assert_eq!(held_of(&[20, 40, 100], &[], &[0], steps), 20 + 100);
    }

    #[test]
    fn state_that_the_first_step_makes_stays_in_the_way_of_the_next() {
        // The optimizer takes 20 in the middle of what is free by then; the 20 before it suit nothing that is made next.
        let steps = vec![step(&[0], &[1]), step(&[1], &[2]), step(&[2], &[3]), step(&[3, 4], &[])];
        let alive = 20 + 20 + 60 + 40;
        assert_eq!(held_of(&[20, 60, 40, 20, 20], &[4], &[0], steps), alive + 20);
    }

    #[test]
    fn small_results_have_pages_of_their_own() {
        let mut device = Device::new(1);
        assert_eq!(device.take(0, 3).bytes, UNIT);
        assert_eq!(device.held(), [Bytes(2 * MIB)]);
        device.take(0, 2 * MIB);
        assert_eq!(device.held(), [Bytes(22 * MIB)]);
    }

    #[test]
    fn what_is_free_on_one_stream_is_not_taken_on_another() {
        let mut device = Device::new(2);
        let place = device.take(0, 40 * MIB);
        device.give_back(place);
        device.take(1, 40 * MIB);
        assert_eq!(device.held(), [Bytes(40 * MIB), Bytes(40 * MIB)]);
    }
}
