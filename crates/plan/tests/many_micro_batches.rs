//! Pipelines of so many micro-batches that a plan's figures come from programs of a few of them: what the whole programs do is what is said.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/layers.rs"]
mod layers;

use cluster::{
    Cluster,
    testing::{link, uniform},
};
use indexmap::IndexMap;
use ir::Graph;
use layers::step;
use schedule::{Kind, Name};
use timeline::step::Figures;
use unisono_plan::{Plan, PlanSettings, Recomputation, ScheduleWish, pipeline, plan_graph, summary};

const LAYERS: usize = 7;
const WIDTH: i64 = 1024;
/// Each micro-batch has so many rows, and its results are larger than what stays in buffers.
const ROWS: i64 = 1024;
/// More than a program of all of them is written out for: of 61 operations more than 2¹⁶.
const MICRO_BATCHES: u32 = 1202;

fn graph() -> Graph {
    step(LAYERS, (ROWS * i64::from(MICRO_BATCHES), WIDTH))
}

fn cluster() -> Cluster {
    uniform(1e14, 1e12, link(1000.0, 1e11))
}

fn settings(stages: u32, name: Name) -> PlanSettings {
    PlanSettings {
        mesh: IndexMap::from([("stages".to_owned(), stages)]),
        micro_batches: Some(MICRO_BATCHES),
        schedule: Some(ScheduleWish::Kind(Kind::Named(name))),
        ..PlanSettings::default()
    }
}

/// The plan, which the whole programs keep: in what they take, what each stage holds, and what an account says of them.
fn planned(settings: &PlanSettings) -> base::Result<Plan> {
    let (graph, cluster) = (graph(), cluster());
    let plan = plan_graph(&graph, &cluster, settings)?;
    let whole = pipeline(&graph, &plan, &cluster)?.unwrap();
    let near = |said: f64, found: f64, what: &str| {
        assert!((said / found - 1.0).abs() < 1e-4, "{what}: {said} is said, {found} is found");
    };
    let figures: Vec<Figures> =
        whole.timeline.ranks.iter().map(|rank| Figures::of(&whole.timeline, rank)).collect();
    let most = |of: fn(&Figures) -> i64| figures.iter().map(of).max().unwrap() as f64;
    near(plan.prediction.step_ns as f64, most(|one| one.step.0), "a step");
    let stages = plan.stages.as_ref().unwrap();
    for ((stage, program), figures) in stages.predicted.iter().zip(&whole.programs).zip(&figures) {
        let (alive, _) = memory::peak(program).within(settings.memory_limit.map(base::Bytes));
        near(stage.peak_bytes as f64, alive.total().0 as f64, "what a stage holds");
        near(stage.busy_ns as f64, figures.compute.0 as f64, "what a stage computes");
    }
    let summary = summary(&graph, None, &plan, &cluster, settings.memory_limit)?;
    let by_module: f64 = summary.account.modules.iter().map(|one| one.ms).sum();
    near(by_module * 1e6, most(|one| one.compute.0), "what modules compute");
    assert_eq!(Plan::parse(&plan.text(), "plan.toml").unwrap(), plan);
    Ok(plan)
}

#[test]
fn what_many_micro_batches_take_and_hold_follows_from_few_under_each_named_schedule() {
    for (name, text) in Name::ALL.into_iter().filter(|(name, _)| *name != Name::GPipe) {
        let plan = planned(&settings(if name == Name::Interleaved { 3 } else { 2 }, name)).unwrap();
        assert_eq!(plan.stages.unwrap().schedule.to_string(), text);
    }
}

#[test]
fn what_runs_again_in_few_micro_batches_does_in_all_of_them() {
    let asked = settings(2, Name::OneForwardOneBackward);
    let free = planned(&asked).unwrap();
    let all = planned(&PlanSettings { recompute: Some(Recomputation::Full), ..asked.clone() }).unwrap();
    assert!(all.prediction.peak_bytes < free.prediction.peak_bytes);
    let between = u64::midpoint(all.prediction.peak_bytes, free.prediction.peak_bytes);
    let limited = planned(&PlanSettings { memory_limit: Some(between), ..asked }).unwrap();
    assert!(limited.prediction.fits(Some(between)) && limited.prediction.recomputed_ns > 0);
    let again = |plan: &Plan| plan.stages.as_ref().unwrap().recompute.0.len();
    assert!((1000..again(&all)).contains(&again(&limited)), "{} of {}", again(&limited), again(&all));
}
