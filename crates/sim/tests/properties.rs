//! The simulator against one that looks at every picosecond, and what must hold of every simulation.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use base::Nanos;
use cluster::Bound;
use common::{cluster, graph, mesh, random_lines};
use ir::testing::Random;
use timeline::step::Figures;
use unisono_sim::{
    Factors, Group, Interval, Late, Machine, Observer, Program, Programs, Step, Wires, figures, predict, run,
    simulate,
};

/// Every event: rank, step, kind, begin and end.
#[derive(Default, PartialEq, Eq, Debug)]
struct Log(Vec<(usize, Option<usize>, char, i64, i64)>);

impl Observer for Log {
    fn operation(&mut self, rank: usize, step: usize, interval: Interval) {
        self.0.push((rank, Some(step), 'o', interval.start, interval.end));
    }
    fn wait(&mut self, rank: usize, step: Option<usize>, interval: Interval) {
        self.0.push((rank, step, 'w', interval.start, interval.end));
    }
    fn collective(&mut self, rank: usize, step: usize, _: usize, interval: Interval) {
        self.0.push((rank, Some(step), 'c', interval.start, interval.end));
    }
}

/// A rank of the slow simulator: the next step, since when, what is left of it, and the collectives that it has started.
#[derive(Clone, Default)]
struct Slow {
    next: usize,
    since: i64,
    left: Option<i64>,
    started: Vec<(usize, usize, usize)>,
}

/// By how many thousandths operations that are limited by products and by bytes are slower beside collectives, and collectives beside them.
#[derive(Clone, Copy)]
struct Slower {
    operations: [i64; 2],
    collectives: [i64; 2],
}

/// When each collective of a group may begin, and has begun, and when each rank last knew where the others are.
struct Meetings {
    due: Vec<Vec<i64>>,
    began: Vec<Vec<i64>>,
    met: Vec<i64>,
}

impl Meetings {
    fn start(&mut self, (group, number): (usize, usize), rank: usize, now: i64, late: Late) {
        let due = &mut self.due[group];
        due.resize(due.len().max(number + 1), 0);
        due[number] = due[number].max(now + late.after(now - self.met[rank]));
    }

    fn waited(&mut self, (group, number): (usize, usize), rank: usize) {
        self.met[rank] = self.met[rank].max(self.began[group][number]);
    }

    /// Whether a group's next collective begins, or has begun.
    fn begin(&mut self, (group, number): (usize, usize), now: i64) -> bool {
        let is_due = self.due[group][number] <= now;
        if is_due && self.began[group].len() == number {
            self.began[group].push(now);
        }
        is_due
    }

    /// Whether a rank will come to a collective by itself.
    fn comes(&self, done: &[usize], now: i64) -> bool {
        self.due.iter().zip(done).any(|(due, done)| due.get(*done).is_some_and(|due| *due > now))
    }
}

