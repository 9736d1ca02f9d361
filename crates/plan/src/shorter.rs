//! A large step with fewer of its layers.

use ir::{Graph, InputClass, verify};
use shard::canonical;

use crate::layers::Layers;

/// Smaller steps are searched as they are.
const LEAST_NODES: usize = 2_000;

/// Both together have at most so many parts of ten of the nodes of the step.
const MOST_TENTHS: usize = 6;

/// How many of the layers that are alike the shorter one has.
const KEPT: usize = 2;

/// A step with fewer of its layers, twice.
pub struct Shorter {
    /// With few of those that are alike.
    pub short: Graph,
    /// The same in canonical form.
    pub canonical: Graph,
    /// With one more.
    pub long: Graph,
    /// How many more than the longer one the step has.
    pub left_out: i64,
}

impl Shorter {
    /// That of a step of which most are layers that are alike. What was found of a program of another kind than was thought of is no program.
    pub fn of(graph: &Graph) -> Option<Self> {
        if graph.order.len() < LEAST_NODES {
            return None;
        }
        let layers = Layers::of(graph)?;
        let fewer = |kept: usize| layers.fewer(kept).filter(|fewer| verify(fewer).is_ok());
        let (short, long) = (fewer(KEPT)?, fewer(KEPT + 1)?);
        let is_shorter = (short.order.len() + long.order.len()) * 10 <= graph.order.len() * MOST_TENTHS;
        // Of smaller layers several share a bucket of collectives, which a few of them do not show.
        let fills_bucket =
            parameters(&long) - parameters(&short) >= passes::Settings::default().bucket_limit.0;
        let left_out = (layers.count() - KEPT - 1) as i64;
        let canonical = canonical(&short);
        (is_shorter && fills_bucket).then_some(Self { short, canonical, long, left_out })
    }
}

/// The bytes of all parameters.
fn parameters(graph: &Graph) -> u64 {
    let parameters = graph.inputs.values().filter(|input| input.class == InputClass::Parameter);
    parameters.map(|input| graph.ty(input.value).bytes().0).sum()
}
