//! What was put into a generated trace comes out of the analyses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "times are exact thousandths")]

mod common;

use common::{DELAY, Setting, TRANSFER, generate};
use timeline::Timeline;
use trace::{Frames, Mode, Selection, breakdown, causal, diff, waiting};
use unisono_trace as trace;

fn frames(timeline: &Timeline) -> Frames<'_> {
    Frames::new(timeline, Mode::Exact, Selection::default())
}

fn micros(nanos: i64) -> f64 {
    nanos as f64 / 1000.0
}

#[test]
fn a_late_rank_is_named_with_module_and_line_and_transfer_is_exact() {
    let setting = Setting { ranks: 4, steps: 4, late: Some((2, 1, 300_000)), ..Setting::default() };
    let generated = generate(&setting);
    let waiting = waiting::waiting(&frames(&generated.timeline));
    assert_eq!(waiting.matched, 4);
    for collective in &waiting.collectives {
        assert_eq!((collective.culprit, collective.transfer), (2, micros(TRANSFER)));
        let reason = collective.reason.as_ref().unwrap();
        assert_eq!((reason.name.as_str(), reason.extra), ("model.py(11): forward", 300.0));
        assert_eq!(reason.origin.module.as_deref(), Some("Layer_1"));
    }
    let rank = &waiting.ranks[2];
    assert_eq!((rank.caused_percent, rank.last, rank.wait), (100.0, 4, 0.0));
    let reason = &rank.reasons[0];
    assert_eq!(reason.name, "model.py(11): forward");
    assert_eq!(reason.origin.module.as_deref(), Some("Layer_1"));
    assert_eq!(reason.origin.line.as_deref(), Some("model.py(11): forward"));
    assert!((reason.extra - 1200.0).abs() < 1.0, "{reason:?}");
}

#[test]
fn offsets_of_milliseconds_and_drift_of_20_ppm_are_found_within_10_us() {
    let offsets = vec![0, 5_000_000, -5_000_000, 1_234_567];
    let setting = Setting {
        ranks: 4,
        steps: 200,
        layers: vec![2_000_000],
        offsets: offsets.clone(),
        drifts: vec![0, 20, -20, 5],
        ..Setting::default()
    };
    let generated = generate(&setting);
    let frames = frames(&generated.timeline);
    let collectives = trace::collective::matched(&frames);
    let clocks = trace::align::clocks(&collectives, 4);
    for collective in &collectives {
        let ends: Vec<i64> =
            collective.parts.iter().map(|part| clocks[part.frame].common(part.end)).collect();
        let spread = ends.iter().max().unwrap() - ends.iter().min().unwrap();
        assert!(spread < 10_000, "{spread} ns, {clocks:?}");
    }
}

#[test]
fn the_critical_path_is_as_long_as_the_step_and_crosses_to_the_late_rank() {
    let setting = Setting { ranks: 3, late: Some((1, 0, 400_000)), ..Setting::default() };
    let generated = generate(&setting);
    let frames = frames(&generated.timeline);
    let graph = causal::build(&frames, "ProfilerStep", 0).unwrap();
    let path = causal::critical_path(&frames, &graph, "ProfilerStep", 0);
    assert!((path.total_duration - path.wall).abs() <= 0.01 * path.wall, "{path:?}");
    assert!((path.wall - micros(generated.first_step)).abs() <= 0.01 * path.wall, "{path:?}");
    assert_eq!(path.model_error, 0.0);
    let late = path.by_rank_us[&1];
    assert!(late > 400.0, "{path:?}");
}

#[test]
fn halving_kernels_or_launches_or_transfers_gives_the_trace_of_a_run_that_has_them() {
    let whole = Setting { layers: vec![200_000, 300_000, 100_000], ..Setting::default() };
    let halved = Setting { layers: vec![200_000, 150_000, 100_000], ..whole.clone() };
    let (a, b) = (generate(&whole), generate(&halved));
    let frames = frames(&a.timeline);
    let graph = causal::build(&frames, "ProfilerStep", 0).unwrap();
    let after = |change: &str| causal::what_if(&frames, &graph, &[change.to_owned()]).unwrap();
    let kernels = after("kernel:gemm_1=0.5");
    assert!(
        (kernels.before - kernels.after - micros(a.first_step - b.first_step)).abs() < 1e-9,
        "{kernels:?}"
    );
    let transfers = after("collective:AllReduce=0.5");
    assert!((transfers.before - transfers.after - micros(TRANSFER / 2)).abs() < 1e-9, "{transfers:?}");
    // only the first kernel waits for its launch: all others wait for the kernel before
    let launches = after("launch=0");
    let immediate = generate(&Setting { delay: 0, ..whole.clone() });
    assert_eq!(a.first_step - immediate.first_step, DELAY);
    assert!((launches.before - launches.after - micros(DELAY)).abs() < 1e-9, "{launches:?}");
    // a model that explains the trace changes nothing where nothing is changed
    let nothing = after("kernel:=1");
    assert_eq!((nothing.before, nothing.changed, nothing.model_error), (nothing.after, 0, 0.0));
    assert!(causal::what_if(&frames, &graph, &["kernels=2".to_owned()]).is_err());
}

