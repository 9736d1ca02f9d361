//! What runs again in backward under a memory limit is what trying everything finds, and the limit is kept.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chains;

use cost::Machine;
use ir::{Graph, Mesh, testing::Random};
use passes::{Positions, Repeatable, Settings, pipeline, settled};
use unisono_plan::{Recomputation, Request, search};

use crate::chains::{Compared, Free, machine, random_step, request};

/// What is lost at most where not everything can be tried.
const LOST: f64 = 1.02;

#[test]
fn under_any_limit_the_fastest_choice_is_found() {
    let (cluster, mesh, unsaid) = (machine(), Mesh::along("a", 1), Free::default());
    let machine = Machine { cluster: &cluster, mesh: &mesh };
    let mut compared = Compared::default();
    for seed in 0..12 {
        let graph = random_step(&mut Random::new(seed), 9);
        ir::verify(&graph).unwrap();
        let all = everything(&graph, machine);
        compared.under_any_limit(&all, &request(&graph, &cluster, &mesh, &unsaid), |_| true);
    }
    let Compared { asked, slower, loss } = compared;
    assert!(asked > 50, "{asked}");
    assert_eq!((slower, loss), (0, 0.0), "of {asked}");
}

/// Time and memory of every choice of operations that run again.
fn everything(graph: &Graph, machine: Machine<'_>) -> Vec<(i64, u64)> {
    let base = passes::run(&settled(false), graph, |_| {}).unwrap();
    let repeatable = Repeatable::new(&base);
    let positions = base.order.iter().enumerate().filter(|(_, id)| repeatable.contains(**id));
    let positions: Vec<u32> = positions.map(|(position, _)| position as u32).collect();
    let choices = (0..1_u32 << positions.len()).map(|bits| {
        let chosen = positions.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
        let recompute = Positions(chosen.map(|(_, position)| *position).collect());
        let program = passes::run(&pipeline(&Settings { recompute, ..Settings::default() }), graph, |_| {});
        let sim::Prediction { time, memory, .. } = sim::predict(&program.unwrap(), machine).unwrap();
        (time.step.0, memory.least.total().0)
    });
    choices.collect()
}

#[test]
fn all_of_forward_runs_again_where_that_is_asked_for_and_nothing_where_not() {
    let (cluster, mesh, unsaid) = (machine(), Mesh::along("a", 1), Free::default());
    let graph = random_step(&mut Random::new(1), 40);
    let with = |recompute, memory_limit| {
        let request = Request { recompute, memory_limit, ..request(&graph, &cluster, &mesh, &unsaid) };
        search(&request).map(|found| found.best.prediction)
    };
    let free = with(None, None).unwrap();
    let full = with(Some(Recomputation::Full), None).unwrap();
    assert_eq!(free.recomputed_ns, 0);
    assert!(full.recomputed_ns > 0 && full.peak_bytes < free.peak_bytes);
    assert_eq!(full.compute_ns, free.compute_ns + full.recomputed_ns);
    let limit = Some(free.peak_bytes - 1);
    let limited = with(None, limit).unwrap();
    assert!(limited.recomputed_ns > 0 && limited.recomputed_ns < full.recomputed_ns);
    assert_eq!(with(Some(Recomputation::None), limit).unwrap_err().code, base::Code::NO_PLAN);
}

/// More memory makes no plan slower, but for what is lost where not everything can be tried.
#[test]
fn time_hardly_ever_rises_with_memory() {
    let (cluster, mesh, unsaid) = (machine(), Mesh::along("a", 1), Free::default());
    for seed in 20..24 {
        let graph = random_step(&mut Random::new(seed), 60);
        let free = search(&request(&graph, &cluster, &mesh, &unsaid)).unwrap().best.prediction.peak_bytes;
        let mut last = i64::MAX;
        for share in 30..=100 {
            let limit = Some(free * share / 100);
            let request = Request { memory_limit: limit, ..request(&graph, &cluster, &mesh, &unsaid) };
            let Ok(found) = search(&request) else { continue };
            let step = found.best.prediction.step_ns;
            assert!(
                step as f64 <= last as f64 * LOST,
                "seed {seed}: {step} ns with {share} % of the memory, {last} with less"
            );
            last = step.min(last);
        }
    }
}
