//! What an operation does where a plan says nothing: it follows from where its operands are.

use aten::{Call, Strategy};
use base::SecondaryMap;
use ir::{Graph, NodeId, PartId, Placement, ValueDef, ValueId};
use rustc_hash::FxHashMap;
use shard::Space;
use smallvec::SmallVec;

use crate::copies::follows;

/// The placements in which a value has been made or used so far, and where.
type Placed = SmallVec<[(Placement, PartId); 2]>;

/// Goes through a graph in program order and knows where each value is.
pub struct Follower<'a> {
    graph: &'a Graph,
    space: &'a Space,
    /// The placement in which a value enters a later part, where a plan says so.
    entering: FxHashMap<(ValueId, PartId), Placement>,
    placed: SecondaryMap<ValueId, Placed>,
}

impl<'a> Follower<'a> {
    /// Inputs are where they are stored.
    pub fn new(graph: &'a Graph, space: &'a Space, stored: impl Fn(ir::InputId) -> Placement) -> Self {
        let mut placed: SecondaryMap<ValueId, Placed> = SecondaryMap::default();
        for (id, input) in graph.inputs.iter() {
            placed[input.value].push((stored(id), PartId(0)));
        }
        Self { graph, space, entering: FxHashMap::default(), placed }
    }

    /// Says in which placement a value enters a part; elsewhere all that there are enter.
    pub fn enter(&mut self, value: ValueId, part: PartId, placement: Placement) {
        self.entering.insert((value, part), placement);
    }

    /// Whether it makes a difference in which placement a value enters a part: whether it is in another one too by then.
    pub fn matters(&self, value: ValueId, part: PartId, placement: Placement) -> bool {
        self.placed[value].iter().any(|(placed, made_in)| *made_in != part && *placed != placement)
    }

    /// The strategy with the fewest changes of placement that need a collective, then with the fewest others, such as slices of what is
    /// replicated; of those the one with the most shards, and of those the first.
    pub fn expected(&self, node: NodeId) -> &'a Strategy {
        let call = Call::new(self.graph, node);
        let available: SmallVec<[SmallVec<[Placement; 4]>; 4]> =
            call.operands.iter().map(|value| self.available(*value, call.node.part)).collect();
        let rank = |strategy: &&Strategy| {
            let (mut exchanged, mut changed) = (0, 0);
            for (to, held) in strategy.operands.iter().zip(&available) {
                exchanged += u32::from(!held.iter().any(|from| follows(*from, *to)));
                changed += u32::from(!held.contains(to));
            }
            let placements = strategy.operands.iter().chain(&strategy.results);
            (exchanged, changed, placements.filter(|placement| **placement == Placement::Replicate).count())
        };
        self.space.strategies(node).iter().min_by_key(rank).expect("every operation can run replicated")
    }

    /// Notes how a node runs.
    pub fn run(&mut self, node: NodeId, strategy: &Strategy) {
        let part = self.graph.nodes[node].part;
        for (value, placement) in self.graph.nodes[node].operands().zip(&strategy.operands) {
            if !self.available(value, part).contains(placement) {
                self.placed[value].push((*placement, part));
            }
        }
        for (value, placement) in self.graph.nodes[node].results().zip(&strategy.results) {
            self.placed[value].push((*placement, part));
        }
    }

    /// The placements of a value that may be used in a part.
    fn available(&self, value: ValueId, part: PartId) -> SmallVec<[Placement; 4]> {
        let placed = &self.placed[value];
        let all = || placed.iter().map(|(placement, _)| *placement).collect();
        let Some(entering) = self.entering.get(&(value, part)) else { return all() };
        let is_input = matches!(self.graph.values[value].def, ValueDef::Input(_));
        let usable = placed.iter().enumerate().filter(|(number, (placement, made_in))| {
            made_in == &part || placement == entering || (is_input && *number == 0)
        });
        let usable: SmallVec<[Placement; 4]> = usable.map(|(_, (placement, _))| *placement).collect();
        if usable.is_empty() { all() } else { usable }
    }
}
