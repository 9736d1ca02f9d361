//! The plan as a table with a bar per rank, the naive split beside it.

use std::io::{Result, Write};

use balance::{Layout, Plan, Problem, Unit};

/// Ranks printed one by one; of more, the slowest, some in between and the fastest.
const ROWS: usize = 24;
const BAR: usize = 28;

/// Prints the summary, a row per rank, and what limits the result.
pub fn print(problem: &Problem, plan: &Plan, naive: &Plan, solve_ms: f64, out: &mut dyn Write) -> Result<()> {
    summary(problem, plan, naive, solve_ms, out)?;
    let full = slowest(plan).max(slowest(naive));
    writeln!(out, "\n rank {:>11}  {:<BAR$} {:>11}  arrival order", "load", "balanced", "load")?;
    for rank in shown(&plan.loads) {
        let Some(rank) = rank else {
            writeln!(out, "  ...")?;
            continue;
        };
        let (own, other) = (plan.unit.scale(plan.loads[rank]), naive.unit.scale(naive.loads[rank]));
        let (own_bar, other_bar) = (bar(own, full), bar(other, full));
        writeln!(
            out,
            "{rank:>5} {:>11}  {own_bar:<BAR$} {:>11}  {other_bar}",
            amount(plan.unit, own),
            amount(plan.unit, other)
        )?;
    }
    writeln!(out)?;
    limit(problem, plan, out)
}

fn slowest(plan: &Plan) -> f64 {
    plan.unit.scale(plan.loads.iter().copied().max().unwrap_or(0))
}

fn summary(problem: &Problem, plan: &Plan, naive: &Plan, solve_ms: f64, out: &mut dyn Write) -> Result<()> {
    let value = |units: u64| amount(plan.unit, plan.unit.scale(units));
    let naive_makespan = naive.unit.scale(naive.makespan);
    let over = naive_makespan / plan.unit.scale(plan.lower_bound).max(f64::MIN_POSITIVE);
    writeln!(
        out,
        "{} samples over {} ranks, objective {}, by {} in {solve_ms:.2} ms",
        problem.samples(),
        problem.ranks,
        problem.objective.name(),
        plan.algorithm.replace('_', " ")
    )?;
    writeln!(out, "makespan      {:>11}   {:.4} of the lower bound", value(plan.makespan), 1.0 + plan.gap())?;
    writeln!(out, "lower bound   {:>11}", value(plan.lower_bound))?;
    writeln!(out, "arrival order {:>11}   {over:.4} of the lower bound", amount(plan.unit, naive_makespan))?;
    if let Some(cap) = problem.tokens_per_rank {
        let (used, naive_used) = (plan.tokens_max, naive.tokens_max);
        writeln!(
            out,
            "tokens        {used:>11}   of {cap} that a rank can hold (arrival order: {naive_used})"
        )?;
    }
    let micro_batches = match &plan.layout {
        Layout::Ranks(ranks) => ranks.iter().map(Vec::len).max().unwrap_or(0),
        Layout::Groups(groups) => {
            writeln!(out, "groups        {:>11}   {}", groups.len(), degrees(plan))?;
            groups.iter().map(|group| group.micro_batches.len()).max().unwrap_or(0)
        }
    };
    writeln!(out, "micro-batches {micro_batches:>11}   on the rank with most")
}

/// How many groups there are of each size.
fn degrees(plan: &Plan) -> String {
    let Layout::Groups(groups) = &plan.layout else { return String::new() };
    let mut counts = std::collections::BTreeMap::new();
    for group in groups {
        *counts.entry(group.ranks.len()).or_insert(0) += 1;
    }
    let texts = counts.iter().rev().map(|(size, count)| format!("{count} of {size} ranks"));
    texts.collect::<Vec<_>>().join(", ")
}

/// All ranks if they are few; else the slowest third, a middle third and the fastest third, with gaps.
fn shown(loads: &[u64]) -> Vec<Option<usize>> {
    if loads.len() <= ROWS {
        return (0..loads.len()).map(Some).collect();
    }
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by_key(|rank| (std::cmp::Reverse(loads[*rank]), *rank));
    let third = ROWS / 3;
    let middle = order.len() / 2 - third / 2;
    let parts = [&order[..third], &order[middle..middle + third], &order[order.len() - third..]];
    let mut rows = Vec::new();
    for part in parts {
        rows.extend(part.iter().copied().map(Some));
        rows.push(None);
    }
    rows.pop();
    rows
}

fn bar(value: f64, full: f64) -> String {
    let eighths = if full > 0.0 { (value / full * (BAR * 8) as f64).round() as usize } else { 0 };
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}

/// A cost with four digits, or seconds.
pub fn amount(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Seconds(_) => format!("{value:.4} s"),
        Unit::Whole(_) if value < 1e6 => format!("{value:.0}"),
        Unit::Whole(_) => format!("{value:.4e}"),
    }
}

/// Whether larger gains are left to groups that split within a step.
fn kept(problem: &Problem, plan: &Plan) -> bool {
    let free_groups =
        problem.objective == balance::Objective::Free && matches!(plan.layout, Layout::Groups(_));
    free_groups && plan.gap() > 0.005 && plan.gap() <= 0.03 && plan.algorithm != "nested_groups"
}

fn limit(problem: &Problem, plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let longest = |sample: &usize| problem.lengths.iter().map(|phase| phase[*sample]).sum::<u64>();
    let giant = (0..problem.samples()).max_by_key(longest).unwrap_or(0);
    match plan.limit {
        balance::Limit::Mean | balance::Limit::LargeGroups if kept(problem, plan) => {
            writeln!(
                out,
                "limited by groups that stay through the step: others would gain no more than 3 percent"
            )
        }
        balance::Limit::Mean if plan.gap() > 0.02 && problem.tokens_per_rank.is_some() => {
            writeln!(out, "limited by the cap: micro-batches that fit cannot be made more alike than this")
        }
        balance::Limit::Mean => writeln!(out, "limited by the mean: all ranks work nearly all the time"),
        balance::Limit::Giant => writeln!(
            out,
            "limited by one giant sample: number {giant}, of length {}, takes longer than the mean rank",
            longest(&giant)
        ),
        balance::Limit::Pigeonhole => {
            writeln!(out, "limited by few samples per rank: some rank must take two of the large ones")
        }
        balance::Limit::LargeGroups => {
            writeln!(
                out,
                "limited by long samples: they need large groups of ranks, whose exchanges take time"
            )
        }
    }
}
