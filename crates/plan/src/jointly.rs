//! Three and more axes of ranks, together.
//!
//! The outer of many small axes decides before the inner ones do, and what pays along all of them together may pay along none of them alone. So each two
//! neighbours are searched as one axis too, and what operations do along that is taken over to both.

use base::Result;
use ir::{AxisKind, Mesh, MeshAxis};

use crate::{
    along::explored,
    effort::Extent,
    folded::Program,
    intents::{Intent, Origins, intents},
    run::{Found, Request, Run},
    suits::if_it_suits,
};

/// So many plans of a mesh with two axes as one are taken over.
const TAKEN_OVER: usize = 2;

/// How much longer than the best a way may take at a quick search, in percent, to be searched with all effort.
const FAR: i64 = 15;

/// The candidates along all axes of the mesh.
pub fn candidates(run: &Run<'_>, program: Program<'_>) -> Result<Vec<Found>> {
    let Request { mesh, pins, forbid, .. } = *run.request;
    let axes = mesh.axes.iter().filter(|axis| is_of_ranks(axis)).count();
    // Pins are along axes of the mesh that is asked for.
    if axes < 3 || !pins.is_empty() || !forbid.is_empty() {
        return Way::Alone.found(run, program);
    }
    let pairs = (0..mesh.axes.len()).filter(|at| merged(mesh, *at).is_some()).map(Way::Merged);
    let mut ways: Vec<Way> = std::iter::once(Way::Alone).chain(pairs).collect();
    let quick = Extent { prices: 1, beam: 1, ..run.extent };
    let mut found = Vec::new();
    if run.extent.is_thrifty && run.extent != quick {
        ways = near(run, &run.with(quick), program, ways, &mut found)?;
    }
    if run.work.is_some() {
        // Most is tried where one axis after the other is searched.
        ways.rotate_left(1);
    }
    let mut left = ways.len() as u64;
    for way in ways {
        let own = run.with_part_of_work(left, |run| if_it_suits(way.found(run, program)))?;
        found.extend(own.unwrap_or_default());
        left -= 1;
    }
    if !found.iter().any(|one| run.promised(one).is_some()) {
        found.extend(Way::Alone.found(run, program)?);
    }
    Ok(found)
}

/// The ways that are left to search with all effort: those by which a quick search finds the best, or what is near that; adds what it finds.
/// Of a whole step, one axis after the other is searched with all effort at once, which tries again all that a quick search tries.
fn near(
    run: &Run<'_>,
    quick: &Run<'_>,
    program: Program<'_>,
    ways: Vec<Way>,
    found: &mut Vec<Found>,
) -> Result<Vec<Way>> {
    let is_whole = matches!(program, Program::Whole(_));
    let is_done = |way: Way| is_whole && matches!(way, Way::Alone);
    let mut steps = Vec::new();
    for way in ways {
        let own = if_it_suits(way.found(if is_done(way) { run } else { quick }, program))?;
        let own = own.unwrap_or_default();
        let promised = own.iter().filter_map(|one| quick.promised(one));
        steps.extend(promised.map(|one| one.step_ns).min().map(|step| (way, step)));
        found.extend(own);
    }
    let least = steps.iter().map(|(_, step)| *step).min().unwrap_or(0);
    steps.retain(|(way, step)| step / (100 + FAR) * 100 <= least && !is_done(*way));
    Ok(steps.into_iter().map(|(way, _)| way).collect())
}

fn is_of_ranks(axis: &MeshAxis) -> bool {
    axis.kind == AxisKind::Ranks && axis.size > 1
}

/// A way to find candidates along all axes.
#[derive(Clone, Copy)]
enum Way {
    /// One axis after the other.
    Alone,
    /// With this axis and the next one as one.
    Merged(usize),
}

impl Way {
    fn found(self, run: &Run<'_>, program: Program<'_>) -> Result<Vec<Found>> {
        match self {
            Self::Alone => explored(run, program, &Origins::of(program.graph()), 0),
            Self::Merged(at) => from_merged(run, program, at),
        }
    }
}

/// What is found where an axis and the next one are one, taken over to both.
fn from_merged(run: &Run<'_>, program: Program<'_>, at: usize) -> Result<Vec<Found>> {
    let Some(merged) = merged(run.request.mesh, at) else { return Ok(Vec::new()) };
    let request = Request { mesh: &merged, ..*run.request };
    let found = candidates(&Run { work: run.work.clone(), ..Run::new(&request, run.extent) }, program)?;
    let mut taken = Vec::new();
    for (_, one) in run.promising(&found).into_iter().take(TAKEN_OVER) {
        let mut both = intents(program.graph(), &merged, &one.assignments)?;
        both.insert(at, both[at].clone());
        taken.extend(steered(run, program, &both));
    }
    Ok(taken)
}

