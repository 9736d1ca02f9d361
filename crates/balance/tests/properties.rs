//! Random problems of every kind: nothing lost, no cap exceeded, values as an independent evaluation finds them, bounds
//! below brute-force optima, the same bytes again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use arbtest::arbitrary::{Result, Unstructured};
use unisono_balance::{Cost, Layout, Objective, Plan, Problem, SequenceParallel, Tier, Unit, solve};

fn problem(u: &mut Unstructured<'_>, most_samples: usize, most_ranks: usize) -> Result<Problem> {
    let ranks = u.int_in_range(1..=most_ranks)?;
    let phases = u.int_in_range(0..=5)? / 5 + 1;
    let longest = *u.choose(&[3_u64, 40, 5000])?;
    let count = u.int_in_range(1..=most_samples)?;
    let lengths: Vec<Vec<u64>> = (0..phases)
        .map(|phase| (0..count).map(|_| u.int_in_range(u64::from(phase == 0)..=longest)).collect())
        .collect::<Result<_>>()?;
    let cost = |u: &mut Unstructured<'_>| {
        Ok(Cost::polynomial(u.int_in_range(0..=50)?, u.int_in_range(0..=2)?, u.int_in_range(1..=100)?))
    };
    let costs = (0..phases).map(|_| cost(u)).collect::<Result<_>>()?;
    let largest = lengths.iter().flatten().copied().max().unwrap();
    let tokens_per_rank =
        if u.arbitrary()? { Some(largest + u.int_in_range(0..=2 * longest)?) } else { None };
    let mut problem = Problem { lengths, costs, ranks, tokens_per_rank, ..Problem::default() };
    problem.equal_micro_batches = u.arbitrary()?;
    problem.tier = u.choose(&Tier::ALL)?.0;
    if phases == 1 {
        problem.objective = u.choose(&Objective::ALL)?.0;
        let divisors: Vec<usize> = (1..=ranks).filter(|group| ranks % group == 0).collect();
        problem.shard_group = Some(*u.choose(&divisors)?);
        problem.stages = Some(u.int_in_range(1..=6)?);
        problem.equal_count = u.ratio(1, 4)?;
        if !problem.equal_count && u.arbitrary()? {
            problem.sequence_parallel = Some(parallel(u)?);
            let most =
                problem.sequence_parallel.as_ref().unwrap().degrees.iter().filter(|d| **d <= ranks).max();
            problem.tokens_per_rank = problem.tokens_per_rank.map(|cap| cap.div_ceil(*most.unwrap() as u64));
        }
    }
    Ok(problem)
}

fn parallel(u: &mut Unstructured<'_>) -> Result<SequenceParallel> {
    let node = *u.choose(&[1_usize, 2, 4, 6])?;
    let fitting = |degree: &usize| node.is_multiple_of(*degree) || degree.is_multiple_of(node);
    let others: Vec<usize> = (2..=12).filter(fitting).filter(|_| u.arbitrary().unwrap_or(false)).collect();
    Ok(SequenceParallel {
        degrees: [1].into_iter().chain(others).collect(),
        bytes_per_token: f64::from(u.int_in_range(0..=1000)?),
        bandwidth: vec![(node.max(1), 1e6), (64, 1e5)],
        ranks_per_node: node,
        rate: 1e6,
        passes: 3.0,
    })
}

/// A row of work: its ranks, and by micro-batch its samples.
type Row = (Vec<u32>, Vec<Vec<u32>>);

fn rows(plan: &Plan) -> Vec<Row> {
    match &plan.layout {
        Layout::Ranks(ranks) => {
            (0..).zip(ranks).map(|(rank, batches)| (vec![rank], batches.clone())).collect()
        }
        Layout::Groups(groups) => groups.iter().map(|g| (g.ranks.clone(), g.micro_batches.clone())).collect(),
    }
}

fn seconds(problem: &Problem, phase: usize, sample: u32, ranks: usize) -> f64 {
    let length = problem.lengths[phase][sample as usize];
    let cost = problem.costs[phase].at(length).unwrap() as f64;
    problem.sequence_parallel.as_ref().map_or(cost, |parallel| parallel.seconds(length, cost, ranks))
}

fn batch_seconds(problem: &Problem, phase: usize, batch: &[u32], ranks: usize) -> f64 {
    batch.iter().map(|sample| seconds(problem, phase, *sample, ranks)).sum()
}

