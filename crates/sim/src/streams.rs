//! The streams of all ranks, from event to event.

use cluster::{Bound, Cluster};
use cost::Wires;

use crate::{Group, Programs, Step};

/// How much slower operations and collectives are while they run beside each other, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Factors {
    /// What operations get done in a picosecond while no collective runs, by what they are limited by; [`ALONE`] while one does.
    operation: [i128; 2],
    /// What a collective gets done in a picosecond while such an operation runs.
    beside: [i128; 2],
    /// The same while none does.
    alone: i128,
}

impl Factors {
    /// They do not disturb each other.
    pub const NONE: Self = Self::all(ALONE as u32);

    /// So many thousandths for both, whatever the operation is limited by.
    pub const fn all(thousandths: u32) -> Self {
        let factor = thousandths as i128;
        Self::new([factor, factor], [factor, factor])
    }

    /// So many thousandths for operations, by what they are limited by, and for collectives beside such.
    pub const fn new(operation: [i128; 2], collective: [i128; 2]) -> Self {
        let [products, bytes] = collective;
        Self { operation, beside: [bytes * ALONE, products * ALONE], alone: products * bytes }
    }

    /// Those of a cluster.
    pub fn of(cluster: &Cluster) -> Self {
        let thousandths = |factor: f64| (factor * ALONE as f64).round().max(ALONE as f64) as i128;
        let slowdowns = Bound::ALL.map(|bound| cluster.device.slowdown(bound));
        Self::new(
            slowdowns.map(|slowdown| thousandths(slowdown.operation)),
            slowdowns.map(|slowdown| thousandths(slowdown.collective)),
        )
    }
}

/// Thousandths of a factor of 1.
const ALONE: i128 = 1000;

/// What a collective gets done in a picosecond is counted in parts of a thousandth, because what it gets of a wire may be any part.
const PARTS: i128 = 1000;

/// Begin and end in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Interval {
    /// Begin.
    pub start: i64,
    /// End.
    pub end: i64,
}

/// Is told what happens on each rank. `step` is a position in the rank's program.
pub trait Observer {
    /// An operation has run, or a collective was started.
    fn operation(&mut self, rank: usize, step: usize, interval: Interval);
    /// A rank has waited; `step` is absent for what is waited for at the end of the program.
    fn wait(&mut self, rank: usize, step: Option<usize>, interval: Interval);
    /// A collective that `step` started has run.
    fn collective(&mut self, rank: usize, step: usize, group: usize, interval: Interval);
}

/// The ranks that wait for each other without end, with the step at which each stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck(pub Vec<(usize, usize)>);

/// What a rank does at the moment.
#[derive(Clone, Copy)]
enum State {
    Ready,
    Operation { start: i64, left: i128, bound: Bound },
    Waiting { start: i64, collective: usize },
    Ended { start: i64 },
}

struct Rank {
    next: usize,
    state: State,
    /// Group and number in it of each collective that the rank has started.
    started: Vec<(usize, usize)>,
    /// How many of its groups have a collective running.
    beside: u32,
    /// What these use of the wires together.
    wires: Wires,
    /// When its last collective so far ended.
    last_end: i64,
    /// When it last knew where the others were: when the last collective began that it has waited for.
    met: i64,
}

struct Stream {
    /// For each member, the steps that started the group's collectives.
    starts: Vec<Vec<usize>>,
    /// When the last rank has come to each collective.
    due: Vec<i64>,
    /// When each began.
    began: Vec<i64>,
    /// How many collectives are done.
    done: usize,
    /// Begin of the running one, and what is left of it.
    running: Option<(i64, i128)>,
    /// What the running one uses of the wires.
    wires: Wires,
}

impl Stream {
    /// A member starts a collective, which the last rank has not come to before `due`; which one of the group it is.
    fn start(&mut self, member: usize, step: usize, due: i64) -> usize {
        let number = self.starts[member].len();
        self.starts[member].push(step);
        match self.due.get_mut(number) {
            Some(known) => *known = due.max(*known),
            None => self.due.push(due),
        }
        number
    }

    /// When the last rank has come to the next collective, where all that are simulated have started it and none is running.
    fn next_due(&self) -> Option<i64> {
        let is_started = || self.starts.iter().all(|starts| starts.len() > self.done);
        (self.running.is_none() && is_started()).then(|| self.due[self.done])
    }
}