/// Looks at every picosecond; `None` where nothing happens any more before the end.
fn every_picosecond(programs: &Programs, slower: Slower) -> Option<Log> {
    let alone = slower.collectives[0] * slower.collectives[1];
    let mut log = Log::default();
    let mut ranks = vec![Slow::default(); programs.ranks.len()];
    let mut done = vec![0; programs.groups.len()];
    let mut running: Vec<Option<(i64, i64)>> = vec![None; programs.groups.len()];
    let mut used = vec![Wires::default(); programs.groups.len()];
    let mut last_end = vec![0; programs.ranks.len()];
    let none = || vec![Vec::new(); programs.groups.len()];
    let mut meetings = Meetings { due: none(), began: none(), met: vec![0; programs.ranks.len()] };
    let nth = |rank: &Slow, group: usize, n: usize| {
        rank.started.iter().find(|(g, number, _)| (*g, *number) == (group, n)).map(|(.., step)| *step)
    };
    for now in 0.. {
        loop {
            let mut changed = false;
            for (r, rank) in ranks.iter_mut().enumerate() {
                let Some(step) = programs.ranks[r].steps.get(rank.next) else { continue };
                let mut ended = None;
                match step {
                    Step::Operation(time, bound) => {
                        if *rank.left.get_or_insert(time * slower.operations[*bound as usize]) <= 0 {
                            ended = Some('o');
                        }
                    }
                    Step::Start { group, .. } => {
                        let number = rank.started.iter().filter(|s| s.0 == *group).count();
                        rank.started.push((*group, number, rank.next));
                        meetings.start((*group, number), r, now, programs.groups[*group].late);
                        ended = Some('o');
                    }
                    Step::WaitCopy(_) => unreachable!("nothing is copied"),
                    Step::Wait(None) => ended = Some('w'),
                    Step::Wait(Some(collective)) => {
                        let (group, number, _) = rank.started[*collective];
                        ended = (done[group] > number).then_some('w');
                        if ended.is_some() {
                            meetings.waited((group, number), r);
                        }
                    }
                }
                if let Some(kind) = ended {
                    log.0.push((r, Some(rank.next), kind, rank.since, now));
                    *rank =
                        Slow { next: rank.next + 1, since: now, left: None, started: rank.started.clone() };
                    changed = true;
                }
            }
            for (g, group) in programs.groups.iter().enumerate() {
                let steps: Option<Vec<usize>> =
                    group.members.iter().map(|member| nth(&ranks[*member], g, done[g])).collect();
                let Some(steps) = steps else { continue };
                let Some(step) = steps.first() else { continue };
                let Step::Start { time, wires, .. } = programs.ranks[group.members[0]].steps[*step] else {
                    continue;
                };
                used[g] = wires;
                if !meetings.begin((g, done[g]), now) {
                    continue;
                }
                let (start, left) = *running[g].get_or_insert((now, time * alone * 1000));
                if left <= 0 {
                    for (member, step) in group.members.iter().zip(steps) {
                        log.0.push((*member, Some(step), 'c', start, now));
                        last_end[*member] = now;
                    }
                    (done[g], running[g], changed) = (done[g] + 1, None, true);
                }
            }
            if !changed {
                break;
            }
        }
        let computes = |(rank, program): (&Slow, &Program)| match program.steps.get(rank.next)? {
            Step::Operation(_, bound) => rank.left.map(|_| *bound as usize),
            _ => None,
        };
        let computes: Vec<Option<usize>> = ranks.iter().zip(&programs.ranks).map(computes).collect();
        if computes.iter().all(Option::is_none)
            && running.iter().all(Option::is_none)
            && !meetings.comes(&done, now)
        {
            break;
        }
        compute(programs, &mut ranks, &running, &computes, slower);
        let speed = |group: &Group| {
            let bounds = group.members.iter().filter_map(|member| computes[*member]);
            let most = bounds.map(|bound| slower.collectives[bound]).max();
            most.map_or(alone, |most| alone / most * 1000)
        };
        send(programs, &used, &mut running, speed);
    }
    for (r, rank) in ranks.iter().enumerate() {
        if rank.next < programs.ranks[r].steps.len() {
            return None;
        }
        if last_end[r] > rank.since {
            log.0.push((r, None, 'w', rank.since, last_end[r]));
        }
    }
    Some(log)
}

/// Lets operations compute for a picosecond, slower beside a collective.
fn compute(
    programs: &Programs,
    ranks: &mut [Slow],
    running: &[Option<(i64, i64)>],
    computes: &[Option<usize>],
    slower: Slower,
) {
    let beside = |rank: usize| {
        programs.groups.iter().zip(running).any(|(group, on)| on.is_some() && group.members.contains(&rank))
    };
    for (r, rank) in ranks.iter_mut().enumerate() {
        if let (Some(left), Some(bound)) = (&mut rank.left, computes[r]) {
            *left -= if beside(r) { 1000 } else { slower.operations[bound] };
        }
    }
}

/// Lets running collectives send for a picosecond: what all groups of a rank want of a wire is what they share it by.
fn send(
    programs: &Programs,
    used: &[Wires],
    running: &mut [Option<(i64, i64)>],
    speed: impl Fn(&Group) -> i64,
) {
    let on: Vec<bool> = running.iter().map(Option::is_some).collect();
    let wanted = |rank: usize, wire: usize| -> u32 {
        let groups = programs.groups.iter().enumerate();
        let here = groups.filter(|(g, group)| on[*g] && group.members.contains(&rank));
        here.map(|(g, _)| used[g].0[wire]).sum()
    };
    for (g, group) in programs.groups.iter().enumerate() {
        let Some((_, left)) = &mut running[g] else { continue };
        let wires = (0..4).filter(|wire| used[g].0[*wire] > 0);
        let shared = wires.flat_map(|wire| group.members.iter().map(move |rank| (*rank, wire)));
        let fullest = shared.map(|(rank, wire)| wanted(rank, wire)).fold(1000, u32::max);
        *left -= speed(group) * 1_000_000 / i64::from(fullest);
    }
}

