//! What of forward is on the host until backward, against everything that could be.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chains;

use cluster::Cluster;
use cost::Machine;
use ir::{Graph, Mesh, testing::Random};
use passes::{Positions, Repeatable, Settings, Stay, Stays, pipeline, settled};
use unisono_plan::{Offloading, Plan, Recomputation, Request, search};

use crate::chains::{Compared, Free, machine, random_step, request};

/// What is lost at most where not everything can be tried.
const LOST: f64 = 1.02;

/// A machine whose link to the host takes so many times as long as an operation for the same bytes.
fn with_link(slower: f64) -> Cluster {
    let mut cluster = machine();
    cluster.device.host_bandwidth = Some(cluster.device.memory_bandwidth / 2.0 / slower);
    cluster.device.host_latency_ns = 10.0;
    cluster
}

#[test]
fn under_any_limit_the_fastest_choice_of_what_runs_again_and_what_is_on_the_host_is_found() {
    let (mesh, unsaid) = (Mesh::along("a", 1), Free::default());
    let mut compared = Compared::default();
    for seed in 0..SEEDS {
        let cluster = with_link([0.5, 1.0, 3.0][seed as usize % 3]);
        let machine = Machine { cluster: &cluster, mesh: &mesh };
        let graph = random_step(&mut Random::new(seed), 4);
        let all = everything(&graph, machine);
        // State that forward happens not to read may be on the host as well.
        let is_among =
            |plan: &Plan| plan.passes.offload.0.len() <= MOST_STAYS && plan.passes.host_state.is_empty();
        compared.under_any_limit(&all, &request(&graph, &cluster, &mesh, &unsaid), is_among);
    }
    let Compared { asked, slower, loss } = compared;
    assert!(asked > 8, "{asked}");
    assert_eq!((slower, loss), (0, 0.0), "of {asked}");
}

/// Steps that are tried.
const SEEDS: u64 = 3;
/// How many results are on the host at most where everything is tried: there are many times at which copies may be waited for.
const MOST_STAYS: usize = 2;

/// Time and memory of every choice of operations that run again and of results on the host, with all times at which copies may be waited for.
fn everything(graph: &Graph, machine: Machine<'_>) -> Vec<(i64, u64)> {
    let base = passes::run(&settled(false), graph, |_| {}).unwrap();
    let repeatable = Repeatable::new(&base);
    let order = base.order.iter().enumerate().filter(|(_, id)| repeatable.contains(**id));
    let positions: Vec<u32> = order.map(|(position, _)| position as u32).collect();
    let mut all = Vec::new();
    for bits in 0..1_u32 << positions.len() {
        let again =
            Positions((0..).zip(&positions).filter(|(at, _)| bits >> at & 1 == 1).map(|(_, p)| *p).collect());
        let kept: Vec<u32> =
            positions.iter().copied().filter(|position| !again.0.contains(position)).collect();
        stays(base.order.len() as u32, &kept, &mut Vec::new(), &mut |stays| {
            let settings = Settings { recompute: again.clone(), offload: stays, ..Settings::default() };
            let Ok(program) = passes::run(&pipeline(&settings), graph, |_| {}) else { return false };
            let sim::Prediction { time, memory, .. } = sim::predict(&program, machine).unwrap();
            all.push((time.step.0, memory.least.total().0));
            true
        });
    }
    all
}

/// Tries all stays of some of these operations' results on the host; those that the pass refuses alone are left out.
fn stays(steps: u32, kept: &[u32], chosen: &mut Vec<Stay>, tried: &mut impl FnMut(Stays) -> bool) {
    if !tried(Stays(chosen.clone())) {
        return;
    }
    if chosen.len() == MOST_STAYS {
        return;
    }
    for (at, made) in kept.iter().enumerate() {
        for gone in *made..steps {
            for back in gone..steps {
                chosen.push(Stay { made: *made, gone, back });
                stays(steps, &kept[at + 1..], chosen, tried);
                chosen.pop();
            }
        }
    }
}

#[test]
fn nothing_is_on_the_host_without_a_link_to_it_and_all_where_that_is_asked_for() {
    let (mesh, unsaid) = (Mesh::along("a", 1), Free::default());
    let graph = random_step(&mut Random::new(1), 40);
    let with = |cluster: &Cluster, offload, recompute, memory_limit| {
        let asked = request(&graph, cluster, &mesh, &unsaid);
        search(&Request { offload, recompute, memory_limit, ..asked }).map(|found| found.best.prediction)
    };
    let (plain, linked) = (machine(), with_link(1.0));
    let free = with(&linked, None, None, None).unwrap();
    assert_eq!(free.offloaded_bytes, 0);
    let limit = Some(free.peak_bytes * 8 / 10);
    assert_eq!(with(&plain, None, None, limit).unwrap().offloaded_bytes, 0);
    let none = Some(Recomputation::None);
    let limited = with(&linked, None, none, limit).unwrap();
    assert!(limited.offloaded_bytes > 0 && limited.recomputed_ns == 0);
    assert!(limited.host_bytes > 0 && limited.host_bytes <= limited.offloaded_bytes);
    let full = with(&linked, Some(Offloading::Full), none, None).unwrap();
    assert!(full.offloaded_bytes > limited.offloaded_bytes && full.peak_bytes < free.peak_bytes);
    assert_eq!(full.compute_ns, free.compute_ns);
    let refused = with(&linked, Some(Offloading::None), none, limit).unwrap_err();
    assert_eq!(refused.code, base::Code::NO_PLAN);
    // On a host alone copies are in the same memory.
    let alone = with(&plain, Some(Offloading::Full), none, None).unwrap();
    assert!(alone.peak_bytes > full.peak_bytes && alone.host_bytes == full.host_bytes);
}

/// More memory makes no plan slower, and a link to the host makes none slower, but for what is lost where not everything can be tried.
#[test]
fn time_hardly_ever_rises_with_memory_or_with_a_link() {
    let (mesh, unsaid) = (Mesh::along("a", 1), Free::default());
    for seed in 20..22 {
        let (plain, linked) = (machine(), with_link(2.0));
        let graph = random_step(&mut Random::new(seed), 60);
        let found = |cluster: &Cluster, memory_limit| {
            let found = search(&Request { memory_limit, ..request(&graph, cluster, &mesh, &unsaid) });
            found.ok().map(|found| found.best.prediction)
        };
        let free = found(&plain, None).unwrap().peak_bytes;
        let mut last = i64::MAX;
        for share in (30..=100).step_by(5) {
            let limit = Some(free * share / 100);
            let with = found(&linked, limit).map(|found| found.step_ns);
            if let Some(without) = found(&plain, limit).map(|found| found.step_ns) {
                assert!(with.unwrap() <= without, "seed {seed}, {share} %: slower with a link");
            }
            let Some(step) = with else { continue };
            assert!(
                step as f64 <= last as f64 * LOST,
                "seed {seed}: {step} ns with {share} % of the memory, {last} with less"
            );
            last = step.min(last);
        }
    }
}
