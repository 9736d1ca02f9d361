//! The `plan` and `explain` commands from the outside.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Files, fast, slow};

/// One matrix product with its weight's update.
const GRAPH: &str = r#"unisono graph 2

op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
op aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor

input v0: f32[64, 64] = parameter "params.w"
input v1: f32[1024, 64] = batch "batch.x"

v2: f32[1024, 64] = aten::mm(v1, v0) @p0
part backward
v3: f32[64, 1024]{1, 64} = aten::t(v1) @p0
v4: f32[64, 64] = aten::mm(v3, v2) @p0
part update
v5: f32[64, 64] = aten::sub.Tensor(v0, v4, 0.1) @p1

update "params.w" = v5

place p0 "train.py":3
place p1 "train.py":4
"#;

fn files(test: &str) -> Files {
    Files::new(&format!("plan-{test}"), GRAPH, &slow(fast(100.0)))
}

#[test]
fn a_plan_is_printed_and_can_be_explained() {
    let files = files("printed");
    let (status, plan, errors) = files.run("plan step.txt --mesh a=4 --cluster cluster.toml");
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(plan.contains("[mesh]\na = 4\n"), "{plan}");
    assert!(plan.contains("[inputs.a]\n\"params.w\" = \"shard(1)\""), "{plan}");
    let (status, text, errors) = files.write("plan.toml", &plan).run("explain step.txt plan.toml");
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(text.starts_with("plan ") && text.contains("tensor parallel 4, state sharded"), "{text}");
}

#[test]
fn collectives_can_be_forbidden_along_all_axes_or_one() {
    let files = files("forbidden");
    let plan =
        |forbid: &str| files.run(&format!("plan step.txt --mesh a=4 --cluster cluster.toml {forbid} --json"));
    let kinds = |text: &str| {
        ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
            .map(|kind| text.contains(&format!("\"{kind}\"")))
    };
    let (status, free, _) = plan("--quick");
    assert_eq!(status, 0);
    for (number, is_there) in kinds(&free).into_iter().enumerate().filter(|(_, is_there)| *is_there) {
        let kind = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"][number];
        for forbid in [format!("--forbid {kind}"), format!("--forbid a={kind}")] {
            let (status, text, errors) = plan(&forbid);
            assert_eq!((status, errors.as_str(), is_there), (0, "", true));
            assert!(!kinds(&text)[number], "{text}");
        }
    }
    let (status, _, errors) = plan("--forbid b=all_gather");
    assert!(status == 1 && errors.contains("an axis `b`"), "{errors}");
}

