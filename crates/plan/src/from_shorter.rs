//! A large step by what is found for it with fewer of its layers.
//!
//! Layers that are alike are decided alike, and each takes what the others do. So time and memory grow by the same amount with each layer, which
//! is the difference between two programs of which one has a layer more, under the same decisions. What is chosen in the end is simulated in
//! the whole step.

use base::Result;
use ir::{Graph, Mesh};
use shard::Assignment;

use crate::{
    effort::Extent,
    folded::{Folded, Program},
    intents::Origins,
    jointly,
    prediction::Prediction,
    run::{Found, Offloading, Recomputation, Request, Run, ranked},
    taken_over::{Pair, TakenOver, taken_over},
};

/// So many of what is found for the shorter step are taken over to the whole one.
const TAKEN_OVER: usize = 3;

/// What the shorter step says of the whole one is right but for so many percent.
const INEXACT: i64 = 5;

/// Settings of the passes under which few layers take so many percent longer than under others are not tried for all of them.
const SLOWER: i64 = 1;

impl Run<'_> {
    /// What decisions for few layers take for all of them; none where a layer would take less than nothing.
    pub fn predicted_folded(&self, local: &Folded) -> Result<Option<Found>> {
        self.predicted_beyond((&local.pair.from, &local.pair.to), local.left_out)
    }

    /// What a program takes that has `left_out` layers, or micro-batches, more than the second of two, which has one more than the first; none where
    /// one would take less than nothing.
    pub fn predicted_beyond(&self, (few, more): (&Graph, &Graph), left_out: i64) -> Result<Option<Found>> {
        let (few, more) = (self.settled(few)?, self.settled(more)?);
        let mut grows = true;
        let found = self.fitting(|passes| {
            let (few, more) = (self.scheduled(&few, passes)?, self.scheduled(&more, passes)?);
            grows &= more.step_ns >= few.step_ns;
            Ok(more.of_layers(&few, left_out))
        })?;
        Ok(grows.then_some(found))
    }

    /// Those of what is found for few layers that are taken over to the whole step: some within the memory limit, and some that promise to be
    /// faster once they hold less.
    fn to_take_over<'f>(&self, found: &'f [Found]) -> Vec<&'f Found> {
        let promising = self.promising(found);
        if self.request.mesh.stages() > 1 {
            return promising.into_iter().map(|(_, one)| one).take(1).collect();
        }
        let limit = self.request.memory_limit;
        let (kept, over): (Vec<_>, Vec<_>) = promising.into_iter().partition(|(_, one)| one.fits(limit));
        let least = kept.first().map_or(i64::MAX, |(step, _)| *step);
        let may_be_faster = |(step, _): &(i64, &Found)| *step / (100 + INEXACT) * 100 < least;
        let over = over.into_iter().filter(may_be_faster).take(TAKEN_OVER);
        kept.into_iter().take(TAKEN_OVER).chain(over).map(|(_, one)| one).collect()
    }

    /// What is found for few layers, in the whole step; simulated there where it may be faster than `least`, in nanoseconds, the best so far
    /// within the memory limit.
    fn in_whole(&self, canonical: &Graph, few: &Found, least: &mut i64) -> Option<Found> {
        let taken = for_whole(self.request, canonical, few)?;
        let Found { ref passes, prediction, least_ns, .. } = *few;
        let unseen = |prediction| (prediction, passes.clone(), least_ns);
        let (prediction, passes, least_ns) = if self.request.mesh.stages() > 1 {
            // Stages are simulated, and what of them runs again is decided, when it is taken apart.
            unseen(self.promised(few)?)
        } else if prediction.step_ns / (100 + INEXACT) * 100 > *least {
            unseen(prediction)
        } else {
            let found = self.predicted(&taken.local().ok()?).ok()?;
            if found.fits(self.request.memory_limit) {
                *least = found.prediction.step_ns.min(*least);
            }
            (found.prediction, found.passes, found.least_ns)
        };
        // The model and its bound are those of few layers.
        let prediction = Prediction { model_ns: 0, bound_ns: 0, ..prediction };
        Some(Found { assignments: taken.assignments, passes, prediction, least_ns })
    }

    /// The settings of the passes under which the whole step may be as fast as under `known`, for all that decisions for few layers say.
    fn promising_settings(
        &self,
        folded: &Folded,
        assignments: &[Assignment],
        known: &passes::Settings,
    ) -> Result<Vec<passes::Settings>> {
        let ladder: Vec<passes::Settings> = self.ladder().collect();
        let Some(local) = local(self.request.mesh, folded, assignments)? else { return Ok(ladder) };
        let (few, more) = (self.settled(&local.pair.from)?, self.settled(&local.pair.to)?);
        let step = |passes: &passes::Settings| -> Result<i64> {
            let few = self.scheduled(&few, passes)?;
            Ok(self.scheduled(&more, passes)?.of_layers(&few, local.left_out).step_ns)
        };
        let most = step(known)? / 100 * (100 + SLOWER);
        let mut promising = Vec::new();
        for passes in ladder {
            if passes != *known && step(&passes)? <= most {
                promising.push(passes);
            }
        }
        Ok(promising)
    }
}

