//! A plan for people.

use std::{collections::BTreeMap, fmt::Write};

use base::{Bytes, Nanos};
use ir::{Placement, RankGraph};

use crate::Plan;

/// What a plan does, what it is expected to cost and why it is not another one; `graph` is one rank's graph.
pub fn explain(plan: &Plan, graph: &RankGraph) -> String {
    let mut text = String::new();
    let axes: Vec<String> = plan.mesh.iter().map(|(name, size)| format!("{name} = {size}")).collect();
    let p = &plan.prediction;
    let _ = writeln!(text, "plan {} on mesh [{}]", plan.fingerprint(), axes.join(", "));
    let _ = writeln!(
        text,
        "  step    {} predicted: {} of operations, {} of collectives ({})",
        Nanos(p.step_ns),
        Nanos(p.compute_ns),
        Nanos(p.communication_ns),
        p.collectives
    );
    let _ = writeln!(
        text,
        "  memory  {} at the peak of a rank, {} of it state",
        Bytes(p.peak_bytes),
        Bytes(p.state_bytes)
    );
    let gap = if p.bound_ns == p.model_ns {
        "optimal in its model".to_owned()
    } else {
        format!("bound {}", Nanos(p.bound_ns))
    };
    let _ = writeln!(text, "  search  {gap}; limited by {}", plan.limit);
    let _ = writeln!(text, "  batch   {}", placements(plan, |name| name.starts_with(BATCH)));
    let _ = writeln!(text, "  state   {}", placements(plan, |name| !name.starts_with(BATCH)));
    for (what, count) in collectives(graph) {
        let _ = writeln!(text, "  {count:>4} x {what}");
    }
    for other in &plan.runners_up {
        let _ = writeln!(
            text,
            "  not     {}: {} predicted, {}{}",
            other.name,
            Nanos(other.step_ns),
            Bytes(other.peak_bytes),
            if other.fits { "" } else { ", over the memory limit" }
        );
    }
    for (operator, count) in &plan.without_row {
        let _ = writeln!(
            text,
            "  note    {count} x {operator} runs replicated: the operation table has no row for it"
        );
    }
    text
}

/// What names of the batch's tensors begin with.
const BATCH: &str = "batch.";

/// How inputs with certain names come to a rank.
fn placements(plan: &Plan, counted: impl Fn(&str) -> bool) -> String {
    let mut counts: BTreeMap<Placement, u32> = BTreeMap::new();
    for (_, placement) in plan.inputs.iter().filter(|(name, _)| counted(name)) {
        *counts.entry(*placement).or_default() += 1;
    }
    let parts: Vec<String> =
        counts.iter().map(|(placement, count)| format!("{count} x {placement}")).collect();
    if parts.is_empty() {
        "whole on every rank".into()
    } else {
        format!("{}, the rest whole", parts.join(", "))
    }
}

/// Collectives by kind, with the bytes of one rank's operands.
fn collectives(graph: &RankGraph) -> Vec<(String, u32)> {
    let mut kinds: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    for id in &graph.order {
        let Some(collective) = graph.collective(*id) else { continue };
        let node = &graph.nodes[*id];
        let label = node.label.map(|label| graph.labels[label].as_str());
        let kind = match label.and_then(passes::direct_form_of) {
            Some(meant) => format!("{meant}, direct"),
            None => collective.kind.to_string(),
        };
        let entry = kinds.entry(kind).or_default();
        entry.0 += 1;
        entry.1 += node.operands().map(|value| graph.ty(value).bytes().0).sum::<u64>();
    }
    kinds
        .into_iter()
        .map(|(name, (count, bytes))| (format!("{name}, {} in all", Bytes(bytes)), count))
        .collect()
}
