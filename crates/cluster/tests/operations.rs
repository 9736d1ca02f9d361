//! What was measured of operations: read, written, and asked.
#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test fails by panicking, and what is read is what was written"
)]

use ir::Dtype;
use unisono_cluster::{Amounts, Cluster};

const MEASURED: &str = r#"
preset = "cpu"
[device.operations."aten::mm".f32]
start_ns = 100.0
flop_ps = 2.0
byte_ps = 3.0
cached_bytes = 1000
uncached_byte_ps = 5.0
tensor_ps = 7.0
measured = [[64.0, 96, 3, 250.0]]
"#;

fn amounts(flops: f64, bytes: u64, tensors: usize) -> Amounts {
    Amounts { flops, bytes, tensors }
}

#[test]
fn a_call_takes_what_was_measured_of_it_and_others_what_was_fitted() {
    let cluster = Cluster::parse(MEASURED, "cluster.toml").unwrap();
    let fit = cluster.device.fit("aten::mm", Dtype::F32).unwrap();
    assert_eq!(fit.picos(amounts(64.0, 96, 3)), 250e3);
    assert_eq!(fit.picos(amounts(64.0, 96, 4)), 100e3 + 128.0 + 288.0 + 28.0);
    assert_eq!(fit.picos(amounts(0.0, 1100, 0)), 100e3 + 3300.0 + 500.0);
    assert!(cluster.device.fit("aten::mm", Dtype::F64).is_none());
    assert!(cluster.device.fit("aten::bmm", Dtype::F32).is_none());
    let twice = cluster.with_device(2.0);
    let fit = twice.device.fit("aten::mm", Dtype::F32).unwrap();
    assert_eq!(fit.picos(amounts(64.0, 96, 3)), 125e3);
    assert_eq!(fit.picos(amounts(0.0, 1100, 0)), 50e3 + 1650.0 + 250.0);
}

#[test]
fn what_was_measured_is_written_as_it_is_read() {
    let cluster = Cluster::parse(MEASURED, "cluster.toml").unwrap();
    assert_eq!(Cluster::parse(&cluster.text(), "text").unwrap(), cluster);
}

#[test]
fn times_that_cannot_be_are_refused_with_their_line() {
    for (good, bad) in [("start_ns = 100.0", "start_ns = -1.0"), ("250.0]]", "nan]]")] {
        let error = Cluster::parse(&MEASURED.replace(good, bad), "cluster.toml").expect_err("it is refused");
        let said = error.to_string();
        assert!(
            said.contains("`aten::mm` of a cluster description is an operation of which a time"),
            "{said}"
        );
        assert!(said.contains("cluster.toml:3"), "{said}");
    }
    let unknown = MEASURED.replace("flop_ps", "flops_ps");
    let said = Cluster::parse(&unknown, "cluster.toml").expect_err("it is refused").to_string();
    assert!(said.contains("`flops_ps`"), "{said}");
}
