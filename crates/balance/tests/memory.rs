//! What solving takes of memory: a test of its own, because the kernel's figure is that of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use unisono_balance::{Cost, Problem, solve};

/// Most memory that this process has held so far, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_large_partition_takes_less_than_ten_megabytes() {
    // Many short samples and few long ones, so that local search has work.
    let lengths = (0..65_536_u64).map(|id| 500 + (id * id % 65_521) * (id % 7 * 2 / 6 + 1) / 2).collect();
    let problem = Problem {
        lengths: vec![lengths],
        costs: vec![Cost::polynomial(29_696, 1, 0)],
        ranks: 4096,
        ..Problem::default()
    };
    let before = peak();
    let plan = solve(&problem).unwrap();
    let taken = peak() - before;
    assert!(plan.gap() < 0.001, "{}", plan.gap());
    assert!(taken < 10_000_000, "{taken} bytes");
}
