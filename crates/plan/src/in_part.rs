//! Pipelines of many micro-batches, by programs of a few of them.
//!
//! Once a pipeline is full, each further round, of as many micro-batches as there are stages, takes as long as the one before, and no more is held.
//! So what the program of a few rounds takes, and that of one round more, says what that of many takes.

use std::collections::BTreeSet;

use base::{Diagnostic, Result};
use ir::RankGraph;
use passes::Positions;
use schedule::{Kind, Name, Schedule};

use crate::effort::is_vast;

/// How many rounds fill and drain a pipeline under a schedule whose rounds are alike in between, however many there are: it has a name, and is not the
/// one that holds all micro-batches at once. With several chunks on a stage it takes a round more until gradients of all are there beside what is under way.
pub fn full(kind: Kind) -> Option<u32> {
    match kind {
        Kind::Searched | Kind::Given | Kind::Named(Name::GPipe) => None,
        Kind::Named(Name::Interleaved | Name::ZeroBubbleV | Name::DualPipeV) => Some(3),
        Kind::Named(_) => Some(2),
    }
}

/// The micro-batches that are written out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InPart {
    /// How many in the shorter program.
    pub few: u32,
    /// How many in the longer one: a round more.
    pub more: u32,
    /// How many rounds that leaves out.
    pub left_out: i64,
}

impl InPart {
    /// Of a pipeline of a step of so many operations that so many rounds fill and drain; none where all of it is written out, which saves little where there
    /// are few more rounds.
    pub fn of(operations: usize, (stages, micro_batches): (u32, u32), full: u32) -> Option<Self> {
        let few = full * stages + micro_batches % stages;
        let more = few + stages;
        (is_vast(operations, micro_batches) && micro_batches > few + more).then(|| Self {
            few,
            more,
            left_out: i64::from((micro_batches - more) / stages),
        })
    }
}

/// The program of all stages, its micro-batches written out.
#[derive(Clone)]
pub struct Written {
    /// The program.
    pub program: RankGraph,
    /// How many micro-batches it has.
    pub micro_batches: u32,
}

/// Whether the micro-batches of a program are one behind the other, so that it says where those of more are: not where one loop of them ends before
/// another one begins.
pub fn has_one_loop(own: &Written) -> bool {
    Iterations::of(&own.program).extended(own.micro_batches + 1).is_ok()
}

/// The positions in one program, of fewer micro-batches or of more, of what is at these in another.
pub fn same_in(other: &Written, positions: &Positions, own: &Written) -> Result<Positions> {
    if positions.is_empty() {
        return Ok(Positions::default());
    }
    Iterations::of(&own.program).placed(positions, &Iterations::of(&other.program))
}

/// The positions in the program of so many micro-batches of what is at these in one of fewer.
pub fn in_whole(micro_batches: u32, positions: &Positions, own: &Written) -> Result<Positions> {
    if positions.is_empty() || micro_batches == own.micro_batches {
        return Ok(positions.clone());
    }
    let iterations = Iterations::of(&own.program);
    iterations.placed(positions, &iterations.extended(micro_batches)?)
}

/// The other way round.
pub fn of_whole(micro_batches: u32, positions: &Positions, own: &Written) -> Result<Positions> {
    if positions.is_empty() || micro_batches == own.micro_batches {
        return Ok(positions.clone());
    }
    let iterations = Iterations::of(&own.program);
    iterations.extended(micro_batches)?.placed(positions, &iterations)
}

/// A schedule for so many micro-batches, where it is for others.
pub fn schedule_of(kind: Kind, schedule: &Schedule, micro_batches: u32) -> Result<Schedule> {
    match kind {
        _ if schedule.micro_batches == micro_batches => Ok(schedule.clone()),
        Kind::Named(name) => {
            Ok(name.schedule(schedule.placement.stages, schedule.placement.most(), micro_batches))
        }
        Kind::Searched | Kind::Given => {
            Err(Diagnostic::bug("a schedule without a name is for other micro-batches"))
        }
    }
}

/// Where the micro-batches of a program are in its order.
struct Iterations {
    /// Positions of what is of each.
    of: Vec<Vec<u32>>,
    /// Of what is of none.
    once: Vec<u32>,
}

