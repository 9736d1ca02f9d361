//! The search: candidates from the solver under several prices, each partitioned, put through the passes and simulated; the best is kept.

use std::{collections::BTreeMap, rc::Rc};

use aten::Call;
use base::{Code, Diagnostic, Fingerprint, Result};
use cost::Machine;
use ir::{Graph, Mesh};
use shard::canonical;

use crate::{
    axis::PICOS_PER_NANO,
    effort::Extent,
    folded::Program,
    from_shorter::{candidates, expected},
    jointly,
    on_axes::on_axes,
    plan::{Plan, Prediction},
    run::{Found, Request, Run, Work, ranked},
    runners_up::Naming,
    shorter::Shorter,
};

/// What is done with all effort behind a search as of a large step, in cells of the solver's tables: about two seconds.
const FURTHER: u64 = 1 << 28;

/// What was decided, to be written down as a plan.
pub struct Searched<'a> {
    request: Request<'a>,
    extent: Extent,
    /// The graph in canonical form, which the plan's positions along the first axis count in.
    pub canonical: Graph,
    /// The best candidate, with a decision for each axis.
    pub best: Found,
    /// The others, the best first.
    others: Vec<Found>,
    /// Whether it was found for few layers, and is to be taken apart.
    is_expected: bool,
}

/// Finds the plan of least predicted time under the memory limit that keeps the pins.
pub fn search<'a>(request: &Request<'a>) -> Result<Searched<'a>> {
    request.tell(request.effort);
    let canonical = canonical(request.graph);
    let extent = Extent::of(request.effort, canonical.order.len(), request.mesh);
    let run = Run::new(request, extent);
    let from_shorter = candidates(&run, &canonical).map(|found| with_less_held(&run, &canonical, found));
    let is_kept = |found: &Vec<Found>| found.first().is_some_and(|best| best.fits(request.memory_limit));
    let from_shorter = from_shorter.transpose()?;
    if request.known_ns.is_some()
        && let Some(best) = from_shorter.iter().flatten().next()
        && !best.fits(request.memory_limit)
    {
        // What is only to be faster than a known plan is not worth a search of the whole step.
        return Err(too_small(request.memory_limit.unwrap_or(0), &best.prediction));
    }
    let from_shorter = from_shorter.filter(is_kept);
    let is_expected = from_shorter.is_some() && request.mesh.stages() > 1;
    let is_enough = from_shorter.as_ref().is_some_and(|found| !leaves_memory(&run, &found[0]));
    let mut found = from_shorter.unwrap_or_default();
    if !is_enough {
        found.extend(in_whole(&run, &canonical)?);
    }
    let mut found = ranked(found, request.memory_limit).into_iter();
    let best = found.next().ok_or_else(|| none(request))?;
    if !best.fits(request.memory_limit) {
        return Err(too_small(request.memory_limit.unwrap_or(0), &best.prediction));
    }
    let others = found.collect();
    Ok(Searched { request: *request, extent, canonical, best, others, is_expected })
}

/// The candidates of a search of the whole step, the best first.
fn in_whole(run: &Run<'_>, canonical: &Graph) -> Result<Vec<Found>> {
    let mut found = as_far_as_it_goes(run, Program::Whole(canonical))?;
    found.extend(run.replicated(canonical)?);
    let mut found = ranked(found, run.request.memory_limit);
    // Of a large program in stages settings are for the stages to find, as with fewer layers.
    if !run.extent.is_thrifty || run.request.mesh.stages() == 1 {
        found = run.tuned(canonical, found)?;
    }
    with_less_held(run, canonical, found)
}

/// The candidates along all axes. A small step is searched with all effort; on several axes under a memory limit, where that may take minutes, as a large
/// one first, and with all effort until so much is done.
fn as_far_as_it_goes(run: &Run<'_>, program: Program<'_>) -> Result<Vec<Found>> {
    let Request { mesh, memory_limit, .. } = *run.request;
    if run.extent.is_thrifty || memory_limit.is_none() || mesh.sharding_axes().count() < 2 {
        return jointly::candidates(run, program);
    }
    let Ok(mut found) = jointly::candidates(&run.with(Extent::AS_LARGE), program) else {
        return jointly::candidates(run, program);
    };
    let mut left = 0;
    for within in [Extent::AS_LARGE, run.extent] {
        let (more, rest) = until_done(run, program, Work::new(FURTHER / 2 + left, within));
        found.extend(more);
        left = rest;
    }
    Ok(found)
}

