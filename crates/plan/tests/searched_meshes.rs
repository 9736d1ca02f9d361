//! Meshes that are searched for, under what users say of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cluster::testing::slow;
use ir::{Graph, Placement};
use unisono_plan::{Forbid, Pins, Plan, PlanSettings, plan_graph};

/// Two blocks of a norm and two products, `0` and `1`, for 16 samples of 16 positions of 256 features.
const MLP: &str = include_str!("steps/mlp.txt");

fn searched(ranks: u32) -> PlanSettings {
    PlanSettings { ranks: Some(ranks), ..PlanSettings::default() }
}

fn planned(settings: &PlanSettings) -> Result<Plan, String> {
    let graph = Graph::from_text("step.txt", MLP).unwrap();
    plan_graph(&graph, &slow(), settings).map_err(|refused| refused.to_string())
}

fn axes(plan: &Plan) -> Vec<&str> {
    plan.mesh.keys().map(String::as_str).collect()
}

#[test]
fn what_names_an_axis_leaves_the_meshes_that_have_it() {
    let pin = |axis: &str| -> Pins {
        let placement: Placement = "shard(0)".parse().unwrap();
        [("batch.*".to_owned(), [(axis.to_owned(), placement)].into_iter().collect())].into_iter().collect()
    };
    let forbid =
        |axis: &str| -> Forbid { [(axis.to_owned(), vec!["all_to_all".to_owned()])].into_iter().collect() };
    for (axis, found) in [("ranks", &["ranks"][..]), ("inner", &["outer", "inner"])] {
        for settings in [
            PlanSettings { pins: pin(axis), ..searched(4) },
            PlanSettings { forbid: forbid(axis), ..searched(4) },
        ] {
            let plan = planned(&settings).unwrap();
            assert!(axes(&plan).ends_with(found), "{:?}", plan.mesh);
        }
    }
    let refused = planned(&PlanSettings { pins: pin("rank"), ..searched(4) }).unwrap_err();
    assert!(
        refused.contains("names an axis `rank` that no mesh of 4 ranks has")
            && refused.contains("did you mean `ranks`?"),
        "{refused}"
    );
    let refused = planned(&PlanSettings { pins: pin("outer"), ..searched(3) }).unwrap_err();
    assert!(refused.contains("no mesh of 3 ranks has") && refused.contains("or give the mesh"), "{refused}");
}

#[test]
fn a_mesh_in_so_many_stages_is_no_worse_than_one_axis_in_them() {
    let stages = Some(2);
    let found = planned(&PlanSettings { stages, ..searched(4) }).unwrap();
    let mesh = [("stages".to_owned(), 2), ("ranks".to_owned(), 2)].into_iter().collect();
    let named = planned(&PlanSettings { mesh, ..PlanSettings::default() }).unwrap();
    assert_eq!(found.mesh["stages"], 2);
    assert!(found.prediction.step_ns <= named.prediction.step_ns);
    let schedule = Some("1f1b".parse().unwrap());
    let found = planned(&PlanSettings { stages, schedule, micro_batches: Some(8), ..searched(4) }).unwrap();
    let schedule = found.stages.as_ref().unwrap().schedule.to_string();
    assert_eq!((found.micro_batches, schedule.as_str()), (8, "1f1b"));
    for (settings, said) in [
        (PlanSettings { stages: Some(3), ..searched(4) }, "4 ranks in 3 stages"),
        (PlanSettings { stages: Some(0), ..searched(4) }, "4 ranks in 0 stages"),
        (PlanSettings { stages, mesh: found.mesh, ..PlanSettings::default() }, "says them itself"),
        (PlanSettings { stages, micro_batches: Some(3), ..searched(4) }, "3"),
    ] {
        let refused = planned(&settings).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }
}

#[test]
fn where_stages_do_not_divide_the_batch_it_is_sliced_as_near_to_them_as_it_can_be() {
    let mesh = [("stages".to_owned(), 3)].into_iter().collect();
    let sliced = PlanSettings { mesh, ..PlanSettings::default() };
    let found = planned(&sliced).unwrap();
    assert!([4, 8, 16].contains(&found.micro_batches), "16 samples in {} micro-batches", found.micro_batches);
    let step_ns = |micro_batches| {
        let settings = PlanSettings { micro_batches, ..sliced.clone() };
        planned(&settings).unwrap().prediction.step_ns
    };
    let least = [1, 4, 8, 16].map(|count| step_ns(Some(count))).into_iter().min().unwrap();
    assert_eq!(found.prediction.step_ns, least);
}
