//! What memory counts for in the tables when a memory limit binds: what is alive at the worst moments of a step.
//!
//! The peak is the most of a curve, while tables only add. So the weights are of a few moments, those at which a plan that is over the
//! limit holds too much: the state, and for each memory that is alive then the bytes of the one decision that says in which placement it
//! is held. Lifetimes are those of crate `memory` on the graph before partition.

use std::collections::BTreeSet;

use base::{Bytes, Id};
use ir::{Graph, MeshAxis, PartId, Placement, ValueDef, ValueId, local_bytes};
use memory::{Lifetimes, Steps, curve, in_place, steps_of};
use rustc_hash::FxHashMap;
use shard::Assignment;
use smallvec::SmallVec;

use crate::{
    folded::{Folded, Program},
    roles::of_state,
    taken_over::Pair,
};

/// How much of a value's memory counts.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct Charge {
    /// At how many moments it is alive as the operation that made it left it.
    pub own: u64,
    /// At how many it is alive for a later part of the program, and in which placement it enters that part is what counts.
    pub entering: SmallVec<[(PartId, u64); 1]>,
}

/// What is together at most so many parts of all is small.
const SMALL: u64 = 64;

impl Charge {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.own += other.own;
        other.entering.iter().for_each(|(part, count)| *self.entering_in(*part) += count);
    }

    /// The same, to be counted.
    fn entering_in(&mut self, part: PartId) -> &mut u64 {
        let known = self.entering.iter().position(|(known, _)| *known == part);
        let at = known.unwrap_or_else(|| {
            self.entering.push((part, 0));
            self.entering.len() - 1
        });
        &mut self.entering[at].1
    }

    /// At how many moments it is alive for a part.
    pub fn entering(&self, part: PartId) -> u64 {
        self.entering.iter().find(|(known, _)| *known == part).map_or(0, |(_, count)| *count)
    }

    /// The charge in the whole program of what has these with few layers and with one more.
    pub fn of_whole(folded: &Folded, few: &Self, more: &Self) -> Self {
        let parts = few.entering.iter().chain(&more.entering).map(|(part, _)| *part);
        let parts: BTreeSet<PartId> = parts.collect();
        let entering = |part| (part, folded.moments(few.entering(part), more.entering(part)));
        let entering = parts.into_iter().map(entering).collect();
        Self { own: folded.moments(few.own, more.own), entering }
    }
}

/// The charges of all values at some moments.
#[derive(Clone, Default, Debug)]
pub struct Charges {
    /// At how many moments.
    pub moments: u64,
    of: FxHashMap<ValueId, Charge>,
    /// Those of the program with a layer more, of a program with few.
    of_longer: FxHashMap<ValueId, Charge>,
}

impl Charges {
    /// The charge of a value.
    pub fn of(&self, value: ValueId) -> Charge {
        self.of.get(&value).cloned().unwrap_or_default()
    }

    /// The charge of a value of the program with a layer more.
    pub fn of_longer(&self, value: ValueId) -> Charge {
        self.of_longer.get(&value).cloned().unwrap_or_default()
    }

    /// At how many moments each value is alive as the operation that made it left it; of few layers, all that are like it in the whole program
    /// together, for the first of them.
    pub fn own(&self, folded: Option<&Folded>) -> FxHashMap<ValueId, u64> {
        let Some(folded) = folded else {
            return self.of.iter().map(|(value, charge)| (*value, charge.own)).collect();
        };
        let pair = &folded.pair;
        let (positions, of_longer) = (pair.from.positions(), pair.to.positions());
        let mut counts: FxHashMap<ValueId, (u64, u64)> = FxHashMap::default();
        for (value, charge) in &self.of {
            counts.entry(pair.first(*value, &positions)).or_default().0 += charge.own;
        }
        for (value, charge) in &self.of_longer {
            let of_few = pair.of_value(*value, &of_longer);
            counts.entry(pair.first(of_few, &positions)).or_default().1 += charge.own;
        }
        counts.into_iter().map(|(value, (few, more))| (value, folded.moments(few, more))).collect()
    }
}

/// The memory that a graph's operations make.
pub struct Alive<'g> {
    graph: &'g Graph,
    spans: Vec<Held>,
    /// The part of the program at each position of the order.
    parts: Vec<PartId>,
    /// Of few layers, the same with one more.
    longer: Option<Longer<'g>>,
}

/// The memory that the operations of a program with a layer more make.
struct Longer<'g> {
    folded: &'g Folded,
    alive: Box<Alive<'g>>,
    /// The same moment for each of those with few layers.
    at: Vec<usize>,
}

