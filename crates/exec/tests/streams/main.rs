//! On a device, work of several streams is ordered by waits alone: lowered programs wait wherever they must, whatever was lowered.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod model;
#[path = "../../../passes/tests/simulated/program.rs"]
mod program;
#[path = "../../../passes/tests/simulated/stays.rs"]
mod stays;

use base::Bytes;
use ir::{Arg, Graph, testing::Random};
use passes::{self, Settings, pipeline, run};
use torch_sys::{Arg as Given, Device as Place, Output, Slot, Version};
use unisono_exec::{
    Abilities, Action, BUFFERS, Groups, Instruction, Program, Role, lower, rewrite, spec_of, wanted_schemas,
};

use crate::{
    model::{Device, Fault, direction},
    stays::with_stays,
};

const SEEDS: u64 = 40;

/// Forms in place, and into given memory, of the operations of random graphs.
const FORMS: [&str; 9] = [
    "aten::neg_(Tensor(a!) self) -> Tensor(a!)",
    "aten::abs_(Tensor(a!) self) -> Tensor(a!)",
    "aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)",
    "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
    "aten::neg.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
    "aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)",
    "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
    "aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
    "unisono::to_host_over_(Tensor(a!) self, Tensor value) -> Tensor(a!)",
];

/// A graph whose collectives are of two groups, and of which results are on the host until backward, behind all passes.
fn graph(seed: u64) -> Graph {
    let mut graph = program::rank_graph(seed, 60);
    let mut random = Random::new(seed);
    for id in graph.order.clone() {
        for arg in &mut graph.nodes[id].args {
            if *arg == Arg::Str("axis:a".into()) && random.once_in(2) {
                *arg = Arg::Str("axis:b".into());
            }
        }
    }
    let mut limit = || Bytes(1 << random.below(12));
    let settings = Settings { bucket_limit: limit(), prefetch_limit: limit(), ..Settings::default() };
    run(&pipeline(&with_stays(settings, &graph, seed)), &graph, |_| {}).unwrap()
}

/// A random program for a kind of device; on the processor small results lie in memory that stays.
fn program(seed: u64, kind: &str) -> Program {
    let place = Place { kind: kind.to_owned(), index: None };
    let mut spec = spec_of(&graph(seed), &Groups::new(), &place).unwrap();
    let known = |name: &String| FORMS.iter().find(|form| form.split('(').next() == Some(name));
    let wanted = wanted_schemas(&spec);
    spec.schemas.extend(wanted.iter().filter_map(known).map(|form| (*form).to_owned()));
    let abilities = Abilities::of(Version { major: 2, minor: 13 }, place);
    lower(&rewrite(&spec, &abilities, BUFFERS).unwrap(), &abilities).unwrap()
}

/// What a device does with two steps of a program.
fn two_steps(program: &Program, fault: Fault) -> Device<'_> {
    let mut device = Device::new(program, fault);
    device.step();
    device.step();
    device
}

fn role(instruction: &Instruction) -> Option<Role> {
    if let Action::Call { role, .. } = &instruction.action { Some(*role) } else { None }
}

#[test]
fn every_access_is_ordered_behind_what_it_needs_and_collectives_run_beside_what_computes() {
    let (mut beside, mut two_at_once) = (0, 0);
    for seed in 0..SEEDS {
        for kind in ["npu", "cpu"] {
            let program = program(seed, kind);
            let device = two_steps(&program, Fault::None);
            assert_eq!(device.faults, Vec::<String>::new(), "seed {seed} for {kind}\n{program}");
            assert_eq!(device.in_flight(), Vec::<usize>::new(), "seed {seed} for {kind}\n{program}");
            beside += device.beside;
            two_at_once += usize::from(device.at_once > 1);
        }
    }
    assert!(beside > 400 && two_at_once > 40, "{beside} {two_at_once}");
}

#[test]
fn programs_copy_to_the_host_and_back() {
    let copies = |program: Program| program.body.iter().filter(|one| role(one) == Some(Role::Copy)).count();
    let count: usize = (0..SEEDS).map(|seed| copies(program(seed, "npu"))).sum();
    assert!(count > 80, "{count}");
}

#[test]
fn state_on_the_host_is_written_where_it_is() {
    let mut over = 0;
    for seed in 0..SEEDS {
        let program = program(seed, "npu");
        let name = |one: &Instruction| program.name(one);
        assert!(
            program.body.iter().all(|one| name(one) != "unisono::to_host_over"),
            "seed {seed}\n{program}"
        );
        over += program.body.iter().filter(|one| name(one) == "unisono::to_host_over_").count();
    }
    assert!(over > 20, "{over}");
}

/// The slots that are what a slot is by views, and the slot.
fn shown_as(program: &Program, slot: Slot) -> Vec<Slot> {
    let mut all = vec![slot];
    for instruction in &program.body {
        if let Action::Call { role: Role::View, args, outputs, .. } = &instruction.action
            && args.iter().flat_map(Given::slots).next().is_some_and(|from| all.contains(&from))
        {
            all.extend(outputs.iter().flat_map(Output::slots));
        }
    }
    all
}

