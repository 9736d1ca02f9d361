//! Groups while they are made: operations in program order join the groups of what they read.

use aten::Formula;
use base::Bytes;
use ir::{NodeId, PartId, ValueId};

use super::{
    constants::constants,
    convex::Positions,
    formula,
    frame::Frame,
    node::{KernelMaker, cuts, domain_of, lowerable},
    partition::Coverage,
};
use crate::{
    Kernel,
    phases::{MOST_LOOPS, Phases},
    verify::verified,
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
        let mut leaving = base::SecondaryMap::with_default(false);
        let updated = graph.updates.iter().map(|(_, value)| value);
        graph.returns.iter().chain(updated).for_each(|value| leaving[*value] = true);
        let mut before = 0;
        let segment = fixed.iter().map(|fixed| {
            before += usize::from(*fixed);
            before
        });
        // Nothing is gained where an operation runs once, and what is computed of its results, such as sines of times
        // frequencies, may be sensitive to their last bit.
        let once = constants(graph);
        let formula = |(id, once): (&NodeId, &bool)| match lowerable(positions, *id) {
            Ok(formula) if *once && formula::approximates(formula.text) => Err("it runs once".into()),
            found => found,
        };
        Self {
            positions,
            formulas: graph.order.iter().zip(&once).map(formula).collect(),
            segment: segment.collect(),
            fixed,
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
    fn results(&self, position: usize) -> impl Iterator<Item = ValueId> + '_ {
        self.node(position).results()
    }

    /// The shape that an operation of a group runs over.
    pub(super) fn domain(&self, position: usize) -> &'a [i64] {
        let formula = self.formulas[position].as_ref().expect("members can be lowered");
        domain_of(self.positions.graph, self.id(position), *formula).expect("members have results")
    }

    fn reduces(&self, position: usize) -> bool {
        self.formulas[position].as_ref().is_ok_and(|formula| formula::reduces(formula.text))
    }

    /// The domain of operations of which some may run once for each row of it; none where they have no such.
    fn frame(&self, members: &[usize]) -> Option<Frame> {
        let mut domains: Vec<&[i64]> = Vec::new();
        for domain in members.iter().map(|member| self.domain(*member)) {
            if !domains.contains(&domain) {
                domains.push(domain);
            }
        }
        let mut all = Vec::new();
        for member in members {
            let formula = self.formulas[*member].as_ref().expect("members can be lowered");
            all.extend(cuts(self.positions.graph, self.id(*member), *formula));
            for value in self.node(*member).operands().filter(|value| self.positions.is_own(*value, members))
            {
                all.extend(
                    self.positions
                        .viewed(value)
                        .filter_map(|view| view.cut)
                        .flat_map(|cut| [cut.start, cut.size]),
                );
            }
        }
        Frame::of(&domains, &all)
    }

    /// The kernel of a group, with what it reads; none where its operations cannot be one.
    pub(super) fn kernel(&self, members: &[usize]) -> Option<(Kernel, Vec<ValueId>)> {
        let mut maker = KernelMaker::new(self.positions, self.frame(members)?);
        for member in members {
            let formula = self.formulas[*member].as_ref().expect("members can be lowered");
            maker.node(self.id(*member), *formula).ok()?;
        }
        self.writes(members).into_iter().try_for_each(|value| maker.write(value)).ok()?;
        let (kernel, reads) = maker.finish();
        if kernel.operands.len() > MOST_OPERANDS {
            return None;
        }
        let nest = verified(&kernel).ok()?;
        let loops = Phases::of(&kernel, &nest.inner_strides, kernel.by_rows()).loops();
        (loops <= MOST_LOOPS).then_some((kernel, reads))
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
        let makers = self.positions.all_makers(position).filter_map(|maker| self.of[maker]);
        let readers = self.node(position).operands().flat_map(|value| {
            self.positions.users[value].iter().rev().filter(|user| **user < position).take(RECENT)
        });
        for group in makers.chain(readers.filter_map(|user| self.of[*user])) {
            if !near.contains(&group) {
                near.push(group);
            }
        }
        near
    }

    /// Whether operations (positions in order) may be one group: of one domain, in one part of the program, with nothing between them that
    /// must stay where it is.
    fn may_be_one(&self, members: &[usize]) -> bool {
        let (first, last) = (members[0], members[members.len() - 1]);
        let place =
            |position: usize| -> (usize, PartId) { (self.segment[position], self.node(position).part) };
        // Whether operations of one shape, on each element, are a kernel needs no trying.
        let is_simple = members.iter().all(|member| {
            let own = |value| self.positions.is_own(value, members);
            let mut looks =
                self.node(*member).operands().filter(|value| self.positions.viewed(*value).next().is_some());
            !self.reduces(*member) && self.domain(*member) == self.domain(first) && !looks.any(own)
        });
        members.len() <= MOST_NODES
            && last - first <= LONGEST
            && members.iter().all(|member| place(*member) == place(first))
            && self.frame(members).is_some()
            && self.reads(members).len() + self.writes(members).len() <= MOST_OPERANDS
            && self.positions.is_convex(members, &self.of, &self.members)
            && (is_simple || self.kernel(members).is_some())
    }

    /// The tensors that a group reads and does not make.
    pub(super) fn reads(&self, members: &[usize]) -> Vec<ValueId> {
        let mut reads = Vec::new();
        for value in members.iter().flat_map(|member| self.node(*member).operands()) {
            if !self.positions.is_own(value, members) && !reads.contains(&value) {
                reads.push(value);
            }
        }
        let all = reads.clone();
        reads.retain(|value| !self.positions.viewed(*value).any(|view| all.contains(&view.of)));
        reads
    }

    /// Whether anything outside of a group needs a value that it makes, perhaps as a view.
    fn is_needed(&self, value: ValueId, members: &[usize]) -> bool {
        let by = |user: &usize| {
            let is_outside = members.binary_search(user).is_err();
            is_outside
                && (!self.positions.is_view(*user)
                    || self.results(*user).any(|view| self.is_needed(view, members)))
        };
        self.leaving[value] || self.positions.users[value].iter().any(by)
    }

    /// The tensors that a group makes for others.
    pub(super) fn writes(&self, members: &[usize]) -> Vec<ValueId> {
        let results = members.iter().flat_map(|member| self.results(*member));
        results.filter(|value| self.is_needed(*value, members)).collect()
    }

    /// The bytes that a group saves: what its operations read and write, each alone, less what the group does.
    pub(super) fn saved(&self, members: &[usize]) -> u64 {
        let alone: u64 = members.iter().map(|member| self.alone(*member)).sum();
        let together: u64 =
            self.reads(members).into_iter().chain(self.writes(members)).map(|value| self.bytes(value)).sum();
        alone.saturating_sub(together)
    }

    /// The bytes that an operation reads and writes by itself.
    fn alone(&self, position: usize) -> u64 {
        let mut read: Vec<ValueId> = self.node(position).operands().collect();
        read.sort_unstable();
        read.dedup();
        read.into_iter().chain(self.results(position)).map(|value| self.bytes(value)).sum()
    }

    fn bytes(&self, value: ValueId) -> u64 {
        self.positions.graph.ty(value).bytes().0
    }

    /// How much of what operations move that kernels can compute is moved by those in groups.
    pub(super) fn coverage(&self, grouped: &[Vec<usize>]) -> Coverage {
        let can_be =
            |position: &usize| self.formulas[*position].is_ok() && !self.positions.is_view(*position);
        let moved = |positions: &mut dyn Iterator<Item = usize>| {
            Bytes(positions.filter(|position| can_be(position)).map(|position| self.alone(position)).sum())
        };
        Coverage {
            fused: moved(&mut grouped.iter().flatten().copied()),
            all: moved(&mut (0..self.formulas.len())),
        }
    }
}