impl<'g> Longer<'g> {
    fn new(folded: &'g Folded) -> Self {
        let Pair { from, to, places, .. } = &folded.pair;
        let mut found = vec![None; from.order.len()];
        for (at, own) in places.nodes.iter().enumerate() {
            found[*own].get_or_insert(at);
        }
        // What is there with few layers alone is at the moment of what comes before it.
        let at = found.into_iter().scan(0, |last, at| {
            *last = at.unwrap_or(*last);
            Some(*last)
        });
        Self { folded, alive: Box::new(Alive::new(to)), at: at.collect() }
    }

    /// What is alive in the whole program, in bytes, at the moments at which `few` is.
    fn of_whole(&self, few: &[i64], decided: &Assignment, axis: &MeshAxis) -> Vec<i64> {
        let more = self.alive.curve(&self.folded.pair.translated(decided), axis);
        few.iter().zip(&self.at).map(|(few, at)| self.folded.of_whole(*few, more[*at])).collect()
    }
}

/// Memory with all values that are in it.
struct Held {
    owner: ValueId,
    /// Whether it is only a gathered copy that takes memory of its own.
    is_state: bool,
    from: usize,
    to: usize,
    /// Each value in it with the positions that read it.
    reads: Vec<(ValueId, Vec<usize>)>,
}

impl<'g> Alive<'g> {
    /// Of a verified graph.
    pub fn new(graph: &'g Graph) -> Self {
        let steps = steps_of(graph);
        let members = members(&steps);
        let reads = reads(graph);
        let mut spans: Vec<Held> = state(graph, &reads);
        let mut known: FxHashMap<ValueId, usize> = FxHashMap::default();
        for span in curve(&steps, Bytes(0)).spans {
            let owner = ValueId::from_index(span.value as usize);
            if known.insert(owner, spans.len()).is_none() {
                let of = |value: &ValueId| (*value, reads.get(value).cloned().unwrap_or_default());
                let reads = members.get(&span.value).into_iter().flatten().map(of).collect();
                let to = span.to.min(graph.order.len() - 1);
                spans.push(Held { owner, is_state: false, from: span.from, to, reads });
            }
        }
        let parts = graph.order.iter().map(|id| graph.nodes[*id].part).collect();
        Self { graph, spans, parts, longer: None }
    }

    /// Of all that a program stands for.
    pub fn of(program: Program<'g>) -> Self {
        let longer = match program {
            Program::Folded(folded) => Some(Longer::new(folded)),
            Program::Whole(_) => None,
        };
        Self { longer, ..Self::new(program.graph()) }
    }

    /// What of results is alive at each position under a decision, in bytes.
    fn curve(&self, decided: &Assignment, axis: &MeshAxis) -> Vec<i64> {
        let mut change = vec![0_i64; self.parts.len() + 1];
        for held in self.spans.iter().filter(|held| !held.is_state) {
            let bytes =
                local_bytes(self.graph.ty(held.owner), self.placement(held.owner, decided), axis.size);
            change[held.from] += bytes as i64;
            change[held.to + 1] -= bytes as i64;
        }
        let alive = change[..self.parts.len()].iter().scan(0, |alive, change| {
            *alive += change;
            Some(*alive)
        });
        let alive: Vec<i64> = alive.collect();
        match &self.longer {
            Some(longer) => longer.of_whole(&alive, decided, axis),
            None => alive,
        }
    }

    /// The positions of the order, at most one in each part of the program, at which decisions hold within `excess` bytes of the most.
    pub fn worst(&self, assignment: &Assignment, axis: &MeshAxis, excess: u64) -> Vec<usize> {
        let mut worst: Vec<(PartId, i64, usize)> = Vec::new();
        let curve = self.curve(assignment, axis);
        for (position, (part, alive)) in self.parts.iter().zip(curve).enumerate() {
            match worst.last_mut().filter(|(known, ..)| known == part) {
                Some((_, most, at)) if alive > *most => (*most, *at) = (alive, position),
                Some(_) => {}
                None => worst.push((*part, alive, position)),
            }
        }
        let most = worst.iter().map(|(_, alive, _)| *alive).max().unwrap_or(0);
        let near = worst.iter().filter(|(_, alive, _)| alive.saturating_add_unsigned(excess) >= most);
        near.map(|(_, _, position)| *position).collect()
    }

    /// What is alive at these positions of the order.
    pub fn charges(&self, moments: &[usize]) -> Charges {
        let mut charges = Charges { moments: moments.len() as u64, ..Charges::default() };
        if let Some(longer) = &self.longer {
            let same: Vec<usize> = moments.iter().map(|moment| longer.at[*moment]).collect();
            charges.of_longer = longer.alive.charges(&same).of;
        }
        for moment in moments {
            for held in self.spans.iter().filter(|held| held.from <= *moment && *moment <= held.to) {
                let (value, entering) = self.charged(held, *moment);
                let charge = charges.of.entry(value).or_default();
                match entering {
                    None => charge.own += 1,
                    Some(part) => *charge.entering_in(part) += 1,
                }
            }
        }
        charges
    }

