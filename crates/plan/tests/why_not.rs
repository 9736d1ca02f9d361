//! Alternatives to a plan are planned and priced like it, and every difference is accounted for.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cluster::testing::{link, slow, uniform};
use indexmap::IndexMap;
use ir::Graph;
use unisono_plan::{Alternative, Effort, Pins, Plan, PlanSettings, WhyNot, plan_graph, why_not};

fn step() -> Graph {
    Graph::from_text("step.txt", include_str!("steps/mlp.txt")).unwrap()
}

fn settings(mesh: &[(&str, u32)]) -> PlanSettings {
    let mesh = mesh.iter().map(|(axis, size)| ((*axis).to_owned(), *size));
    PlanSettings { mesh: mesh.collect::<IndexMap<_, _>>(), effort: Effort::Quick, ..PlanSettings::default() }
}

fn pins(pattern: &str, axis: &str, placement: &str) -> Pins {
    let placements = IndexMap::from([(axis.to_owned(), placement.parse().unwrap())]);
    Pins::from([(pattern.to_owned(), placements)])
}

fn asked(plan: &Plan, settings: &PlanSettings, text: &str) -> WhyNot {
    why_not(&step(), plan, &slow(), settings, &text.parse().unwrap()).unwrap()
}

#[test]
fn differences_add_up_to_what_the_alternative_takes_longer() {
    let one = (&[("a", 4)][..], &["data", "zero-1", "tensor", "b=8"][..]);
    let two = (&[("a", 2), ("b", 2)][..], &["sequence", "a=4"][..]);
    for (mesh, others) in [one, two] {
        let settings = settings(mesh);
        let plan = plan_graph(&step(), &slow(), &settings).unwrap();
        for text in others {
            let answer = asked(&plan, &settings, text);
            let found = answer.plan.as_ref().unwrap();
            let all: f64 = answer.differences.iter().map(|one| one.ms).sum();
            // Each of some hundred times is rounded to a nanosecond.
            assert!((all - found.slower_ms).abs() < 1e-3, "{text}: {all} of {answer:?}");
            let parts = found.slower_compute_ms + found.slower_exposed_ms;
            assert!((parts - found.slower_ms).abs() < 1e-3, "{answer:?}");
            let first = answer.first.as_ref();
            assert!(first.is_some() || found.slower_ms <= 0.0 || answer.differences.is_empty(), "{answer:?}");
            assert!(first.is_none_or(|first| first.ms > 0.0), "{answer:?}");
        }
    }
}

#[test]
fn the_first_difference_that_costs_is_named_with_its_line() {
    let settings = settings(&[("a", 4)]);
    // Links are slow beside devices.
    let cluster = uniform(1e12, 1e11, link(1000.0, 1e10));
    let plan = plan_graph(&step(), &cluster, &settings).unwrap();
    let answer = why_not(&step(), &plan, &cluster, &settings, &"zero-3".parse().unwrap()).unwrap();
    let expected = "\
tensor parallel 4, samples sharded, state sharded
why not zero-3: data parallel 4, state sharded, gathered once
  1.41 ms, 677 us more: 180 us more of operations, 497 us more of waiting; 12.8 MiB, 7.06 MiB more
  places 9 inputs otherwise, first `params.0.norm.weight`: shard(0) on a, not replicate
  first difference that costs: 22.0 us more in forward of `0.up`, train.py:7, most of it aten::clone
  costs 316 us of waiting: reduce_scatter on a, aten::mm in `*.down`: partial(sum) -> shard(0); aten::mm in `*.up`: partial(sum) -> shard(0); 1 more
  costs 307 us of waiting: all_gather on a, params.*.norm.weight: shard(0) -> replicate; params.*.up.weight: shard(0) -> replicate; 1 more
  costs 84.9 us of operations: the step itself, backward
  costs 43.9 us of operations: *.up, forward
  saves 41.3 us of waiting: reduce_scatter on a, aten::mm in `*.down`: partial(sum) -> shard(0)
  saves 20.7 us of waiting: all_gather on a, aten::add.Tensor in `*.norm`: shard(0) -> replicate
  saves 20.7 us of waiting: reduce_scatter on a, aten::mm in `*.up`: partial(sum) -> shard(0)
  saves 20.7 us of waiting: all_gather on a, aten::view in `*.down`: shard(0) -> replicate
";
    assert_eq!(format!("{}\n{answer}", plan.label), expected);
}

