//! The search of a large step under those prices alone that are best for the step with fewer of its layers.

use ir::Graph;

use crate::{
    along::explored,
    effort::{Effort, Extent},
    prices::Prices,
    run::{Found, Request, Run, ranked},
};

/// Under so many prices the whole step is searched.
const REPLAYED: usize = 2;

/// The candidates of the whole step, in canonical form, where no others are asked for. None where the memory limit decides.
pub fn replayed(request: &Request<'_>, extent: Extent, canonical: &Graph) -> Option<Vec<Found>> {
    let shorter = request.shorter?;
    let is_free = request.recompute.is_none() && request.offload.is_none() && request.pins.is_empty();
    if !request.only_best || request.effort == Effort::Quick || request.mesh.is_trivial() || !is_free {
        return None;
    }
    let asked = Request { graph: &shorter.short, memory_limit: None, shorter: None, ..*request };
    let short = explored(&Run::new(&asked, extent), &shorter.canonical, 0).ok()?;
    let mut best: Vec<Vec<Prices>> = Vec::new();
    for Found { prices, .. } in ranked(short, None) {
        if best.len() < REPLAYED && !best.contains(&prices) {
            best.push(prices);
        }
    }
    let mut found = Vec::new();
    for prices in best {
        let run = Run { prices: Some(prices), ..Run::new(request, extent) };
        found.extend(explored(&run, canonical, 0).ok()?);
    }
    found.iter().any(|one| one.fits(request.memory_limit)).then_some(found)
}
