//! Searched schedules: the best there is for small pipelines, and never longer than a named one.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use unisono_schedule::{Action, Costs, Pass, Placement, Schedule, named, searched};

/// Numbers that look random, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % end) as i64
    }

    /// Costs of which no two are alike; each stage has room for at least so many micro-batches, and at most so many.
    fn costs(&mut self, placement: &Placement, room: (u64, u64)) -> Costs {
        let chunks = placement.chunks() as usize;
        let mut times = |most: u64| (0..chunks).map(|_| 1 + self.below(most)).collect::<Vec<i64>>();
        let [forward, inputs, weights, kept] = [times(9), times(9), times(9), times(5)];
        let left = kept.iter().map(|kept| self.below(*kept as u64 + 1)).collect();
        let sending = (1..chunks).map(|_| self.below(4)).collect();
        let room = (0..placement.stages).map(|stage| {
            let one: i64 = placement.chunks_of(stage).map(|chunk| kept[chunk as usize]).sum();
            one * (room.0 as i64 + self.below(room.1 - room.0 + 1))
        });
        let room = room.collect();
        Costs { placement: placement.clone(), forward, inputs, weights, sending, kept, left, room }
    }
}

/// All rows of a stage that fit, micro-batches of a chunk in their order.
fn rows(costs: &Costs, stage: u32, micro_batches: u32) -> Vec<Vec<Action>> {
    let chunks: Vec<u32> = costs.placement.chunks_of(stage).collect();
    let mut found = Vec::new();
    let mut todo = vec![(Vec::new(), vec![[0; 3]; chunks.len()], 0)];
    while let Some((row, done, held)) = todo.pop() {
        if row.len() == 3 * chunks.len() * micro_batches as usize {
            found.push(row);
            continue;
        }
        for (at, chunk) in chunks.iter().enumerate() {
            for (kind, work) in [Pass::Forward, Pass::Inputs, Pass::Weights].into_iter().enumerate() {
                let number: u32 = done[at][kind];
                let most = if kind == 0 { micro_batches } else { done[at][kind - 1] };
                let action = Action::new(*chunk, work, number);
                let held = held + costs.change(action);
                if number < most && held <= costs.room[stage as usize] {
                    let (mut row, mut done): (Vec<Action>, Vec<[u32; 3]>) = (row.clone(), done.clone());
                    row.push(action);
                    done[at][kind] += 1;
                    todo.push((row, done, held));
                }
            }
        }
    }
    found
}

/// The shortest step over all rows of all stages, and how many were tried.
fn shortest(costs: &Costs, micro_batches: u32) -> (i64, usize) {
    let placement = &costs.placement;
    let all: Vec<Vec<Vec<Action>>> =
        (0..placement.stages).map(|stage| rows(costs, stage, micro_batches)).collect();
    let count: usize = all.iter().map(Vec::len).product();
    let step = |mut number: usize| {
        let rows = all.iter().map(|of_stage| {
            let row = of_stage[number % of_stage.len()].clone();
            number /= of_stage.len();
            row
        });
        let schedule = Schedule { placement: placement.clone(), micro_batches, rows: rows.collect() };
        costs.run(&schedule).ok().map(|run| run.step)
    };
    ((0..count).filter_map(step).min().unwrap(), count)
}

fn step(costs: &Costs, schedule: &Schedule) -> i64 {
    schedule.check().unwrap();
    assert!(costs.fits(schedule));
    costs.run(schedule).unwrap().step
}

#[test]
fn small_pipelines_get_the_best_schedule_of_all() {
    let mut random = Random(11);
    let mut tried = 0;
    for (placement, micro_batches, room, cases) in [
        (Placement::in_turn(2, 1), 3, (1, 3), 8),
        (Placement::in_turn(2, 1), 4, (1, 4), 3),
        (Placement::in_turn(3, 1), 2, (1, 2), 8),
        (Placement::in_turn(3, 1), 3, (1, 3), 3),
        (Placement::in_turn(3, 1), 4, (1, 2), 3),
        (Placement::in_v(2), 1, (1, 1), 5),
        (Placement::in_turn(2, 2), 1, (1, 1), 5),
    ] {
        for _ in 0..cases {
            let costs = random.costs(&placement, room);
            let found = step(&costs, &searched(&costs, micro_batches).unwrap());
            let (best, count) = shortest(&costs, micro_batches);
            assert_eq!(found, best, "{costs:?}");
            tried += count;
        }
    }
    println!("{tried} schedules");
}

#[test]
fn a_searched_schedule_is_never_longer_than_a_named_one_that_fits() {
    let mut random = Random(5);
    let mut shorter = 0;
    for case in 0..100 {
        let stages = 2 + case % 4;
        let placement = match case % 3 {
            0 => Placement::in_turn(stages, 1),
            1 => Placement::in_turn(stages, 2),
            _ => Placement::in_v(stages),
        };
        let micro_batches = stages * (1 + case / 4 % 3);
        let costs = random.costs(&placement, (2, u64::from(2 * micro_batches)));
        let found = step(&costs, &searched(&costs, micro_batches).unwrap());
        let best = named(&costs, micro_batches).iter().map(|one| step(&costs, one)).min();
        assert!(best.is_none_or(|best| found <= best), "case {case}: {found}, {best:?}");
        shorter += u32::from(best.is_some_and(|best| found < best));
    }
    println!("{shorter} of 100 are shorter");
}
