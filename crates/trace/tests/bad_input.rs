//! Input that no profiler should write, and some do: a result with a note, or an error with its place. Never a panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fmt::Write, fs, io::Write as _, path::PathBuf};

use arbtest::arbitrary::{Result, Unstructured};
use base::Code;
use timeline::{Timeline, files, kineto};
use trace::{
    Frames, Mode, Selection,
    diff::{self, Device, Part, Spelling},
    overlay,
    summary::{self, Analysis, Options},
};
use unisono_trace as trace;

fn timeline(json: String) -> Timeline {
    let mut timeline = Timeline::default();
    let (names, rank) = kineto::read_bytes(json.into_bytes(), "odd").unwrap();
    timeline.add(names, rank);
    timeline
}

/// Everything that can be said of a timeline, in both modes.
fn say_everything(timeline: &Timeline) -> usize {
    let mut keys = 0;
    for mode in [Mode::Exact, Mode::Hta] {
        let frames = Frames::new(timeline, mode, Selection::default());
        for annotation in ["", "ProfilerStep"] {
            let options =
                Options { annotation: annotation.to_owned(), op: "aten::".to_owned(), ..Options::default() };
            keys += summary::run(&frames, Analysis::ALL, &options).len();
        }
    }
    let frames = Frames::new(timeline, Mode::Exact, Selection::default());
    overlay::add_path(&frames, "", 0, &mut timeline::chrome::Extras::default());
    diff::regression(&frames, &frames);
    diff::compare((timeline, Part::default()), (timeline, Part::default()), Device::All, Spelling::Short);
    keys
}

fn list(events: impl Iterator<Item = String>) -> String {
    format!("[{}]", events.collect::<Vec<_>>().join(","))
}

/// Events of all kinds at random times, some of negative duration, most overlapping, with correlations that fit or do not.
fn random_events(u: &mut Unstructured<'_>) -> Result<String> {
    const KINDS: &[(&str, &str)] = &[
        ("cpu_op", "aten::mm"),
        ("cpu_op", "c10d::allreduce_"),
        ("cpu_op", "autograd::engine::evaluate_function: MmBackward0"),
        ("cuda_runtime", "cudaLaunchKernel"),
        ("cuda_runtime", "cudaStreamSynchronize"),
        ("cuda_runtime", "cudaEventRecord"),
        ("kernel", "gemm"),
        ("kernel", "ncclDevKernel_AllReduce"),
        ("gpu_memcpy", "Memcpy HtoD"),
        ("cuda_sync", "Stream Wait Event"),
        ("cuda_sync", "Context Sync"),
        ("user_annotation", "ProfilerStep#7"),
        ("user_annotation", "gloo:all_reduce"),
        ("gpu_user_annotation", "## forward ##"),
        ("python_function", "train.py(3): step"),
        ("cuda_profiler_range", "range"),
        ("odd", "odd"),
    ];
    let mut json = String::from("[");
    for number in 0..u.int_in_range(0..=40)? {
        let (category, name) = KINDS[u.choose_index(KINDS.len())?];
        let separator = if number > 0 { "," } else { "" };
        let (tid, ts, dur) = (u.int_in_range(0..=2)?, u.int_in_range(0..=60)?, u.int_in_range(-4..=30)?);
        let (stream, correlation) = (u.int_in_range(-1..=2)?, u.int_in_range(-1..=9)?);
        let (wait, bytes) = (u.int_in_range(-1..=9)?, u.int_in_range(-1..=5)?);
        write!(
            json,
            r#"{separator}{{"ph":"X","cat":"{category}","name":"{name}","pid":1,"tid":{tid},"ts":{ts},"dur":{dur},"args":{{"stream":{stream},
            "correlation":{correlation},"wait_on_stream":{stream},"wait_on_cuda_event_record_corr_id":{wait},"bytes":{bytes},"Sequence number":{wait},
            "Fwd thread id":{tid},"Python id":{correlation},"Input Dims":[[{bytes}]],"External id":{wait}}}}},
            {{"ph":"i","name":"[memory]","pid":1,"tid":{tid},"ts":{ts},"args":{{"Bytes":{dur},"Addr":{bytes},"Device Type":{stream}}}}},
            {{"ph":"{}","cat":"fwdbwd","name":"fwdbwd","id":{wait},"pid":1,"tid":{tid},"ts":{ts}}}"#,
            if dur % 2 == 0 { "s" } else { "f" },
        )
        .unwrap();
    }
    Ok(json + "]")
}

#[test]
fn events_that_contradict_each_other_are_analysed_without_a_panic() {
    base::testing::cases(2000, |u| {
        let mut timeline = timeline(random_events(u)?);
        // a second rank, so that collectives are matched
        let (names, mut rank) = kineto::read_bytes(random_events(u)?.into_bytes(), "odd").unwrap();
        rank.rank = 1;
        timeline.add(names, rank);
        assert!(say_everything(&timeline) > 60);
        Ok(())
    });
}

