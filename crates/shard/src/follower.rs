//! What the rules of operations make of a sharding of one of their tensors. Operations that are alike but for which tensors they read are asked once.

use aten::{Call, Row, Seed, Slot};
use base::SecondaryMap;
use ir::{Graph, NodeId, Placement, TensorType, ValueId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The shardings of other tensors of an operation: the number of each among its operands and results, and its placement.
type Follows = SmallVec<[(usize, Placement); 4]>;

/// Follows shardings through the operations of a graph along an axis of so many ranks.
pub struct Follower<'g> {
    graph: &'g Graph,
    ranks: u32,
    /// Whether these are iterations, of which each takes its part of one of several pieces.
    takes_pieces: bool,
    /// A number for each type.
    types: FxHashMap<&'g TensorType, u32>,
    /// The number of each operation that was met, from 1 on: the same for those of one operator, with the same arguments and types.
    numbers: SecondaryMap<NodeId, u32>,
    by_key: FxHashMap<(Vec<u8>, SmallVec<[u32; 2]>), u32>,
    known: FxHashMap<(u32, usize, Placement), Follows>,
}

impl<'g> Follower<'g> {
    /// Nothing is known yet.
    pub fn new(graph: &'g Graph, ranks: u32) -> Self {
        let mut types = FxHashMap::default();
        for value in graph.values.values() {
            let next = types.len() as u32;
            types.entry(&value.ty).or_insert(next);
        }
        let (by_key, known) = (FxHashMap::default(), FxHashMap::default());
        Self {
            graph,
            ranks,
            takes_pieces: false,
            types,
            numbers: SecondaryMap::with_default(0),
            by_key,
            known,
        }
    }

    /// The same, along the iterations of micro-batches.
    pub fn of_iterations(graph: &'g Graph, iterations: u32) -> Self {
        Self { takes_pieces: true, ..Self::new(graph, iterations) }
    }

    /// The shardings of other operands and results of `node` that follow when `value` is sharded by `offer`.
    pub fn follow(
        &mut self,
        node: NodeId,
        (value, offer): (ValueId, Placement),
    ) -> SmallVec<[(ValueId, Placement); 4]> {
        let graph = self.graph;
        let Some(row) = aten::row_of(&graph.ops[graph.nodes[node].op]) else { return SmallVec::new() };
        // An even shard of one block stays one except where dimensions are regrouped.
        let Placement::Shard { blocks, .. } = offer else { return SmallVec::new() };
        let is_piece = self.takes_pieces && graph.op_name(node) == aten::SLICE;
        if blocks == 1 && !regroups(row) && !is_piece && !offer.is_uneven(&graph.ty(value).shape, self.ranks)
        {
            return SmallVec::new();
        }
        self.implied_by(row, node, (value, offer))
    }

    /// The same, those of one block that all dimensions have included.
    pub fn implied(
        &mut self,
        node: NodeId,
        value: (ValueId, Placement),
    ) -> SmallVec<[(ValueId, Placement); 4]> {
        let row = aten::row_of(&self.graph.ops[self.graph.nodes[node].op]);
        row.map_or_else(SmallVec::new, |row| self.implied_by(row, node, value))
    }

    fn implied_by(
        &mut self,
        row: &Row,
        node: NodeId,
        (value, offer): (ValueId, Placement),
    ) -> SmallVec<[(ValueId, Placement); 4]> {
        let graph = self.graph;
        let number = self.number(node);
        let values = || graph.nodes[node].operands().chain(graph.nodes[node].results());
        let values: SmallVec<[ValueId; 8]> = values().collect();
        let mut found = SmallVec::new();
        for at in (0..values.len()).filter(|at| values[*at] == value) {
            let (ranks, takes_pieces) = (self.ranks, self.takes_pieces);
            let known = self.known.entry((number, at, offer));
            let follows = known
                .or_insert_with(|| follows((row, takes_pieces), &Call::new(graph, node), (at, offer), ranks));
            found.extend(follows.iter().map(|(at, placement)| (values[*at], *placement)));
        }
        found
    }

    /// The number of an operation.
    fn number(&mut self, node: NodeId) -> u32 {
        let (graph, types) = (self.graph, &self.types);
        if self.numbers[node] == 0 {
            let of_type = |value: ValueId| types[graph.ty(value)];
            let results = graph.nodes[node].results().map(of_type).collect();
            let next = self.by_key.len() as u32 + 1;
            let key = (graph.nodes[node].key(of_type), results);
            self.numbers[node] = *self.by_key.entry(key).or_insert(next);
        }
        self.numbers[node]
    }
}

/// What follows from a sharding of one of an operation's operands and results.
fn follows(
    (row, takes_pieces): (&Row, bool),
    call: &Call<'_>,
    (at, offer): (usize, Placement),
    ranks: u32,
) -> Follows {
    let operands = call.operands.len();
    let slot = if at < operands { Slot::Operand(at) } else { Slot::Result(at - operands) };
    let strategy = Seed::of(slot, offer).and_then(|seed| {
        let piece = || aten::one_piece(call, seed, ranks).filter(|_| takes_pieces);
        aten::seeded(row, call, seed, ranks).or_else(piece)
    });
    let placed = strategy.iter().flat_map(|strategy| strategy.operands.iter().chain(&strategy.results));
    let placed = placed.copied().enumerate();
    placed.filter(|(_, placement)| matches!(placement, Placement::Shard { .. })).collect()
}

/// Whether a rule can lead from one block to several.
fn regroups(row: &Row) -> bool {
    matches!(row.rule, aten::Rule::Seeded(_))
}
