//! The driver: what a pass is, how passes run and what is told of each.

use std::collections::BTreeMap;

use base::{Code, Diagnostic, Result};
use ir::{Change, Edits, Graph, NodeId, Patch, verify};

use crate::facts::transfers;

/// A step from a graph to an equal graph.
pub trait Pass {
    /// Its name, that of its file.
    fn name(&self) -> &'static str;

    /// What it changes in a verified graph; an empty patch for nothing.
    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>>;
}

/// What a pass did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The pass.
    pub pass: &'static str,
    /// Whether it changed anything.
    pub changed: bool,
    /// Nodes in the program before it.
    pub nodes_before: usize,
    /// Nodes in the program after it.
    pub nodes_after: usize,
    /// What was done, by label.
    pub changes: Vec<Change>,
}

/// Runs `passes` over a verified graph, one after the other, and tells `observe` of each. The result is verified and
/// [renumbered](Graph::renumbered), and has its transfers between pipeline stages in their order; in debug builds and tests, so has what each
/// pass leaves, and a fault has the name of its pass.
pub fn run(passes: &[Box<dyn Pass>], graph: &Graph, observe: impl FnMut(&Outcome)) -> Result<Graph> {
    let changed = run_each(passes, graph.clone(), observe)?;
    if !cfg!(debug_assertions) {
        let verified = verify(&changed).and_then(|()| same_transfers(&transfers(graph), &changed));
        verified.map_err(|fault| blamed("passes break", *fault))?;
    }
    Ok(changed.into_renumbered())
}

/// The same for a search, which asks what a graph takes and keeps none: in release builds nothing is verified, and what is dead stays in the
/// tables.
pub fn run_unverified(passes: &[Box<dyn Pass>], graph: &Graph) -> Result<Graph> {
    let mut graph = graph.clone();
    for pass in passes {
        let patch = pass.run(&graph)?;
        if !patch.is_empty() {
            graph = changed(&**pass, patch.into_edits(), graph)?;
        }
    }
    Ok(graph)
}

fn run_each(passes: &[Box<dyn Pass>], mut graph: Graph, mut observe: impl FnMut(&Outcome)) -> Result<Graph> {
    for pass in passes {
        let patch = pass.run(&graph)?;
        let mut outcome = Outcome {
            pass: pass.name(),
            changed: !patch.is_empty(),
            nodes_before: graph.order.len(),
            nodes_after: graph.order.len(),
            changes: patch.changes().to_vec(),
        };
        if outcome.changed {
            graph = changed(&**pass, patch.into_edits(), graph)?;
            outcome.nodes_after = graph.order.len();
        }
        observe(&outcome);
    }
    Ok(graph)
}

/// The graph after a pass, or what is wrong with the pass.
fn changed(pass: &dyn Pass, edits: Edits, graph: Graph) -> Result<Graph> {
    applied(edits, graph).map_err(|fault| blamed(&format!("the pass {} breaks", pass.name()), *fault))
}

/// The graph after a pass.
fn applied(edits: Edits, graph: Graph) -> Result<Graph> {
    if !cfg!(debug_assertions) {
        return edits.apply(graph);
    }
    let before = graph.clone();
    let graph = edits.apply(graph)?;
    verify(&graph)?;
    same_transfers(&transfers(&before), &graph)?;
    Ok(graph)
}

/// Refuses a graph whose transfers between two stages are in another order than they were, unless all are taken out: the other side has them
/// in the same order still, and would take one for another.
fn same_transfers(before: &BTreeMap<&str, Vec<NodeId>>, graph: &Graph) -> Result<()> {
    let after = transfers(graph);
    match before.iter().find(|(group, starts)| after.get(*group).is_some_and(|left| left != *starts)) {
        None => Ok(()),
        Some((group, _)) => {
            let message = format!("the transfers in the group `{group}` are no longer in their order");
            Err(Diagnostic::new(Code::BAD_GRAPH, message))
        }
    }
}

/// What is wrong with a graph, as the fault of who changed it.
fn blamed(who: &str, fault: Diagnostic) -> Box<Diagnostic> {
    let message = format!("{who} the graph: {}", fault.message);
    Box::new(Diagnostic { message, ..fault })
}