#[test]
fn events_that_overlap_and_cannot_nest_lie_beside_each_other() {
    let event = |name: &str, ts: i64, dur: i64| {
        format!(r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":1,"ts":{ts},"dur":{dur}}}"#)
    };
    let timeline = timeline(list([event("a", 0, 10), event("b", 5, 10), event("c", 6, 2)].into_iter()));
    let frames = Frames::new(&timeline, Mode::Exact, Selection::default());
    let stacks = frames.ranks[0].calls();
    assert_eq!((stacks.parent(1), stacks.parent(2)), (None, Some(1)));
}

#[test]
fn negative_durations_are_named_and_take_no_time() {
    let json = r#"[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5,"dur":-3,"args":{"stream":7,"correlation":1}},
        {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":15,"dur":3,"args":{"stream":7,"correlation":2}}]"#;
    let timeline = timeline(json.to_owned());
    let frames = Frames::new(&timeline, Mode::Exact, Selection::default());
    assert!(summary::notes(&frames).iter().any(|note| note.code == Code::TRACE_ODD));
}

#[test]
fn many_names_many_levels_and_deep_values_are_read_in_one_go() {
    let names = list((0..20_000).map(|n| {
        format!(r#"{{"ph":"X","cat":"cpu_op","name":"op_{n}","pid":1,"tid":1,"ts":{},"dur":5}}"#, 10 * n)
    }));
    assert!(say_everything(&timeline(names)) > 60);
    let levels = list((0..5_000).map(|n| {
        let duration = 2 * (5_000 - n);
        format!(r#"{{"ph":"X","cat":"python_function","name":"f{}","pid":1,"tid":1,"ts":{n},"dur":{duration},"args":{{"Python id":{n}}}}}"#, n % 50)
    }));
    assert!(say_everything(&timeline(levels)) > 60);
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    let deep = format!(
        r#"[{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2,"args":{{"x":{open}{close}}}}}]"#
    );
    assert_eq!(timeline(deep).events(), 1);
}

#[test]
fn a_value_without_an_end_is_an_error_with_its_offset_and_not_a_full_memory() {
    struct Endless(bool);
    impl std::io::Read for Endless {
        fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
            bytes.fill(b'x');
            if !self.0 {
                bytes[..12].copy_from_slice(br#"[{"name":"xx"#);
                self.0 = true;
            }
            Ok(bytes.len())
        }
    }
    let error = kineto::read_stream(1, &mut Endless(false), "endless", &|_| {}).unwrap_err();
    assert_eq!(error.code, Code::TRACE_LIMIT);
    assert!(error.cause.unwrap().contains("byte 1 ") && error.hint.is_some());
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("unisono-bad-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

const ONE: &str = r#"{"distributedInfo":{"rank":1,"world_size":4},"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":2}]}"#;

#[test]
fn of_two_files_of_one_rank_one_is_left_out_and_ranks_without_a_file_are_named() {
    let folder = folder("ranks");
    fs::write(folder.join("a.json"), ONE).unwrap();
    fs::write(folder.join("b.json"), ONE).unwrap();
    fs::write(folder.join("c.json"), ONE.replace("\"rank\":1", "\"rank\":3")).unwrap();
    let timeline = files::load(std::slice::from_ref(&folder), None, &|_, _| {}).unwrap();
    fs::remove_dir_all(folder).unwrap();
    let messages: Vec<&str> = timeline.notes.iter().map(|note| note.message.as_str()).collect();
    assert_eq!(messages, ["two files are of rank 1", "2 of 4 ranks have no trace: 0, 2"]);
    assert_eq!(timeline.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_folder_without_traces_and_a_file_that_is_none_are_refused() {
    let folder = folder("none");
    let error = files::load(std::slice::from_ref(&folder), None, &|_, _| {}).unwrap_err();
    assert_eq!(error.code, Code::TRACE_RANKS);
    fs::write(folder.join("x.json"), "{\"nodes\": []}").unwrap();
    let error = files::load(std::slice::from_ref(&folder), None, &|_, _| {}).unwrap_err();
    assert_eq!(error.code, Code::NOT_A_TRACE);
    assert!(error.place.unwrap().file.ends_with("x.json"));
    // beside a trace, another file is left out, unless it was named
    fs::write(folder.join("y.json"), ONE).unwrap();
    let timeline = files::load(std::slice::from_ref(&folder), None, &|_, _| {}).unwrap();
    assert_eq!((timeline.ranks.len(), timeline.notes[0].code), (1, Code::NOT_A_TRACE));
    let error = files::load(&[folder.join("x.json"), folder.join("y.json")], None, &|_, _| {}).unwrap_err();
    assert_eq!(error.code, Code::NOT_A_TRACE);
    let error = files::load(&[folder.join("absent.json")], None, &|_, _| {}).unwrap_err();
    assert_eq!(error.code, Code::UNREADABLE_FILE);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_gz_cut_short_gives_the_events_before_the_cut() {
    let events = list((0..30_000).map(|n| {
        format!(
            r#"{{"ph":"X","cat":"cpu_op","name":"op{}","pid":1,"tid":1,"ts":{n},"dur":1}}"#,
            n * 7919 % 1000
        )
    }));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(events.as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    let folder = folder("gz");
    let file = folder.join("rank0.json.gz");
    for cut in [packed.len() / 2, packed.len() - 20, packed.len() - 4] {
        fs::write(&file, &packed[..cut]).unwrap();
        let timeline = files::load(std::slice::from_ref(&file), None, &|_, _| {}).unwrap();
        assert!(timeline.events() > 10_000, "{} events", timeline.events());
        let note = &timeline.ranks[0].notes[0];
        assert_eq!(note.code, Code::TRACE_TRUNCATED);
        assert!(note.cause.as_ref().unwrap().contains("byte"), "{note:?}");
    }
    fs::remove_dir_all(folder).unwrap();
}
