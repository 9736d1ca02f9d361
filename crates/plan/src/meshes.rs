//! Which factors of the ranks make the axes of the mesh, where none is given: every choice is searched with little effort, and the best few
//! with all.

use std::{cell::OnceCell, collections::BTreeSet, thread};

use base::{Audience, Code, Diagnostic, Result};
use ir::{AxisKind, Graph, InputClass, Mesh, MeshAxis};

use crate::{
    effort::{Effort, Extent},
    forbidden::{self, Forbid},
    from_shorter::expected,
    glance::{Glance, Outlook, extrapolated, glance_at_whole, outlook},
    pins::Pins,
    plan::{Plan, Prediction},
    run::{Found, Request, Run},
    search::{Searched, search},
    suits::if_it_suits,
};

/// How many meshes are searched with all effort.
const FINALISTS: usize = 2;

/// How much longer than the best a mesh may take at a glance at fewer layers, in percent, to be searched with all effort.
const FAR: i64 = 10;

/// By how much what few layers promise may be more than what is found for all, in percent: meshes are searched one after the other, the most promising
/// first, and those are left out whose promise is by more than that more than what is known.
const TOO_MUCH: i64 = 5;

/// How many are looked at at once, each in memory of its own.
const AT_ONCE: usize = 2;

/// A mesh with what a quick search predicts for it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The mesh.
    pub mesh: Mesh,
    /// What a step takes; nothing where no plan was found within the memory limit.
    pub prediction: Option<Prediction>,
    /// The least that one takes whether it keeps the limit or not, in nanoseconds; nothing where that is not known.
    pub least_ns: Option<i64>,
}

impl Candidate {
    /// Whether any plan on a mesh, which is this one but for micro-batches, may take less than what is known.
    pub fn may_be_faster_on(&self, mesh: &Mesh, known_ns: i64) -> bool {
        let of_ranks = |mesh: &Mesh| {
            mesh.axes.iter().filter(|axis| axis.kind == AxisKind::Ranks).cloned().collect::<Vec<_>>()
        };
        of_ranks(mesh) != of_ranks(&self.mesh) || self.least_ns.is_none_or(|least| least < known_ns)
    }
}

/// The meshes of one and of two axes that a number of ranks makes, each with the same slices.
pub fn meshes(ranks: u32, slices: Option<&MeshAxis>) -> Vec<Mesh> {
    let axis = |name: &str, size| MeshAxis::ranks(name, size);
    let pairs = (2..ranks).filter(|&outer| ranks.is_multiple_of(outer));
    let axes = std::iter::once(vec![axis("ranks", ranks)])
        .chain(pairs.map(|outer| vec![axis("outer", outer), axis("inner", ranks / outer)]));
    axes.map(|axes| Mesh { axes: axes.into_iter().chain(slices.cloned()).collect() }).collect()
}

/// The same that have all axes which pins name, or collectives that are to be done without.
pub fn suiting(request: &Request<'_>, ranks: u32, slices: Option<&MeshAxis>) -> Vec<Mesh> {
    let mut meshes = meshes(ranks, slices);
    meshes.retain(|mesh| has_steered(request, mesh));
    meshes
}

/// Whether a mesh has all axes that pins name, or collectives that are to be done without.
pub fn has_steered(request: &Request<'_>, mesh: &Mesh) -> bool {
    steered(request.pins, request.forbid).iter().all(|name| mesh.axis(name).is_some())
}

/// The axes that pins name, or collectives that are to be done without.
pub fn steered<'a>(pins: &'a Pins, forbid: &'a Forbid) -> BTreeSet<&'a str> {
    let of_pins = pins.values().flat_map(|placements| placements.keys());
    of_pins.chain(forbid.keys()).map(String::as_str).filter(|name| *name != forbidden::ALL).collect()
}