/// The objective's value, from the definition.
fn evaluate(problem: &Problem, rows: &[Row]) -> f64 {
    let times = |row: &Row| -> Vec<f64> {
        row.1.iter().map(|batch| batch_seconds(problem, 0, batch, row.0.len())).collect()
    };
    let lockstep = |rows: &[&Row]| -> f64 {
        let steps = rows.iter().map(|row| row.1.len()).max().unwrap_or(0);
        let at = |row: &Row, step: usize| times(row).get(step).copied().unwrap_or(0.0);
        (0..steps).map(|step| rows.iter().map(|row| at(row, step)).fold(0.0, f64::max)).sum()
    };
    let all: Vec<&Row> = rows.iter().collect();
    match problem.objective {
        Objective::Free => (0..problem.lengths.len())
            .map(|phase| {
                let mut loads = vec![0.0; problem.ranks];
                for (ranks, batches) in rows {
                    let time: f64 =
                        batches.iter().map(|b| batch_seconds(problem, phase, b, ranks.len())).sum();
                    for rank in ranks {
                        loads[*rank as usize] += time;
                    }
                }
                loads.into_iter().fold(0.0, f64::max)
            })
            .sum(),
        Objective::Pipeline => {
            let bubbles = (problem.stages.unwrap() - 1) as f64;
            let one = |row: &Row| {
                times(row).iter().sum::<f64>() + bubbles * times(row).iter().copied().fold(0.0, f64::max)
            };
            rows.iter().map(one).fold(0.0, f64::max)
        }
        Objective::Lockstep => lockstep(&all),
        Objective::Grouped => {
            let size = problem.shard_group.unwrap() as u32;
            if rows.iter().any(|row| row.0[0] / size != row.0[row.0.len() - 1] / size) {
                return lockstep(&all);
            }
            let shard =
                |shard| all.iter().copied().filter(|row| row.0[0] / size == shard).collect::<Vec<_>>();
            (0..problem.ranks as u32 / size).map(|index| lockstep(&shard(index))).fold(0.0, f64::max)
        }
    }
}

fn check(problem: &Problem, plan: &Plan) {
    let rows = rows(plan);
    let mut seen: Vec<u32> = rows.iter().flat_map(|row| row.1.concat()).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..problem.lengths[0].len() as u32), "samples are lost or doubled");
    for phase in &problem.lengths {
        for (ranks, batch) in rows.iter().flat_map(|row| row.1.iter().map(|batch| (row.0.len(), batch))) {
            let tokens: u64 = batch.iter().map(|sample| phase[*sample as usize]).sum();
            let cap = problem.tokens_per_rank.map_or(u64::MAX, |cap| cap * ranks as u64);
            assert!(tokens <= cap, "a micro-batch of {tokens} tokens exceeds {cap}");
            assert!(tokens.div_ceil(ranks as u64) <= plan.tokens_max);
        }
    }
    check_groups(problem, &rows);
    let value = evaluate(problem, &rows);
    let told = plan.unit.scale(plan.makespan);
    assert!((value - told).abs() <= 1e-9 * value, "{value} is told as {told}");
    assert!(plan.lower_bound <= plan.makespan);
    if problem.equal_count {
        let counts = || rows.iter().map(|row| row.1.iter().map(Vec::len).sum::<usize>());
        assert!(counts().max().unwrap() - counts().min().unwrap() <= 1);
    }
    let even =
        problem.equal_micro_batches || matches!(problem.objective, Objective::Lockstep | Objective::Grouped);
    if even && problem.sequence_parallel.is_none() {
        assert!(rows.windows(2).all(|pair| pair[0].1.len() == pair[1].1.len()), "{rows:?}");
    }
}

/// Groups that work in the same step share no rank; each is aligned. Without lock-step, ranks do not wait for each other: of two
/// groups that share a rank, one has all ranks of the other and works before it.
fn check_groups(problem: &Problem, rows: &[Row]) {
    let node = problem.sequence_parallel.as_ref().map_or(1, |parallel| parallel.ranks_per_node) as u32;
    let steps = rows.iter().map(|row| row.1.len()).max().unwrap_or(0);
    for step in 0..steps {
        let active = |row: &&Row| row.1.get(step).is_some_and(|batch| !batch.is_empty());
        let mut ranks: Vec<u32> = rows.iter().filter(active).flat_map(|row| row.0.clone()).collect();
        ranks.sort_unstable();
        assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]), "groups of a step share a rank");
    }
    if matches!(problem.objective, Objective::Free | Objective::Pipeline) {
        for (index, (ranks, batches)) in rows.iter().enumerate() {
            for (others, later) in &rows[index + 1..] {
                let shared = others.iter().filter(|rank| ranks.contains(rank)).count();
                assert!(shared == 0 || problem.objective == Objective::Free && shared == others.len());
                let starts = later.iter().take_while(|batch| batch.is_empty()).count();
                assert!(shared == 0 || starts >= batches.len(), "{batches:?} and {later:?}");
            }
        }
    }
    for (ranks, _) in rows {
        let size = ranks.len() as u32;
        assert!(if size > node {
            ranks[0] % node == 0
        } else {
            ranks[0] / node == ranks[ranks.len() - 1] / node
        });
    }
}

