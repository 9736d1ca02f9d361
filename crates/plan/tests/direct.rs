//! From which size on a collective is direct, against what is predicted of the graph with it and of the graph with its exchange.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use base::Bytes;
use cluster::{
    Cluster,
    testing::{link, uniform},
};
use common::total_time;
use cost::{Machine, direct_limit};
use ir::{CollectiveKind, Graph, Mesh};
use passes::{Direct, DirectAxes, DirectCollectives, Pass};

const KINDS: [CollectiveKind; 3] =
    [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter];

/// Latency in nanoseconds and bytes per second of the usual collectives, and of an exchange.
fn cluster(usual: (f64, f64), exchange: (f64, f64)) -> Cluster {
    let mut cluster = uniform(1e10, 2e10, link(usual.0, usual.1));
    cluster.device.operation_ns = 2_000.0;
    cluster.links_mut().all_to_all = link(exchange.0, exchange.1);
    cluster
}

/// One collective on a whole of `bytes`.
fn graph(kind: CollectiveKind, bytes: u64, ranks: u64) -> Graph {
    let whole = bytes / 4;
    let part = whole / ranks;
    let (operand, result, call) = match kind {
        CollectiveKind::AllReduce => (whole, whole, "all_reduce(v0, \"sum\", \"axis:a\")".into()),
        CollectiveKind::AllGather => {
            (part, whole, format!("all_gather_into_tensor(v0, {ranks}, \"axis:a\")"))
        }
        _ => (whole, part, format!("reduce_scatter_tensor(v0, \"sum\", {ranks}, \"axis:a\")")),
    };
    let text = format!(
        "unisono graph 2\n\
         op _c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor\n\
         op _c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> Tensor\n\
         op _c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str group_name) -> Tensor\n\
         op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor\n\
         input v0: f32[{operand}] = batch \"batch.0\"\n\
         v1: f32[{result}] = _c10d_functional::{call}\n\
         v2: f32[{result}] = _c10d_functional::wait_tensor(v1)\n\
         return v2\n"
    );
    Graph::from_text("test", &text).unwrap()
}

fn limit(cluster: &Cluster, kind: CollectiveKind, ranks: u32) -> Bytes {
    let mesh = Mesh::along("a", ranks);
    direct_limit(Machine { cluster, mesh: &mesh }, kind, &mesh.axes[0])
}

/// What is won by an exchange, in picoseconds.
fn won(cluster: &Cluster, kind: CollectiveKind, bytes: u64, ranks: u32) -> i64 {
    let graph = graph(kind, bytes, u64::from(ranks));
    let all = Bytes(u64::MAX);
    let direct = Direct { ranks, all_reduce: all, all_gather: all, reduce_scatter: all };
    let direct = DirectAxes::from([("a".to_owned(), direct)]);
    let passes: [Box<dyn Pass>; 1] = [Box::new(DirectCollectives { direct })];
    let mesh = Mesh::along("a", ranks);
    let exchanged = passes::run(&passes, &graph, |outcome| assert!(outcome.changed)).unwrap();
    let machine = Machine { cluster, mesh: &mesh };
    total_time(&graph, machine) - total_time(&exchanged, machine)
}

#[test]
fn an_exchange_is_faster_up_to_the_limit_and_slower_beyond_it() {
    let clusters = [
        cluster((1.4e6, 2e9), (3e5, 6e8)),
        cluster((8e5, 7e8), (3e5, 6e8)),
        cluster((2e4, 1e10), (1.9e4, 1e10)),
        cluster((5e5, 1e9), (1e5, 9e8)),
    ];
    let mut limited = 0;
    for cluster in &clusters {
        for (kind, ranks) in KINDS.iter().flat_map(|kind| [2, 4, 8].map(|ranks| (*kind, ranks))) {
            let limit = limit(cluster, kind, ranks).0;
            let granule = 4 * u64::from(ranks);
            let below = limit / granule * granule;
            // By so little may the limit be off by rounding.
            let slack = 4 * granule;
            if below > slack && below < 1 << 30 {
                limited += 1;
                assert!(won(cluster, kind, below - slack, ranks) > 0, "{kind:?} {ranks} {limit}");
                assert!(won(cluster, kind, below + slack, ranks) < 0, "{kind:?} {ranks} {limit}");
            } else {
                for bytes in [granule, 1 << 20, 1 << 28] {
                    let faster = won(cluster, kind, bytes, ranks) > 0;
                    assert_eq!(faster, limit > 1 << 30, "{kind:?} {ranks} {limit}");
                }
            }
        }
    }
    assert!(limited > 10, "{limited}");
}

#[test]
fn where_an_exchange_starts_no_sooner_nothing_is_direct() {
    for kind in KINDS {
        assert_eq!(limit(&cluster((1e3, 1e9), (1e3, 1e9)), kind, 4), Bytes(0));
    }
}

#[test]
fn where_an_exchange_is_faster_in_all_everything_is_direct() {
    for kind in KINDS {
        assert!(limit(&cluster((1e6, 1e8), (1e3, 1e10)), kind, 4) >= Bytes(1 << 40));
    }
}
