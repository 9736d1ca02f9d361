//! A large step with fewer of its layers.

use ir::{Graph, InputClass, verify};

use crate::{
    fewer::{Fewer, Places, fewer},
    folded::Folded,
    layers::Layers,
    taken_over::Pair,
};

/// Smaller steps are searched as they are.
const LEAST_NODES: usize = 2_000;

/// Both together have at most so many parts of ten of the nodes of the step.
const MOST_TENTHS: usize = 6;

/// How many of the layers that are alike the shorter one has.
const KEPT: usize = 2;

/// A step with fewer of its layers, in canonical form.
pub struct Shorter {
    /// With few of those that are alike, and with one more.
    pub folded: Folded,
    /// What of the shortest one stands for what is in the step.
    pub places: Places,
}

impl Shorter {
    /// That of a step in canonical form of which most are layers that are alike. What was found of a program of another kind than was thought of
    /// is no program.
    pub fn of(graph: &Graph) -> Option<Self> {
        if graph.order.len() < LEAST_NODES {
            return None;
        }
        let layers = Layers::of(graph)?;
        let shorter = Self::keeping(&layers, KEPT)?;
        let Pair { from, to, .. } = &shorter.folded.pair;
        let is_shorter = (from.order.len() + to.order.len()) * 10 <= graph.order.len() * MOST_TENTHS;
        // Of smaller layers several share a bucket of collectives, which a few of them do not show.
        let fills_bucket = parameters(to) - parameters(from) >= passes::Settings::default().bucket_limit.0;
        (is_shorter && fills_bucket).then_some(shorter)
    }

    /// That with so many of the layers that are alike.
    pub fn keeping(layers: &Layers<'_>, kept: usize) -> Option<Self> {
        let fewer = |kept: usize| fewer(layers, kept).filter(|fewer| verify(&fewer.graph).is_ok());
        let (Fewer { graph: from, of_whole, alike, .. }, long) = (fewer(kept)?, fewer(kept + 1)?);
        let left_out = (layers.count() - kept - 1) as i64;
        let places = of_whole?;
        let pair = Pair { from, places: places.of_fewer(&long), to: long.graph, alike };
        Some(Self { folded: Folded { pair, left_out }, places })
    }

    /// The step with few layers.
    pub const fn graph(&self) -> &Graph {
        self.folded.graph()
    }
}

/// The bytes of all parameters.
fn parameters(graph: &Graph) -> u64 {
    let parameters = graph.inputs.values().filter(|input| input.class == InputClass::Parameter);
    parameters.map(|input| graph.ty(input.value).bytes().0).sum()
}
