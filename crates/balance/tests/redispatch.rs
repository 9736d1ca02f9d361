//! Two phases with a price for moving.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use unisono_balance::{Cost, Problem, solve};

/// Phases that no single assignment balances: encoder work and model work are of different samples' making.
fn problem(moving: Option<u64>) -> Problem {
    let lengths = vec![vec![9, 9, 9, 1, 1, 1], vec![1, 1, 7, 8, 8, 2]];
    Problem { lengths, costs: vec![Cost::polynomial(100, 0, 0); 2], ranks: 2, moving, ..Problem::default() }
}

#[test]
fn samples_move_between_phases_where_that_pays() {
    let fixed = solve(&problem(None)).unwrap();
    let cheap = solve(&problem(Some(1))).unwrap();
    let dear = solve(&problem(Some(100_000))).unwrap();
    assert!(cheap.makespan <= fixed.makespan);
    assert_eq!(dear.makespan, fixed.makespan);
    for plan in [&fixed, &cheap, &dear] {
        let phases: u64 = plan.phase_loads.iter().map(|loads| loads.iter().max().unwrap()).sum();
        assert_eq!(plan.makespan, phases + plan.moving);
        for batches in &plan.phase_batches {
            let mut all: Vec<u32> = batches.concat().concat();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        }
    }
}

#[test]
fn a_price_that_overflows_is_refused() {
    assert!(solve(&problem(Some(u64::MAX))).unwrap_err().message.contains("18446744073709551615"));
}