/// The operands and results of an instruction.
fn slots(instruction: &Instruction) -> (Vec<Slot>, Vec<Slot>) {
    let Action::Call { args, outputs, .. } = &instruction.action else { return (Vec::new(), Vec::new()) };
    (args.iter().flat_map(Given::slots).collect(), outputs.iter().flat_map(Output::slots).collect())
}

/// The position of what a wait waits for, and its stream.
fn awaited(program: &Program, at: usize) -> Option<(usize, String)> {
    let operand = *slots(&program.body[at]).0.first()?;
    let start = (0..at).rev().find(|start| slots(&program.body[*start]).1.contains(&operand))?;
    Some((start, stream_of(program, &program.body[start])?))
}

/// The stream of a collective, which is that of its group, or of a copy, which is that of its direction.
fn stream_of(program: &Program, instruction: &Instruction) -> Option<String> {
    let group = |arg: &Given| if let Given::Str(group) = arg { Some(group.clone()) } else { None };
    match &instruction.action {
        Action::Call { args, role: Role::Collective, .. } => args.iter().rev().find_map(group),
        Action::Call { role: Role::Copy, .. } => Some(direction(&program.name(instruction)).to_owned()),
        _ => None,
    }
}

/// Whether nothing but a wait orders what it waits for before its first use by another stream: no other wait for that, or for later work of its group, does.
fn is_needed(program: &Program, at: usize) -> bool {
    let Some((start, group)) = awaited(program, at) else { return false };
    let Some(result) = slots(&program.body[at]).1.first().copied() else { return false };
    let shown = shown_as(program, result);
    // Collectives of its group are on its stream.
    let uses = |later: &usize| {
        let later = &program.body[*later];
        matches!(role(later), Some(Role::Compute | Role::Collective | Role::Copy))
            && stream_of(program, later).as_ref() != Some(&group)
            && slots(later).0.iter().any(|slot| shown.contains(slot))
    };
    let Some(used) = (at + 1..program.body.len()).find(uses) else { return false };
    let orders = |other: usize| awaited(program, other).is_some_and(|(at, of)| at >= start && of == group);
    !(start..used).any(|other| other != at && role(&program.body[other]) == Some(Role::Wait) && orders(other))
}

#[test]
fn a_result_that_is_read_without_its_wait_is_found() {
    let mut planted = 0;
    for seed in 0..SEEDS {
        let program = program(seed, "npu");
        let waits = (0..program.body.len()).filter(|at| role(&program.body[*at]) == Some(Role::Wait));
        for at in waits.filter(|at| is_needed(&program, *at)) {
            let faults = two_steps(&program, Fault::Wait(at)).faults;
            assert!(
                faults.first().is_some_and(|fault| fault.contains("still")),
                "seed {seed}, {at}\n{program}"
            );
            planted += 1;
        }
    }
    assert!(planted > 200, "{planted}");
}

#[test]
fn an_operand_that_is_overwritten_while_a_collective_reads_it_is_found() {
    let mut planted = 0;
    for seed in 0..SEEDS {
        let right = program(seed, "npu");
        let starts = (0..right.body.len())
            .filter(|at| matches!(role(&right.body[*at]), Some(Role::Collective | Role::Copy)));
        for at in starts {
            let program = overwritten(&right, at);
            let faults = two_steps(&program, Fault::None).faults;
            let expected = format!("aten::neg_ at {} writes what is still in use", at + 1);
            assert!(faults.contains(&expected), "seed {seed}, {at}: {faults:?}\n{program}");
            planted += 1;
        }
    }
    assert!(planted > 200, "{planted}");
}

/// The program with a write into what a collective reads, behind its issue.
fn overwritten(right: &Program, at: usize) -> Program {
    let mut program = right.clone();
    program.schemas.push(torch_sys::Schema::parse(FORMS[0]).unwrap());
    let Action::Call { route, args, .. } = &program.body[at].action else { unreachable!() };
    let operand = args.iter().flat_map(Given::slots).next().unwrap();
    let action = Action::Call {
        op: program.schemas.len() as u32 - 1,
        route: *route,
        role: Role::Compute,
        args: vec![Given::Tensor(operand)],
        outputs: vec![Output::Ignored],
    };
    let release = std::mem::take(&mut program.body[at].release);
    program.body.insert(at + 1, Instruction { action, release, place: None, node: None });
    program
}

#[test]
fn memory_that_is_given_out_again_while_a_collective_uses_it_is_found() {
    let found = |seed| {
        let program = program(seed, "npu");
        let faults = two_steps(&program, Fault::Hold).faults;
        faults.iter().any(|fault| fault.ends_with("still in use, which is given out again"))
    };
    // What is read stays where it is in the others, because something else reads it later.
    assert!((0..SEEDS).filter(|seed| found(*seed)).count() > 20);
}
