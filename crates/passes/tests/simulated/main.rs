//! Every pipeline of passes gives, bit for bit, what the graph gave before: random rank graphs run on simulated ranks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod program;
mod run;
mod stays;

use base::Bytes;
use ir::{Graph, testing::Random};
use unisono_passes::{
    self as passes, Direct, DirectAxes, Outcome, Positions, Repeatable, Settings, pipeline, run, settled,
};

use crate::{
    program::rank_graph,
    run::{RANKS, Tensor, execute},
    stays::with_stays,
};

/// The inputs of all ranks: equal where the graph says nothing else, since only state and batch differ between ranks.
fn inputs(graph: &Graph, seed: u64) -> Vec<Vec<Tensor>> {
    let mut random = Random::new(seed);
    let mut rank = || {
        let types = graph.inputs.values().map(|input| graph.ty(input.value));
        types.map(|ty| Tensor::random(&mut random, ty)).collect()
    };
    (0..RANKS).map(|_| rank()).collect()
}

/// Some of the operations that can run again in backward.
fn some_again(graph: &Graph, seed: u64) -> Positions {
    let settled = run(&settled(false), graph, |_| {}).unwrap();
    let repeatable = Repeatable::new(&settled);
    let mut random = Random::new(seed);
    let again = settled.order.iter().enumerate().filter(|(_, id)| repeatable.contains(**id));
    Positions(again.map(|(at, _)| at as u32).filter(|_| random.below(2) == 0).collect())
}

#[test]
fn random_rank_graphs_give_the_same_after_all_passes() {
    let mut changed = std::collections::BTreeMap::new();
    for seed in 0..150 {
        let graph = rank_graph(seed, 60);
        ir::verify(&graph).unwrap();
        let mut random = Random::new(seed);
        let mut limit = || Bytes(1 << random.below(12));
        let settings = Settings {
            bucket_limit: limit(),
            prefetch_limit: limit(),
            direct: DirectAxes::from([(
                "a".to_owned(),
                Direct {
                    ranks: RANKS as u32,
                    all_reduce: limit(),
                    all_gather: limit(),
                    reduce_scatter: limit(),
                },
            )]),
            recompute: some_again(&graph, seed),
            ..Settings::default()
        };
        let settings = with_stays(settings, &graph, seed);
        let after = run(&pipeline(&settings), &graph, |outcome: &Outcome| {
            *changed.entry(outcome.pass).or_insert(0) += usize::from(outcome.changed);
        });
        let inputs = inputs(&graph, seed);
        assert_eq!(execute(&after.unwrap(), &inputs), execute(&graph, &inputs), "seed {seed}");
    }
    // The graphs are such that every pass has something to do.
    assert!(changed.values().all(|count| *count > 20), "{changed:?}");
}

#[test]
fn passes_can_run_again_on_their_own_result() {
    for seed in 0..40 {
        let graph = rank_graph(seed, 60);
        let once = run(&pipeline(&Settings::default()), &graph, |_| {}).unwrap();
        let twice = run(&pipeline(&Settings::default()), &once, |_| {}).unwrap();
        let collectives =
            |graph: &Graph| graph.order.iter().filter(|id| graph.collective(**id).is_some()).count();
        assert!(collectives(&twice) <= collectives(&once), "seed {seed}");
        let inputs = inputs(&graph, seed);
        assert_eq!(execute(&twice, &inputs), execute(&graph, &inputs), "seed {seed}");
    }
}
