//! Groups while they are made: operations in program order join the groups of what they read.

use aten::Formula;
use ir::{NodeId, PartId, ValueId};

use super::{
    convex::Positions,
    node::{lowerable, result},
};

/// The most operations of a group.
const MOST_NODES: usize = 64;
/// The most tensors that a group reads and writes: their addresses are in registers.
const MOST_OPERANDS: usize = 12;
/// The most operations from the first of a group to its last: what a group makes is there no sooner than all that it reads.
const LONGEST: usize = 128;
/// How many groups before an operation are asked whether they read the same.
const RECENT: usize = 4;

/// Groups of operations, by position in the program.
pub(super) struct Groups<'a> {
    pub(super) positions: &'a Positions<'a>,
    pub(super) formulas: Vec<Result<Formula, String>>,
    pub(super) fixed: Vec<bool>,
    /// How many fixed operations stand before each.
    segment: Vec<usize>,
    /// The positions that read each value.
    pub(super) users: base::SecondaryMap<ValueId, Vec<usize>>,
    /// What leaves the program.
    pub(super) leaving: base::SecondaryMap<ValueId, bool>,
    pub(super) members: Vec<Vec<usize>>,
    pub(super) of: Vec<Option<usize>>,
}

impl<'a> Groups<'a> {
    /// The largest groups that are found by going through the program once.
    pub(super) fn of(positions: &'a Positions<'a>, fixed: Vec<bool>) -> Self {
        let mut groups = Self::empty(positions, fixed);
        for position in 0..positions.graph.order.len() {
            if groups.formulas[position].is_ok() {
                groups.place(position);
            }
        }
        groups
    }

    fn empty(positions: &'a Positions<'a>, fixed: Vec<bool>) -> Self {
        let graph = positions.graph;
        let mut users: base::SecondaryMap<ValueId, Vec<usize>> = base::SecondaryMap::with_default(Vec::new());
        for (position, id) in graph.order.iter().enumerate() {
            graph.nodes[*id].operands().for_each(|value| users[value].push(position));
        }
        let mut leaving = base::SecondaryMap::with_default(false);
        let updated = graph.updates.iter().map(|(_, value)| value);
        graph.returns.iter().chain(updated).for_each(|value| leaving[*value] = true);
        let mut before = 0;
        let segment = fixed.iter().map(|fixed| {
            before += usize::from(*fixed);
            before
        });
        Self {
            positions,
            formulas: graph.order.iter().map(|id| lowerable(graph, *id)).collect(),
            segment: segment.collect(),
            fixed,
            users,
            leaving,
            members: Vec::new(),
            of: vec![None; graph.order.len()],
        }
    }

    fn id(&self, position: usize) -> NodeId {
        self.positions.graph.order[position]
    }

    fn node(&self, position: usize) -> &ir::Node {
        &self.positions.graph.nodes[self.id(position)]
    }

    /// What an operation of a group makes.
    pub(super) fn result(&self, position: usize) -> ValueId {
        result(self.node(position)).expect("what can be lowered has one result")
    }

    /// Puts an operation into a group of its own, and joins to it those that share tensors with it.
    fn place(&mut self, position: usize) {
        let mut members = vec![position];
        for group in self.near(position) {
            let mut both = [&members[..], &self.members[group][..]].concat();
            both.sort_unstable();
            if self.may_be_one(&both) {
                members = both;
                self.members[group].clear();
            }
        }
        let number = self.members.len();
        for member in &members {
            self.of[*member] = Some(number);
        }
        self.members.push(members);
    }

    /// The groups that make what an operation reads, and then those that read the same, each once.
    fn near(&self, position: usize) -> Vec<usize> {
        let mut near = Vec::new();
        let makers = self.positions.makers(position).filter_map(|maker| self.of[maker]);
        let readers = self
            .node(position)
            .operands()
            .flat_map(|value| self.users[value].iter().rev().filter(|user| **user < position).take(RECENT));
        for group in makers.chain(readers.filter_map(|user| self.of[*user])) {
            if !near.contains(&group) {
                near.push(group);
            }
        }
        near
    }

    /// Whether operations (positions in order) may be one group: of one shape, in one part of the program, with nothing between them that
    /// must stay where it is.
    fn may_be_one(&self, members: &[usize]) -> bool {
        let (first, last) = (members[0], members[members.len() - 1]);
        let like = |position: usize| -> (usize, PartId, &[i64]) {
            let shape = &self.positions.graph.ty(self.result(position)).shape;
            (self.segment[position], self.node(position).part, shape)
        };
        members.len() <= MOST_NODES
            && last - first <= LONGEST
            && members.iter().all(|member| like(*member) == like(first))
            && self.reads(members).len() + self.writes(members).len() <= MOST_OPERANDS
            && self.positions.is_convex(members, &self.of)
    }

    /// The tensors that a group reads and does not make.
    pub(super) fn reads(&self, members: &[usize]) -> Vec<ValueId> {
        let mut reads = Vec::new();
        for value in members.iter().flat_map(|member| self.node(*member).operands()) {
            let own = self.positions.maker(value).is_some_and(|maker| members.binary_search(&maker).is_ok());
            if !own && !reads.contains(&value) {
                reads.push(value);
            }
        }
        reads
    }

    /// The tensors that a group makes for others.
    pub(super) fn writes(&self, members: &[usize]) -> Vec<ValueId> {
        let results = members.iter().map(|member| self.result(*member));
        let needed = |value: &ValueId| {
            self.leaving[*value] || self.users[*value].iter().any(|user| members.binary_search(user).is_err())
        };
        results.filter(needed).collect()
    }

    /// The bytes that a group saves: what its operations read and write, each alone, less what the group does.
    pub(super) fn saved(&self, members: &[usize]) -> u64 {
        let bytes = |value: ValueId| self.positions.graph.ty(value).bytes().0;
        let alone: u64 = members
            .iter()
            .map(|member| {
                let mut read: Vec<ValueId> = self.node(*member).operands().collect();
                read.sort_unstable();
                read.dedup();
                read.into_iter().map(bytes).sum::<u64>() + bytes(self.result(*member))
            })
            .sum();
        let together: u64 = self.reads(members).into_iter().chain(self.writes(members)).map(bytes).sum();
        alone.saturating_sub(together)
    }
}