    /// Copies of state, as it is stored or worked on, that a later part of the program uses again: gathered once, they are held from part to
    /// part; whatever else is held there, forward can be run again for. Small ones are left out, which hold next to nothing.
    pub fn copies(&self) -> Charges {
        let of_state = of_state(self.graph);
        let mut copies: Vec<(u64, PartId, ValueId)> = Vec::new();
        for held in self.spans.iter().filter(|held| of_state[held.owner]) {
            let made = self.parts[held.from];
            let bytes = self.graph.ty(held.owner).bytes().0;
            let mut later: Vec<(PartId, ValueId)> = Vec::new();
            for (value, reads) in &held.reads {
                let parts = reads.iter().map(|read| self.parts[*read]);
                let parts = parts.filter(|part| *part > made && self.part_of(*value) < *part);
                later.extend(parts.map(|part| (part, *value)));
            }
            later.sort_unstable();
            later.dedup_by_key(|(part, _)| *part);
            copies.extend(later.into_iter().map(|(part, value)| (bytes, part, value)));
        }
        copies.sort_unstable();
        let mut left = copies.iter().map(|(bytes, ..)| bytes).sum::<u64>() / SMALL;
        let of_longer = self.longer.as_ref().map(|longer| longer.alive.copies().of).unwrap_or_default();
        let mut charges = Charges { moments: 1, of: FxHashMap::default(), of_longer };
        for (bytes, part, value) in copies {
            match left.checked_sub(bytes) {
                Some(less) => left = less,
                None => charges.of.entry(value).or_default().entering.push((part, 1)),
            }
        }
        charges
    }

    /// The value whose decision says in which placement memory is held at a moment, and the part that it is held for where it was made in
    /// an earlier one.
    fn charged(&self, held: &Held, moment: usize) -> (ValueId, Option<PartId>) {
        let made = self.parts[held.from];
        let later = held.reads.iter().flat_map(|(value, reads)| {
            let reads = reads.iter().filter(|read| **read >= moment);
            reads.map(|read| (self.parts[*read], *value)).filter(|(part, _)| *part > made)
        });
        // A view that is made in the later part is a use of the memory's owner there.
        let later = later.filter(|(part, value)| self.part_of(*value) < *part);
        match later.min() {
            Some((part, value)) => (value, Some(part)),
            None => (held.owner, None),
        }
    }

    fn part_of(&self, value: ValueId) -> PartId {
        match self.graph.values[value].def {
            ValueDef::Input(_) => PartId(0),
            ValueDef::Result(node, _) => self.graph.nodes[node].part,
        }
    }

    fn placement(&self, value: ValueId, assignment: &Assignment) -> Placement {
        match self.graph.values[value].def {
            ValueDef::Input(id) => assignment.inputs.get(&id).copied(),
            ValueDef::Result(node, position) => assignment
                .nodes
                .get(&node)
                .and_then(|strategy| strategy.results.get(position as usize).copied()),
        }
        .unwrap_or(Placement::Replicate)
    }
}

/// State from the first to the last operation that reads it.
fn state(graph: &Graph, reads: &FxHashMap<ValueId, Vec<usize>>) -> Vec<Held> {
    let held = |value: ValueId| {
        let reads = reads.get(&value)?;
        let (from, to) = (*reads.first()?, *reads.last()?);
        Some(Held { owner: value, is_state: true, from, to, reads: vec![(value, reads.clone())] })
    };
    let state = graph.inputs.values().filter(|input| input.class.is_state());
    state.filter_map(|input| held(input.value)).collect()
}

/// The positions of the order that read each value, in ascending order.
fn reads(graph: &Graph) -> FxHashMap<ValueId, Vec<usize>> {
    let mut reads: FxHashMap<ValueId, Vec<usize>> = FxHashMap::default();
    for (position, id) in graph.order.iter().enumerate() {
        for value in graph.nodes[*id].operands() {
            reads.entry(value).or_default().push(position);
        }
    }
    reads
}

/// For each value with memory of its own, all that are in it: itself, views, and what is written over it.
fn members(steps: &Steps) -> FxHashMap<u32, Vec<ValueId>> {
    let in_place = in_place(steps);
    let mut now: Vec<u32> = (0..steps.values.len() as u32).collect();
    for (step, _) in steps.steps.iter().zip(&in_place).filter(|(_, in_place)| **in_place) {
        for (from, to) in &step.overwrites {
            if let Some(to) = to {
                now[*to as usize] = now[*from as usize];
            }
        }
    }
    let lifetimes = Lifetimes::of(&steps.written_in_place(&in_place));
    let mut members: FxHashMap<u32, Vec<ValueId>> = FxHashMap::default();
    for (value, now) in now.iter().enumerate() {
        members.entry(lifetimes.root(*now)).or_default().push(ValueId::from_index(value));
    }
    members
}