/// The candidates that are met until so much is done, and what is left to do.
fn until_done(run: &Run<'_>, program: Program<'_>, work: Work) -> (Vec<Found>, u64) {
    let work = Rc::new(work);
    let run = Run { work: Some(Rc::clone(&work)), ..run.with(run.extent) };
    // That there are none says the search before it, which knows all that this one does.
    (jointly::candidates(&run, program).unwrap_or_default(), work.left())
}

/// Whether the best plan by few layers, of three axes and more, leaves much of a memory limit that decides: of the whole step, in which layers may differ, a
/// search may find a use for it.
fn leaves_memory(run: &Run<'_>, best: &Found) -> bool {
    let Request { mesh, memory_limit, .. } = *run.request;
    let Some(limit) = memory_limit.filter(|_| mesh.stages() == 1 && mesh.sharding_axes().count() > 2) else {
        return false;
    };
    let Prediction { peak_bytes, .. } = best.prediction;
    let may_use = peak_bytes > limit / 2 && peak_bytes < limit / 16 * 15 && !best.prediction.holds_less();
    let free = || expected(&Request { memory_limit: None, expected: None, ..*run.request }, run.extent);
    may_use && free().first().is_some_and(|free| !free.fits(memory_limit))
}

/// Candidates, and what they become where less is held, the best first.
fn with_less_held(run: &Run<'_>, canonical: &Graph, found: Vec<Found>) -> Result<Vec<Found>> {
    let limit = run.request.memory_limit;
    let mut found = ranked(found, limit);
    let again = run.holding_less(canonical, &found)?;
    if (run.is_full() || run.has_state_on_host()) && !again.is_empty() {
        found = again;
    } else {
        found.extend(again);
    }
    Ok(ranked(found, limit))
}

impl Searched<'_> {
    /// The plan. It takes time to write down, and of several that are found one is wanted.
    pub fn plan(&self) -> Result<Plan> {
        std::thread::scope(|scope| {
            let fingerprint = scope.spawn(|| self.request.captured.fingerprint());
            self.written(|| fingerprint.join().expect("hashing panics nowhere"))
        })
    }

    /// The plan, beside the hashing of the captured step.
    fn written(&self, fingerprint: impl FnOnce() -> Fingerprint) -> Result<Plan> {
        let Self { request, canonical, best, .. } = self;
        let run = Run::new(request, self.extent);
        let decided = on_axes(canonical, request.mesh, &best.assignments)?;
        let naming = Naming::new(canonical, run.machine, request.memory_limit, &decided);
        let label = naming.label(best)?;
        let mut prediction = best.prediction;
        if prediction.model_ns == 0 && !self.is_expected {
            let model = run.certified(&decided).unwrap_or_default();
            prediction.model_ns = model.time / PICOS_PER_NANO;
            prediction.bound_ns = model.bound / PICOS_PER_NANO;
        }
        let without_row = without_row(canonical, request.mesh);
        let fingerprints = (fingerprint(), request.cluster.fingerprint());
        Ok(Plan {
            limit: limit(best, request.memory_limit),
            without_row_ns: replicated_ns(canonical, run.machine, &without_row),
            without_row,
            // Whatever computes is among few layers as well.
            undivided: run.undivided(request.shorter.map_or(canonical, Shorter::graph)),
            runners_up: naming.runners_up(&label, best, &self.others)?,
            label,
            passes: best.passes.clone(),
            prediction,
            ..Plan::of(&decided, fingerprints, request.mesh)
        })
    }
}

/// The error of a search without any candidate.
fn none(request: &Request<'_>) -> Box<Diagnostic> {
    let count = request.mesh.micro_batches();
    if count == 1 {
        return Diagnostic::bug("the search made no candidate");
    }
    Diagnostic::new(
        Code::BAD_MESH,
        format!("no rank's share of the batch can be sliced into {count} micro-batches"),
    )
    .because(
        "slices are of one size, and no plan was found that leaves each rank a multiple of so many samples",
    )
    .hint("use fewer micro-batches, or fewer ranks along the axes that shard the batch")
}

/// Operators that run replicated because nothing is known of how they shard, with their number.
fn without_row(graph: &Graph, mesh: &Mesh) -> BTreeMap<String, u32> {
    let mut found = BTreeMap::new();
    if mesh.sharding_axes().any(|axis| axis.rank_count() > 1) {
        for id in &graph.order {
            let op = &graph.ops[graph.nodes[*id].op];
            if !aten::row_of(op).is_some_and(aten::Row::has_rule) {
                *found.entry(op.name.clone()).or_default() += 1;
            }
        }
    }
    found
}

