//! The program behind a trace: Python functions, forward and backward operators, data flow, and the path drawn over events.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "times are exact thousandths")]

mod common;

use common::{Setting, generate};
use timeline::{Timeline, chrome::Extras, kineto, tensors::TensorUse};
use trace::{Frames, Mode, Selection, autograd, dataflow, overlay, python, stack::CallGraph};
use unisono_trace as trace;

/// A forward pass of two layers in a module, and their backwards on another thread.
fn events(flows: bool) -> String {
    let event = |cat: &str, name: &str, tid: i64, ts: i64, dur: i64, args: &str| {
        format!(
            r#"{{"ph":"X","cat":"{cat}","name":"{name}","pid":1,"tid":{tid},"ts":{ts},"dur":{dur},"args":{{{args}}}}}"#
        )
    };
    let kernel = |correlation: i64, ts: i64| {
        format!(
            r#"{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{ts},"dur":3,"args":{{"stream":7,"correlation":{correlation}}}}}"#
        )
    };
    let launch = |correlation: i64, tid, ts| {
        event("cuda_runtime", "cudaLaunchKernel", tid, ts, 1, &format!(r#""correlation":{correlation}"#))
    };
    let mut list = vec![
        event("python_function", "train.py(5): step", 1, 0, 100, r#""Python id":1"#),
        event("python_function", "nn.Module: Linear_0", 1, 10, 30, r#""Python id":2,"Python parent id":1"#),
        event("python_function", "nn.Module: Linear_0", 1, 50, 20, r#""Python id":3,"Python parent id":1"#),
        event(
            "cpu_op",
            "aten::linear",
            1,
            12,
            20,
            r#""External id":1,"Sequence number":7,"Fwd thread id":0"#,
        ),
        event("cpu_op", "aten::addmm", 1, 12, 18, r#""External id":2,"Sequence number":7,"Fwd thread id":0"#),
        launch(1, 1, 14),
        kernel(1, 16),
        event("cpu_op", "aten::relu", 1, 52, 10, r#""External id":3,"Sequence number":8,"Fwd thread id":0"#),
        event(
            "cpu_op",
            "autograd::engine::evaluate_function: ReluBackward0",
            2,
            200,
            9,
            r#""External id":4,"Sequence number":8,"Fwd thread id":1"#,
        ),
        event(
            "cpu_op",
            "ReluBackward0",
            2,
            201,
            7,
            r#""External id":5,"Sequence number":8,"Fwd thread id":1"#,
        ),
        event(
            "cpu_op",
            "autograd::engine::evaluate_function: AddmmBackward0",
            2,
            210,
            9,
            r#""External id":6,"Sequence number":7,"Fwd thread id":1"#,
        ),
        launch(2, 2, 212),
        kernel(2, 214),
    ];
    let arrow = |phase: &str, id: i64, tid: i64, ts: i64| {
        format!(
            r#"{{"ph":"{phase}","bp":"e","id":{id},"cat":"fwdbwd","name":"fwdbwd","pid":1,"tid":{tid},"ts":{ts}}}"#
        )
    };
    if flows {
        list.extend([
            arrow("s", 1, 1, 12),
            arrow("f", 1, 2, 210),
            arrow("s", 2, 1, 52),
            arrow("f", 2, 2, 200),
        ]);
    }
    format!("[{}]", list.join(","))
}

fn read(json: &str) -> Timeline {
    let mut timeline = Timeline::default();
    let (names, rank) = kineto::read_bytes(json.as_bytes().to_vec(), "program").unwrap();
    timeline.add(names, rank);
    timeline
}

fn exact(timeline: &Timeline) -> Frames<'_> {
    Frames::new(timeline, Mode::Exact, Selection::default())
}

#[test]
fn forward_operators_find_their_backwards_by_arrows_and_by_sequence_numbers() {
    for flows in [false, true] {
        let timeline = read(&events(flows));
        let frames = exact(&timeline);
        let graphs: Vec<CallGraph<'_>> = frames.ranks.iter().map(CallGraph::of).collect();
        let found = autograd::forward_backward(&frames, &graphs);
        let pairs: Vec<(&str, &str)> =
            found.iter().map(|row| (row.forward.as_str(), row.backward.as_str())).collect();
        let linear = ("aten::linear", "autograd::engine::evaluate_function: AddmmBackward0");
        let relu = ("aten::relu", "autograd::engine::evaluate_function: ReluBackward0");
        assert_eq!(pairs, [linear, relu], "arrows: {flows}");
        assert_eq!((found[0].forward_time, found[0].backward_time), (20.0, 9.0));
        assert_eq!(
            (found[0].forward_kernels, found[0].backward_kernels, found[1].backward_kernels),
            (3.0, 3.0, 0.0)
        );
        assert_eq!(found[0].origin.module.as_deref(), Some("Linear_0"));
        assert_eq!(found[0].origin.line.as_deref(), Some("train.py(5): step"));
    }
}

#[test]
fn the_python_tree_takes_calls_of_one_path_together_with_their_kernels() {
    let timeline = read(&events(false));
    let frames = exact(&timeline);
    let graphs: Vec<CallGraph<'_>> = frames.ranks.iter().map(CallGraph::of).collect();
    let tree = python::tree(&frames, &graphs);
    assert_eq!(tree.len(), 2);
    assert_eq!((tree[0].depth, tree[0].count, tree[0].time, tree[0].own), (0, 1, 100.0, 50.0));
    assert_eq!((tree[1].depth, tree[1].count, tree[1].time, tree[1].own), (1, 2, 50.0, 50.0));
    assert_eq!(
        (tree[1].name.as_str(), tree[1].kernels, tree[1].kernel_time),
        ("nn.Module: Linear_0", 1, 3.0)
    );
}

#[test]
fn data_flows_from_the_last_writer_of_a_storage_to_its_readers() {
    let mut timeline = read(&events(false));
    let used = |external, storage, written| TensorUse { external, storage, bytes: 8, written };
    timeline.ranks[0].tensors = vec![
        used(2, 10, false),
        used(2, 20, true),
        used(3, 20, false),
        used(3, 30, true),
        used(99, 20, true),
        used(5, 20, false),
        used(5, 20, true),
        used(6, 20, false),
    ];
    let flows = dataflow::data_flow(&exact(&timeline));
    let found: Vec<(Option<&str>, &str)> =
        flows.iter().map(|flow| (flow.producer.as_deref(), flow.consumer.as_str())).collect();
    let addmm = Some("aten::addmm");
    let backward = "autograd::engine::evaluate_function: AddmmBackward0";
    assert_eq!(
        found,
        [
            (None, "aten::addmm"),
            (Some("ReluBackward0"), backward),
            (addmm, "ReluBackward0"),
            (addmm, "aten::relu")
        ]
    );
    assert!(flows.iter().all(|flow| flow.bytes == 8 && flow.count == 1));
}

#[test]
fn the_path_drawn_over_the_events_is_the_critical_path() {
    let generated = generate(&Setting { ranks: 3, late: Some((1, 0, 400_000)), ..Setting::default() });
    let frames = exact(&generated.timeline);
    let mut extras = Extras::default();
    overlay::add_path(&frames, "ProfilerStep", 0, &mut extras);
    // the late rank holds the others, so that the path stays with it up to the collective
    let marked: Vec<u32> = extras.critical.keys().copied().collect();
    assert!(marked.contains(&1), "{marked:?}");
    let row = |rank: usize, name: &str| {
        let events = &generated.timeline.ranks[rank].events;
        let names = &generated.timeline.names;
        (0..events.len()).find(|&row| names.text(events.name[row]) == name).unwrap()
    };
    let (launch, kernel) = (row(1, "cudaLaunchKernel"), row(1, "gemm_0"));
    let events = &generated.timeline.ranks[1].events;
    assert!(extras.critical[&1].contains(&events.index[kernel]));
    let arrow = extras.arrows.iter().find(|arrow| arrow.name == "launch").unwrap();
    assert_eq!((arrow.from.time, arrow.to.time), (events.start[launch], events.start[kernel]));
    assert_eq!(
        (arrow.from.rank, arrow.from.track, arrow.to.track),
        (1, events.track[launch], events.track[kernel])
    );
    assert!(extras.arrows.windows(2).all(|pair| pair[0].from.time <= pair[1].to.time));
}
