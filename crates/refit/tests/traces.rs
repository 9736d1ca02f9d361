//! Traces of a profiler on a GPU: which time is that of which call of the step.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::Bytes;
use cluster::{Amounts, Cluster};
use ir::{CollectiveKind, Dtype, Graph};
use timeline::{Timeline, kineto};
use trace::{Frames, Mode, Selection};
use unisono_refit::{Calls, What, observe, of_timelines};

const STEP: &str = r#"unisono graph 2
op aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta, Scalar alpha) -> Tensor
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::relu(Tensor self) -> Tensor
input v0: bf16[64] = parameter "params.bias"
input v1: bf16[8, 32] = batch "batch.0"
input v2: bf16[32, 64] = parameter "params.weight"
v3: bf16[8, 64] = aten::addmm(v0, v1, v2, 1, 1)
v4: bf16[8, 64] = aten::relu(v3)
v5: bf16[8, 64] = aten::mm(v1, v2)
return v5
"#;

/// What one rank of two does: a linear layer, an activation in place, an operation that the step has not, and an all-reduce to whose end the
/// first rank waits.
fn trace(rank: u32, reduced: u32) -> String {
    let call = |name: &str, start: u32, dims: &str, types: &str| {
        format!(
            r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":1,"ts":{start},"dur":8,
               "args":{{"External id":1,"Input Dims":{dims},"Input type":{types}}}}},"#
        )
    };
    let launch = |start: u32, id: u32| {
        format!(
            r#"{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":{start},"dur":1,"args":{{"correlation":{id}}}}},"#
        )
    };
    let kernel = |name: &str, start: u32, took: u32, id: u32, more: &str| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"{name}","pid":0,"tid":7,"ts":{start},"dur":{took},"args":{{"stream":7,"correlation":{id}{more}}}}},"#
        )
    };
    let bf16 = |count: usize| format!("[{}]", vec![r#""c10::BFloat16""#; count].join(","));
    let all_reduce = r#","Collective name":"allreduce","In msg nelems":1024,"Out msg nelems":1024,"Group size":2,"dtype":"BFloat16","Process Group Name":"0","Process Group Ranks":"[0, 1]""#;
    let events = [
        // The call of the step is inside another one, and launches two kernels.
        call("aten::linear", 0, "[[8,32],[64,32],[64]]", &bf16(3)),
        call("aten::addmm", 1, "[[64],[8,32],[32,64],[],[]]", &bf16(3)).replace(r#""dur":8"#, r#""dur":6"#),
        launch(2, 1),
        launch(4, 2),
        call("aten::relu_", 20, "[[8,64]]", &bf16(1)),
        launch(21, 3),
        call("aten::sin", 40, "[[8,64]]", &bf16(1)),
        launch(41, 4),
        call("c10d::allreduce_", 60, "[[]]", "[\"\"]"),
        launch(61, 5),
        kernel("gemm", 100, 30, 1, ""),
        kernel("splitKreduce", 140, 10, 2, ""),
        kernel("relu_kernel<float>", 160, 5, 3, ""),
        kernel("void sin_kernel<float>(int)", 170, 7, 4, ""),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 200, reduced, 5, all_reduce),
    ];
    let events = events.concat();
    format!(
        r#"{{"distributedInfo":{{"rank":{rank},"world_size":2,"backend":"nccl"}},"traceEvents":[{}]}}"#,
        events.trim_end_matches(',')
    )
}

fn timeline() -> Timeline {
    let mut timeline = Timeline::default();
    for (rank, reduced) in [(0, 900), (1, 50)] {
        let (names, rank) = kineto::read_bytes(trace(rank, reduced).into_bytes(), "trace").unwrap();
        timeline.add(names, rank);
    }
    timeline
}

#[test]
fn calls_take_what_their_kernels_take_and_collectives_what_the_last_rank_sees() {
    let graph = Graph::from_text("step", STEP).unwrap();
    let timeline = timeline();
    let frames = Frames::new(&timeline, Mode::Exact, Selection::default());
    let observed = observe(&[frames], &Calls::of([&graph]));
    let operation = |name: &str, flops, bytes, tensors| What::Operation {
        name: name.to_owned(),
        dtype: Dtype::Bf16,
        reads: Dtype::Bf16,
        amounts: Amounts { flops, bytes, tensors },
        is_even: name == "aten::relu",
    };
    let addmm_bytes = 2 * (64 + 8 * 32 + 32 * 64 + 8 * 64);
    let expected = [
        (operation("aten::addmm", 2.0 * 8.0 * 32.0 * 64.0, addmm_bytes, 4), 40_000.0, 2),
        (operation("aten::relu", 0.0, 2 * 2 * 8 * 64, 2), 5_000.0, 2),
        (
            What::Collective { kind: CollectiveKind::AllReduce, ranks: 2, stride: 1, bytes: Bytes(2048) },
            50_000.0,
            1,
        ),
    ];
    for (what, nanos, calls) in &expected {
        let one = observed.seen.iter().find(|one| one.what == *what);
        let one = one.unwrap_or_else(|| panic!("{what:?} is not in {:#?}", observed.seen));
        assert_eq!((one.nanos, one.calls), (*nanos, *calls), "{what:?}");
    }
    assert_eq!(observed.seen.len(), expected.len());
    let unknown: Vec<(&str, f64)> =
        observed.unknown.iter().map(|(name, nanos)| (name.as_str(), *nanos)).collect();
    assert_eq!(unknown, [("void sin_kernel<float>(int)", 14_000.0)]);
}

#[test]
fn kernels_of_no_call_are_named_without_their_types() {
    let graph = Graph::from_text("step", STEP).unwrap();
    let cluster = Cluster::preset("h100:1x2").unwrap();
    let (observed, refit) = of_timelines(&cluster, &[timeline()], &Calls::of([&graph])).unwrap();
    let text = unisono_refit::said(&observed, &refit);
    assert!(text.starts_with("5 calls of 3 kinds on 2 rank(s)\n"), "{text}");
    assert!(text.ends_with("no operations of the step: 14 us in `sin_kernel`"), "{text}");
}

#[test]
fn a_description_of_several_kinds_of_devices_is_refused() {
    let cluster = Cluster::preset("h100:1x2+a100:1x2").unwrap();
    let error = of_timelines(&cluster, &[timeline()], &Calls::default()).unwrap_err();
    assert!(error.hint.unwrap().contains("each kind alone"));
}

#[test]
fn without_the_step_a_trace_says_what_collectives_take() {
    let cluster = Cluster::preset("h100:1x2").unwrap();
    let (observed, _) = of_timelines(&cluster, &[timeline()], &Calls::default()).unwrap();
    assert_eq!(observed.seen.len(), 1);
}
