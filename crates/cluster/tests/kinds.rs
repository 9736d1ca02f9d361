//! Clusters of several kinds of devices: read, written, and refused where they cannot be.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test fails by panicking, and what is read is what was written"
)]

use unisono_cluster::{Cluster, Interconnect};

const MIXED: &str = r#"
preset = "h100:2x8"

[[devices]]
ranks = 8

[[devices]]
ranks = 8
preset = "a100"
memory_bytes = 40_000_000_000
"#;

fn error(text: &str) -> String {
    Cluster::parse(text, "cluster.toml").expect_err("it cannot be used").to_string()
}

#[test]
fn a_cluster_is_as_slow_and_small_as_the_worst_of_its_kinds() {
    let cluster = Cluster::parse(MIXED, "cluster.toml").unwrap();
    let (h100, a100) = (Cluster::preset("h100").unwrap().device, Cluster::preset("a100").unwrap().device);
    let kinds: Vec<_> = cluster.kinds.iter().map(|kind| (kind.ranks, &kind.cluster.device)).collect();
    assert_eq!(kinds[0], (8, &h100));
    assert_eq!(kinds[1].1.matmul_flops, a100.matmul_flops);
    assert_eq!(cluster.device.name, "8 H100-SXM-80GB + 8 A100-SXM-80GB");
    assert_eq!(cluster.device.memory_bytes, 40_000_000_000);
    assert_eq!(cluster.device.matmul_flops["bf16"], a100.matmul_flops["bf16"]);
    assert_eq!(cluster.device.matmul_flops["f8e4m3"], a100.matmul_flops["f32"], "as its slowest type");
    assert_eq!(cluster.device.uneven_bandwidth, h100.uneven_bandwidth);
    assert!(cluster.device.operations.is_empty());
    assert_eq!(cluster.kinds[0].cluster.interconnect, cluster.interconnect);
}

#[test]
fn kinds_are_written_as_they_are_read() {
    for cluster in [
        Cluster::parse(MIXED, "cluster.toml").unwrap(),
        Cluster::preset("h100:2x8+mi300x:1x8").unwrap(),
        Cluster::preset("mi300x:1x8+h100:2x8").unwrap(),
        Cluster::preset("l4:4x1 + v100:2x1").unwrap(),
    ] {
        assert_eq!(Cluster::parse(&cluster.text(), "text").unwrap(), cluster, "{}", cluster.text());
    }
}

#[test]
fn presets_put_together_have_the_slower_network() {
    let both = Cluster::preset("h100:2x8+a100:1x8").unwrap();
    let Interconnect::Levels(network) = &both.interconnect else { panic!("a preset has levels") };
    let levels: Vec<_> = network.levels.iter().map(|level| (level.ranks, level.bandwidth)).collect();
    assert_eq!(levels, [(8, 235e9), (24, 24e9)]);
    assert!(network.levels[0].in_switch.is_none());
    assert_eq!(both.kinds.iter().map(|kind| kind.ranks).collect::<Vec<_>>(), [16, 8]);
    assert_eq!(both.with_device(2.0).kinds[0].cluster.device.matmul_flops["f32"], 2.0 * 57e12);
}

#[test]
fn what_cannot_be_used_is_named_with_its_line() {
    let bad = |good: &str, bad: &str, line: u32, what: &str, hint: &str| {
        let text = MIXED.replacen(good, bad, 1);
        assert_ne!(text, MIXED);
        let expected = format!("error[U0201]: {what}\n  at cluster.toml:{line}\n  hint: {hint}");
        assert_eq!(error(&text), expected);
    };
    let begin =
        "`unisono profile` measures a machine, `unisono cluster h100:8x8` prints a preset to begin with";
    bad("\"a100\"", "\"a10\"", 9, "there is no preset `a10`", "did you mean `a100`?");
    bad(
        "ranks = 8\n\n",
        "rank = 8\n\n",
        4,
        "`ranks` of a cluster description is missing, or no number of ranks with that device",
        begin,
    );
    bad(
        "ranks = 8\npreset",
        "ranks = 9\npreset",
        8,
        "`ranks` of a cluster description is 17 of all devices, but 16 of the network",
        begin,
    );
    bad(
        "memory_bytes = 40_000_000_000",
        "memory_bandwidth = -1.0",
        10,
        "`memory_bandwidth` of a cluster description is a rate that is not positive",
        begin,
    );
    let unknown = error(&MIXED.replace("memory_bytes", "memory_byte"));
    assert!(unknown.contains("unknown field `memory_byte`"), "{unknown}");
    assert!(unknown.ends_with("at cluster.toml:10\n  hint: did you mean `memory_bytes`?"), "{unknown}");
    let said = Cluster::preset("h100:2x8+a100:2x4").expect_err("it is refused").to_string();
    assert!(said.contains("nodes of 8 and of 4 ranks in one cluster"), "{said}");
    let said = Cluster::preset("h100:2x8+a10:1x8").expect_err("it is refused").to_string();
    assert!(said.contains("there is no preset `a10`\n  hint: did you mean `a100`?"), "{said}");
}
