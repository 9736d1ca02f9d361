//! Every algorithm, and what people do without one, on the same problem.

use std::{
    io::{Result, Write},
    time::Instant,
};

use balance::{Baseline, Plan, Problem, SequenceParallel, Tier};

use super::table::amount;

/// One line per algorithm: makespan, ratio to the lower bound, time.
pub fn print(problem: &Problem, out: &mut dyn Write) -> Result<()> {
    let plans: Vec<_> = variants(problem).into_iter().map(|(name, problem)| solve(name, &problem)).collect();
    let bound = plans.iter().flatten().next().map_or(0.0, |row| row.1.unit.scale(row.1.lower_bound));
    let (samples, ranks) = (problem.samples(), problem.ranks);
    writeln!(out, "{samples} samples over {ranks} ranks, objective {}", problem.objective.name())?;
    writeln!(out, "{:<18}{:>13}{:>10}{:>12}  found by", "", "makespan", "ratio", "ms")?;
    for (baseline, name) in Baseline::ALL {
        let start = Instant::now();
        if let Ok(plan) = balance::naive(problem, baseline) {
            row(out, name, &plan, bound, start.elapsed().as_secs_f64() * 1e3)?;
        }
    }
    for (name, plan, ms) in plans.iter().flatten() {
        row(out, name, plan, bound, *ms)?;
    }
    if let Some((_, plan, _)) = plans.iter().flatten().next() {
        writeln!(out, "{:<18}{:>13}{:>10}", "lower bound", amount(plan.unit, bound), "1.00000")?;
    }
    Ok(())
}

/// The problem as it is with every tier; with groups, which no tier changes, also with every single degree.
fn variants(problem: &Problem) -> Vec<(String, Problem)> {
    let Some(parallel) = &problem.sequence_parallel else {
        let with =
            |(tier, name): &(Tier, &str)| ((*name).to_owned(), Problem { tier: *tier, ..problem.clone() });
        return Tier::ALL.iter().map(with).collect();
    };
    let with = |degree: &usize| {
        let parallel = SequenceParallel { degrees: vec![*degree], ..parallel.clone() };
        (format!("all groups of {degree}"), Problem { sequence_parallel: Some(parallel), ..problem.clone() })
    };
    std::iter::once(("auto".to_owned(), problem.clone())).chain(parallel.degrees.iter().map(with)).collect()
}

fn solve(name: String, problem: &Problem) -> Option<(String, Plan, f64)> {
    let start = Instant::now();
    let plan = balance::solve(problem).ok()?;
    Some((name, plan, start.elapsed().as_secs_f64() * 1e3))
}

fn row(out: &mut dyn Write, name: &str, plan: &Plan, bound: f64, ms: f64) -> Result<()> {
    let makespan = plan.unit.scale(plan.makespan);
    let ratio = makespan / bound.max(f64::MIN_POSITIVE);
    writeln!(out, "{name:<18}{:>13}{ratio:>10.5}{ms:>12.3}  {}", amount(plan.unit, makespan), plan.algorithm)
}
