//! What of forward is on the host until backward: when each copy runs, and what waiting for copies takes.
//!
//! The link to the host makes one copy after the other in each direction. A copy there starts right behind the operation that makes its operand, and
//! the memory is free as soon as the link has made it; a copy back starts as late as it can be there before its first reader. Times are those of
//! operations alone: how long a program really waits the simulator says. Where memory is short, copies are waited for at once instead.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use fixedbitset::FixedBitSet;
use passes::{Stay, Stays};

/// Of so many parts of the time that copies take one counts, whether anything waits for them or not: what needs no copy is better.
const PARTS: i64 = 50;

/// What may be done with results of forward, so that they are not held until backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ways {
    /// They are made again.
    pub again: bool,
    /// They are on the host in between.
    pub host: bool,
}

impl Ways {
    /// They are made again, and nothing else.
    pub const AGAIN: Self = Self { again: true, host: false };
    /// They are on the host, and nothing else.
    pub const HOST: Self = Self { again: false, host: true };
}

/// Results that are to go to the host.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// The number of the operation that makes them.
    pub number: usize,
    /// Its position in program order.
    pub made: usize,
    /// The last position of forward that reads them.
    pub last_read: usize,
    /// The first position of backward that does.
    pub first: usize,
    /// Their memory.
    pub bytes: u64,
    /// What a copy takes, in picoseconds.
    pub time: i64,
    /// Whether copies are waited for at once.
    pub awaited: bool,
}

/// The link to the host, and when it could copy what.
#[derive(Clone, Debug)]
pub struct Link {
    /// When each position of the program begins, in picoseconds, if nothing waits; the end stands behind the last.
    pub begins: Vec<i64>,
    /// The memory of the host, where it is known.
    pub memory: Option<u64>,
    /// What of it is taken by other things.
    pub taken: u64,
}

/// The copies of an operation's results: right behind which positions their memory is free, and the copy back starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copied {
    /// The position of the operation.
    made: usize,
    /// Where the copy to the host has been made.
    pub gone: usize,
    /// Where the copy back starts.
    pub back: usize,
    /// Where backward reads first what is back.
    first: usize,
    /// What a copy takes, in picoseconds.
    time: i64,
    /// Whether copies are waited for at once.
    awaited: bool,
}

/// The copies of all that is on the host, by the number of the operation that makes it.
#[derive(Clone, Default, Debug)]
pub struct Copies {
    /// The copies.
    pub of: BTreeMap<usize, Copied>,
    /// What they count for, in picoseconds: what is waited for them, and a part of what they take.
    pub time: i64,
}

impl Copies {
    /// As positions in program order.
    pub fn stays(&self) -> Stays {
        let stays = self.of.values().map(|copied| Stay {
            made: copied.made as u32,
            gone: copied.gone as u32,
            back: copied.back as u32,
        });
        Stays(stays.collect())
    }

    /// Of which of `count` operations' results they are.
    pub fn numbers(&self, count: usize) -> FixedBitSet {
        let mut numbers = FixedBitSet::with_capacity(count);
        self.of.keys().for_each(|number| numbers.insert(*number));
        numbers
    }
}

impl Link {
    /// The copies of these results, in program order, as far as the link and the memory of the host suffice.
    pub fn copies(&self, leaving: &[Leaving]) -> Copies {
        let mut of = self.copied_out(leaving);
        self.copy_back(&mut of);
        let taken: i64 = of.values().map(|copied| 2 * copied.time).sum();
        let time = self.waiting(&of) + taken / PARTS;
        Copies { of, time }
    }

    /// Where what is copied to the host is gone; what would be gone only when it is needed again stays.
    fn copied_out(&self, leaving: &[Leaving]) -> BTreeMap<usize, Copied> {
        let mut of = BTreeMap::new();
        let mut free = 0;
        // What is on the host, by when it has come back.
        let mut there: BinaryHeap<Reverse<(usize, u64)>> = BinaryHeap::new();
        let mut held = self.taken;
        for one in leaving {
            let Leaving { made, first, time, awaited, bytes, .. } = *one;
            let end = self.begins[made + 1].max(free) + time;
            let ready = self.begins.partition_point(|begin| *begin < end).saturating_sub(1);
            let read = one.last_read.max(made);
            let gone = if awaited { read } else { ready.max(read) };
            while there.peek().is_some_and(|Reverse((back, _))| *back <= made) {
                held -= there.pop().map_or(0, |Reverse((_, bytes))| bytes);
            }
            let is_room = self.memory.is_none_or(|memory| held + bytes <= memory);
            if is_room && gone + 1 < first {
                held += bytes;
                there.push(Reverse((first, bytes)));
                free = if awaited { self.begins[gone + 1] } else { end };
                of.insert(one.number, Copied { made, gone, back: first - 1, first, time, awaited });
            }
        }
        of
    }

    /// Starts each copy back as late as it can be there in time.
    fn copy_back(&self, of: &mut BTreeMap<usize, Copied>) {
        let mut by_first: Vec<&mut Copied> = of.values_mut().filter(|copied| !copied.awaited).collect();
        by_first.sort_by_key(|copied| Reverse(copied.first));
        let mut next = i64::MAX;
        for copied in by_first {
            next = next.min(self.begins[copied.first]) - copied.time;
            let begun = self.begins.partition_point(|begin| *begin <= next);
            copied.back = begun.saturating_sub(2).clamp(copied.gone, copied.first - 1);
        }
    }

    /// How long the program waits for copies, as far as operations alone say.
    fn waiting(&self, of: &BTreeMap<usize, Copied>) -> i64 {
        // Right behind which position what happens: at one, copies out start and end before copies back do.
        let mut events: Vec<(usize, u8, usize, usize, i64)> = Vec::new();
        for (number, copied) in of {
            let at = [copied.made, copied.gone, copied.back, copied.first - 1];
            events.extend((0..).zip(at).map(|(kind, at)| (at, kind, copied.first, *number, copied.time)));
        }
        events.sort_unstable();
        let (mut free, mut waited) = ([0_i64; 2], 0);
        let mut ends: BTreeMap<usize, i64> = BTreeMap::new();
        for (at, kind, _, number, time) in events {
            let now = self.begins[at + 1] + waited;
            if kind % 2 == 0 {
                let free = &mut free[usize::from(kind / 2)];
                *free = now.max(*free) + time;
                ends.insert(number, *free);
            } else {
                waited += (ends[&number] - now).max(0);
            }
        }
        waited
    }
}
