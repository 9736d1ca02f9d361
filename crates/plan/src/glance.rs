//! Glances: what a quick search predicts, of a large step by what it finds for one with fewer of its layers.

use base::Result;

use crate::{
    effort::{Effort, Extent},
    from_shorter::expected,
    prediction::Prediction,
    run::{Expected, Found, Request, Run},
    search::{Searched, search},
    suits::if_it_suits,
};

/// What a quick search predicts, and what it found.
pub struct Glance<'a> {
    /// The prediction.
    pub prediction: Prediction,
    /// What was found, where it was of the whole step.
    pub searched: Option<Box<Searched<'a>>>,
    /// What was found for few layers, the best first.
    pub expected: Vec<Found>,
    /// The best of that, where it promises to keep the memory limit.
    pub promise: Option<Expected>,
}

/// What a quick search of the whole step predicts.
pub fn glance_at_whole<'a>(request: &Request<'a>) -> Result<Glance<'a>> {
    let searched = search(&Request { effort: Effort::Quick, ..*request })?;
    let prediction = searched.best.prediction;
    Ok(Glance { prediction, searched: Some(Box::new(searched)), expected: Vec::new(), promise: None })
}

/// What a quick search says of plans of one kind.
pub struct Outlook<'a> {
    /// The least that any of them takes, whether it keeps the memory limit or not, in nanoseconds.
    pub least_ns: i64,
    /// Whether one within the limit holds all of what forward leaves.
    pub holds_all: bool,
    /// The best within the memory limit.
    pub glance: Option<Glance<'a>>,
}

/// What a quick search says of plans, also where none of few layers keeps the memory limit: then the whole step is not searched.
pub fn outlook<'a>(request: &Request<'a>) -> Result<Outlook<'a>> {
    if let Some(of_few) = extrapolated(request) {
        return Ok(of_few);
    }
    let Some(glance) = if_it_suits(glance_at_whole(request))? else {
        return Ok(Outlook { least_ns: 0, holds_all: false, glance: None });
    };
    let Prediction { step_ns, .. } = glance.prediction;
    Ok(Outlook { least_ns: step_ns, holds_all: holds_all(request, &glance.prediction), glance: Some(glance) })
}

/// Whether a plan within the memory limit holds all of what forward leaves.
fn holds_all(request: &Request<'_>, one: &Prediction) -> bool {
    one.fits(request.memory_limit) && !one.holds_less()
}

/// The best of what is found for few layers; none where nothing promises to keep the memory limit.
fn promised<'a>(request: &Request<'a>, expected: Vec<Found>) -> Option<Glance<'a>> {
    let run = Run::new(request, extent(request));
    let best = run.promising(&expected).first()?.1;
    let (prediction, promise) = (run.promised(best)?, Some(run.expected_of(best)));
    Some(Glance { prediction, searched: None, expected, promise })
}

/// What a quick search of few layers says of the whole step; nothing where there are none, or nothing is found for them.
pub fn extrapolated<'a>(request: &Request<'a>) -> Option<Outlook<'a>> {
    request.tell(Effort::Quick);
    let found = expected(request, extent(request));
    let least_ns = found.iter().map(|one| one.least_ns).min()?;
    let holds_all = found.iter().any(|one| holds_all(request, &one.prediction));
    Some(Outlook { least_ns, holds_all, glance: promised(request, found) })
}

