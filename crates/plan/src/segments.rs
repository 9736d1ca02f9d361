//! Segments of forward that are made again one at a time in backward: where few values cross from one to the next.

use fixedbitset::FixedBitSet;

use crate::forward::{Forward, Operation, Pass};

/// Which segment each operation of forward is in, and in which one backward reads it.
pub struct Segments {
    /// About how many were asked for.
    pub count: usize,
    /// By operation; segments of a pass are counted from 0.
    pub of: Vec<usize>,
    /// Whether backward reads an operation's results while it still needs a later segment.
    pub is_read_early: FixedBitSet,
    /// For each pass the segment that each position of its backward part works on.
    at: Vec<Vec<usize>>,
}

impl Segments {
    /// Cuts each forward part into about `count` segments that leave equally much for backward.
    pub fn new(forward: &Forward, count: usize) -> Self {
        let mut of = vec![0; forward.operations.len()];
        for pass in &forward.passes {
            for cut in cuts(&forward.operations[pass.operations.clone()], count) {
                of[pass.operations.clone()][cut..].iter_mut().for_each(|segment| *segment += 1);
            }
        }
        let mut is_read_early = FixedBitSet::with_capacity(of.len());
        let at = forward.passes.iter().map(|pass| {
            let at = worked_on(pass, &of);
            for (read, segment) in pass.reads.iter().zip(&at) {
                read.iter()
                    .filter(|number| of[**number] < *segment)
                    .for_each(|number| is_read_early.insert(*number));
            }
            at
        });
        let at = at.collect();
        Self { count, of, is_read_early, at }
    }

    /// The segment that a position of the program works on; none where it is of no pass.
    pub fn at(&self, forward: &Forward, position: usize) -> Option<usize> {
        let within = |pass: &Pass| {
            let operations = &forward.operations[pass.operations.clone()];
            let (first, last) = (operations.first()?.position, operations.last()?.position);
            if (first..=last).contains(&position) {
                let number = operations.partition_point(|operation| operation.position <= position);
                return Some(self.of[pass.operations.start + number - 1]);
            }
            None
        };
        let in_backward = forward.passes.iter().zip(&self.at).find_map(|(pass, at)| {
            pass.backward.contains(&position).then(|| at[position - pass.backward.start])
        });
        in_backward.or_else(|| forward.passes.iter().find_map(within))
    }

    /// Everything that can run again, needed or not, with what crosses between segments kept.
    pub fn all_again(&self, forward: &Forward) -> FixedBitSet {
        let mut again = FixedBitSet::with_capacity(self.of.len());
        for (number, operation) in forward.operations.iter().enumerate() {
            let may = operation.is_repeatable && !operation.is_pinned && !self.is_read_early.contains(number);
            again.set(number, may);
        }
        // Whether an operation runs again is known before those that it reads.
        for (number, operation) in forward.operations.iter().enumerate().rev() {
            if again.contains(number) {
                let crossing =
                    operation.operands.iter().filter(|operand| self.of[**operand] != self.of[number]);
                crossing.for_each(|operand| again.set(*operand, false));
            }
        }
        again
    }
}

/// For each position of a backward part the latest segment that it, or a later position, reads.
fn worked_on(pass: &Pass, of: &[usize]) -> Vec<usize> {
    let mut latest = 0;
    let segments = pass.reads.iter().rev().map(|read| {
        latest = read.iter().map(|number| of[*number]).max().unwrap_or(0).max(latest);
        latest
    });
    let mut segments: Vec<usize> = segments.collect();
    segments.reverse();
    segments
}

/// Before which operations to cut: around equal shares of what backward reads, where least crosses for its span.
fn cuts(operations: &[Operation], count: usize) -> Vec<usize> {
    let left = |operation: &Operation| if operation.backward.is_some() { operation.bytes } else { 0 };
    let total: u64 = operations.iter().map(left).sum();
    let crossing = crossing(operations);
    let mut before = 0;
    let mut best: Vec<Option<(u64, usize)>> = vec![None; count.saturating_sub(1)];
    for (number, operation) in operations.iter().enumerate() {
        // The cut that this place is nearest to: at the shares 1, 2, ... of `count`, half a share around each.
        let share =
            (u128::from(before) * 2 * count as u128 + u128::from(total)) / (2 * u128::from(total.max(1)));
        if let Some(best) = (share as usize).checked_sub(1).and_then(|cut| best.get_mut(cut))
            && best.is_none_or(|(least, _)| crossing[number] < least)
        {
            *best = Some((crossing[number], number));
        }
        before += left(operation);
    }
    let mut cuts: Vec<usize> = best.into_iter().flatten().map(|(_, number)| number).collect();
    cuts.dedup();
    cuts
}

/// For a cut before each operation, the bytes that cross it, those of each value divided among the cuts that it crosses: what crosses
/// many is not what makes one place better than another.
fn crossing(operations: &[Operation]) -> Vec<u64> {
    let mut change = vec![0_i64; operations.len() + 1];
    for (number, operation) in operations.iter().enumerate() {
        let last = operations.partition_point(|reader| reader.position <= operation.last_read);
        let cuts = last.saturating_sub(number + 1);
        if cuts > 0 {
            let each = (operation.bytes / cuts as u64) as i64;
            change[number + 1] += each;
            change[last] -= each;
        }
    }
    let mut sum = 0;
    let at = change.iter().take(operations.len()).map(|change| {
        sum += change;
        sum.unsigned_abs()
    });
    at.collect()
}
