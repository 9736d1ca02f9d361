//! Which factors of the ranks make the axes of the mesh, where none is given: every choice is searched with little effort, and the best few
//! with all.

use std::thread;

use base::{Audience, Diagnostic, Result};
use ir::{Mesh, MeshAxis};

use crate::{
    effort::{Effort, Extent},
    from_shorter::expected,
    glance::{Glance, glance},
    plan::{Plan, Prediction},
    run::{Found, Request, Run},
    search::search,
};

/// How many meshes are searched with all effort.
const FINALISTS: usize = 2;

/// How much longer than the best a mesh may take at a glance at fewer layers, in percent, to be searched with all effort.
const FAR: i64 = 10;

/// How much longer what is found for fewer layers may take than the best of it, in percent, for the whole step to be searched.
const APART: i64 = 3;

/// How many are searched at once, each in memory of its own.
const AT_ONCE: usize = 2;

/// A mesh with what a quick search predicts for it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh.
    pub mesh: Mesh,
    /// What a step takes; nothing where no plan was found within the memory limit.
    pub prediction: Option<Prediction>,
}

/// The meshes of one and of two axes that a number of ranks makes.
pub fn meshes(ranks: u32) -> Vec<Mesh> {
    let axis = |name: &str, size| MeshAxis::ranks(name, size);
    let pairs = (2..ranks).filter(|&outer| ranks.is_multiple_of(outer));
    std::iter::once(Mesh::along("ranks", ranks))
        .chain(pairs.map(|outer| Mesh { axes: vec![axis("outer", outer), axis("inner", ranks / outer)] }))
        .collect()
}

/// The best plan on any mesh of so many ranks, with the micro-batches of the request's; `told` hears what the quick searches predict, from
/// the best mesh on.
pub fn search_meshes(request: &Request<'_>, ranks: u32, told: impl FnOnce(&[Candidate])) -> Result<Plan> {
    let slices = request.mesh.time_axis();
    let sliced = |mesh: Mesh| Mesh { axes: mesh.axes.into_iter().chain(slices.cloned()).collect() };
    let meshes: Vec<Mesh> = meshes(ranks).into_iter().map(sliced).collect();
    if let [only] = &meshes[..] {
        return search(&Request { mesh: only, ..*request })?.plan();
    }
    let meshes: Vec<&Mesh> = meshes.iter().collect();
    let mut quick = at_once(&meshes, |mesh| glance(&Request { mesh, ..*request }))?;
    quick.sort_by_key(|(_, glance)| time(glance.as_ref().ok().map(|glance| &glance.prediction)));
    let candidate = |(mesh, glance): &(&Mesh, Result<Glance<'_>>)| Candidate {
        mesh: (*mesh).clone(),
        prediction: glance.as_ref().ok().map(|glance| glance.prediction),
    };
    told(&quick.iter().map(candidate).collect::<Vec<_>>());
    if request.effort == Effort::Quick {
        return quickly(request, quick);
    }
    let found = quick.iter().filter(|(_, glance)| glance.is_ok()).count();
    // Where a quick search keeps the limit on no mesh, another one may.
    let finalists = if found == 0 { quick.len() } else { found.min(FINALISTS) };
    let best = quick.first().and_then(|(_, glance)| glance.as_ref().ok().map(|glance| glance.prediction));
    let is_far = |glance: &Result<Glance<'_>>| match (glance, best) {
        (Ok(Glance { prediction, expected, .. }), Some(best)) => {
            !expected.is_empty() && prediction.step_ns / (100 + FAR) * 100 > best.step_ns
        }
        _ => false,
    };
    let near = quick.into_iter().take(finalists).filter(|(_, glance)| !is_far(glance));
    let finalists: Vec<&Mesh> = near.map(|(mesh, _)| mesh).collect();
    closer(request, &finalists)
}