/// Programs of up to three ranks with up to two groups. Every rank of a group starts the same collectives; sometimes groups are in
/// another order, so that some cannot end.
fn random_programs(random: &mut Random) -> Programs {
    let count = 1 + random.below(3);
    let groups: Vec<Group> = (0..=random.below(2))
        .map(|g| Group {
            copies: false,
            late: *random.pick(&[
                Late::default(),
                Late { always: 7, thousandths: 0 },
                Late { always: 0, thousandths: 400 },
            ]),
            name: format!("g{g}"),
            size: 4,
            stride: 1,
            members: (0..count).filter(|r| g == 0 || *r != 1).collect(),
        })
        .collect();
    let wires: Vec<Wires> = groups
        .iter()
        .map(|_| {
            Wires(
                [0, 1]
                    .map(|_| *random.pick(&[0, 300, 700, 1000]))
                    .into_iter()
                    .chain([0, 0])
                    .collect::<Vec<_>>()
                    .try_into()
                    .unwrap(),
            )
        })
        .collect();
    let times: Vec<Vec<i64>> =
        groups.iter().map(|_| (0..random.below(4)).map(|_| random.below(30) as i64).collect()).collect();
    let ranks = (0..count).map(|rank| {
        let mut queues: Vec<(usize, usize, Vec<i64>)> = groups
            .iter()
            .enumerate()
            .filter_map(|(g, group)| {
                let member = group.members.iter().position(|member| *member == rank)?;
                Some((g, member, times[g].iter().rev().copied().collect()))
            })
            .collect();
        let (mut steps, mut started, mut open) = (Vec::new(), 0, Vec::new());
        for _ in 0..20 {
            match random.below(3) {
                0 => {
                    let choice = random.below(queues.len().max(1));
                    let Some((group, member, queue)) = queues.get_mut(choice) else { continue };
                    let Some(time) = queue.pop() else { continue };
                    steps.push(Step::Start { group: *group, member: *member, time, wires: wires[*group] });
                    open.push(started);
                    started += 1;
                }
                1 if !open.is_empty() => {
                    steps.push(Step::Wait(Some(open.swap_remove(random.below(open.len())))));
                }
                _ => steps.push(Step::Operation(random.below(20) as i64, *random.pick(&Bound::ALL))),
            }
        }
        for (group, member, queue) in &mut queues {
            while let Some(time) = queue.pop() {
                steps.push(Step::Start { group: *group, member: *member, time, wires: wires[*group] });
            }
        }
        Program { steps }
    });
    let ranks = ranks.collect();
    Programs { ranks, groups }
}

#[test]
fn events_are_those_of_a_simulator_that_looks_at_every_picosecond() {
    let (mut ended, mut stuck) = (0, 0);
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let programs = random_programs(&mut random);
        let mut factor = || *random.pick(&[1000, 1150, 2000, 1333]);
        let both = factor();
        let mut apart = || if seed % 2 == 0 { [both; 2] } else { [factor(), factor()] };
        let slower = Slower { operations: apart(), collectives: apart() };
        let mut log = Log::default();
        let wide = |thousandths: [i64; 2]| thousandths.map(i128::from);
        let factors = Factors::new(wide(slower.operations), wide(slower.collectives));
        let result = run(&programs, factors, &mut log);
        match every_picosecond(&programs, slower) {
            None => {
                assert!(result.is_err(), "seed {seed}");
                stuck += 1;
            }
            Some(mut expected) => {
                assert!(result.is_ok(), "seed {seed}");
                expected.0.sort_unstable();
                log.0.sort_unstable();
                assert_eq!(log, expected, "seed {seed}: {programs:?}");
                ended += 1;
            }
        }
    }
    assert!(ended > 300 && stuck > 10, "{ended} ended, {stuck} stuck");
}

