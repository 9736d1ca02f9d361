//! Descriptions: presets, files that change some of their values, and files that cannot be used.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test fails by panicking, and what is read is what was written"
)]

use unisono_cluster::{Bound, Cluster, Interconnect, presets};

fn network(cluster: &Cluster) -> &unisono_cluster::Network {
    match &cluster.interconnect {
        Interconnect::Levels(network) => network,
        Interconnect::Measured(_) => panic!("a preset has a network"),
    }
}

fn error(text: &str) -> String {
    Cluster::parse(text, "cluster.toml").expect_err("it cannot be used").to_string()
}

#[test]
fn every_preset_is_read_back_from_its_text_in_every_size() {
    for name in presets().keys() {
        for size in ["", ":1", ":2", ":2x1", ":2x2", ":100x2"] {
            let cluster = Cluster::preset(&format!("{name}{size}")).unwrap();
            assert_eq!(Cluster::parse(&cluster.text(), "text").unwrap(), cluster, "{name}{size}");
        }
    }
}

#[test]
fn a_preset_has_the_ranks_of_its_size() {
    let levels = |name: &str| -> Vec<u32> {
        let cluster = Cluster::preset(name).unwrap();
        network(&cluster).levels.iter().map(|level| level.ranks).collect()
    };
    assert_eq!(levels("h100"), [8]);
    assert_eq!(levels("h100:4"), [4]);
    assert_eq!(levels("h100:8x8"), [8, 64]);
    assert_eq!(levels("H100:3x1"), [3]);
    assert_eq!(levels("h100:3x"), [8, 24]);
    assert_eq!(levels("h100:1"), [1]);
}

#[test]
fn a_file_changes_single_values_of_a_preset() {
    let text = r#"
preset = "h100:2x8"

[device]
memory_bytes = 96_000_000_000
matmul_flops = { bf16 = 600e12 }

[[network.levels]]
name = "fabric"
bandwidth = 24e9

[[network.levels]]
name = "region"
ranks = 64
bandwidth = 1e9
hop_ns = 1e6
small_hop_ns = 1e6
small_bandwidth = 1e9
"#;
    let (changed, preset) = (Cluster::parse(text, "file").unwrap(), Cluster::preset("h100:2x8").unwrap());
    assert_eq!(changed.device.memory_bytes, 96_000_000_000);
    assert_eq!(changed.device.matmul_flops["bf16"], 600e12);
    assert_eq!(changed.device.matmul_flops["f32"], preset.device.matmul_flops["f32"]);
    let levels: Vec<(&str, u32, f64)> = network(&changed)
        .levels
        .iter()
        .map(|level| (level.name.as_str(), level.ranks, level.bandwidth))
        .collect();
    assert_eq!(levels, [("node", 8, 345e9), ("fabric", 16, 24e9), ("region", 64, 1e9)]);
}

#[test]
fn what_cannot_be_used_is_named_with_its_line() {
    assert_eq!(
        error("preset = \"h10\"\n"),
        "error[U0201]: there is no preset `h10`\n  at cluster.toml:1\n  hint: did you mean `h100`?"
    );
    assert_eq!(
        error("preset = \"gaudi:8\"\n"),
        "error[U0201]: there is no preset `gaudi`\n  at cluster.toml:1\n  hint: known: a100, b200, cpu, h100, h200, l4, l40s, mi300x, v100"
    );
    assert_eq!(
        error("preset = \"h100:2x9\"\n"),
        "error[U0201]: `2x9` is no size of a cluster of h100\n  at cluster.toml:1\n  hint: write nodes and ranks of each, at most 8: `h100:2x8`"
    );
    assert_eq!(
        error("preset = \"h100:2x8\"\n\n[device]\nmemory_bandwith = 1e12\n"),
        "error[U0201]: not a cluster description: unknown field `memory_bandwith`, expected one of `name`, `memory_bytes`, `matmul_flops`, \
         `attention_flops`, `memory_bandwidth`, `uneven_bandwidth`, `operation_ns`, `call_ns`, `call_tensor_ns`, `overlap_factor`, `overlap`, `host_bandwidth`, `host_latency_ns`, `host_memory_bytes`, `spread`, `measured_on`, `operations`\n  at cluster.toml:4\n  hint: did you mean `memory_bandwidth`?"
    );
    let begin =
        "`unisono profile` measures a machine, `unisono cluster h100:8x8` prints a preset to begin with";
    let bad = |text: &str, line: u32, what: &str| {
        let expected = format!("error[U0201]: {what}\n  at cluster.toml:{line}\n  hint: {begin}");
        assert_eq!(error(text), expected);
    };
    bad(
        "preset = \"h100:2x8\"\n[device]\nmemory_bandwidth = -1.0\n",
        3,
        "`memory_bandwidth` of a cluster description is a rate that is not positive",
    );
    bad(
        "preset = \"h100:2x8\"\n[device.overlap]\nbytes = { operation = 0.5, collective = 1.0 }\n",
        2,
        "`overlap` of a cluster description is a slowdown that is not between 1 and 1000",
    );
    bad(
        "preset = \"h100:2x8\"\n[device]\nuneven_bandwidth = 0.0\n",
        3,
        "`uneven_bandwidth` of a cluster description is a rate that is not positive",
    );
    bad(
        "preset = \"h100\"\n\n[device.matmul_flops]\nbf16 = nan\n",
        4,
        "`bf16` of a cluster description is a rate that is not positive",
    );
    bad(
        "preset = \"h100:2x8\"\n[[network.levels]]\nname = \"fabric\"\nranks = 12\n",
        4,
        "`ranks` of a cluster description is 0, or not a larger multiple of those of the level within",
    );
    bad(
        "preset = \"h100:2x8\"\n[[network.levels]]\nname = \"fabric\"\noversubscription = 0.5\n",
        4,
        "`oversubscription` of a cluster description is no number from 1 on",
    );
    bad(
        "preset = \"h100\"\n[links.all_reduce]\nlatency_ns = 1.0\nbandwidth = 1.0\n[links.all_gather]\nlatency_ns = 1.0\nbandwidth = 1.0\n\
         [links.reduce_scatter]\nlatency_ns = 1.0\nbandwidth = 1.0\n[links.all_to_all]\nlatency_ns = 1.0\nbandwidth = 1.0\n",
        2,
        "`links` of a cluster description is beside a `network`, of which one is enough",
    );
}

#[test]
fn operations_beside_collectives_are_as_slow_as_what_limits_them_says() {
    let text = "preset = \"h100:2x8\"\n[device.overlap]\nbytes = { operation = 1.5, collective = 1.25 }\n";
    let cluster = Cluster::parse(text, "cluster.toml").unwrap();
    assert_eq!(Cluster::parse(&cluster.text(), "cluster.toml").unwrap(), cluster);
    let factors = |bound| {
        let slowdown = cluster.device.slowdown(bound);
        [slowdown.operation, slowdown.collective]
    };
    assert_eq!(factors(Bound::Bytes), [1.5, 1.25]);
    assert_eq!(factors(Bound::Products), [cluster.device.overlap_factor; 2]);
}

#[test]
fn a_missing_value_is_named() {
    let text = Cluster::preset("h100").unwrap().text().replace("operation_ns = 3000.0\n", "");
    let said = error(&text);
    assert!(said.contains("missing field `operation_ns`"), "{said}");
}
