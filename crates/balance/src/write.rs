//! A plan as one JSON object.

use serde_json::{Map, Value, json};

use crate::plan::{Layout, Plan, Unit};

/// The object that `unisono balance --json` prints. Costs and times are in the units of the problem: whole numbers for
/// costs, seconds with sequence parallelism. `solve_ms` is the caller's measurement.
pub fn plan_json(plan: &Plan, solve_ms: f64) -> Value {
    let number = |units: u64| match plan.unit {
        Unit::Whole(unit) => whole(u128::from(units) * u128::from(unit)),
        Unit::Seconds(_) => json!(plan.unit.scale(units)),
    };
    let numbers = |units: &[u64]| units.iter().map(|units| number(*units)).collect::<Vec<_>>();
    let mut object = Map::new();
    object.insert("makespan".into(), number(plan.makespan));
    object.insert("lower_bound".into(), number(plan.lower_bound));
    object.insert("gap".into(), json!(plan.gap()));
    object.insert("limit".into(), json!(plan.limit.name()));
    object.insert("loads".into(), json!(numbers(&plan.loads)));
    if !plan.phase_loads.is_empty() {
        let phases: Vec<_> = plan.phase_loads.iter().map(|loads| numbers(loads)).collect();
        object.insert("phase_loads".into(), json!(phases));
    }
    if !plan.phase_batches.is_empty() {
        object.insert("phase_micro_batches".into(), json!(plan.phase_batches));
        object.insert("moving".into(), number(plan.moving));
    }
    match &plan.layout {
        Layout::Ranks(ranks) => object.insert("micro_batches".into(), json!(ranks)),
        Layout::Groups(groups) => {
            let group = |group: &crate::plan::Group| json!({"ranks": group.ranks, "micro_batches": group.micro_batches});
            object.insert("groups".into(), groups.iter().map(group).collect())
        }
    };
    object.insert("tokens_max".into(), json!(plan.tokens_max));
    object.insert("algorithm".into(), json!(plan.algorithm));
    object.insert("solve_ms".into(), json!(solve_ms));
    object.insert("hash".into(), json!(format!("{:016x}", plan.hash())));
    Value::Object(object)
}

/// Whole numbers beyond 64 bits become the nearest float: JSON readers disagree about them.
fn whole(number: u128) -> Value {
    u64::try_from(number).map_or_else(|_| json!(number as f64), |number| json!(number))
}
