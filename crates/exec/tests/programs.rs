//! Programs as text: what lowering and the rewrites make of a graph.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::Bytes;
use expect_test::{Expect, expect};
use ir::Graph;
use torch_sys::Device;
use unisono_exec::{Abilities, BUFFERS, Groups, ProgramSpec, lower, rewrite, spec_of, wanted_schemas};

const OPS: &str = r#"unisono graph 2

op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
op aten::expand(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)
op _c10d_functional::all_gather_into_tensor(Tensor input, int group_size, Any group_name) -> Tensor
op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor
op aten::detach(Tensor(a) self) -> Tensor(a)
op aten::split_with_sizes(Tensor(a) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]
op aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)
op mine::f(Tensor x) -> Tensor
op aten::_conj(Tensor(a) self) -> Tensor(a)
op aten::_foreach_add.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]
op aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
op aten::_fused_sgd(Tensor[] self, Tensor[] grads, Tensor[] momentum_buffer_list, *, float weight_decay, float momentum, float lr, float dampening, bool nesterov, bool maximize, bool is_first_step, Tensor? grad_scale=None, Tensor? found_inf=None) -> (Tensor[] self_out, Tensor[] grads_out, Tensor[] momentum_buffer_list_out)

"#;

/// What PyTorch has of the operations that rewrites want.
fn extra(name: &str) -> Option<&'static str> {
    let known = [
        "aten::_foreach_mul.Tensor(Tensor[] self, Tensor other) -> Tensor[]",
        "aten::_foreach_mul_.Tensor(Tensor(a!)[] self, Tensor other) -> ()",
        "aten::_foreach_add.Tensor(Tensor[] self, Tensor other, *, Scalar alpha=1) -> Tensor[]",
        "aten::_foreach_add_.Tensor(Tensor(a!)[] self, Tensor other, *, Scalar alpha=1) -> ()",
        "aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
        "aten::t_(Tensor(a!) self) -> Tensor(a!)",
        "aten::_fused_sgd_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffer_list, *, float weight_decay, float momentum, float lr, float dampening, bool nesterov, bool maximize, bool is_first_step, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()",
    ];
    known.into_iter().find(|text| text.split('(').next() == Some(name))
}

/// What PyTorch has of the operations that write into a given tensor.
fn out_form(name: &str) -> Option<&'static str> {
    let known = [
        "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
        "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
    ];
    known.into_iter().find(|text| text.split('(').next() == Some(name))
}

fn spec(body: &str, known: impl Fn(&str) -> Option<&'static str>) -> ProgramSpec {
    let graph = Graph::from_text("test", &format!("{OPS}{body}")).unwrap();
    let mut spec = spec_of(&graph, &Groups::new(), &Device::host()).unwrap();
    let wanted = wanted_schemas(&spec);
    spec.schemas.extend(wanted.iter().filter_map(|name| known(name)).map(str::to_owned));
    spec
}

fn here(kind: &str) -> Device {
    Device { kind: kind.to_owned(), index: None }
}

fn program(spec: &ProgramSpec, device: &str) -> String {
    let abilities = Abilities::of(torch_sys::Version { major: 2, minor: 13 }, here(device));
    lower(&rewrite(spec, &abilities, BUFFERS).unwrap(), &abilities).unwrap().to_string()
}

fn check(body: &str, expected: &Expect) {
    expected.assert_eq(&program(&spec(body, extra), "cpu"));
}

fn check_buffers(body: &str, expected: &Expect) {
    expected.assert_eq(&program(&spec(body, out_form), "cpu"));
}