/// What the axes of a mesh leave of few layers.
fn local(mesh: &Mesh, folded: &Folded, assignments: &[Assignment]) -> Result<Option<Folded>> {
    let mut local = folded.clone();
    for (axis, decided) in mesh.sharding_axes().zip(assignments) {
        match local.along(axis, decided, &Origins::default())? {
            Some((within, _)) => local = within,
            None => return Ok(None),
        }
    }
    Ok(Some(local))
}

/// What is found for the shorter step with what it takes in the whole one, the best first; nothing where demands are on what may be left out,
/// where all of forward is to run again or to be on the host, where there are no ranks, or where the search for fewer layers fails.
pub fn expected(request: &Request<'_>, extent: Extent) -> Vec<Found> {
    let Some(shorter) = request.shorter else { return Vec::new() };
    let again_or_on_host =
        request.recompute == Some(Recomputation::Full) || request.offload.is_some_and(Offloading::of_state);
    if request.mesh.is_trivial() || !request.pins.is_empty() || again_or_on_host {
        return Vec::new();
    }
    let asked = Request { graph: shorter.graph(), shorter: None, expected: None, ..*request };
    let run = Run::new(&asked, extent);
    let found = jointly::candidates(&run, Program::Folded(&shorter.folded)).unwrap_or_default();
    ranked(found, request.memory_limit)
}

/// The same decisions for the whole step, in canonical form.
pub fn for_whole<'m>(request: &Request<'m>, canonical: &Graph, found: &Found) -> Option<TakenOver<'m>> {
    let shorter = request.shorter?;
    let Pair { from, alike, .. } = &shorter.folded.pair;
    let (from, alike, places) = (from.clone(), alike.clone(), shorter.places.clone());
    let pair = Pair { from, to: canonical.clone(), places, alike };
    taken_over(request.mesh, pair, &found.assignments).ok()?
}

/// The best candidates of the whole step, in canonical form, with the settings of the passes that suit them; none where the whole step is searched
/// in no more time: along a single axis its layers share what is found for one of them, and the bound is found with it, unless all micro-batches are
/// written out for each candidate.
pub fn candidates(run: &Run<'_>, canonical: &Graph) -> Option<Vec<Found>> {
    let request = run.request;
    let axes = request.mesh.sharding_axes().filter(|axis| axis.size > 1).count();
    let is_taken_apart = request.mesh.stages() > 1;
    if axes < 2 && !is_taken_apart && request.mesh.micro_batches() == 1 {
        return None;
    }
    let now = if request.expected.is_none() { expected(request, run.extent) } else { Vec::new() };
    let few = run.to_take_over(request.expected.unwrap_or(&now)).into_iter();
    let mut least = i64::MAX;
    let mut found: Vec<(&Found, Found)> =
        few.filter_map(|few| Some((few, run.in_whole(canonical, few, &mut least)?))).collect();
    found.sort_by_key(|(_, one)| one.fitness(request.memory_limit));
    let tuned = if is_taken_apart { 0 } else { run.extent.tuned };
    for (few, one) in found.iter_mut().take(tuned).filter(|(_, one)| run.may_be_tuned(one)) {
        let folded = &request.shorter?.folded;
        let others = run.promising_settings(folded, &few.assignments, &one.passes).ok()?;
        run.tune(canonical, one, &others).ok()?;
    }
    Some(found.into_iter().map(|(_, one)| one).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::testing::{link, uniform};
    use shard::canonical;

    use super::*;
    use crate::{
        effort::Effort,
        jointly::tests::{asked, mesh},
        layers::tests::{Tower, tower},
        shorter::Shorter,
    };

    #[test]
    fn settings_that_all_layers_are_faster_under_are_promising_for_few() {
        let mesh = mesh(&[2, 4]);
        for (bandwidth, width) in [(1e11, 4096), (1e10, 4096), (1e10, 2048)] {
            let cluster = uniform(1e14, 1e12, link(10_000.0, bandwidth));
            let graph = canonical(&tower(Tower { layers: 160, rows: 4096, width, reach: 1, odd: None }));
            let Some(shorter) = Shorter::of(&graph) else { continue };
            asked(&graph, &cluster, &mesh, Some(&shorter), |request| {
                let run = Run::new(request, Extent::of(Effort::Full, graph.order.len(), &mesh));
                let few = &expected(request, run.extent)[0];
                let whole = for_whole(request, &graph, few).unwrap().local().unwrap();
                let settled = run.settled(&whole).unwrap();
                let step = |passes: &passes::Settings| run.scheduled(&settled, passes).unwrap().step_ns;
                for known in run.ladder() {
                    let promising =
                        run.promising_settings(&shorter.folded, &few.assignments, &known).unwrap();
                    for other in run.ladder().filter(|other| *other != known && !promising.contains(other)) {
                        assert!(step(&other) >= step(&known), "{other:?} is faster than {known:?}");
                    }
                }
            });
        }
    }
}