#[test]
fn collectives_of_two_axes_that_want_more_than_a_wire_carries_take_as_much_longer() {
    let end = |uses: [[u32; 4]; 2]| {
        let group = |name: &str| Group {
            name: name.into(),
            size: 2,
            stride: 1,
            late: Late::default(),
            copies: false,
            members: vec![0],
        };
        let start = |group: usize| Step::Start { group, member: 0, time: 1000, wires: Wires(uses[group]) };
        let steps = vec![start(0), start(1), Step::Wait(Some(0)), Step::Wait(Some(1))];
        let programs = Programs { ranks: vec![Program { steps }], groups: vec![group("a"), group("b")] };
        let mut log = Log::default();
        run(&programs, Factors::NONE, &mut log).unwrap();
        log.0.last().unwrap().4
    };
    assert_eq!(end([[1000, 0, 0, 0], [0, 1000, 0, 0]]), 1000, "on wires of their own");
    assert_eq!(end([[400, 0, 0, 0], [600, 0, 0, 0]]), 1000, "a wire that carries both");
    assert_eq!(end([[800, 0, 0, 0], [800, 0, 0, 0]]), 1600);
    assert_eq!(end([[1000, 0, 0, 0], [1000, 1000, 0, 0]]), 2000);
}

#[test]
fn a_step_is_no_shorter_than_what_one_stream_does_and_no_longer_than_all_of_it() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let mut programs = random_programs(&mut random);
        programs.ranks.truncate(1);
        for group in &mut programs.groups {
            group.members.retain(|rank| *rank == 0);
            group.late = Late::default();
        }
        for step in programs.ranks.iter_mut().flat_map(|program| &mut program.steps) {
            match step {
                Step::Operation(time, _) | Step::Start { time, .. } => *time *= 1000,
                Step::Wait(_) | Step::WaitCopy(_) => {}
            }
        }
        for factor in [Factors::NONE, Factors::all(1150)] {
            let time = figures(&programs, factor).unwrap()[0];
            let mut groups = vec![Nanos(0); programs.groups.len()];
            for step in &programs.ranks[0].steps {
                if let Step::Start { group, time, .. } = step {
                    groups[*group] += Nanos(time / 1000);
                }
            }
            assert!(time.step >= time.compute && groups.iter().all(|group| time.step >= *group), "{seed}");
            assert_eq!(time.exposed, time.step - time.compute, "{seed}");
            if factor == Factors::NONE {
                assert!(time.step <= time.compute + time.communication, "{seed}");
            }
        }
    }
}

#[test]
fn figures_without_a_timeline_are_those_read_off_the_timeline() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let lines = random_lines(&mut random, &["a", "b"], 30);
        let (graph, mesh) = (graph(&lines), mesh(&[("a", 3), ("b", 7)]));
        let cluster = cluster(*random.pick(&[1.0, 1.15, 1.777]));
        let machine = Machine { cluster: &cluster, mesh: &mesh };
        let timeline = simulate(&[&graph], machine).unwrap();
        let expected = Figures::of(&timeline, &timeline.ranks[0]);
        assert_eq!(predict(&graph, machine).unwrap().time, expected, "seed {seed}:\n{lines}");
        assert!(expected.collectives > 0 || seed > 0);
    }
}

#[test]
fn memory_comes_and_goes_up_to_the_predicted_peak() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let lines = random_lines(&mut random, &["a", "b"], 30);
        let (graph, mesh, cluster) = (graph(&lines), mesh(&[("a", 3), ("b", 7)]), cluster(1.15));
        let machine = Machine { cluster: &cluster, mesh: &mesh };
        let timeline = simulate(&[&graph], machine).unwrap();
        let changes = &timeline.ranks[0].memory;
        let most = changes.iter().map(|change| change.total_allocated).max().unwrap();
        let predicted = predict(&graph, machine).unwrap().memory.alive.total();
        assert_eq!(most as u64, predicted.0, "seed {seed}:\n{lines}");
        assert!(changes.is_sorted_by_key(|change| change.time), "seed {seed}:\n{lines}");
        let first = changes.first().unwrap();
        let mut held = first.total_allocated - first.bytes;
        for change in changes {
            held += change.bytes;
            assert_eq!(held, change.total_allocated, "seed {seed}:\n{lines}");
        }
    }
}