#[test]
fn slots_end_with_their_last_use_and_unused_results_are_not_kept() {
    check(
        r#"input v0: f32[4, 4] = batch "batch.0"
v1: f32[4, 4] = aten::mm(v0, v0)
v2: f32[4, 4] = aten::mm(v1, v0)
v3: f32[4, 4] = aten::mm(v1, v1)
return v3
"#,
        &expect![[r#"
            state 
            inputs %0
            prologue:
            body:
              %1 = aten::mm(%0, %0) by dispatcher
              _ = aten::mm(%1, %0) by dispatcher; release %0
              %3 = aten::mm(%1, %1) by dispatcher; release %1
            return %3
        "#]],
    );
}

#[test]
fn constants_and_views_of_state_run_once_and_aliases_not_at_all() {
    check(
        r#"input v0: f32[4, 4] = parameter "params.w"
input v1: f32[4, 4] = batch "batch.0"
v2: f32[4, 4]{1, 4} = aten::t(v0)
v3: f32[4, 4]{1, 4} = aten::detach(v2)
v4: f32[4] = aten::arange(4, f32, none, device(cpu), false)
v5: f32[4, 4] = aten::mm(v1, v3)
v6: f32[4, 4] = aten::mul.Tensor(v5, v4)
return v6
"#,
        &expect![[r#"
            state %0
            inputs %1
            prologue:
              %2 = aten::t(%0) by view
              %4 = aten::arange(4, float32, None, cpu, false) by proxy
            body:
              %5 = aten::mm(%1, %2) by dispatcher; release %1
              _ = aten::mul_.Tensor(%5, %4) by dispatcher
            return %5
        "#]],
    );
}

#[test]
fn what_is_the_same_at_every_step_is_not_written_over() {
    check(
        r#"input v0: f32[4] = batch "batch.0"
v1: f32[4] = aten::arange(4, f32, none, device(cpu), false)
v2: f32[4] = aten::mul.Tensor(v1, v1)
v3: f32[4] = aten::mul.Tensor(v2, v0)
v4: f32[4] = aten::mul.Tensor(v3, v3)
return v4
"#,
        &expect![[r#"
            state 
            inputs %0
            prologue:
              %1 = aten::arange(4, float32, None, cpu, false) by proxy
              %2 = aten::mul.Tensor(%1, %1) by dispatcher
            body:
              %3 = aten::mul.Tensor(%2, %0) by dispatcher; release %0
              %4 = aten::mul.Tensor(%3, %3) by dispatcher; release %3
            return %4
        "#]],
    );
}

#[test]
fn what_would_be_overwritten_before_it_is_read_is_cloned() {
    check(
        r#"input v0: f32[4] = buffer "buffers.a"
input v1: f32[4] = buffer "buffers.b"
update "buffers.a" = v1
update "buffers.b" = v0
return v0
"#,
        &expect![[r#"
            state %0 %1
            inputs 
            prologue:
            body:
              %2 = aten::clone(%1, None) by dispatcher
              %3 = aten::clone(%0, None) by dispatcher
            update %0 <- %2
            update %1 <- %3
            return %3
        "#]],
    );
}

/// A bucket of two gradients, `parts`, to which a list operation adds one.
fn added_to_parts_of_a_bucket(parts: &str, second: &str) -> String {
    let body = r#"input v0: f32[6] = batch "batch.0"
v1: f32[6] = aten::mul.Tensor(v0, v0)
[v2: f32[4], v3: f32[2]] = aten::split_with_sizes(v1, [4, 2], 0)
v4: f32[2, 2] = aten::view(v2, [2, 2])
part update
[v5: f32[2, 2], v6: f32SECOND] = aten::_foreach_add.Scalar(PARTS, 1)
return v5, v6
"#;
    program(&spec(&body.replace("PARTS", parts).replace("SECOND", second), extra), "cpu")
}

#[test]
fn parts_of_one_bucket_are_written_in_place_by_one_list_operation() {
    expect![[r#"
        state 
        inputs %0
        prologue:
          %7 = Int(1) as int64
        body:
          %1 = aten::mul.Tensor(%0, %0) by dispatcher; release %0
          [%2 %3] = aten::split_with_sizes(%1, [4, 2], 0) by view; release %1
          %4 = aten::view(%2, [2, 2]) by view; release %2
           = aten::_foreach_add_.Tensor([%4 %3], %7, 1) by proxy
        return %4 %3
    "#]]
    .assert_eq(&added_to_parts_of_a_bucket("[v4, v3]", "[2]"));
}

#[test]
fn what_is_listed_twice_is_not_written_in_place() {
    let twice = added_to_parts_of_a_bucket("[v4, v4]", "[2, 2]");
    assert!(!twice.contains("_foreach_add_"), "{twice}");
}

/// `v4` is the state's new value in two steps; where the old one is read after the first of them, that has memory of its own.
#[test]
fn a_chain_in_place_is_written_where_the_state_is_from_its_first_operation_on() {
    let made = |last: &str| {
        let text = format!(
            r#"input v0: f32[4] = parameter "params.a"
input v1: f32[4] = optimizer "optimizer.a.average"
input v2: f32[4] = batch "batch.0"
part update
v3: f32[4] = aten::mul.Tensor(v1, v2)
v4: f32[4] = aten::mul.Tensor(v3, v2)
v5: f32[4] = aten::mul.Tensor(v0, {last})
update "params.a" = v5
update "optimizer.a.average" = v4
"#
        );
        program(&spec(&text, extra), "cpu")
    };
    let read = |text: &str| {
        text.lines().filter(|line| line.contains("mul")).map(str::trim).collect::<Vec<_>>().join("\n")
    };
    expect![[r#"
        _ = aten::mul_.Tensor(%1, %2) by dispatcher
        _ = aten::mul_.Tensor(%1, %2) by dispatcher; release %2
        _ = aten::mul_.Tensor(%0, %1) by dispatcher"#]]
    .assert_eq(&read(&made("v4")));
    expect![[r#"
        %3 = aten::mul.Tensor(%1, %2) by dispatcher
        _ = aten::mul_.Tensor(%3, %2) by dispatcher; release %2
        _ = aten::mul_.Tensor(%0, %1) by dispatcher"#]]
    .assert_eq(&read(&made("v1")));
}

#[test]
fn an_optimizer_s_list_operations_write_where_the_state_is() {
    check(
        r#"input v0: f32[4] = parameter "params.a"
input v1: f32[6] = parameter "params.b"
input v2: f32[4] = optimizer "optimizer.a.momentum_buffer"
input v3: f32[6] = optimizer "optimizer.b.momentum_buffer"
input v4: f32[] = optimizer "optimizer.a.step"
input v5: f32[] = optimizer "optimizer.b.step"
input v6: f32[4] = batch "batch.0"
input v7: f32[6] = batch "batch.1"
input v8: f32[] = batch "batch.2"
v9: f32[4] = aten::mul.Tensor(v6, v6)
v10: f32[6] = aten::mul.Tensor(v7, v7)
part update
[v11: f32[], v12: f32[]] = aten::_foreach_add.Scalar([v4, v5], 1)
v13: f32[4] = aten::mul.Tensor(v9, v8)
v14: f32[6] = aten::mul.Tensor(v10, v8)
([v15: f32[4], v16: f32[6]], [v17: f32[4], v18: f32[6]], [v19: f32[4], v20: f32[6]]) = aten::_fused_sgd([v0, v1], [v13, v14], [v2, v3], 0.0, 0.9, 0.1, 0.0, false, false, false, none, none)
update "params.a" = v15
update "params.b" = v16
update "optimizer.a.momentum_buffer" = v19
update "optimizer.b.momentum_buffer" = v20
update "optimizer.a.step" = v11
update "optimizer.b.step" = v12
"#,
        &expect![[r#"
            state %0 %1 %2 %3 %4 %5
            inputs %6 %7 %8
            prologue:
              %21 = Int(1) as float32
            body:
              %9 = aten::mul.Tensor(%6, %6) by dispatcher; release %6
              %10 = aten::mul.Tensor(%7, %7) by dispatcher; release %7
               = aten::_foreach_add_.Tensor([%4 %5], %21, 1) by proxy
              _ = aten::mul_.Tensor(%9, %8) by dispatcher
              _ = aten::mul_.Tensor(%10, %8) by dispatcher; release %8
               = aten::_fused_sgd_([%0 %1], [%9 %10], [%2 %3], 0.0, 0.9, 0.1, 0.0, false, false, false, None, None) by dispatcher; release %9 %10
            return 
        "#]],
    );
}

#[test]
fn nothing_is_overwritten_that_is_read_later_or_shown_twice() {
    check(
        r#"input v0: f32[4] = batch "batch.0"
input v1: f32[] = batch "batch.1"
v2: f32[4] = aten::mul.Tensor(v0, v0)
part update
v3: f32[4] = aten::mul.Tensor(v2, v1)
v4: f32[4] = aten::mul.Tensor(v3, v2)
part forward
v5: f32[] = aten::mul.Tensor(v1, v1)
v6: f32[4]{0} = aten::expand(v5, [4], false)
part update
v7: f32[4] = aten::mul.Tensor(v6, v1)
v8: f32[4] = aten::mul.Tensor(v0, v1)
return v4, v7, v8
"#,
        &expect![[r#"
            state 
            inputs %0 %1
            prologue:
            body:
              %2 = aten::mul.Tensor(%0, %0) by dispatcher
              %3 = aten::mul.Tensor(%2, %1) by dispatcher
              _ = aten::mul_.Tensor(%3, %2) by dispatcher; release %2
              %5 = aten::mul.Tensor(%1, %1) by dispatcher
              %6 = aten::expand(%5, [4], false) by view; release %5
              %7 = aten::mul.Tensor(%6, %1) by dispatcher; release %6
              %8 = aten::mul.Tensor(%0, %1) by dispatcher; release %0 %1
            return %3 %7 %8
        "#]],
    );
}

#[test]
fn nothing_is_overwritten_that_a_collective_may_still_read() {
    check(
        r#"input v0: f32[4] = batch "batch.0"
input v1: f32[] = batch "batch.1"
v2: f32[4] = aten::mul.Tensor(v0, v0)
v3: f32[8] = _c10d_functional::all_gather_into_tensor(v2, 2, "a")
v4: f32[4] = aten::mul.Tensor(v2, v1)
v5: f32[8] = _c10d_functional::wait_tensor(v3)
v6: f32[4] = aten::mul.Tensor(v4, v1)
return v5, v6
"#,
        &expect![[r#"
            state 
            inputs %0 %1
            prologue:
            body:
              %2 = aten::mul.Tensor(%0, %0) by dispatcher; release %0
              %3 = _c10d_functional::all_gather_into_tensor(%2, 2, "a") by collective proxy
              %4 = aten::mul.Tensor(%2, %1) by dispatcher; release %2
              %5 = _c10d_functional::wait_tensor(%3) by wait dispatcher; release %3
              _ = aten::mul_.Tensor(%4, %1) by dispatcher; release %1
            return %5 %4
        "#]],
    );
}

#[test]
fn small_results_share_buffers_when_their_lives_do_not_overlap_and_their_views_are_made_once() {
    check_buffers(
        r#"input v0: f32[4, 4] = parameter "params.w"
input v1: f32[4, 4] = batch "batch.0"
v2: f32[4, 4] = aten::mm(v1, v0)
v3: f32[4, 4]{1, 4} = aten::t(v2)
v4: f32[4, 4] = aten::mm(v3, v0)
v5: f32[4, 4] = aten::mm(v4, v3)
v6: f32[4, 4] = aten::mm(v5, v5)
v7: f32[4, 4] = aten::mul.Tensor(v6, v6)
update "params.w" = v7
return v6
"#,
        &expect![[r#"
            state %0
            inputs %1
            prologue:
              %8 = buffer of float32 [4, 4]
              %9 = buffer of float32 [4, 4]
              %10 = buffer of float32 [4, 4]
              %3 = aten::t(%8) by view
            body:
              _ = aten::mm.out(%1, %0, %8) by dispatcher; release %1
              _ = aten::mm.out(%3, %0, %9) by dispatcher
              _ = aten::mm.out(%9, %3, %10) by dispatcher
              %6 = aten::mm(%10, %10) by dispatcher
              _ = aten::mul.out(%6, %6, %10) by dispatcher
            update %0 <- %10
            return %6
        "#]],
    );
}

#[test]
fn memory_is_read_through_views_that_are_no_metadata() {
    let body = r#"input v0: c64[4, 4] = batch "batch.0"
v1: c64[4, 4] = aten::mm(v0, v0)
v2: c64[4, 4] = aten::_conj(v1)
v3: c64[4, 4] = aten::mul.Tensor(v1, v0)
v4: c64[4, 4] = aten::mul.Tensor(v3, v2)
return v4
"#;
    check(
        body,
        &expect![[r#"
        state 
        inputs %0
        prologue:
        body:
          %1 = aten::mm(%0, %0) by dispatcher
          %2 = aten::_conj(%1) by dispatcher
          %3 = aten::mul.Tensor(%1, %0) by dispatcher; release %1 %0
          _ = aten::mul_.Tensor(%3, %2) by dispatcher; release %2
        return %3
    "#]],
    );
    check_buffers(
        body,
        &expect![[r#"
        state 
        inputs %0
        prologue:
          %5 = buffer of complex64 [4, 4]
          %6 = buffer of complex64 [4, 4]
        body:
          _ = aten::mm.out(%0, %0, %5) by dispatcher
          %2 = aten::_conj(%5) by dispatcher
          _ = aten::mul.out(%5, %0, %6) by dispatcher; release %0
          %4 = aten::mul.Tensor(%6, %2) by dispatcher; release %2
        return %4
    "#]],
    );
}

#[test]
fn a_buffer_is_not_written_again_while_a_collective_may_read_it() {
    check_buffers(
        r#"input v0: f32[4, 4] = batch "batch.0"
v1: f32[4, 4] = aten::mm(v0, v0)
v2: f32[8, 4] = _c10d_functional::all_gather_into_tensor(v1, 2, "g")
v3: f32[4, 4] = aten::mm(v0, v0)
v4: f32[4, 4] = aten::mul.Tensor(v3, v0)
v5: f32[8, 4] = _c10d_functional::wait_tensor(v2)
v6: f32[4, 4] = aten::mul.Tensor(v4, v0)
v7: f32[4, 4] = aten::mul.Tensor(v6, v0)
return v5, v7
"#,
        &expect![[r#"
            state 
            inputs %0
            prologue:
              %8 = buffer of float32 [4, 4]
              %9 = buffer of float32 [4, 4]
              %10 = buffer of float32 [4, 4]
            body:
              _ = aten::mm.out(%0, %0, %8) by dispatcher
              %2 = _c10d_functional::all_gather_into_tensor(%8, 2, "g") by collective proxy
              _ = aten::mm.out(%0, %0, %9) by dispatcher
              _ = aten::mul.out(%9, %0, %10) by dispatcher
              %5 = _c10d_functional::wait_tensor(%2) by wait dispatcher; release %2
              _ = aten::mul.out(%10, %0, %8) by dispatcher
              %7 = aten::mul.Tensor(%8, %0) by dispatcher; release %0
            return %5 %7
        "#]],
    );
}

#[test]
fn what_is_large_strided_the_same_at_every_step_or_read_by_unknown_operations_gets_no_buffer() {
    check_buffers(
        r#"input v0: f32[4, 4]{1, 4} = batch "batch.0"
input v1: f32[512, 512] = batch "batch.1"
v2: f32[512, 512] = aten::mm(v1, v1)
v3: f32[512, 512] = aten::mul.Tensor(v2, v2)
v4: f32[4, 4]{1, 4} = aten::mul.Tensor(v0, v0)
v5: f32[4] = aten::arange(4, f32, none, device(cpu), false)
v6: f32[4] = aten::mul.Tensor(v5, v5)
v7: f32[4, 4] = aten::mul.Tensor(v4, v6)
v8: f32[4, 4] = mine::f(v7)
return v3, v8
"#,
        &expect![[r#"
            state 
            inputs %0 %1
            prologue:
              %5 = aten::arange(4, float32, None, cpu, false) by proxy
              %6 = aten::mul.Tensor(%5, %5) by dispatcher
            body:
              %2 = aten::mm(%1, %1) by dispatcher; release %1
              %3 = aten::mul.Tensor(%2, %2) by dispatcher; release %2
              %4 = aten::mul.Tensor(%0, %0) by dispatcher; release %0
              %7 = aten::mul.Tensor(%4, %6) by dispatcher; release %4
              %8 = mine::f(%7) by dispatcher; release %7
            return %3 %8
        "#]],
    );
}

#[test]
fn on_other_devices_there_are_no_buffers() {
    let body = r#"input v0: f32[4, 4] = batch "batch.0"
v1: f32[4, 4] = aten::mm(v0, v0)
v2: f32[4, 4] = aten::mm(v1, v1)
return v2
"#;
    let spec = spec(body, out_form);
    assert!(program(&spec, "cpu").contains("aten::mm.out"));
    assert!(!program(&spec, "cuda").contains("aten::mm.out"));
}

#[test]
fn a_program_that_reads_an_empty_slot_is_refused() {
    let mut spec = spec(
        "input v0: f32[4] = batch \"batch.0\"\nv1: f32[4] = aten::mul.Tensor(v0, v0)\nreturn v1\n",
        extra,
    );
    spec.inputs.clear();
    let error =
        rewrite(&spec, &Abilities::of(torch_sys::Version { major: 2, minor: 13 }, Device::host()), BUFFERS)
            .err()
            .unwrap();
    assert!(error.message.contains("`aten::mul.Tensor` reads slot %0 before anything is there"), "{error}");
}

#[test]
fn a_buffer_without_strides_or_in_a_slot_that_is_taken_is_refused() {
    let abilities = Abilities::of(torch_sys::Version { major: 2, minor: 13 }, Device::host());
    let body = "input v0: f32[4] = batch \"batch.0\"\nreturn v0\n";
    let refused = |change: fn(&mut ProgramSpec)| {
        let mut spec = spec(body, extra);
        spec.slots = 2;
        change(&mut spec);
        lower(&spec, &abilities).err().unwrap().message.clone()
    };
    assert_eq!(refused(|spec| spec.buffers = vec![spec.inputs[0]]), "buffer %0 is no new slot of 2");
    let unknown = refused(|spec| spec.buffers = vec![torch_sys::Slot(1)]);
    assert_eq!(unknown, "buffer %1 has no size and stride by dimension");
}

#[test]
fn buffers_take_no_more_than_they_may() {
    let body = "input v0: f32[4, 4] = batch \"batch.0\"\nv1: f32[4, 4] = aten::mm(v0, v0)\nv2: f32[4, 4] = aten::mm(v1, v0)\nv3: f32[4, 4] = aten::mm(v2, v1)\nreturn v3\n";
    let spec = spec(body, out_form);
    let abilities = Abilities::of(torch_sys::Version { major: 2, minor: 13 }, Device::host());
    let taken =
        |limit| lower(&rewrite(&spec, &abilities, Bytes(limit)).unwrap(), &abilities).unwrap().buffer_bytes();
    assert_eq!([0, 63, 64, 127, 128, 1 << 20].map(taken), [0, 0, 64, 64, 128, 128].map(Bytes));
}