#[test]
fn what_is_no_slower_says_so() {
    let free = settings(&[("a", 4)]);
    let pins = [pins("params.*", "a", "replicate"), pins("optimizer.*", "a", "replicate")];
    let pinned = PlanSettings { pins: pins.into_iter().flatten().collect(), ..free.clone() };
    let plan = plan_graph(&step(), &slow(), &pinned).unwrap();
    let answer = asked(&plan, &pinned, "zero-3");
    assert!(answer.plan.as_ref().unwrap().slower_ms < 0.0, "{answer}");
    assert!(answer.notes.iter().any(|note| note.contains("takes no longer")), "{answer}");
    let found = answer.plan.unwrap();
    let again = plan_graph(&step(), &slow(), &PlanSettings { pins: found.pins, ..free.clone() }).unwrap();
    assert_eq!(again.label, found.label);
    let best = plan_graph(&step(), &slow(), &free).unwrap();
    let same = Alternative::Mesh(free.mesh.clone());
    let answer = why_not(&step(), &best, &slow(), &free, &same).unwrap();
    assert_eq!(answer.notes, ["this is the plan that was chosen"]);
}

#[test]
fn what_cannot_be_says_why() {
    let settings = settings(&[("a", 4)]);
    let plan = plan_graph(&step(), &slow(), &settings).unwrap();
    let too_fine = Alternative::Pins(pins("params.*", "a", "shard(2)"));
    let answer = why_not(&step(), &plan, &slow(), &settings, &too_fine).unwrap();
    let refused = answer.refused.as_ref().unwrap();
    assert!(refused.message.contains("binds nothing") && answer.plan.is_none(), "{answer}");
    let limit = plan.prediction.peak_bytes + 1000;
    let limited = PlanSettings { memory_limit: Some(limit), ..settings.clone() };
    let limited = PlanSettings {
        recompute: Some(unisono_plan::Recomputation::None),
        micro_batches: Some(1),
        ..limited
    };
    let plan = plan_graph(&step(), &slow(), &limited).unwrap();
    let answer = asked(&plan, &limited, "data");
    assert!(answer.refused.as_ref().unwrap().message.contains("no plan fits into"), "{answer}");
    let found = answer.plan.as_ref().unwrap();
    assert!(!found.fits && found.peak_bytes > limit && found.label == "data parallel 4", "{answer}");
}

#[test]
fn names_that_mean_nothing_are_errors() {
    let settings = settings(&[("a", 4)]);
    let plan = plan_graph(&step(), &slow(), &settings).unwrap();
    for (text, said) in
        [("tensr", "did you mean `tensor`?"), ("tensor on b", "no axis `b`"), ("99", "no runner-up 99")]
    {
        let refused = why_not(&step(), &plan, &slow(), &settings, &text.parse().unwrap()).unwrap_err();
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

#[test]
fn runners_up_are_found_by_number_and_by_name() {
    let settings = settings(&[("a", 4)]);
    let plan =
        plan_graph(&step(), &slow(), &PlanSettings { effort: Effort::Full, ..settings.clone() }).unwrap();
    let other = plan.runners_up.first().unwrap();
    let by_number = asked(&plan, &settings, "1").plan.unwrap();
    assert_eq!(asked(&plan, &settings, &other.name).plan.unwrap(), by_number);
}

#[test]
fn a_pipeline_is_held_against_a_plan_without_stages() {
    let settings = settings(&[("stages", 2), ("a", 2)]);
    let schedule = Some("1f1b".parse().unwrap());
    let settings = PlanSettings { schedule, micro_batches: Some(2), ..settings };
    let plan = plan_graph(&step(), &slow(), &settings).unwrap();
    let found = asked(&plan, &settings, "a=4").plan.unwrap();
    assert!(found.label.contains("parallel 4"), "{found:?}");
    assert_eq!(found.mesh.get("stages"), None);
}
