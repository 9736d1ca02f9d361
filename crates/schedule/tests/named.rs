//! Named schedules: their bubbles and memory are the published ones, and none ever stops.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use unisono_schedule::{Action, Costs, Name, Pass, Placement, Run, Schedule};

/// Stages and micro-batches of the table of measured schedules.
const SIZES: [(u32, u32); 5] = [(2, 4), (4, 8), (4, 16), (8, 16), (8, 32)];

fn ran(name: Name, stages: u32, chunks: u32, micro_batches: u32) -> Run {
    let schedule = name.schedule(stages, chunks, micro_batches);
    Costs::even(&schedule.placement).run(&schedule).unwrap()
}

/// What of the step stages are idle, in time of a chunk, and the most chunks under way.
fn idle_and_held(name: Name, stages: u32, chunks: u32, micro_batches: u32) -> (i64, i64) {
    let run = ran(name, stages, chunks, micro_batches);
    (run.step - i64::from(3 * chunks * micro_batches), run.peaks.into_iter().max().unwrap())
}

/// What the stage that waits longest is idle between its first action and its last one.
fn idle_within(name: Name, stages: u32, chunks: u32, micro_batches: u32) -> i64 {
    let spans = ran(name, stages, chunks, micro_batches).spans;
    spans.iter().map(|(begin, end)| end - begin).max().unwrap() - i64::from(3 * chunks * micro_batches)
}

/// The step of DualPipeV where a forward with a backward behind it is one action, as torch runs it; its last stage's first pair is none.
fn step_in_pairs(stages: u32, micro_batches: u32) -> i64 {
    let rows = Name::DualPipeV.schedule(stages, 2, micro_batches).rows;
    let mut pairs: Vec<Vec<Vec<Action>>> = rows.into_iter().map(paired).collect();
    let last = &mut pairs[stages as usize - 1];
    let first = last.iter().position(|one| one.len() == 2).unwrap();
    let both = last.remove(first);
    both.into_iter().rev().for_each(|one| last.insert(first, vec![one]));
    let mut ends: HashMap<(u32, bool, u32), i64> = HashMap::new();
    let (mut next, mut now) = (vec![0; pairs.len()], vec![0; pairs.len()]);
    while next.iter().zip(&pairs).any(|(next, row)| *next < row.len()) {
        for stage in 0..pairs.len() {
            while let Some(pair) = pairs[stage].get(next[stage]) {
                let ready = pair.iter().map(|one| match (one.work, one.chunk) {
                    (Pass::Forward, 0) | (Pass::Weights, _) => Some(0),
                    (Pass::Forward, chunk) => ends.get(&(chunk - 1, true, one.micro_batch)).copied(),
                    (_, chunk) if chunk + 1 == 2 * stages => {
                        ends.get(&(chunk, true, one.micro_batch)).copied()
                    }
                    (_, chunk) => ends.get(&(chunk + 1, false, one.micro_batch)).copied(),
                });
                let Some(ready) = ready.collect::<Option<Vec<i64>>>() else { break };
                let takes = pair.iter().map(|one| if one.work == Pass::Backward { 2 } else { 1 });
                now[stage] = ready.into_iter().fold(now[stage], i64::max) + takes.sum::<i64>();
                for one in pair.iter().filter(|one| one.work != Pass::Weights) {
                    ends.insert((one.chunk, one.work == Pass::Forward, one.micro_batch), now[stage]);
                }
                next[stage] += 1;
            }
        }
    }
    now.into_iter().max().unwrap()
}

/// A forward with the backward behind it as one.
fn paired(row: Vec<Action>) -> Vec<Vec<Action>> {
    row.into_iter().fold(Vec::new(), |mut pairs: Vec<Vec<Action>>, action| {
        match pairs.last_mut() {
            Some(last)
                if action.work == Pass::Backward && last.len() == 1 && last[0].work == Pass::Forward =>
            {
                last.push(action);
            }
            _ => pairs.push(vec![action]),
        }
        pairs
    })
}