/// How much a quick search of few layers tries.
fn extent(request: &Request<'_>) -> Extent {
    let nodes = request.shorter.map_or(0, |shorter| shorter.graph().order.len());
    Extent::of(Effort::Quick, nodes, request.mesh)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::testing::{link, uniform};
    use ir::{Mesh, MeshAxis};
    use shard::canonical;

    use super::*;
    use crate::{
        forbidden::Forbid,
        from_shorter::for_whole,
        jointly::tests::asked,
        layers::tests::{Tower, drawing_tower, tower},
        pins::Pins,
        shorter::Shorter,
    };

    #[test]
    fn a_glance_says_what_the_whole_step_takes_and_finds_no_worse_than_a_quick_search_of_it() {
        let graph = tower(Tower { layers: 160, rows: 4096, width: 4096, reach: 1, odd: None });
        let shorter = Shorter::of(&canonical(&graph)).unwrap();
        let cluster = uniform(1e14, 1e12, link(10_000.0, 1e11));
        let (pins, forbid) = (Pins::default(), Forbid::default());
        let two = |outer, inner| Mesh {
            axes: vec![MeshAxis::ranks("outer", outer), MeshAxis::ranks("inner", inner)],
        };
        for mesh in [Mesh::along("ranks", 4), two(2, 4), two(4, 2)] {
            let request = Request {
                graph: &graph,
                captured: &graph,
                shorter: Some(&shorter),
                expected: None,
                cluster: &cluster,
                mesh: &mesh,
                memory_limit: None,
                pins: &pins,
                forbid: &forbid,
                effort: Effort::Quick,
                recompute: None,
                reduce_dtype: None,
                offload: None,
                known_ns: None,
                elsewhere: None,
                telling: None,
            };
            let glance = extrapolated(&request).unwrap().glance.unwrap();
            let seen = glance.prediction;
            let taken = for_whole(&request, &canonical(&graph), &glance.expected[0]).unwrap();
            let run = Run::new(&request, Extent::of(Effort::Quick, graph.order.len(), &mesh));
            let same = run.predicted(&taken.local().unwrap()).unwrap().prediction;
            let apart = seen.step_ns.abs_diff(same.step_ns);
            assert!(apart * 20 <= same.step_ns.unsigned_abs(), "{seen:?} is {same:?}");
            assert!(
                seen.peak_bytes.abs_diff(same.peak_bytes) * 20 <= same.peak_bytes,
                "{seen:?} is {same:?}"
            );
            let whole = search(&Request { shorter: None, ..request }).unwrap().best.prediction;
            assert!(seen.step_ns <= whole.step_ns / 100 * 101, "{seen:?} where {whole:?} was found");
            if mesh.axes[0].size == 4 && mesh.axes.len() == 2 {
                for memory_limit in [None, Some(seen.peak_bytes / 10 * 5)] {
                    let all = Request { effort: Effort::Full, memory_limit, ..request };
                    let by_few = search(&all).unwrap().best.prediction;
                    let by_all = search(&Request { shorter: None, ..all }).unwrap().best.prediction;
                    assert!(by_few.step_ns <= by_all.step_ns / 100 * 102, "{by_few:?} for {by_all:?}");
                    assert!(by_few.fits(memory_limit), "{by_few:?}");
                }
            }
        }
    }

    #[test]
    fn layers_that_each_draw_a_mask_of_their_own_are_glanced_at() {
        let graph = drawing_tower(Tower { layers: 160, rows: 4096, width: 4096, reach: 1, odd: None });
        let shorter = Shorter::of(&canonical(&graph)).unwrap();
        let cluster = uniform(1e14, 1e12, link(10_000.0, 1e11));
        asked(&graph, &cluster, &Mesh::along("ranks", 4), Some(&shorter), |request| {
            let seen = extrapolated(request).unwrap().glance.unwrap();
            let taken = for_whole(request, &canonical(&graph), &seen.expected[0]).unwrap();
            let run = Run::new(request, Extent::of(Effort::Quick, graph.order.len(), request.mesh));
            let same = run.predicted(&taken.local().unwrap()).unwrap().prediction;
            let Prediction { step_ns, peak_bytes, .. } = seen.prediction;
            assert!(
                step_ns.abs_diff(same.step_ns) * 20 <= same.step_ns.unsigned_abs(),
                "{step_ns} is {same:?}"
            );
            assert!(peak_bytes.abs_diff(same.peak_bytes) * 20 <= same.peak_bytes, "{peak_bytes} is {same:?}");
        });
    }
}
