//! A plan as one JSON object.

use serde::Serialize;

use crate::plan::{Layout, Plan, Unit};

/// The object that `unisono balance --json` prints. Costs and times are in the units of the problem: whole numbers for
/// costs, exact beyond 64 bits too, and seconds with sequence parallelism. `solve_ms` is the caller's measurement.
pub fn plan_json(plan: &Plan, solve_ms: f64) -> String {
    let number = |units: u64| Number::of(plan.unit, units);
    let numbers = |units: &[u64]| units.iter().map(|units| number(*units)).collect::<Vec<_>>();
    let moved = !plan.phase_batches.is_empty();
    let answer = Answer {
        makespan: number(plan.makespan),
        lower_bound: number(plan.lower_bound),
        gap: plan.gap(),
        limit: plan.limit.name(),
        loads: numbers(&plan.loads),
        phase_loads: plan.phase_loads.iter().map(|loads| numbers(loads)).collect(),
        phase_micro_batches: &plan.phase_batches,
        moving: moved.then(|| number(plan.moving)),
        work: work(&plan.layout),
        tokens_max: plan.tokens_max,
        algorithm: &plan.algorithm,
        solve_ms,
        hash: format!("{:016x}", plan.hash()),
    };
    serde_json::to_string(&answer).expect("an answer holds numbers, names and lists")
}

#[derive(Serialize)]
struct Answer<'a> {
    makespan: Number,
    lower_bound: Number,
    gap: f64,
    limit: &'a str,
    loads: Vec<Number>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    phase_loads: Vec<Vec<Number>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    phase_micro_batches: &'a [Vec<Vec<Vec<u32>>>],
    #[serde(skip_serializing_if = "Option::is_none")]
    moving: Option<Number>,
    #[serde(flatten)]
    work: Work<'a>,
    tokens_max: u64,
    algorithm: &'a str,
    solve_ms: f64,
    hash: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Number {
    Whole(u128),
    Seconds(f64),
}

impl Number {
    fn of(unit: Unit, units: u64) -> Self {
        match unit {
            Unit::Whole(unit) => Self::Whole(u128::from(units) * u128::from(unit)),
            Unit::Seconds(_) => Self::Seconds(unit.scale(units)),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Work<'a> {
    MicroBatches(&'a [Vec<Vec<u32>>]),
    Groups(Vec<GroupWork<'a>>),
}

#[derive(Serialize)]
struct GroupWork<'a> {
    ranks: &'a [u32],
    micro_batches: &'a [Vec<u32>],
}

fn work(layout: &Layout) -> Work<'_> {
    match layout {
        Layout::Ranks(ranks) => Work::MicroBatches(ranks),
        Layout::Groups(groups) => {
            let groups = groups
                .iter()
                .map(|group| GroupWork { ranks: &group.ranks, micro_batches: &group.micro_batches });
            Work::Groups(groups.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{cost::Cost, plan_json, problem::Problem, solve};

    #[test]
    fn costs_beyond_64_bits_are_written_exactly() {
        let problem = Problem {
            lengths: vec![vec![2_000_000_000, 1]],
            costs: vec![Cost::polynomial(0, 7_000_000_001, 0)],
            ranks: 1,
            ..Problem::default()
        };
        let text = plan_json(&solve(&problem).unwrap(), 0.0);
        let makespan = 7_000_000_001_u128 * (4_000_000_000_000_000_000 + 1);
        assert!(
            text.starts_with(&format!("{{\"makespan\":{makespan},\"lower_bound\":{makespan},")),
            "{text}"
        );
    }
}