/// Runs the programs and tells `observer` of everything in the order of its end.
pub fn run(programs: &Programs, factors: Factors, observer: &mut impl Observer) -> Result<(), Stuck> {
    let ranks = programs.ranks.iter().map(|program| Rank {
        next: 0,
        state: State::Ready,
        started: Vec::with_capacity(program.steps.len() / 8),
        beside: 0,
        wires: Wires::default(),
        last_end: 0,
        met: 0,
    });
    let streams = programs.groups.iter().map(|group| Stream {
        starts: vec![Vec::new(); group.members.len()],
        due: Vec::new(),
        began: Vec::new(),
        done: 0,
        running: None,
        wires: Wires::default(),
    });
    let (ranks, streams) = (ranks.collect(), streams.collect());
    Run { programs, factors, ranks, streams, now: 0 }.all(observer)
}

struct Run<'a> {
    programs: &'a Programs,
    factors: Factors,
    ranks: Vec<Rank>,
    streams: Vec<Stream>,
    now: i64,
}

impl Run<'_> {
    fn all(mut self, observer: &mut impl Observer) -> Result<(), Stuck> {
        loop {
            self.settle(observer);
            match self.next_end() {
                Some(time) => self.advance(time, observer),
                None => return self.end(observer),
            }
        }
    }

    /// Everything that happens at this moment.
    fn settle(&mut self, observer: &mut impl Observer) {
        loop {
            for rank in 0..self.ranks.len() {
                self.go_on(rank, observer);
            }
            let begun = (0..self.streams.len()).filter(|group| self.begin(*group, observer)).count();
            if begun == 0 {
                return;
            }
        }
    }

    /// Takes a rank's steps until one takes time.
    fn go_on(&mut self, index: usize, observer: &mut impl Observer) {
        let now = self.now;
        let steps = &self.programs.ranks[index].steps;
        let rank = &mut self.ranks[index];
        if let State::Waiting { start, collective } = rank.state {
            let (group, number) = rank.started[collective];
            if self.streams[group].done <= number {
                return;
            }
            observer.wait(index, Some(rank.next), Interval { start, end: now });
            rank.met = rank.met.max(self.streams[group].began[number]);
            rank.next += 1;
            rank.state = State::Ready;
        }
        while matches!(rank.state, State::Ready) {
            match steps.get(rank.next) {
                None => rank.state = State::Ended { start: now },
                Some(Step::Operation(0, _)) => {
                    observer.operation(index, rank.next, Interval { start: now, end: now });
                    rank.next += 1;
                }
                Some(Step::Operation(time, bound)) => {
                    let left = i128::from(*time) * self.factors.operation[*bound as usize];
                    rank.state = State::Operation { start: now, left, bound: *bound };
                }
                Some(Step::Start { group, member, .. }) => {
                    let late = self.programs.groups[*group].late.after(now - rank.met);
                    rank.started.push((*group, self.streams[*group].start(*member, rank.next, now + late)));
                    observer.operation(index, rank.next, Interval { start: now, end: now });
                    rank.next += 1;
                }
                Some(step @ (Step::Wait(_) | Step::WaitCopy(_))) => {
                    let awaited = match step {
                        Step::Wait(collective) => *collective,
                        Step::WaitCopy(copy) => Some(*copy),
                        _ => None,
                    };
                    if let Some(collective) = awaited {
                        let (group, number) = rank.started[collective];
                        let stream = &self.streams[group];
                        if stream.done <= number {
                            rank.state = State::Waiting { start: now, collective };
                            return;
                        }
                        rank.met = rank.met.max(stream.began[number]);
                    }
                    observer.wait(index, Some(rank.next), Interval { start: now, end: now });
                    rank.next += 1;
                }
            }
        }
    }

    /// Begins the next collective of a group if all have started it; whether one of no length is done already.
    fn begin(&mut self, group: usize, observer: &mut impl Observer) -> bool {
        let stream = &mut self.streams[group];
        let number = stream.done;
        if stream.next_due().is_none_or(|due| due > self.now) {
            return false;
        }
        let Some(first) = self.programs.groups[group].members.first() else { return false };
        let Step::Start { time, wires, .. } = self.programs.ranks[*first].steps[stream.starts[0][number]]
        else {
            return false;
        };
        stream.running = Some((self.now, i128::from(time) * self.factors.alone * PARTS));
        stream.began.push(self.now);
        stream.wires = wires;
        let of_group = &self.programs.groups[group];
        for member in of_group.members.iter().filter(|_| !of_group.copies) {
            self.ranks[*member].beside += 1;
            self.ranks[*member].wires.add(wires);
        }
        if time == 0 {
            self.finish(group, observer);
        }
        time == 0
    }

    /// Ends the running collective of a group.
    fn finish(&mut self, group: usize, observer: &mut impl Observer) {
        let stream = &mut self.streams[group];
        let Some((start, _)) = stream.running.take() else { return };
        let of_group = &self.programs.groups[group];
        for (member, starts) in of_group.members.iter().zip(&stream.starts) {
            let rank = &mut self.ranks[*member];
            rank.beside -= u32::from(!of_group.copies);
            rank.wires.remove(stream.wires);
            rank.last_end = self.now;
            observer.collective(*member, starts[stream.done], group, Interval { start, end: self.now });
        }
        stream.done += 1;
    }

    /// What a rank gets done in a picosecond of an operation that is limited by this.
    fn speed(&self, rank: usize, bound: Bound) -> i128 {
        if self.ranks[rank].beside > 0 { ALONE } else { self.factors.operation[bound as usize] }
    }

    /// What a collective of a group gets done in a picosecond.
    fn speed_of_group(&self, group: usize) -> i128 {
        let Group { members, copies, .. } = &self.programs.groups[group];
        let beside = members.iter().filter(|_| !copies).filter_map(|rank| match self.ranks[*rank].state {
            State::Operation { bound, .. } => Some(self.factors.beside[bound as usize]),
            _ => None,
        });
        let speed = beside.min().unwrap_or(self.factors.alone);
        let wires = self.streams[group].wires;
        let wanted = members.iter().map(|rank| wires.wanted_with(self.ranks[*rank].wires)).max();
        speed * PARTS * i128::from(Wires::ALL) / i128::from(wanted.unwrap_or(Wires::ALL))
    }

    /// How long until something ends; `None` where nothing runs.
    fn next_end(&self) -> Option<i64> {
        let ranks = (0..self.ranks.len()).filter_map(|rank| match self.ranks[rank].state {
            State::Operation { left, bound, .. } => Some(time_for(left, self.speed(rank, bound))),
            _ => None,
        });
        let groups = (0..self.streams.len()).filter_map(|group| match self.streams[group].running {
            Some((_, left)) => Some(time_for(left, self.speed_of_group(group))),
            None => self.streams[group].next_due().map(|due| due - self.now),
        });
        ranks.chain(groups).min()
    }

    /// Lets everything run for `time`, and ends what is done.
    fn advance(&mut self, time: i64, observer: &mut impl Observer) {
        for group in 0..self.streams.len() {
            let done = i128::from(time) * self.speed_of_group(group);
            if let Some((_, left)) = &mut self.streams[group].running {
                *left -= done;
            }
        }
        self.now = self.now.saturating_add(time);
        for index in 0..self.ranks.len() {
            let State::Operation { start, left, bound } = self.ranks[index].state else { continue };
            let left = left - i128::from(time) * self.speed(index, bound);
            let rank = &mut self.ranks[index];
            rank.state = State::Operation { start, left, bound };
            if left <= 0 {
                observer.operation(index, rank.next, Interval { start, end: self.now });
                rank.next += 1;
                rank.state = State::Ready;
            }
        }
        for group in 0..self.streams.len() {
            if self.streams[group].running.is_some_and(|(_, left)| left <= 0) {
                self.finish(group, observer);
            }
        }
    }

    /// Waits for what nobody has waited for; fails where a rank has not come to its end.
    fn end(&self, observer: &mut impl Observer) -> Result<(), Stuck> {
        let mut stuck = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            match rank.state {
                State::Ended { start } if rank.last_end > start => {
                    observer.wait(index, None, Interval { start, end: rank.last_end });
                }
                State::Ended { .. } => {}
                _ => stuck.push((index, rank.next)),
            }
        }
        if stuck.is_empty() { Ok(()) } else { Err(Stuck(stuck)) }
    }
}

fn time_for(left: i128, speed: i128) -> i64 {
    i64::try_from((left + speed - 1) / speed).unwrap_or(i64::MAX)
}
