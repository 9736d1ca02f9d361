//! Random results of forward that are on the host until backward, and random state that is there between steps.

use ir::{Graph, testing::Random};

use crate::passes::{
    HostState, Offload, Pass, Piece, Pieces, Positions, Recompute, Settings, Stay, Stays, run,
    run_unverified, settled, state_units,
};

/// How often one is tried.
const TRIED: usize = 40;

/// Some of the results of a graph that may be on the host while these operations run again.
pub fn some_stays(graph: &Graph, again: &Positions, seed: u64) -> Stays {
    let settled = run(&settled(false), graph, |_| {}).unwrap();
    let first: [Box<dyn Pass>; 1] = [Box::new(Recompute { again: again.clone() })];
    let runs_again = run_unverified(&first, &settled).unwrap();
    let mut random = Random::new(seed);
    let mut stays: Vec<Stay> = Vec::new();
    for _ in 0..TRIED {
        let made = random.below(settled.order.len()) as u32;
        let gone = made + random.below(6) as u32;
        let stay = Stay { made, gone, back: gone + random.below(6) as u32 };
        let alone = Offload { stays: Stays(vec![stay]) };
        if stays.iter().all(|known| known.made != stay.made) && alone.run(&runs_again).is_ok() {
            stays.push(stay);
        }
    }
    stays.sort_unstable();
    Stays(stays)
}

/// Some of the state of a graph in pieces, some of which come before the update.
fn some_state(graph: &Graph, seed: u64) -> Pieces {
    let settled = run(&settled(false), graph, |_| {}).unwrap();
    let mut random = Random::new(seed);
    let mut left = state_units(&settled).len();
    let mut pieces = Vec::new();
    while left > 0 && !random.once_in(5) {
        let units = 1 + random.below(left);
        let from = random.once_in(3).then(|| random.below(settled.order.len()) as u32);
        let from = from.filter(|from| {
            HostState { pieces: Pieces(vec![Piece { units: 1, from: Some(*from) }]) }.run(&settled).is_ok()
        });
        pieces.push(Piece { units: units as u32, from });
        left -= units;
    }
    Pieces(pieces)
}

/// The settings with results and state on the host.
pub fn with_stays(settings: Settings, graph: &Graph, seed: u64) -> Settings {
    let offload = some_stays(graph, &settings.recompute, seed);
    Settings { offload, host_state: some_state(graph, seed), ..settings }
}
