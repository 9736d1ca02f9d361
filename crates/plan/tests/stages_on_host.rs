//! What pipeline stages have on the host, under limits that each keeps by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/layers.rs"]
mod layers;

use cluster::{
    Cluster,
    testing::{link, uniform},
};
use indexmap::IndexMap;
use layers::step;
use schedule::{Kind, Name};
use unisono_plan::{Offloading, Plan, PlanSettings, Recomputation, ScheduleWish, plan_graph, program};

const LAYERS: usize = 8;
/// A width and rows at which every result of a micro-batch is larger than what stays in buffers.
const WIDTH: i64 = 2048;
const ROWS: i64 = 16384;
const MICRO_BATCHES: u32 = 4;
/// The bytes of a weight.
const WEIGHT: u64 = (WIDTH * WIDTH) as u64 * 4;

/// A machine whose link to the host is as wide as a tenth of its memory.
fn linked() -> Cluster {
    let mut cluster = uniform(1e14, 1e12, link(0.0, 1e11));
    cluster.device.host_bandwidth = Some(1e11);
    cluster.device.host_latency_ns = 10.0;
    cluster
}

fn settings() -> PlanSettings {
    PlanSettings {
        mesh: IndexMap::from([("stages".to_owned(), 2)]),
        micro_batches: Some(MICRO_BATCHES),
        schedule: Some(ScheduleWish::Kind(Kind::Named(Name::OneForwardOneBackward))),
        ..PlanSettings::default()
    }
}

fn planned(cluster: &Cluster, settings: &PlanSettings) -> base::Result<Plan> {
    let graph = step(LAYERS, (ROWS, WIDTH));
    let plan = plan_graph(&graph, cluster, settings)?;
    // The programs that run are those that are predicted, and a plan is as it is written.
    let stages = plan.stages.as_ref().unwrap();
    for (rank, stage) in (0..).zip(&stages.predicted) {
        let peak = memory::peak(&program(&graph, &plan, rank, |_| {})?);
        let (alive, _) = peak.within(settings.memory_limit.map(base::Bytes));
        assert_eq!((alive.total().0, peak.on_host.0), (stage.peak_bytes, stage.host_bytes));
    }
    assert_eq!(Plan::parse(&plan.text(), "plan.toml").unwrap(), plan);
    Ok(plan)
}

fn peaks(plan: &Plan) -> Vec<u64> {
    plan.stages.as_ref().unwrap().predicted.iter().map(|stage| stage.peak_bytes).collect()
}

#[test]
fn all_state_of_each_stage_is_on_its_host_where_that_is_asked_for() {
    let cluster = linked();
    let free = planned(&cluster, &settings()).unwrap();
    assert!(free.prediction.host_bytes == 0 && free.stages.as_ref().unwrap().host_state.is_empty());
    let state =
        planned(&cluster, &PlanSettings { offload: Some(Offloading::Optimizer), ..settings() }).unwrap();
    let stages = state.stages.as_ref().unwrap();
    let held: Vec<u64> = stages.predicted.iter().map(|stage| stage.host_state_bytes).collect();
    assert_eq!(held.iter().sum::<u64>(), LAYERS as u64 * WEIGHT);
    assert_eq!(stages.host_state.len(), 2);
    assert!(stages.offload.is_empty());
    let full = planned(&cluster, &PlanSettings { offload: Some(Offloading::Full), ..settings() }).unwrap();
    for (one, other) in full.stages.as_ref().unwrap().predicted.iter().zip(&stages.predicted) {
        assert_eq!(one.host_state_bytes, other.host_state_bytes);
        assert!(one.offloaded_bytes > other.offloaded_bytes || one.peak_bytes == other.peak_bytes);
    }
    // The first stage holds what forward leaves of two micro-batches, the last one of one.
    assert!(peaks(&full)[0] < peaks(&state)[0]);
    assert_ne!(full.fingerprint(), state.fingerprint());
}

#[test]
fn limits_that_stages_do_not_keep_alone_are_kept_with_a_host_and_by_no_more_than_is_needed() {
    let cluster = linked();
    let recompute = Some(Recomputation::None);
    let asked = PlanSettings { recompute, ..settings() };
    let free = planned(&cluster, &asked).unwrap();
    let mut kept = 0;
    let mut last = i64::MAX;
    for share in (60..100).step_by(5) {
        let limit = free.prediction.peak_bytes * share / 100;
        let limited = PlanSettings { memory_limit: Some(limit), ..asked.clone() };
        let without = plan_graph(
            &step(LAYERS, (ROWS, WIDTH)),
            &cluster,
            &PlanSettings { offload: Some(Offloading::None), ..limited.clone() },
        );
        let Ok(with) = planned(&cluster, &limited) else {
            assert!(without.is_err(), "{share} %");
            continue;
        };
        assert!(with.prediction.fits(Some(limit)), "{share} %");
        if without.is_err() {
            kept += 1;
            assert!(with.prediction.offloaded_bytes > 0);
            for (stage, before) in with.stages.as_ref().unwrap().predicted.iter().zip(peaks(&free)) {
                assert_eq!(stage.host_bytes > 0, before > limit, "{share} %");
            }
        }
        assert!(with.prediction.step_ns as f64 <= last as f64 * 1.02, "{share} %: slower than with less");
        last = last.min(with.prediction.step_ns);
    }
    assert!(kept > 2, "{kept}");
}

#[test]
fn the_host_of_a_stage_holds_no_more_than_it_has_memory() {
    let mut cluster = linked();
    cluster.device.host_memory_bytes = Some(3 * WEIGHT);
    for offload in [None, Some(Offloading::Full), Some(Offloading::Optimizer)] {
        let free = planned(&cluster, &settings()).unwrap();
        for share in [70, 80, 90] {
            let memory_limit = Some(free.prediction.peak_bytes * share / 100);
            let Ok(plan) = planned(&cluster, &PlanSettings { offload, memory_limit, ..settings() }) else {
                continue;
            };
            for stage in &plan.stages.as_ref().unwrap().predicted {
                assert!(stage.host_bytes <= 3 * WEIGHT, "{stage:?}");
            }
        }
    }
}

#[test]
fn a_limit_that_only_more_memory_of_the_host_could_keep_says_so() {
    let mut cluster = linked();
    let asked = PlanSettings { recompute: Some(Recomputation::None), ..settings() };
    let free = planned(&cluster, &asked).unwrap();
    cluster.device.host_memory_bytes = Some(1000);
    let memory_limit = Some(free.prediction.peak_bytes * 85 / 100);
    // A machine that was measured is its own host: one that is known by its network is not.
    let mut network = Cluster::preset("h100:2").unwrap();
    network.device.host_memory_bytes = Some(1000);
    for cluster in [cluster, network] {
        let refused = planned(&cluster, &PlanSettings { memory_limit, ..asked.clone() }).unwrap_err();
        assert_eq!(refused.code, base::Code::NO_PLAN);
        let cause = refused.cause.unwrap();
        if cluster.ranks().is_some() {
            assert!(
                cause.contains("bytes of memory of the host needs") && cause.ends_with("but 1000 are given"),
                "{cause}"
            );
        }
    }
}
