//! Glances: what a quick search predicts, of a large step from what it predicts for two with fewer of its layers.
//!
//! Layers that are alike are decided alike, and each takes what the others do. So time and memory grow by the same amount with each layer, which
//! is the difference between two programs of which one has a layer more. What is chosen in the end is searched for, and simulated, in the whole
//! step.

use base::Result;
use ir::Graph;

use crate::{
    effort::Effort,
    prediction::Prediction,
    run::Request,
    search::{Searched, search},
};

/// What a quick search predicts, and what it found where it was of the whole step.
pub struct Glance {
    /// The prediction.
    pub prediction: Prediction,
    /// What was found.
    pub searched: Option<Box<Searched>>,
}

/// What a quick search predicts.
pub fn glance(request: &Request<'_>) -> Result<Glance> {
    if let Some(prediction) = extrapolated(request) {
        return Ok(Glance { prediction, searched: None });
    }
    let searched = search(&Request { effort: Effort::Quick, ..*request })?;
    Ok(Glance { prediction: searched.plan.prediction, searched: Some(Box::new(searched)) })
}

/// The same for the whole step from fewer layers; none where the memory limit may decide, or where a layer would take less than nothing.
fn extrapolated(request: &Request<'_>) -> Option<Prediction> {
    let shorter = request.shorter?;
    if request.mesh.is_trivial() || !request.pins.is_empty() {
        return None;
    }
    let of = |graph: &Graph| {
        let request = Request { graph, memory_limit: None, shorter: None, effort: Effort::Quick, ..*request };
        search(&request).ok().map(|searched| searched.plan.prediction)
    };
    let (short, long) = (of(&shorter.short)?, of(&shorter.long)?);
    let all = long.beyond(&short, shorter.left_out);
    (long.step_ns >= short.step_ns && all.fits(request.memory_limit)).then_some(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::testing::{link, uniform};
    use ir::{Mesh, MeshAxis};

    use super::*;
    use crate::{
        forbidden::Forbid,
        layers::tests::{Tower, tower},
        pins::Pins,
        shorter::Shorter,
    };

    #[test]
    fn a_glance_says_what_a_quick_search_of_the_whole_step_does() {
        let graph = tower(Tower { layers: 160, rows: 4096, width: 4096, reach: 1, odd: None });
        let shorter = Shorter::of(&graph).unwrap();
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
                cluster: &cluster,
                mesh: &mesh,
                memory_limit: None,
                pins: &pins,
                forbid: &forbid,
                effort: Effort::Quick,
                only_best: false,
                recompute: None,
                reduce_dtype: None,
                offload: None,
            };
            let seen = extrapolated(&request).unwrap();
            let whole = search(&Request { shorter: None, ..request }).unwrap().plan.prediction;
            // Decisions differ where others take nearly as little time, though one may hold much more.
            let apart = seen.step_ns.abs_diff(whole.step_ns);
            assert!(apart * 10 <= whole.step_ns.unsigned_abs(), "{seen:?} for {whole:?}");
            let limited = Request { memory_limit: Some(seen.peak_bytes - 1), ..request };
            assert!(extrapolated(&limited).is_none(), "where memory decides, the whole step is searched");
        }
    }
}