#[test]
fn bubbles_and_memory_are_those_of_the_published_formulas() {
    for (stages, count) in SIZES {
        let (p, m) = (i64::from(stages), i64::from(count));
        assert_eq!(idle_and_held(Name::GPipe, stages, 1, count), (3 * (p - 1), m));
        assert_eq!(idle_and_held(Name::OneForwardOneBackward, stages, 1, count), (3 * (p - 1), p));
        // (P - 1)(F + B) / v in time of a chunk, each a v-th of the stage; P (1 + (P - 1) / (P v)) stages under way, each of v chunks.
        for chunks in [2, 4] {
            let held = p * i64::from(chunks) + p - 1;
            assert_eq!(idle_and_held(Name::Interleaved, stages, chunks, count), (3 * (p - 1), held));
        }
        // (P - 1)(F + I - W) and (P - 1)(F + I - 2 W).
        assert_eq!(idle_within(Name::ZeroBubble1, stages, 1, count), p - 1);
        assert_eq!(idle_and_held(Name::ZeroBubble1, stages, 1, count), (p - 1, p));
        assert_eq!(idle_within(Name::ZeroBubble2, stages, 1, count), 0);
        assert_eq!(idle_and_held(Name::ZeroBubble2, stages, 1, count), (p - 1, 2 * p - 1));
        // No stage waits; the step is longer by what the last stage begins later.
        assert_eq!(idle_within(Name::ZeroBubbleV, stages, 2, count), 0);
        assert_eq!(idle_and_held(Name::ZeroBubbleV, stages, 2, count), (p - 1, 2 * p));
        // (P - 1)(F&B + B - 3 W), where both of a pair end together; forward is done before, and its result is sent then.
        assert_eq!(step_in_pairs(stages, count) - 6 * m, 2 * (p - 1));
        assert_eq!(idle_and_held(Name::DualPipeV, stages, 2, count), (p - 1, 2 * p + 1));
    }
}

#[test]
fn bubbles_are_those_of_torchs_own_orders() {
    // Thousandths of the step: GPipe and 1F1B, GPipe with two chunks, interleaved with two and with four, ZB-V, DualPipeV.
    let expected = [
        [200, 111, 111, 59, 40, 77],
        [273, 158, 158, 86, 59, 111],
        [158, 86, 86, 45, 30, 59],
        [304, 179, 179, 99, 68, 127],
        [179, 99, 99, 52, 35, 68],
    ];
    for ((stages, count), row) in SIZES.into_iter().zip(expected) {
        let share = |name: Name, chunks: u32| {
            let run = ran(name, stages, chunks, count);
            let idle = 1.0 - f64::from(3 * chunks * count) / run.step as f64;
            (idle * 1000.0).round() as u32
        };
        let pairs = 1.0 - f64::from(6 * count) / step_in_pairs(stages, count) as f64;
        let found = [
            share(Name::GPipe, 1),
            share(Name::GPipe, 2),
            share(Name::Interleaved, 2),
            share(Name::Interleaved, 4),
            share(Name::ZeroBubbleV, 2),
            (pairs * 1000.0).round() as u32,
        ];
        assert_eq!(found, row, "{stages} stages, {count} micro-batches");
        assert_eq!(share(Name::OneForwardOneBackward, 1), row[0]);
    }
}

#[test]
fn every_named_schedule_computes_all_once_and_never_stops() {
    for (name, _) in Name::ALL {
        for chunks in (1..5).filter(|chunks| name.chunks(Some(*chunks)).is_ok()) {
            for stages in 1..9 {
                for micro_batches in 1..20 {
                    name.schedule(stages, chunks, micro_batches).check().unwrap();
                }
            }
        }
    }
}

fn row(name: Name, stage: usize, stages: u32, chunks: u32, micro_batches: u32) -> String {
    name.schedule(stages, chunks, micro_batches).lines()[stage].replace(',', " ")
}

