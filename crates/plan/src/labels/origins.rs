//! Which dimension of the batch a sharded dimension of a value comes from, followed through the rules of operations.

use aten::{Call, Seed, Slot, Work};
use base::SecondaryMap;
use ir::{Graph, InputClass, NodeId, Placement, ValueId};
use smallvec::SmallVec;

/// A dimension of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The first one: samples.
    Samples,
    /// Another one: positions in a sequence.
    Positions,
}

/// For each value the shardings that divide a dimension of the batch.
pub struct Origins {
    of: SecondaryMap<ValueId, SmallVec<[(Placement, Origin); 2]>>,
}

impl Origins {
    /// Those of a graph on an axis of `ranks`.
    pub fn new(graph: &Graph, ranks: u32) -> Self {
        let mut origins = Self { of: SecondaryMap::default() };
        for input in graph.inputs.values().filter(|input| input.class == InputClass::Batch) {
            for dim in 0..graph.ty(input.value).rank() {
                let origin = if dim == 0 { Origin::Samples } else { Origin::Positions };
                origins.of[input.value].push((Placement::shard(dim), origin));
            }
        }
        graph.order.iter().for_each(|id| origins.pass(graph, *id, ranks));
        origins
    }

    /// Which dimension of the batch a sharding of a value divides.
    pub fn of(&self, value: ValueId, placement: Placement) -> Option<Origin> {
        self.of[value].iter().find(|(known, _)| *known == placement).map(|(_, origin)| *origin)
    }

    /// What the operands' shardings make of the results.
    fn pass(&mut self, graph: &Graph, id: NodeId, ranks: u32) {
        let call = Call::new(graph, id);
        let Some(row) = aten::row(call.name()) else { return };
        for (number, operand) in call.operands.iter().enumerate() {
            for (placement, origin) in self.of[*operand].clone() {
                let Some(seed) = Seed::of(Slot::Operand(number), placement) else { continue };
                if let Some(strategy) = aten::seeded(row, &call, seed, ranks) {
                    for (result, placed) in call.results.iter().zip(&strategy.results) {
                        self.add(*result, *placed, origin);
                    }
                } else if matches!(row.work, Work::View) {
                    // A slice of the batch has its dimensions.
                    let alike = |value: &&ValueId| graph.ty(**value).rank() == graph.ty(*operand).rank();
                    call.results.iter().filter(alike).for_each(|result| self.add(*result, placement, origin));
                }
            }
        }
    }

    fn add(&mut self, value: ValueId, placement: Placement, origin: Origin) {
        if matches!(placement, Placement::Shard { .. }) && self.of(value, placement).is_none() {
            self.of[value].push((placement, origin));
        }
    }
}
