//! Which dimension of each value has the samples of the batch.
//!
//! An axis of micro-batches slices the samples that the axes outside it leave to a rank. Shards of them along such an axis are as good as others as
//! long as nothing is sliced, so that it could leave a rank one sample, and the micro-batches nothing to slice.

use aten::Strides;
use base::SecondaryMap;
use ir::{Graph, InputClass, NodeId, Placement, ValueId};

use crate::follower::Follower;

/// A dimension with samples.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Along {
    /// Which.
    dim: u8,
    /// How many there are, one behind the other, whatever else the dimension has within each.
    count: i64,
}

/// The samples that a slice of a value has, or what ranks give each other of it: whole ones, if its size says so.
fn kept(graph: &Graph, id: NodeId, value: ValueId, along: Along) -> Option<(ValueId, Along)> {
    let is_slice =
        aten::row_of(&graph.ops[graph.nodes[id].op]).is_some_and(|row| row.strides == Strides::Sliced);
    if !is_slice && graph.collective(id).is_none() {
        return None;
    }
    let result = graph.nodes[id].results().next()?;
    let (from, to) = (&graph.ty(value).shape, &graph.ty(result).shape);
    let dim = usize::from(along.dim);
    let others_are_kept = from.len() == to.len() && (0..to.len()).all(|at| at == dim || from[at] == to[at]);
    let each = from[dim] / along.count;
    let is_whole = others_are_kept && each > 0 && to[dim] % each == 0;
    is_whole.then(|| (result, Along { count: to[dim] / each, ..along }))
}

/// The samples of the values of a graph, and in how many micro-batches they are to be sliced.
pub struct Samples {
    of: SecondaryMap<ValueId, Option<Along>>,
    slices: u32,
}

impl Samples {
    /// Those of a graph whose batch is sliced so; none where nothing is.
    pub fn of(graph: &Graph, slices: u32) -> Option<Self> {
        if slices == 1 {
            return None;
        }
        let mut samples = Self { of: SecondaryMap::default(), slices };
        for input in graph.inputs.values().filter(|input| input.class == InputClass::Batch) {
            let count = graph.ty(input.value).shape.first().copied().unwrap_or(0);
            let is_sliced = count > 0 && count % i64::from(slices) == 0;
            samples.of[input.value] = is_sliced.then_some(Along { dim: 0, count });
        }
        let mut follower = Follower::new(graph, slices);
        for id in &graph.order {
            for value in graph.nodes[*id].operands() {
                samples.follow(graph, &mut follower, (*id, value));
            }
        }
        // What is given is held as a plan says; that it has no slices then is an error of its own.
        graph.inputs.values().for_each(|input| samples.of[input.value] = None);
        Some(samples)
    }

    /// Follows the samples of an operand to the results.
    fn follow(&mut self, graph: &Graph, follower: &mut Follower<'_>, (id, value): (NodeId, ValueId)) {
        let Some(along @ Along { dim, count }) = self.of[value] else { return };
        if let Some((other, kept)) = kept(graph, id, value, along) {
            self.of[other] = self.of[other].or(Some(kept));
            return;
        }
        for (other, placement) in follower.implied(id, (value, Placement::shard(usize::from(dim)))) {
            if let Placement::Shard { dim, blocks: 1, chunk: 0 } = placement
                && graph.maker(other) == Some(id)
                && self.of[other].is_none()
            {
                self.of[other] = Some(Along { dim, count });
            }
        }
    }

    /// In how many micro-batches they are to be sliced.
    pub const fn slices(&self) -> u32 {
        self.slices
    }

    /// The dimension of a value that has samples.
    pub fn along(&self, value: ValueId) -> Option<Along> {
        self.of[value]
    }

    /// Whether a value that ranks hold so has slices still: each rank the same number of whole samples, and a multiple of the number of slices.
    pub fn leave_slices(&self, value: ValueId, placement: Placement, ranks: u32) -> bool {
        let (Some(along), Placement::Shard { dim, blocks, .. }) = (self.of[value], placement) else {
            return true;
        };
        if dim != along.dim {
            return true;
        }
        let (blocks, ranks, slices) = (i64::from(blocks), i64::from(ranks), i64::from(self.slices));
        // Shards are within samples, or of whole ones.
        blocks % slices == 0 || along.count % (blocks * ranks) == 0 && along.count / ranks % slices == 0
    }
}
