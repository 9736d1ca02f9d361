//! A program with its layers folded upon few of them: it is decided for a few what many do, and what they take counts as often.
//!
//! Layers that are alike are decided alike. So their operations share variables, and what counts for one of them counts for all. How many there are of
//! each follows from a program that has one layer more: what that has more of, each further layer has as well.

use base::Result;
use ir::{AxisKind, Graph, InputId, MeshAxis, ValueId};
use shard::{Assignment, divided};

use crate::{
    fewer::Alike,
    taken_over::{Pair, counterparts, span},
};

/// A program with few layers, and the same with one more.
#[derive(Clone)]
pub struct Folded {
    /// Both.
    pub pair: Pair,
    /// What is alike in the first one.
    pub alike: Alike,
    /// How many layers more than the second one the whole program has.
    pub left_out: i64,
}

impl Folded {
    /// The program with few layers.
    pub const fn graph(&self) -> &Graph {
        &self.pair.from
    }

    /// How many the whole program has of what the two have so many of.
    pub fn times(&self, few: i64, more: i64) -> u32 {
        u32::try_from((more + (more - few) * self.left_out).max(1)).unwrap_or(u32::MAX)
    }

    /// How many operations of the whole program each operation stands for, with those that are like it: the first of these for all.
    pub fn times_of_nodes(&self) -> Vec<u32> {
        let mut counts = vec![(0, 0); self.alike.nodes.len()];
        self.alike.nodes.iter().for_each(|first| counts[*first].0 += 1);
        self.pair.places.nodes.iter().for_each(|at| counts[self.alike.nodes[*at]].1 += 1);
        counts.into_iter().map(|(few, more)| self.times(few, more)).collect()
    }

    /// What an axis leaves of it under a decision for its few layers; none where both programs differ in more than how often they repeat something.
    pub fn along(&self, axis: &MeshAxis, decided: &Assignment) -> Result<Option<Self>> {
        let own = self.pair.translated(decided);
        if axis.kind == AxisKind::Time && axis.size > 1 {
            let from = divided(&self.pair.from, decided, axis, 0)?;
            let to = divided(&self.pair.to, &own, axis, 0)?;
            let alike = Alike { nodes: Vec::new(), inputs: self.alike.inputs.clone() };
            let pair = Pair { from, to, places: self.pair.places.with_nodes(Vec::new()) };
            return Ok(Some(Self { pair, alike, left_out: self.left_out }));
        }
        let Some((pair, ends)) = self.pair.along(axis, (decided, &own))? else { return Ok(None) };
        let alike = self.alike_in(&pair.from, &ends);
        Ok(Some(Self { pair, alike, left_out: self.left_out }))
    }

    /// What is alike in what an axis leaves: what is of operations that are alike, where that is of the same operators.
    fn alike_in(&self, local: &Graph, ends: &[usize]) -> Alike {
        let Graph { order, updates, .. } = self.graph();
        let first_of_update = |(at, (input, _)): (usize, &(InputId, ValueId))| {
            let first = self.alike.inputs[input.0 as usize];
            let known = updates.iter().position(|(known, _)| *known == first);
            order.len() + known.filter(|known| *known < at).unwrap_or(at)
        };
        let firsts = self.alike.nodes.iter().copied().chain(updates.iter().enumerate().map(first_of_update));
        let mut nodes: Vec<usize> = (0..local.order.len()).collect();
        for (at, first) in firsts.enumerate().filter(|(at, first)| at != first) {
            let (own, of_first) = (span(ends, at), span(ends, first));
            let found = counterparts((local, of_first), (local, own.clone())).into_iter().flatten();
            own.zip(found).for_each(|(own, first)| nodes[own] = nodes[first]);
        }
        Alike { nodes, inputs: self.alike.inputs.clone() }
    }
}