/// The best plan on any mesh of so many ranks, with the micro-batches of the request's; `told` hears what the quick searches predict, from
/// the best mesh on.
pub fn search_meshes(request: &Request<'_>, ranks: u32, told: impl FnOnce(&[Candidate])) -> Result<Plan> {
    let meshes = suiting(request, ranks, request.mesh.time_axis());
    if let [only] = &meshes[..] {
        return search(&Request { mesh: only, ..*request })?.plan();
    }
    let meshes: Vec<&Mesh> = meshes.iter().collect();
    let mut quick = glances(request, &meshes)?;
    quick.sort_by_key(|one| time(one.glance.as_ref().ok().map(|glance| &glance.prediction)));
    let candidate = |one: &Seen<'_>| Candidate {
        mesh: one.mesh.clone(),
        prediction: one.glance.as_ref().ok().map(|glance| glance.prediction),
        least_ns: one.least_ns,
    };
    told(&quick.iter().map(candidate).collect::<Vec<_>>());
    if request.effort == Effort::Quick {
        return quickly(request, quick);
    }
    let seen: Vec<(&Mesh, &Glance<'_>)> =
        quick.iter().filter_map(|one| Some((one.mesh, one.glance.as_ref().ok()?))).collect();
    // Where a quick search keeps the limit on no mesh, another one may.
    if seen.is_empty() { side_by_side(request, &meshes) } else { closer(request, &finalists(&seen)) }
}

/// A mesh with what a quick search finds.
struct Seen<'m> {
    mesh: &'m Mesh,
    /// The best within the memory limit, or why there is none.
    glance: Result<Glance<'m>>,
    /// The least that anything of few layers takes, within the limit or not, in nanoseconds.
    least_ns: Option<i64>,
}