#[test]
fn stages_run_the_actions_of_the_published_schedules() {
    assert_eq!(row(Name::GPipe, 0, 2, 1, 3), "0F0 0F1 0F2 0B0 0B1 0B2");
    assert_eq!(row(Name::GPipe, 1, 2, 2, 2), "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1");
    assert_eq!(row(Name::OneForwardOneBackward, 0, 3, 1, 4), "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3");
    assert_eq!(row(Name::OneForwardOneBackward, 2, 3, 1, 3), "2F0 2B0 2F1 2B1 2F2 2B2");
    assert_eq!(row(Name::OneForwardOneBackward, 0, 4, 1, 2), "0F0 0F1 0B0 0B1");
    assert_eq!(row(Name::Interleaved, 1, 2, 2, 2), "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1");
    assert_eq!(row(Name::ZeroBubble1, 0, 2, 1, 3), "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2");
    assert_eq!(row(Name::ZeroBubble1, 1, 2, 1, 3), "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2");
    assert_eq!(row(Name::ZeroBubbleV, 1, 2, 2, 2), "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1");
}

#[test]
fn a_schedule_has_the_chunks_that_its_name_allows() {
    assert_eq!(Name::Interleaved.chunks(None).unwrap(), 2);
    assert_eq!(Name::GPipe.chunks(Some(3)).unwrap(), 3);
    let refused = Name::ZeroBubble1.chunks(Some(2)).unwrap_err();
    assert_eq!(refused.message, "the schedule `zb-h1` with 2 chunks on each stage");
    assert!(Name::ZeroBubbleV.chunks(Some(1)).is_err());
    assert!(Name::Interleaved.chunks(Some(1)).is_err());
}

#[test]
fn a_schedule_is_read_as_torch_writes_it() {
    let text =
        "0F0,0SEND_F0,0F1,,0RECV_B0,0B0,0B1,0REDUCE_GRAD\n1RECV_F0,(1F0;1B0)OVERLAP_F_B, 1F1,1I1 ,1W1\n";
    let schedule = Schedule::from_csv("own.csv", text).unwrap();
    assert_eq!(schedule.placement, Placement::in_turn(2, 1));
    assert_eq!(schedule.micro_batches, 2);
    assert_eq!(schedule.lines(), ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1I1,1W1"]);
    for (name, _) in Name::ALL {
        let made = name.schedule(4, name.chunks(None).unwrap(), 8);
        assert_eq!(Schedule::from_csv("own.csv", &made.lines().join("\n")).unwrap(), made);
    }
}

#[test]
fn a_file_that_is_no_schedule_is_refused_with_its_line_and_the_action() {
    for (text, line, said) in [
        ("0F0,0B0\n1F0,1X0", 2, "stage 1: `1X0` is no action"),
        ("0F0,0B0\n1F0,B0", 2, "stage 1: `B0` is no action"),
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1", 1, "stage 0: `0B1` is missing"),
        ("0F0,0B0\n1F0,1I0", 2, "stage 1: `1W0` is missing"),
        ("0F0,0B0,0F0\n1F0,1B0", 1, "stage 0: `0F0` is action 1 and action 3"),
        ("0F0,0B0,0W0\n1F0,1B0", 1, "stage 0: `0W0` is beside `0B0`"),
        ("0F0,0B0\n1F0,0B0", 2, "stage 1: `0B0`, of a chunk of stage 0"),
        ("0F0,0B0,2F0,2B0\n", 0, "chunk 1 of 3 is on no stage"),
        ("\n", 0, "a schedule without an action"),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            1,
            "stage 0: action 2 of its row, `0B0`, waits without end for `1B0` of stage 1",
        ),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1I0,1W0,1B1",
            1,
            "stage 0: action 2 of its row, `0B0`, waits without end for `1I0` of stage 1",
        ),
    ] {
        let refused = Schedule::from_csv("own.csv", text).map(|_| ()).unwrap_err();
        assert_eq!(refused.message, said, "{text}");
        assert_eq!(refused.place.as_ref().map(|place| place.line), Some(line), "{text}");
    }
}