#[test]
fn a_kernel_5_percent_slower_among_noise_is_named_and_20_unchanged_pairs_are_silent() {
    let setting = |seed, factor: i64| Setting {
        ranks: 2,
        steps: 12,
        layers: (0..8).map(|layer| 100_000 + 20_000 * layer + if layer == 3 { factor } else { 0 }).collect(),
        noise: 20,
        seed,
        ..Setting::default()
    };
    let compare = |a: &Setting, b: &Setting| {
        let (a, b) = (generate(a), generate(b));
        diff::regression(&frames(&a.timeline), &frames(&b.timeline)).changes
    };
    for seed in 0..20 {
        let changes = compare(&setting(2 * seed + 1, 0), &setting(2 * seed + 2, 0));
        assert!(changes.is_empty(), "seed {seed}: {changes:?}");
    }
    let changes = compare(&setting(100, 0), &setting(200, 8_000));
    let names: Vec<&str> = changes.iter().map(|change| change.name.as_str()).collect();
    assert_eq!(names, ["gemm_3"]);
    assert!((changes[0].percent.unwrap() - 5.0).abs() < 2.0, "{changes:?}");
    assert_eq!(changes[0].origin.module.as_deref(), Some("Layer_3"));
    assert_eq!(changes[0].origin.line.as_deref(), Some("model.py(13): forward"));
}

#[test]
fn busy_and_idle_time_are_exact_nanoseconds() {
    let generated =
        generate(&Setting { ranks: 1, steps: 1, layers: vec![20_001, 30_003], ..Setting::default() });
    let temporal = &breakdown::temporal(&frames(&generated.timeline))[0];
    assert_eq!(temporal.compute, micros(20_001 + 30_003));
    assert_eq!(temporal.non_compute, micros(TRANSFER));
    assert!((temporal.idle + temporal.compute + temporal.non_compute - temporal.total).abs() < 1e-9);
}

#[test]
fn every_analysis_answers_for_traces_that_lack_what_it_needs() {
    let texts = [
        "[]",
        r#"[{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":2}]"#,
        r#"[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5,"dur":-3,"args":{"stream":7,"correlation":1}}]"#,
        r#"[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":10},{"ph":"X","cat":"cpu_op","name":"b","pid":1,"tid":1,"ts":5,"dur":10}]"#,
        r#"[{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":10}]"#,
    ];
    for text in texts {
        for mode in [Mode::Exact, Mode::Hta] {
            let mut timeline = Timeline::default();
            let (names, rank) = timeline::kineto::read_bytes(text.as_bytes().to_vec(), "odd").unwrap();
            timeline.add(names, rank);
            let frames = Frames::new(&timeline, mode, Selection::default());
            let options = trace::summary::Options { annotation: String::new(), ..Default::default() };
            let object = trace::summary::run(&frames, trace::summary::Analysis::ALL, &options);
            assert!(object.contains_key("temporal_breakdown"), "{text}");
        }
    }
}

#[test]
fn halving_any_layer_of_any_generated_trace_is_exact() {
    base::testing::cases(2000, |u| {
        let layers: Vec<i64> = (0..u.int_in_range(1..=5)?)
            .map(|_| Ok(1000 * u.int_in_range(1..=80)?))
            .collect::<Result<_, _>>()?;
        let which = u.choose_index(layers.len())?;
        let setting = Setting { ranks: u.int_in_range(1..=3)?, layers: layers.clone(), ..Setting::default() };
        let mut halved = setting.clone();
        halved.layers[which] /= 2;
        let (a, b) = (generate(&setting), generate(&halved));
        let frames = frames(&a.timeline);
        let graph = causal::build(&frames, "ProfilerStep", 0).unwrap();
        let result = causal::what_if(&frames, &graph, &[format!("kernel:gemm_{which}=0.5")]).unwrap();
        let saved = micros(a.first_step - b.first_step);
        assert!((result.before - result.after - saved).abs() < 1e-9, "{result:?} {saved} {layers:?} {which}");
        Ok(())
    });
}

#[test]
fn a_rank_without_a_trace_is_named() {
    let setting = Setting { ranks: 3, ..Setting::default() };
    let mut generated = generate(&setting);
    generated.timeline.ranks.remove(1);
    let waiting = waiting::waiting(&frames(&generated.timeline));
    assert_eq!(waiting.matched, 3);
    assert!(waiting.collectives.iter().all(|collective| collective.ranks == [0, 2]));
}

#[test]
fn findings_name_the_late_rank_first_with_evidence_share_and_action() {
    let setting = Setting { ranks: 4, steps: 4, late: Some((2, 1, 300_000)), ..Setting::default() };
    let generated = generate(&setting);
    let frames = frames(&generated.timeline);
    let options = trace::summary::Options::default();
    let found = trace::findings::findings(&trace::summary::Answers::new(&frames, &options));
    assert!((1..=5).contains(&found.len()), "{found:?}");
    let late = found.iter().find(|finding| finding.analysis == "collectives").unwrap();
    assert_eq!(late.rank, Some(2));
    assert!(late.evidence.contains("Layer_1") && late.evidence.contains("model.py(11): forward"), "{late:?}");
    assert!(late.share > 10.0 && !late.action.is_empty());
    assert!(found.windows(2).all(|pair| pair[0].share >= pair[1].share));
}
