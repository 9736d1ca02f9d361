//! A program with its layers folded upon few of them: it is decided for a few what many do, and what they take counts as often.
//!
//! Layers that are alike are decided alike. So their operations share variables, and what counts for one of them counts for all. How many there are of
//! each follows from a program that has one layer more: what that has more of, each further layer has as well.

use base::Result;
use ir::{AxisKind, Graph, InputId, MeshAxis};
use shard::{Assignment, divided};

use crate::{fewer::Alike, intents::Origins, taken_over::Pair};

/// What is searched: a graph, or one with few layers and what it stands for.
#[derive(Clone, Copy)]
pub enum Program<'a> {
    /// All of it.
    Whole(&'a Graph),
    /// Few layers.
    Folded(&'a Folded),
}

impl<'a> Program<'a> {
    /// The graph.
    pub const fn graph(self) -> &'a Graph {
        match self {
            Self::Whole(graph) => graph,
            Self::Folded(folded) => folded.graph(),
        }
    }
}

/// A program with few layers, and the same with one more.
#[derive(Clone)]
pub struct Folded {
    /// Both.
    pub pair: Pair,
    /// How many layers more than the second one the whole program has.
    pub left_out: i64,
}

impl Folded {
    /// The program with few layers.
    pub const fn graph(&self) -> &Graph {
        &self.pair.from
    }

    /// How much the whole program has of what the two have so much of.
    pub const fn of_whole(&self, few: i64, more: i64) -> i64 {
        more + (more - few) * self.left_out
    }

    /// The same of moments at which something is alive.
    pub fn moments(&self, few: u64, more: u64) -> u64 {
        u64::try_from(self.of_whole(few as i64, more as i64)).unwrap_or(0)
    }

    /// The same where there is one at least.
    pub fn times(&self, few: i64, more: i64) -> u32 {
        u32::try_from(self.of_whole(few, more).max(1)).unwrap_or(u32::MAX)
    }

    /// How many operations of the whole program each operation stands for, with those that are like it: the first of these for all.
    pub fn times_of_nodes(&self) -> Vec<u32> {
        let mut counts = vec![(0, 0); self.pair.alike.nodes.len()];
        self.pair.alike.nodes.iter().for_each(|first| counts[*first].0 += 1);
        self.pair.places.nodes.iter().for_each(|at| counts[self.pair.alike.nodes[*at]].1 += 1);
        counts.into_iter().map(|(few, more)| self.times(few, more)).collect()
    }

    /// The same for each input.
    pub fn times_of_inputs(&self) -> Vec<u32> {
        let Pair { from, to, places, alike } = &self.pair;
        let mut counts = vec![(0, 0); from.inputs.len()];
        let first = |input: InputId| alike.inputs[input.0 as usize].0 as usize;
        from.inputs.ids().for_each(|input| counts[first(input)].0 += 1);
        to.inputs.ids().for_each(|input| counts[first(places.input(input))].1 += 1);
        counts.into_iter().map(|(few, more)| self.times(few, more)).collect()
    }

    /// What an axis leaves of it under a decision for its few layers, and which operations that leaves of which of the step; none where both programs
    /// differ in more than how often they repeat something.
    pub fn along(
        &self,
        axis: &MeshAxis,
        decided: &Assignment,
        origins: &Origins,
    ) -> Result<Option<(Self, Origins)>> {
        if axis.size == 1 {
            return Ok(Some((self.clone(), origins.clone())));
        }
        let own = self.pair.translated(decided);
        if axis.kind == AxisKind::Time {
            let from = divided(&self.pair.from, decided, axis, 0)?;
            let to = divided(&self.pair.to, &own, axis, 0)?;
            // What it leaves is the innermost: nothing is decided about it any more.
            let alike = Alike { nodes: Vec::new(), ..self.pair.alike.clone() };
            let pair = Pair { from, to, places: self.pair.places.with_nodes(Vec::new()), alike };
            return Ok(Some((Self { pair, left_out: self.left_out }, Origins::default())));
        }
        let left = self.pair.along(axis, (decided, &own))?;
        Ok(left.map(|(pair, ends)| {
            let origins = origins.within(self.graph(), &pair.from, &ends);
            (Self { pair, left_out: self.left_out }, origins)
        }))
    }
}