/// What operators that run replicated take on every rank, by their memory traffic.
fn replicated_ns(
    graph: &Graph,
    machine: Machine<'_>,
    operators: &BTreeMap<String, u32>,
) -> BTreeMap<String, i64> {
    let mut picos: BTreeMap<String, i64> = BTreeMap::new();
    for id in graph.order.iter().filter(|id| operators.contains_key(graph.op_name(**id))) {
        let time = cost::local_time(machine, &Call::new(graph, *id));
        *picos.entry(graph.op_name(*id).to_owned()).or_default() += time;
    }
    picos.into_iter().map(|(operator, picos)| (operator, picos / PICOS_PER_NANO)).collect()
}

/// What limits a plan, in a sentence.
fn limit(found: &Found, memory_limit: Option<u64>) -> String {
    let Prediction { step_ns, exposed_ns, peak_bytes, .. } = found.prediction;
    let near = memory_limit.is_some_and(|limit| peak_bytes * 10 > limit * 9);
    match (near, exposed_ns * 2 <= step_ns) {
        (true, _) => "memory: the plan uses over nine tenths of the limit".into(),
        (false, true) => "computation: operations take longer than waiting for collectives".into(),
        (false, false) => "communication: waiting for collectives takes longer than operations".into(),
    }
}

/// The error of a limit that no plan keeps.
pub fn too_small(limit: u64, smallest: &Prediction) -> Box<Diagnostic> {
    Diagnostic::new(Code::NO_PLAN, format!("no plan fits into {limit} bytes per rank"))
        .because(format!(
            "the smallest plan found needs {} bytes: {}",
            smallest.peak_bytes,
            smallest.at_peak()
        ))
        .hint("use more ranks, a smaller batch, or a higher memory limit")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::Cluster;

    use super::*;
    use crate::{
        jointly::tests::{asked, mesh},
        layers::tests::{Tower, tower},
    };

    #[test]
    fn a_small_step_under_a_limit_is_searched_until_so_much_is_done() {
        let cluster = Cluster::preset("h100:4x4").unwrap();
        let graph = canonical(&tower(Tower { layers: 1, rows: 512, width: 512, reach: 1, odd: None }));
        let mesh = mesh(&[2, 2]);
        asked(&graph, &cluster, &mesh, None, |request| {
            let free =
                jointly::candidates(&Run::new(request, Extent::AS_LARGE), Program::Whole(&graph)).unwrap();
            let limit = free[0].prediction.peak_bytes / 2;
            let limited = Request { memory_limit: Some(limit), ..*request };
            let run = Run::new(&limited, Extent::of(limited.effort, graph.order.len(), &mesh));
            assert!(!run.extent.is_thrifty);
            let until = |cells| {
                let (found, left) = until_done(&run, Program::Whole(&graph), Work::new(cells, run.extent));
                (found.len(), cells - left)
            };
            let (all, done) = until(u64::MAX);
            let (some, spent) = until(done / 4);
            assert!(0 < some && some < all / 2, "{some} of {all}");
            assert_eq!(spent, done / 4);
            let least = |found: Vec<Found>| found.iter().map(|one| one.fitness(Some(limit))).min();
            let as_large = jointly::candidates(&run.with(Extent::AS_LARGE), Program::Whole(&graph)).unwrap();
            assert!(
                least(as_far_as_it_goes(&run, Program::Whole(&graph)).unwrap()) <= least(as_large),
                "what a search as of a large step finds is kept"
            );
        });
    }

    #[test]
    fn three_axes_take_no_longer_than_two_of_which_one_stands_for_two() {
        let cluster = Cluster::preset("h100:4x4").unwrap();
        let graph = tower(Tower { layers: 160, rows: 1024, width: 4096, reach: 1, odd: None });
        let shorter = Shorter::of(&canonical(&graph));
        let step = |sizes: &[u32]| {
            let find = |request: &Request<'_>| search(request).unwrap().best.prediction.step_ns;
            asked(&graph, &cluster, &mesh(sizes), shorter.as_ref(), find)
        };
        let (two, three) = (step(&[4, 4]), step(&[2, 2, 4]));
        assert!(three <= two / 100 * 101, "{three} ns for {two}");
    }
}