impl Iterations {
    fn of(graph: &RankGraph) -> Self {
        let mut found = Self { of: Vec::new(), once: Vec::new() };
        for (at, id) in graph.order.iter().enumerate() {
            match graph.parts[graph.nodes[*id].part].micro_batch {
                Some(number) => {
                    let number = number as usize;
                    found.of.resize_with(found.of.len().max(number + 1), Vec::new);
                    found.of[number].push(at as u32);
                }
                None => found.once.push(at as u32),
            }
        }
        found
    }

    /// Those of the same program with so many: each further one behind the one before.
    fn extended(&self, micro_batches: u32) -> Result<Self> {
        let unlike = || Diagnostic::bug("micro-batches of a program are not one behind the other");
        let [.., before, last] = &self.of[..] else { return Err(unlike()) };
        let [Some(begin), Some(end)] = [last.first(), last.last()] else { return Err(unlike()) };
        let length = end + 1 - begin;
        if last.len() != before.len() || length as usize != last.len() {
            return Err(unlike());
        }
        let more = micro_batches - self.of.len() as u32;
        let further = (1..=more).map(|far| last.iter().map(|at| at + far * length).collect());
        let shifted = |at: &u32| if at > end { at + more * length } else { *at };
        Ok(Self {
            of: self.of.iter().cloned().chain(further).collect(),
            once: self.once.iter().map(shifted).collect(),
        })
    }

    /// The positions in another program of what is at these in this one. What there is no more of here is as one in the middle.
    fn placed(&self, positions: &Positions, other: &Self) -> Result<Positions> {
        let own = |number: usize| self.of.get(number).unwrap_or_else(|| &self.of[self.of.len() / 2]);
        let pairs = other.of.iter().enumerate().map(|(number, there)| (own(number), there));
        let mut placed = BTreeSet::new();
        for (here, there) in pairs.chain(std::iter::once((&self.once, &other.once))) {
            let mut chosen =
                (0..).zip(here).filter(|(_, at)| positions.0.contains(at)).map(|(number, _)| number);
            if here.len() == there.len() {
                placed.extend(chosen.map(|number: usize| there[number]));
            } else if chosen.next().is_some() {
                return Err(Diagnostic::bug("programs of fewer and more micro-batches are not alike"));
            }
        }
        Ok(Positions(placed))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Micro-batches of three operations each, but for the first, behind two that are done once and before one.
    fn iterations(count: u32) -> Iterations {
        let of = (0..count).map(|number| match number {
            0 => vec![2, 3],
            _ => (0..3).map(|at| 4 + 3 * (number - 1) + at).collect(),
        });
        Iterations { of: of.collect(), once: vec![0, 1, 4 + 3 * (count - 1)] }
    }

    #[test]
    fn what_is_left_out_is_whole_rounds_of_a_vast_program() {
        assert_eq!(InPart::of(100, (8, 64), 2), None, "it is small");
        assert_eq!(InPart::of(10_000, (8, 40), 2), None, "as much would be written out");
        let of = |stages, micro_batches, full| InPart::of(10_000, (stages, micro_batches), full).unwrap();
        assert_eq!(of(8, 64, 2), InPart { few: 16, more: 24, left_out: 5 });
        assert_eq!(of(3, 32, 3), InPart { few: 11, more: 14, left_out: 6 });
    }

    #[test]
    fn positions_of_few_micro_batches_and_of_many_are_those_of_the_same_operations() {
        let (few, many) = (iterations(5), iterations(9));
        let extended = few.extended(9).unwrap();
        assert_eq!((&extended.of, &extended.once), (&many.of, &many.once));
        let again = |iterations: &Iterations| {
            let second = iterations.of[1..].iter().map(|of| of[1]);
            Positions(second.chain([iterations.of[0][0], iterations.once[2]]).collect())
        };
        assert_eq!(few.placed(&again(&few), &many).unwrap(), again(&many));
        assert_eq!(many.placed(&again(&many), &few).unwrap(), again(&few));
    }

    #[test]
    fn micro_batches_that_are_not_one_behind_the_other_are_refused() {
        let mut unlike = iterations(5);
        unlike.of[4].pop();
        assert!(unlike.extended(9).is_err());
    }
}
