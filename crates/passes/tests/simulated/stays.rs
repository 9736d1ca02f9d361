//! Random results of forward that are on the host until backward.

use ir::{Graph, testing::Random};

use crate::passes::{Offload, Pass, Positions, Recompute, Settings, Stay, Stays, run, settled};

/// How often one is tried.
const TRIED: usize = 24;

/// Some of the results of a graph that may be on the host while these operations run again.
pub fn some_stays(graph: &Graph, again: &Positions, seed: u64) -> Stays {
    let settled = run(&settled(false), graph, |_| {}).unwrap();
    let mut random = Random::new(seed);
    let mut stays: Vec<Stay> = Vec::new();
    for _ in 0..TRIED {
        let mut at = || random.below(settled.order.len()) as u32;
        let mut at = [at(), at(), at()];
        at.sort_unstable();
        let stay = Stay { made: at[0], gone: at[1], back: at[2] };
        let alone = Stays(vec![stay]);
        let passes: [Box<dyn Pass>; 2] =
            [Box::new(Recompute { again: again.clone() }), Box::new(Offload { stays: alone })];
        if stays.iter().all(|known| known.made != stay.made) && run(&passes, &settled, |_| {}).is_ok() {
            stays.push(stay);
        }
    }
    stays.sort_unstable();
    Stays(stays)
}

/// The settings with results on the host.
pub fn with_stays(settings: Settings, graph: &Graph, seed: u64) -> Settings {
    Settings { offload: some_stays(graph, &settings.recompute, seed), ..settings }
}