/// What quick searches find on each mesh: of few layers, where what is found for them on any mesh promises to keep the memory limit. Each is told the
/// best of those before it, and looks no further where nothing is as good at the price that memory has there.
fn glances<'m>(request: &Request<'m>, meshes: &[&'m Mesh]) -> Result<Vec<Seen<'m>>> {
    let mut few: Vec<(&Mesh, Result<Option<Outlook<'_>>>)> = Vec::with_capacity(meshes.len());
    let meshes = promising_first(request, meshes);
    let (first, others) = meshes.split_at(1.min(meshes.len()));
    for some in std::iter::once(first).chain(others.chunks(AT_ONCE)) {
        let promise =
            |seen: &Result<Option<Outlook<'_>>>| seen.as_ref().ok()?.as_ref()?.glance.as_ref()?.promise;
        let promises = few.iter().filter_map(|(_, seen)| promise(seen));
        let elsewhere = promises.min_by_key(|promise| promise.step_ns);
        few.extend(at_once(some, |mesh| Ok(extrapolated(&Request { mesh, elsewhere, ..*request })))?);
    }
    let seen = few.into_iter().map(|(mesh, outlook)| {
        let outlook = outlook?;
        let least_ns = outlook.as_ref().map(|outlook| outlook.least_ns);
        let glance = outlook.and_then(|outlook| outlook.glance).ok_or_else(unpromising);
        Ok(Seen { mesh, glance, least_ns })
    });
    let seen: Vec<Seen<'_>> = seen.collect::<Result<_>>()?;
    if seen.iter().any(|one| one.glance.is_ok()) {
        return Ok(seen);
    }
    let whole = at_once(&meshes, |mesh| glance_at_whole(&Request { mesh, ..*request }))?;
    Ok(whole.into_iter().map(|(mesh, glance)| Seen { mesh, glance, least_ns: None }).collect())
}

/// The meshes whose outer axis is as long as the batch first, along which data parallelism goes as far as it does.
fn promising_first<'m>(request: &Request<'_>, meshes: &[&'m Mesh]) -> Vec<&'m Mesh> {
    let samples = f64::from(samples(request.graph).max(1));
    let times = |mesh: &Mesh| {
        let outer = f64::from(mesh.axes.first().map_or(1, |axis| axis.size));
        (outer / samples).max(samples / outer)
    };
    let mut meshes = meshes.to_vec();
    meshes.sort_by(|one, other| times(one).total_cmp(&times(other)));
    meshes
}

/// How many samples a batch has, as far as its shapes say it: none where it has no dimension.
pub fn samples(graph: &Graph) -> u32 {
    let batch = graph.inputs.values().filter(|input| input.class == InputClass::Batch);
    let rows = batch.filter_map(|input| graph.ty(input.value).shape.first().copied()).min();
    u32::try_from(rows.unwrap_or(0)).unwrap_or(0)
}

fn unpromising() -> Box<Diagnostic> {
    Diagnostic::new(Code::NO_PLAN, "few layers promise no plan within the memory limit")
}

/// A mesh that is searched with all effort.
#[derive(Clone, Copy)]
struct Finalist<'m> {
    mesh: &'m Mesh,
    /// What few layers promise that the step takes, in nanoseconds; none where the whole step was looked at.
    promised_ns: Option<i64>,
}

/// Those meshes that are searched with all effort, of some with what quick searches predict, the best first.
fn finalists<'m>(seen: &[(&'m Mesh, &Glance<'_>)]) -> Vec<Finalist<'m>> {
    let best = seen.first().map_or(0, |(_, glance)| glance.prediction.step_ns);
    let finalist = |(mesh, glance): &(&'m Mesh, &Glance<'_>)| {
        let promised_ns = (!glance.expected.is_empty()).then_some(glance.prediction.step_ns);
        Finalist { mesh, promised_ns }
    };
    let is_far = |one: &Finalist<'_>| one.promised_ns.is_some_and(|step| step / (100 + FAR) * 100 > best);
    seen.iter().take(FINALISTS).map(finalist).filter(|one| !is_far(one)).collect()
}

/// What quick searches on some meshes say of plans that are faster than what is known.
pub enum Prospect<'m> {
    /// What the best promises to take within the memory limit.
    Promise(Promise<'m>),
    /// None is faster, within the limit or beyond it.
    Slower,
    /// Some are faster, and none of those promises to keep the limit.
    TooLarge,
}

/// What a plan promises to take within the memory limit.
pub struct Promise<'m> {
    /// The time of a step, in nanoseconds.
    pub step_ns: i64,
    /// Whether a plan holds all of what forward leaves.
    pub holds_all: bool,
    /// The meshes that are worth a search with all effort.
    finalists: Vec<Finalist<'m>>,
    /// The plan of a quick search of the whole step, where it has no layers.
    quick: Option<Box<Searched<'m>>>,
}

/// What quick searches on some meshes say of plans that are faster than what is known.
pub fn prospect<'m>(request: &Request<'m>, meshes: &'m [Mesh]) -> Result<Prospect<'m>> {
    let known_ns = request.known_ns.unwrap_or(i64::MAX);
    let seen = at_once(&meshes.iter().collect::<Vec<_>>(), |mesh| outlook(&Request { mesh, ..*request }))?;
    let suiting: Vec<(&Mesh, Outlook<'_>)> =
        seen.into_iter().filter_map(|(mesh, seen)| Some((mesh, seen.ok()?))).collect();
    if !suiting.is_empty() && suiting.iter().all(|(_, seen)| seen.least_ns >= known_ns) {
        return Ok(Prospect::Slower);
    }
    let holds_all = suiting.iter().any(|(_, seen)| seen.holds_all);
    let step = |glance: &Glance<'_>| glance.prediction.step_ns;
    let mut kept: Vec<(&Mesh, Glance<'_>)> =
        suiting.into_iter().filter_map(|(mesh, seen)| Some((mesh, seen.glance?))).collect();
    kept.retain(|(_, glance)| step(glance) < known_ns);
    kept.sort_by_key(|(_, glance)| step(glance));
    let Some((_, best)) = kept.first() else { return Ok(Prospect::TooLarge) };
    Ok(Prospect::Promise(Promise {
        step_ns: step(best),
        holds_all,
        finalists: finalists(&kept.iter().map(|(mesh, glance)| (*mesh, glance)).collect::<Vec<_>>()),
        quick: kept.into_iter().find_map(|(_, glance)| glance.searched),
    }))
}

impl Promise<'_> {
    /// The best plan that is found with the effort that is asked for; none where a promise is not kept.
    pub fn kept(self, request: &Request<'_>) -> Result<Option<Plan>> {
        let full = match request.effort {
            Effort::Full => if_it_suits(closer(request, &self.finalists))?,
            Effort::Quick => None,
        };
        full.map_or_else(|| self.quick.map(|quick| quick.plan()).transpose(), |plan| Ok(Some(plan)))
    }
}

/// The best plan that all effort finds on some meshes, the most promising first.
fn closer(request: &Request<'_>, finalists: &[Finalist<'_>]) -> Result<Plan> {
    if finalists.iter().any(|one| one.promised_ns.is_none()) {
        return side_by_side(request, &finalists.iter().map(|one| one.mesh).collect::<Vec<_>>());
    }
    let few: Vec<OnceCell<Vec<Found>>> = finalists.iter().map(|_| OnceCell::new()).collect();
    let step = |one: &Searched<'_>| one.best.prediction.step_ns;
    let (mut found, mut refused): (Vec<Searched<'_>>, _) = (Vec::new(), None);
    for (Finalist { mesh, promised_ns }, few) in finalists.iter().zip(&few) {
        let request = Request { mesh, ..*request };
        if let Some(known) = found.iter().map(step).min() {
            let is_slower = |promised: i64| promised / (100 + TOO_MUCH) * 100 >= known;
            if promised_ns.is_some_and(is_slower) {
                continue;
            }
            let extent = Extent::of(request.effort, request.graph.order.len(), mesh);
            let few = few.get_or_init(|| expected(&request, extent));
            let promising = Run::new(&request, extent).promising(few).first().map(|(step, _)| *step);
            if promising.is_some_and(is_slower) {
                continue;
            }
        }
        match search(&Request { expected: few.get().map(Vec::as_slice), ..request }) {
            Ok(one) => found.push(one),
            Err(bug) if bug.audience() == Audience::Bug => return Err(bug),
            Err(refusal) => refused = refused.or(Some(refusal)),
        }
    }
    match found.iter().min_by_key(|one| step(one)) {
        Some(best) => best.plan(),
        None => Err(refused.unwrap_or_else(|| Diagnostic::bug("no mesh was tried"))),
    }
}

/// The best plan that all effort finds on some meshes of a step without layers.
fn side_by_side(request: &Request<'_>, meshes: &[&Mesh]) -> Result<Plan> {
    let mut found = at_once(meshes, |mesh| search(&Request { mesh, ..*request }))?;
    found.sort_by_key(|(_, found)| time(found.as_ref().ok().map(|found| &found.best.prediction)));
    first(found.into_iter().map(|(_, found)| found?.plan()))
}

/// The plan of the first glance.
fn quickly(request: &Request<'_>, quick: Vec<Seen<'_>>) -> Result<Plan> {
    first(quick.into_iter().map(|Seen { mesh, glance, .. }| match glance?.searched {
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
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::testing::{link, uniform};
    use shard::canonical;

    use super::*;
    use crate::{
        jointly::tests::asked,
        layers::tests::{Tower, tower},
        shorter::Shorter,
    };

    fn shapes(ranks: u32) -> Vec<Vec<u32>> {
        let of = |mesh: &Mesh| mesh.axes.iter().map(|axis| axis.size).collect();
        meshes(ranks, None).iter().map(of).collect()
    }

    #[test]
    fn every_ordered_pair_of_factors_is_a_mesh() {
        assert_eq!(shapes(1), [[1]]);
        assert_eq!(shapes(7), [[7]]);
        assert_eq!(shapes(12), [vec![12], vec![2, 6], vec![3, 4], vec![4, 3], vec![6, 2]]);
        assert_eq!(shapes(1000).len(), 15);
    }

    #[test]
    fn meshes_that_are_told_of_each_other_promise_as_much_as_each_by_itself() {
        let cluster = uniform(1e14, 1e12, link(10_000.0, 1e11));
        let graph = tower(Tower { layers: 160, rows: 4096, width: 4096, reach: 1, odd: None });
        let shorter = Shorter::of(&canonical(&graph));
        let meshes = meshes(12, None);
        let meshes: Vec<&Mesh> = meshes.iter().collect();
        asked(&graph, &cluster, meshes[0], shorter.as_ref(), |request| {
            let alone = |mesh, memory_limit| {
                let seen = extrapolated(&Request { mesh, memory_limit, ..*request })?.glance?;
                Some((seen.prediction.step_ns, seen.prediction.peak_bytes))
            };
            let four = meshes.iter().find(|mesh| mesh.axes[0].size == 4).unwrap();
            let (_, free) = alone(four, None).unwrap();
            let limit = Some(free / 2);
            let alone: Vec<_> = meshes.iter().map(|mesh| alone(mesh, limit)).collect();
            let least = alone.iter().flatten().map(|(step, _)| *step).min().unwrap();
            let seen = glances(&Request { memory_limit: limit, ..*request }, &meshes).unwrap();
            let step = |one: &Seen<'_>| Some(one.glance.as_ref().ok()?.prediction.step_ns);
            let told = seen.iter().filter_map(step).min().unwrap();
            assert!(told <= least / 100 * 101, "{told} ns, and {least} alone");
            for (mesh, alone) in meshes.iter().zip(alone) {
                let given_up = seen.iter().any(|one| one.mesh == *mesh && one.glance.is_err());
                assert!(!given_up || alone.is_none_or(|(step, _)| step >= told), "{mesh:?}");
            }
        });
    }

    #[test]
    fn the_mesh_along_whose_outer_axis_the_batch_goes_is_looked_at_first() {
        let cluster = uniform(1e14, 1e12, link(10_000.0, 1e11));
        let first = |rows| {
            let graph = tower(Tower { layers: 2, rows, width: 64, reach: 1, odd: None });
            let meshes = meshes(64, None);
            let meshes: Vec<&Mesh> = meshes.iter().collect();
            asked(&graph, &cluster, meshes[0], None, |request| {
                promising_first(request, &meshes)[0].axes[0].size
            })
        };
        assert_eq!([1, 8, 16, 60, 4096].map(first), [2, 8, 16, 64, 64]);
    }

    #[test]
    fn slices_are_worth_a_search_where_they_may_be_faster_and_keep_the_limit() {
        let cluster = uniform(1e14, 1e12, link(10_000.0, 1e11));
        let graph = tower(Tower { layers: 160, rows: 4096, width: 4096, reach: 1, odd: None });
        let shorter = Shorter::of(&canonical(&graph));
        for ranks in [Mesh::along("ranks", 4), Mesh::along("outer", 2)] {
            let sliced = [2, 4].map(|count| Mesh {
                axes: ranks.axes.iter().cloned().chain([MeshAxis::micro_batches(count)]).collect(),
            });
            asked(&graph, &cluster, &sliced[0], shorter.as_ref(), |request| {
                let under = |memory_limit, known_ns| Request { memory_limit, known_ns, ..*request };
                let plan = |mesh: usize, request: &Request<'_>| match prospect(request, &sliced[mesh..=mesh])
                    .unwrap()
                {
                    Prospect::Promise(promise) => {
                        (promise.step_ns, promise.kept(request).unwrap().unwrap().prediction)
                    }
                    Prospect::Slower => panic!("slower"),
                    Prospect::TooLarge => panic!("too large"),
                };
                let ((_, two), (_, four)) = (plan(0, &under(None, None)), plan(1, &under(None, None)));
                assert!(four.peak_bytes < two.peak_bytes && four.step_ns > two.step_ns, "{two:?}, {four:?}");
                let between = Some(four.peak_bytes.midpoint(two.peak_bytes));
                let (promised, kept) = plan(1, &under(between, Some(four.step_ns * 2)));
                assert!(kept.fits(between) && kept.step_ns <= promised / 20 * 21, "{promised} ns, {kept:?}");
                let refused = |request| prospect(&request, &sliced[1..]).unwrap();
                assert!(matches!(refused(under(Some(1), None)), Prospect::TooLarge));
                assert!(matches!(refused(under(between, Some(two.step_ns / 2))), Prospect::Slower));
            });
        }
    }
}