#[test]
fn random_problems_of_every_kind_are_solved_truly() {
    base::testing::cases_from(1 << 10, 2000, |u| {
        let problem = problem(u, 60, 12)?;
        let plan = solve(&problem).unwrap();
        check(&problem, &plan);
        assert_eq!(plan, solve(&problem).unwrap(), "the same problem gives the same plan");
        Ok(())
    });
}

/// The smallest makespan over all assignments of samples to ranks.
fn optimum(costs: &[u64], loads: &mut [u64], equal: Option<&mut Vec<usize>>) -> u64 {
    let Some((cost, rest)) = costs.split_first() else { return *loads.iter().max().unwrap() };
    let mut counts = equal;
    let mut best = u64::MAX;
    for rank in 0..loads.len() {
        if counts.as_ref().is_some_and(|counts| counts[rank] == 0) {
            continue;
        }
        loads[rank] += cost;
        if let Some(counts) = counts.as_deref_mut() {
            counts[rank] -= 1;
        }
        best = best.min(optimum(rest, loads, counts.as_deref_mut()));
        if let Some(counts) = counts.as_deref_mut() {
            counts[rank] += 1;
        }
        loads[rank] -= cost;
    }
    best
}

#[test]
fn bounds_hold_and_the_exact_tier_is_exact_against_brute_force() {
    base::testing::cases(2000, |u| {
        let ranks = u.int_in_range(1..=3)?;
        let lengths: Vec<u64> =
            (0..u.int_in_range(1..=8)?).map(|_| u.int_in_range(1..=30)).collect::<Result<_>>()?;
        let equal_count = u.arbitrary()?;
        let problem = Problem {
            lengths: vec![lengths.clone()],
            costs: vec![Cost::polynomial(1, 0, 0)],
            ranks,
            equal_count,
            tier: Tier::Exact,
            ..Problem::default()
        };
        let mut shares: Vec<usize> =
            (0..ranks).map(|rank| (lengths.len() + ranks - 1 - rank) / ranks).collect();
        let best = optimum(&lengths, &mut vec![0; ranks], equal_count.then_some(&mut shares));
        let plan = solve(&problem).unwrap();
        assert!(plan.lower_bound <= best && plan.makespan >= best);
        assert!(equal_count || plan.makespan == best, "{lengths:?} on {ranks}: {} and {best}", plan.makespan);
        Ok(())
    });
}

#[test]
fn groups_are_never_worse_than_the_best_uniform_degree_with_lpt() {
    base::testing::cases_from(1 << 10, 2000, |u| {
        let mut mixed = problem(u, 40, 12)?;
        if mixed.sequence_parallel.is_none() {
            return Ok(());
        }
        mixed.objective = Objective::Free;
        let plan = solve(&mixed).unwrap();
        let Unit::Seconds(_) = plan.unit else { panic!("groups are timed in seconds") };
        for degree in mixed.sequence_parallel.clone().unwrap().degrees {
            let fits = mixed
                .tokens_per_rank
                .is_none_or(|cap| mixed.lengths[0].iter().all(|l| *l <= cap * degree as u64));
            if degree > mixed.ranks || !fits {
                continue;
            }
            let mut loads: Vec<f64> = vec![
                0.0;
                uniform_groups(
                    mixed.ranks,
                    degree,
                    mixed.sequence_parallel.as_ref().unwrap().ranks_per_node
                )
            ];
            let mut times: Vec<f64> =
                (0..mixed.lengths[0].len() as u32).map(|sample| seconds(&mixed, 0, sample, degree)).collect();
            times.sort_by(|a, b| b.total_cmp(a));
            for time in times {
                *loads.iter_mut().min_by(|a, b| a.total_cmp(b)).unwrap() += time;
            }
            let slowest = loads.into_iter().fold(0.0, f64::max);
            assert!(plan.unit.scale(plan.makespan) <= slowest * (1.0 + 1e-9), "degree {degree}: {slowest}");
        }
        Ok(())
    });
}

fn uniform_groups(ranks: usize, degree: usize, node: usize) -> usize {
    if degree > node {
        return ranks / degree;
    }
    (ranks / node) * (node / degree) + (ranks % node) / degree
}