#[test]
fn memory_that_a_mask_is_drawn_into_is_not_communicated() {
    let drawn = r#"v2: f32[1024, 64] = aten::mm(v1, v0) @p0
v6: f32[1024, 64] = aten::empty_like(v2, none, none, none, none, none)
v7: f32[1024, 64] = aten::bernoulli.p(v6, 0.5, none)
v8: f32[1024, 64] = aten::mul.Tensor(v2, v7)"#;
    let graph = GRAPH
        .replace("v2: f32[1024, 64] = aten::mm(v1, v0) @p0", drawn)
        .replace("aten::mm(v3, v2)", "aten::mm(v3, v8)")
        .replace(
            "op aten::t(",
            "op aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
op aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::t(",
        );
    let files = files("mask");
    files.write("mask.txt", &graph).write("pins.toml", "\"params.*\".ranks = \"replicate\"\n");
    let line = "plan mask.txt --ranks 2 --cluster cluster.toml --pins pins.toml -o plan.toml";
    let (status, text, errors) = files.run(line);
    assert_eq!((status, errors.as_str()), (0, ""));
    // The new parameter is put together, the mask of 256 KiB is not.
    assert!(text.contains("1 x all_gather, 16 KiB in all"), "{text}");
}

#[test]
fn a_plan_written_to_a_file_is_explained_and_equals_the_printed_one() {
    let files = files("written");
    let (_, printed, _) = files.run("plan step.txt --ranks 2 --cluster cluster.toml");
    let (status, text, errors) = files.run("plan step.txt --ranks 2 --cluster cluster.toml -o plan.toml");
    assert_eq!((status, errors.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(files.0.join("plan.toml")).unwrap(), printed);
    assert_eq!(files.run("explain step.txt plan.toml --cluster cluster.toml").1, text);
    let short = files.run("explain step.txt plan.toml").1;
    assert!(text.contains("operations by module") && !short.contains("operations by module"), "{text}");
    assert!(short.lines().all(|line| text.contains(line)), "{short}");
    let other = files.run("explain step.txt plan.toml --cluster h100:2").1;
    assert!(other.contains("made for another machine") && !text.contains("another machine"), "{other}");
}

#[test]
fn a_page_says_what_the_json_says_and_needs_nothing_else() {
    let files = files("page");
    files.write("step.txt", &GRAPH.replace("params.w", "params.<b>"));
    files.write("pins.toml", "\"*\".a = \"shard(0)\"\n");
    let line = "plan step.txt --mesh a=4 --cluster cluster.toml --pins pins.toml --memory-limit 1MiB --json --html plan.html";
    let (status, json, errors) = files.run(line);
    assert_eq!((status, errors.as_str()), (0, ""));
    let page = std::fs::read_to_string(files.0.join("plan.html")).unwrap();
    let said: serde_json::Value = serde_json::from_str(&json).unwrap();
    let bytes = |key: &str| base::Bytes(said[key].as_u64().unwrap()).to_string();
    let time = |ms: &serde_json::Value| base::Nanos((ms.as_f64().unwrap() * 1e6).round() as i64).to_string();
    let mut texts = vec![
        said["label"].as_str().unwrap().to_owned(),
        said["limited_by"].as_str().unwrap().to_owned(),
        format!("a step is predicted to take {}", time(&said["step_ms"])),
        format!("A rank needs {} at the peak", bytes("peak_bytes")),
        format!("of the limit of {}", bytes("memory_limit")),
    ];
    for collective in said["collectives"].as_array().unwrap() {
        texts.push(format!(
            "{} of {}",
            collective["kind"].as_str().unwrap(),
            collective["of"].as_str().unwrap()
        ));
    }
    for other in said["runners_up"].as_array().unwrap() {
        texts.push(format!("{}</td><td>{}</td>", other["label"].as_str().unwrap(), time(&other["step_ms"])));
    }
    assert!(texts.len() > 5, "{json}");
    for text in texts {
        assert!(page.contains(&text), "{text}");
    }
    assert!(page.contains("params.&#60;b&#62;") && !page.contains("<b>"));
    assert!(page.contains("collectives on a") && page.contains("aten::mm, train.py:3, "));
    assert!(!page.contains("http") && !page.contains("src="));
}

#[test]
fn a_message_gives_the_plan_of_its_text_form() {
    let files = files("message");
    let graph = ir::Graph::from_text("step.txt", GRAPH).unwrap();
    std::fs::write(files.0.join("step.bin"), graph.to_bytes()).unwrap();
    let (_, of_text, _) = files.run("plan step.txt --ranks 2 --cluster cluster.toml");
    let (status, of_message, _) = files.run("plan step.bin --ranks 2 --cluster cluster.toml");
    assert_eq!((status, of_message), (0, of_text));
}

#[test]
fn pins_are_kept_and_the_last_one_that_matches_decides() {
    let files = files("pins");
    let pins = "\"*\".ranks = \"shard(0)\"\n\"batch.*\" = { ranks = \"replicate\" }\n\"params.w\".ranks = \"shard(1)\"\n";
    let command = "plan step.txt --ranks 2 --cluster cluster.toml --pins pins.toml";
    let (status, plan, errors) = files.write("pins.toml", pins).run(command);
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(
        plan.contains("[inputs.ranks]\n\"params.w\" = \"shard(1)\"") && !plan.contains("\"batch.x\" = "),
        "{plan}"
    );
}

#[test]
fn without_a_cluster_the_way_to_one_is_shown() {
    let (status, out, errors) = files("cluster").run("plan step.txt --ranks 8");
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(errors.contains("[U0201]") && errors.contains("unisono profile --ranks 8"), "{errors}");
}

#[test]
fn what_cannot_be_is_a_diagnostic_with_its_place() {
    let files = files("bad");
    files.write("bad.txt", &GRAPH.replace("aten::sub.Tensor(v0", "aten::sub.Tensor(v9"));
    files.write("bad.toml", "\"params.w\" = { ranks = \"split\" }\n");
    files.write("axis.toml", "\"params.w\" = { rank = \"replicate\" }\n");
    files.write("plan.toml", "version = 4\n");
    files.write("older.toml", "version = 1\nranks = 2\n");
    let with = "--ranks 2 --cluster cluster.toml";
    for (line, code, part) in [
        (format!("plan nowhere.txt {with}"), "U0010", "at nowhere.txt"),
        (format!("plan bad.txt {with}"), "U0011", "at bad.txt:15"),
        (format!("plan step.txt {with} --pins bad.toml"), "U0202", "at bad.toml:1"),
        (format!("plan step.txt {with} --pins axis.toml"), "U0202", "did you mean `ranks`?"),
        (format!("plan step.txt {with} --memory-limit 7GiBi"), "U0012", "`7GiBi` is no amount of memory"),
        (format!("plan step.txt {with} --memory-limit 7"), "U0204", "the smallest plan found needs"),
        ("plan step.txt --ranks 0 --cluster cluster.toml".into(), "U0205", "0 ranks"),
        ("plan step.txt --ranks 0 --mesh auto --cluster cluster.toml".into(), "U0205", "0 ranks"),
        ("plan step.txt --mesh auto --cluster cluster.toml".into(), "U0205", "how many ranks"),
        (
            "plan step.txt --ranks 3 --mesh a=2,b=2 --cluster cluster.toml".into(),
            "U0205",
            "has 4 ranks, not 3",
        ),
        (format!("plan step.txt {with} --mesh ranks=2 --pins axis.toml"), "U0202", "did you mean `ranks`?"),
        (format!("plan step.txt {with} --stages 3"), "U0205", "2 ranks in 3 stages"),
        (format!("plan step.txt {with} --mesh stages=2 --stages 2"), "U0205", "leave `--stages` out"),
        (
            format!("plan step.txt {with} --mesh auto --memory-limit 7"),
            "U0204",
            "the smallest plan found needs",
        ),
        ("plan step.txt --ranks 2 --cluster step.txt".into(), "U0201", "unisono profile"),
        ("explain step.txt plan.toml".into(), "U0011", "at plan.toml:1"),
        ("explain step.txt older.toml".into(), "U0015", "a plan of version 1, not 4"),
    ] {
        let (status, out, errors) = files.run(&line);
        assert_eq!((status, out.as_str()), (1, ""), "{line}");
        assert!(errors.contains(&format!("error[{code}]")) && errors.contains(part), "{line}: {errors}");
    }
}

#[test]
fn the_best_mesh_is_found_and_every_other_one_is_named() {
    let files = files("meshes");
    let planned = |mesh: &str| {
        let (status, plan, errors) = files.run(&format!("plan step.txt {mesh} --cluster cluster.toml"));
        assert_eq!(status, 0, "{errors}");
        let table: toml::Table = toml::from_str(&plan).unwrap();
        (table["prediction"]["step_ns"].as_integer().unwrap(), plan, errors)
    };
    let (best, plan, errors) = planned("--ranks 8 --mesh auto");
    let each = ["ranks=8", "outer=2,inner=4", "outer=4,inner=2"];
    for mesh in each {
        assert!(errors.contains(&format!("mesh {mesh}: ")), "{errors}");
        assert!(best <= planned(&format!("--mesh {mesh}")).0, "{mesh}");
    }
    assert!(
        errors.lines().filter(|line| line.starts_with("mesh ")).count() == each.len()
            && errors.contains("by a quick search"),
        "{errors}"
    );
    assert_eq!(planned("--ranks 8 --mesh auto").1, plan);
    files.write("plan.toml", &plan);
    assert_eq!(files.run("explain step.txt plan.toml").0, 0);
}

#[test]
fn a_plan_of_another_step_is_not_explained() {
    let files = files("foreign");
    files.run("plan step.txt --ranks 2 --cluster cluster.toml -o plan.toml");
    files.write("other.txt", &GRAPH.replace("1024", "512"));
    let (status, _, errors) = files.run("explain other.txt plan.toml");
    assert!(status == 1 && errors.contains("[U0203]"), "{errors}");
}

#[test]
fn alternatives_are_priced_beside_the_plan() {
    let files = files("alternatives");
    files.write("other.toml", "\"params.w\".a = \"shard(0)\"\n");
    files.write("none.toml", "\"params.*\".a = \"shard(5)\"\n");
    let line = "plan step.txt --mesh a=4 --cluster cluster.toml --why-not data --why-not other.toml --why-not none.toml --why-not a=2";
    let (status, json, errors) = files.run(&format!("{line} --json"));
    assert_eq!((status, errors.as_str()), (0, ""));
    let said: serde_json::Value = serde_json::from_str(&json).unwrap();
    let answers = said["why_not"].as_array().unwrap();
    let of = |number: usize, what: &str| answers[number]["plan"][what].clone();
    assert_eq!(
        answers.iter().map(|one| &one["asked"]).collect::<Vec<_>>(),
        ["data", "other.toml", "none.toml", "a=2"]
    );
    assert_eq!(of(0, "label"), "data parallel 4");
    assert_eq!(of(3, "mesh")["a"], 2);
    assert!(answers[2]["refused"]["message"].as_str().unwrap().contains("binds nothing"), "{json}");
    for number in [0, 1, 3] {
        let slower = of(number, "step_ms").as_f64().unwrap() - said["step_ms"].as_f64().unwrap();
        assert!((of(number, "slower_ms").as_f64().unwrap() - slower).abs() < 1e-6, "{json}");
    }
    let (_, plan, _) = files.run(line);
    assert!(plan.contains("\n# why not data: data parallel 4\n"), "{plan}");
    assert_eq!(files.write("plan.toml", &plan).run("explain step.txt plan.toml").0, 0);
    let (status, _, errors) = files.run("plan step.txt --mesh a=4 --cluster cluster.toml --why-not tensro");
    assert!(status == 1 && errors.contains("did you mean `tensor`?"), "{errors}");
}

#[test]
fn products_that_processors_have_no_instructions_for_are_planned_and_explained() {
    let files = Files::new("plan-narrow", &GRAPH.replace("f32", "bf16"), &slow(fast(100.0)));
    let line = "plan step.txt --mesh a=4 --cluster cluster.toml";
    let (status, plan, errors) = files.run(&format!("{line} --fuse --narrow bf16,f16"));
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(plan.contains("narrow = [\"bf16\", \"f16\"]"), "{plan}");
    let (status, text, _) = files.write("plan.toml", &plan).run("explain step.txt plan.toml");
    assert!(status == 0 && text.contains("2 of bf16 and f16 computed in f32"), "{text}");
    let (status, _, errors) = files.run(&format!("{line} --fuse --narrow f32"));
    assert!(status == 2 && errors.contains("give bf16, f16 or both"), "{errors}");
    assert_eq!(files.run(&format!("{line} --narrow bf16")).0, 2);
}