/// A mesh with an axis and the next one as one.
fn merged(mesh: &Mesh, at: usize) -> Option<Mesh> {
    let (axis, next) = (mesh.axes.get(at)?, mesh.axes.get(at + 1)?);
    if !is_of_ranks(axis) || !is_of_ranks(next) {
        return None;
    }
    let both = MeshAxis { size: axis.size * next.size, ..axis.clone() };
    let (before, behind) = (&mesh.axes[..at], &mesh.axes[at + 2..]);
    Some(Mesh { axes: before.iter().chain([&both]).chain(behind).cloned().collect() })
}

/// What a search finds where it is decided what operations of the step do along each axis, if anything.
fn steered(run: &Run<'_>, program: Program<'_>, intents: &[Option<Intent>]) -> Vec<Found> {
    let run = Run { intents, ..run.with(run.extent) };
    let mut found = explored(&run, program, &Origins::of(program.graph()), 0).unwrap_or_default();
    for one in &mut found {
        // The bound is of a problem in which all was decided already.
        (one.prediction.model_ns, one.prediction.bound_ns) = (0, 0);
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub mod tests {
    use cluster::{
        Cluster,
        testing::{link, uniform},
    };
    use ir::Graph;
    use shard::canonical;

    use super::*;
    use crate::{
        effort::Effort,
        forbidden::Forbid,
        layers::tests::{Tower, tower},
        pins::Pins,
        shorter::Shorter,
    };

    /// A mesh of these axes.
    pub fn mesh(sizes: &[u32]) -> Mesh {
        let axes = sizes.iter().enumerate();
        Mesh { axes: axes.map(|(at, size)| MeshAxis::ranks(format!("axis{at}"), *size)).collect() }
    }

    /// What is found by the request for a graph on a mesh.
    pub fn asked<T>(
        graph: &Graph,
        cluster: &Cluster,
        mesh: &Mesh,
        shorter: Option<&Shorter>,
        find: impl FnOnce(&Request<'_>) -> T,
    ) -> T {
        find(&Request {
            graph,
            captured: graph,
            shorter,
            expected: None,
            cluster,
            mesh,
            memory_limit: None,
            pins: &Pins::default(),
            forbid: &Forbid::default(),
            effort: Effort::Full,
            recompute: None,
            reduce_dtype: None,
            offload: None,
            known_ns: None,
            elsewhere: None,
            telling: None,
        })
    }

    #[test]
    fn what_operations_do_along_each_axis_is_taken_over() {
        let cluster = uniform(1e14, 1e12, link(10_000.0, 1e11));
        let mesh = mesh(&[2, 2, 4]);
        let graph = canonical(&tower(Tower { layers: 2, rows: 512, width: 512, reach: 1, odd: None }));
        asked(&graph, &cluster, &mesh, None, |request| {
            let run = Run::new(request, Extent::of(Effort::Full, graph.order.len(), &mesh));
            let program = Program::Whole(&graph);
            for known in candidates(&run, program).unwrap() {
                let decided = intents(&graph, &mesh, &known.assignments).unwrap();
                let again = steered(&run, program, &decided);
                assert!(!again.is_empty(), "{decided:?}");
                for one in again {
                    assert_eq!(intents(&graph, &mesh, &one.assignments).unwrap(), decided);
                }
            }
        });
    }

    #[test]
    fn copies_are_held_in_some_layers_where_that_is_faster_than_in_all_or_none() {
        let graph = canonical(&tower(Tower { layers: 24, rows: 4096, width: 4096, reach: 1, odd: None }));
        let cluster = uniform(1e14, 1e12, link(10_000.0, 1e11));
        let mesh = Mesh::along("ranks", 4);
        asked(&graph, &cluster, &mesh, None, |request| {
            let extent = Extent::of(Effort::Full, usize::MAX / 1024, &mesh);
            let of = |memory_limit| {
                let limited = Request { memory_limit, ..*request };
                let run = Run::new(&limited, extent);
                let found = candidates(&run, Program::Whole(&graph)).unwrap();
                let figures = |one: &Found| (run.expected_ns(one), one.prediction.collective_bytes);
                (found.iter().map(figures).collect::<Vec<_>>(), found[0].prediction.peak_bytes)
            };
            let (_, free) = of(None);
            let (found, _) = of(Some(free / 10 * 7));
            let (best, held) = found.iter().min().unwrap();
            let best_of = |holds: &dyn Fn(u64) -> bool| {
                found.iter().filter(|(_, held)| holds(*held)).map(|(expected, _)| *expected).min()
            };
            let (more, less) = (best_of(&|other| other > *held), best_of(&|other| other < *held));
            let is_slower = |other: Option<i64>| other.is_some_and(|other| other > best / 100 * 102);
            assert!(is_slower(more) && is_slower(less), "{found:?}");
        });
    }
}