/// The best plan that all effort finds on some meshes. Of a step with fewer layers it is held against each other first what it finds for them.
fn closer(request: &Request<'_>, finalists: &[&Mesh]) -> Result<Plan> {
    let extent = |mesh: &Mesh| Extent::of(request.effort, request.graph.order.len(), mesh);
    let of = |mesh: &Mesh| Ok(expected(&Request { mesh, ..*request }, extent(mesh)));
    let known = at_once(finalists, of)?;
    let step = |(mesh, found): &(&Mesh, Result<Vec<Found>>)| {
        let asked = Request { mesh, ..*request };
        let run = Run::new(&asked, extent(mesh));
        run.promising(found.as_ref().ok()?).first().map(|(step, _)| *step)
    };
    let least = known.iter().filter_map(step).min();
    let is_near = |one: &(&Mesh, Result<Vec<Found>>)| match (step(one), least) {
        (Some(step), Some(least)) => step / (100 + APART) * 100 <= least,
        _ => true,
    };
    let near: Vec<(&Mesh, Result<Vec<Found>>)> = known.into_iter().filter(is_near).collect();
    let meshes: Vec<&Mesh> = near.iter().map(|(mesh, _)| *mesh).collect();
    let expected = |mesh: &Mesh| {
        near.iter().find(|(known, _)| *known == mesh).and_then(|(_, found)| found.as_deref().ok())
    };
    let mut found = at_once(&meshes, |mesh| search(&Request { mesh, expected: expected(mesh), ..*request }))?;
    found.sort_by_key(|(_, found)| time(found.as_ref().ok().map(|found| &found.best.prediction)));
    first(found.into_iter().map(|(_, found)| found?.plan()))
}

/// The plan of the first glance.
fn quickly(request: &Request<'_>, quick: Vec<(&Mesh, Result<Glance<'_>>)>) -> Result<Plan> {
    first(quick.into_iter().map(|(mesh, glance)| match glance?.searched {
        Some(searched) => searched.plan(),
        None => search(&Request { mesh, ..*request })?.plan(),
    }))
}

/// What is found on each mesh, in their order, or why it does not suit the step; a bug on any of them is one of all.
fn at_once<'m, T: Send>(
    meshes: &[&'m Mesh],
    find: impl Fn(&'m Mesh) -> Result<T> + Sync,
) -> Result<Vec<(&'m Mesh, Result<T>)>> {
    let mut found = Vec::with_capacity(meshes.len());
    for some in meshes.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let searches: Vec<_> = some.iter().map(|mesh| scope.spawn(|| find(mesh))).collect();
            for (mesh, search) in some.iter().zip(searches) {
                let one = search.join().unwrap_or_else(|_| Err(Diagnostic::bug("a search ended in a panic")));
                found.push((*mesh, one));
            }
        });
    }
    match found.iter().filter_map(|(_, one)| one.as_ref().err()).find(|one| one.audience() == Audience::Bug) {
        Some(bug) => Err(bug.clone()),
        None => Ok(found),
    }
}

/// What meshes are ordered by: those with a plan first.
fn time(prediction: Option<&Prediction>) -> (bool, i64) {
    prediction.map_or((true, 0), |prediction| (false, prediction.step_ns))
}

fn first(mut plans: impl Iterator<Item = Result<Plan>>) -> Result<Plan> {
    plans.next().unwrap_or_else(|| Err(Diagnostic::bug("no mesh was tried")))
}

#[cfg(test)]
mod tests {
    use super::meshes;

    fn shapes(ranks: u32) -> Vec<Vec<u32>> {
        meshes(ranks).iter().map(|mesh| mesh.axes.iter().map(|axis| axis.size).collect()).collect()
    }

    #[test]
    fn every_ordered_pair_of_factors_is_a_mesh() {
        assert_eq!(shapes(1), [[1]]);
        assert_eq!(shapes(7), [[7]]);
        assert_eq!(shapes(12), [vec![12], vec![2, 6], vec![3, 4], vec![4, 3], vec![6, 2]]);
        assert_eq!(shapes(1000).len(), 15);
    }
}
