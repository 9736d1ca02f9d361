//! How good plans are on seeded lengths in the shape of long-tail text and of video clips: what the documentation promises.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use unisono_balance::{Cost, Objective, Plan, Problem, SequenceParallel, Tier, solve};

/// Numbers between 0 and 1 from `SplitMix64`.
fn uniform(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Log-normal with a median of 342 tokens, near enough: twelve uniform numbers make a normal one.
fn text(count: usize, seed: u64) -> Vec<u64> {
    let mut draw = uniform(seed);
    let mut normal = move || (0..12).map(|_| draw()).sum::<f64>() - 6.0;
    (0..count).map(|_| (342.0 * (1.1 * normal()).exp()).clamp(32.0, 131_072.0) as u64).collect()
}

/// Frames of four resolutions, up to 41 of them.
fn video(count: usize, seed: u64) -> Vec<u64> {
    let mut draw = uniform(seed);
    let mut clip = move || {
        let per_frame = [1560, 1560, 3600, 900, 400][(draw() * 5.0) as usize];
        per_frame * (1 + (-(draw() * draw()).ln() * 16.0) as u64).min(41)
    };
    (0..count).map(|_| clip()).collect()
}

fn plain(lengths: Vec<u64>, ranks: usize) -> Problem {
    Problem {
        lengths: vec![lengths],
        costs: vec![Cost::polynomial(24_576, 1, 0)],
        ranks,
        ..Problem::default()
    }
}

fn above_bound(plan: &Plan) -> f64 {
    plan.makespan as f64 / plan.lower_bound as f64 - 1.0
}

#[test]
fn plain_partitions_are_within_a_thousandth_and_lpt_within_a_hundredth() {
    for (ranks, seed) in [(8, 1), (61, 2), (64, 3), (512, 4)] {
        for lengths in [text(8 * ranks, seed), video(8 * ranks, seed)] {
            let problem = plain(lengths, ranks);
            let plan = solve(&problem).unwrap();
            assert!(above_bound(&plan) <= 0.001, "{ranks}, {seed}: {}", above_bound(&plan));
            let lpt = solve(&Problem { tier: Tier::Lpt, ..problem }).unwrap();
            assert!(above_bound(&lpt) <= 0.011, "{ranks}, {seed}: {}", above_bound(&lpt));
        }
    }
}

/// Clips of few lengths that differ much, as buckets of resolution and duration give them: exchanges between ranks get stuck there.
fn clips(count: usize, seed: u64) -> Vec<u64> {
    let mut draw = uniform(seed);
    let mut clip = move || {
        let patches = [220, 405, 880, 1620, 3600][(draw() * 5.0) as usize];
        let frames = [1, 4, 8, 15, 30][(draw() * 5.0) as usize];
        patches * frames
    };
    (0..count).map(|_| clip()).collect()
}

#[test]
fn the_automatic_tier_is_never_worse_than_a_quick_one() {
    let mut won = 0;
    for seed in 0..60 {
        let lengths = if seed % 2 == 0 { clips(512, seed) } else { video(512, seed) };
        let problem = plain(lengths, 64);
        let makespan = |tier| solve(&Problem { tier, ..problem.clone() }).unwrap().makespan;
        let (auto, multifit) = (makespan(Tier::Auto), makespan(Tier::Multifit));
        assert!(auto <= multifit.min(makespan(Tier::Lpt)), "{seed}: {auto} where multifit finds {multifit}");
        won += u32::from(solve(&problem).unwrap().algorithm == "multifit");
    }
    assert!(won > 0, "multifit found nothing better");
}

#[test]
fn equal_counts_are_within_a_hundredth_and_two_phases_within_two() {
    for seed in 1..4 {
        let (encoder, model) = (video(1024, seed), text(1024, seed));
        let equal = solve(&Problem { equal_count: true, ..plain(model.clone(), 64) }).unwrap();
        assert!(above_bound(&equal) <= 0.01, "{seed}: {}", above_bound(&equal));
        let costs = vec![Cost::polynomial(7680, 1, 0), Cost::polynomial(24_576, 1, 0)];
        let phases =
            solve(&Problem { lengths: vec![encoder, model], costs, ..plain(Vec::new(), 16) }).unwrap();
        assert!(above_bound(&phases) <= 0.02, "{seed}: {}", above_bound(&phases));
    }
}

/// A 14B video model or a 7B language model on nodes of eight: cost, bytes per token, tokens that a rank holds.
fn grouped(lengths: Vec<u64>, (cost, bytes, cap): (Cost, f64, u64), objective: Objective) -> Problem {
    let parallel = SequenceParallel {
        degrees: vec![1, 2, 4, 8, 16, 32, 64],
        bytes_per_token: bytes,
        bandwidth: vec![(8, 300e9), (64, 40e9)],
        ranks_per_node: 8,
        rate: 4e14,
        passes: 4.0,
    };
    Problem {
        costs: vec![cost],
        tokens_per_rank: Some(cap),
        objective,
        sequence_parallel: Some(parallel),
        ..plain(lengths, 64)
    }
}

/// Above the seconds that all ranks need if each sample is on the degree that takes least, or above the bound if that is more.
fn above_ideal(problem: &Problem) -> f64 {
    let (parallel, cap) = (problem.sequence_parallel.as_ref().unwrap(), problem.tokens_per_rank.unwrap());
    let least = |length: &u64| {
        let operations = problem.costs[0].at(*length).unwrap() as f64;
        let fitting = parallel.degrees.iter().filter(|degree| *length <= cap * **degree as u64);
        let work = fitting.map(|degree| *degree as f64 * parallel.seconds(*length, operations, *degree));
        work.fold(f64::INFINITY, f64::min)
    };
    let ideal = problem.lengths[0].iter().map(least).sum::<f64>() / problem.ranks as f64;
    let plan = solve(problem).unwrap();
    plan.unit.scale(plan.makespan) / plan.unit.scale(plan.lower_bound).max(ideal) - 1.0
}

#[test]
fn groups_are_near_the_ideal() {
    let wan = || (Cost::polynomial(24_330_000_000, 819_200, 0), 4_915_200.0, 12_288);
    let language = || (Cost::polynomial(12_880_000_000, 262_144, 0), 3_145_728.0, 8192);
    for seed in 1..4 {
        let free = above_ideal(&grouped(video(512, seed), wan(), Objective::Free));
        assert!(free <= 0.03, "{seed}: {free}");
        let lockstep = above_ideal(&grouped(video(512, seed), wan(), Objective::Lockstep));
        assert!(lockstep <= 0.025, "{seed}: {lockstep}");
        let free = above_ideal(&grouped(text(512, seed), language(), Objective::Free));
        assert!(free <= 0.02, "{seed}: {free}");
        let lockstep = above_ideal(&grouped(text(512, seed), language(), Objective::Lockstep));
        assert!(lockstep <= 0.03, "{seed}: {lockstep}");
    }
}

#[test]
fn where_groups_that_stay_are_far_from_the_ideal_they_split() {
    let language = || (Cost::polynomial(12_880_000_000, 262_144, 0), 3_145_728.0, 8192);
    let mut split = 0;
    for seed in 1..9 {
        let problem = grouped(video(512, seed), language(), Objective::Free);
        let plan = solve(&problem).unwrap();
        assert!(above_ideal(&problem) <= 0.03, "{seed}: {}", above_ideal(&problem));
        if plan.algorithm == "nested_groups" {
            split += 1;
            assert!(above_bound(&plan) <= 0.01, "{seed}: {}", above_bound(&plan));
        }
    }
    assert!(split > 1, "{split}");
}
