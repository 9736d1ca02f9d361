//! Random results of forward that are on the host until backward.

use ir::{Graph, testing::Random};

use crate::passes::{
    Offload, Pass, Positions, Recompute, Settings, Stay, Stays, run, run_unverified, settled,
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

/// The settings with results on the host.
pub fn with_stays(settings: Settings, graph: &Graph, seed: u64) -> Settings {
    Settings { offload: some_stays(graph, &settings.recompute, seed), ..settings }
}
