//! The search space: the shardings that values may have, and the strategies that operations may use, along one axis.

use aten::{Call, Linear, Row, RunTimeSizes, Seed, Slot, Strategy, Work};
use base::{PrimaryMap, SecondaryMap, define_id};
use ir::{AxisKind, Chunks, Graph, MeshAxis, NodeId, Op, PartKind, Placement, ValueId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{follower::Follower, groups::Divided, samples::Samples, users::users};

define_id!(
    /// A type with the shardings offered for it; values with the same kind are interchangeable for the search.
    KindId, "kind"
);
define_id!(
    /// An operator with its arguments and the kinds of its operands and results, which together determine its strategies.
    ClassId, "class"
);

/// Maximum number of even shardings offered for a value; those with more than one block are left out first.
const MOST_OFFERS: usize = 12;

/// Maximum number of uneven shardings offered for a value beside them.
const MOST_UNEVEN: usize = 6;

/// Which dimensions are sharded where the ranks do not divide them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offered {
    /// None.
    Even,
    /// Those along which ranks hold at least half as much as they would if all held equally much, on average.
    Useful,
    /// All: for a proof.
    All,
}

impl Offered {
    /// Whether a dimension of `size` is sharded over so many ranks, which do not divide it.
    fn includes(self, size: i64, ranks: u32) -> bool {
        let chunks = Chunks::new(size, 1, 0, ranks);
        chunks.is_some_and(|chunks| match self {
            Self::Even => false,
            Self::Useful => 2 * size > chunks.padded(),
            Self::All => true,
        })
    }
}

/// The search space of a graph along one axis.
pub struct Space {
    /// The axis.
    pub axis: MeshAxis,
    /// The strategies of each class of nodes; the replicated one first.
    pub classes: PrimaryMap<ClassId, Vec<Strategy>>,
    /// The kind of each value.
    pub kinds: SecondaryMap<ValueId, KindId>,
    class_of: SecondaryMap<NodeId, ClassId>,
    divided: Divided,
    /// What has a size of run time along an axis outside this one: it is not sharded along this one.
    sizes: RunTimeSizes,
    /// The samples that are to be sliced along the axis of micro-batches, if there is one.
    samples: Option<Samples>,
    /// The shardings that each value may have.
    pub offers: SecondaryMap<ValueId, SmallVec<[Placement; 4]>>,
    /// Operators without a row, which run replicated, with the number of their nodes; in program order.
    pub without_row: Vec<(String, u32)>,
}

impl Space {
    /// The space of `graph` along an axis.
    pub fn new(graph: &Graph, axis: &MeshAxis, offered: Offered) -> Self {
        Self::in_slices(graph, axis, offered, 1)
    }

    /// The same where so many micro-batches are to slice what the axis leaves of the batch: what has its samples is not sharded so that they could not.
    pub fn in_slices(graph: &Graph, axis: &MeshAxis, offered: Offered, slices: u32) -> Self {
        let mut space = Self {
            axis: axis.clone(),
            classes: PrimaryMap::new(),
            kinds: SecondaryMap::with_default(KindId(0)),
            class_of: SecondaryMap::with_default(ClassId(0)),
            divided: Divided::new(graph, axis),
            sizes: RunTimeSizes::of(graph),
            samples: Samples::of(graph, slices),
            offers: SecondaryMap::default(),
            without_row: Vec::new(),
        };
        space.offer(graph, offered);
        space.tell_kinds(graph);
        let mut known = FxHashMap::default();
        for node in &graph.order {
            let class = *known
                .entry(space.class_key(graph, *node))
                .or_insert_with(|| space.classes.push(space.strategies_of(graph, *node)));
            space.class_of[*node] = class;
            space.note_missing_row(&graph.ops[graph.nodes[*node].op]);
        }
        space
    }

    /// The class of a node.
    pub fn class(&self, node: NodeId) -> ClassId {
        self.class_of[node]
    }

    /// The strategies of a node; the replicated one first.
    pub fn strategies(&self, node: NodeId) -> &[Strategy] {
        &self.classes[self.class_of[node]]
    }

    /// How many times what a node makes of the samples of a slice is added to the sum of all slices: one time less than there are.
    pub fn added_up(&self, graph: &Graph, node: NodeId) -> u32 {
        let Some(samples) = &self.samples else { return 0 };
        let node = &graph.nodes[node];
        let is_sum = node.operands().any(|value| samples.along(value).is_some())
            && node.results().all(|value| samples.along(value).is_none());
        if is_sum { samples.slices() - 1 } else { 0 }
    }

    fn tell_kinds(&mut self, graph: &Graph) {
        let mut known: FxHashMap<_, KindId> = FxHashMap::default();
        for (value, info) in graph.values.iter() {
            let next = KindId(known.len() as u32);
            let divided = self.divided.of(value).map(|division| division.dim);
            let samples = self.samples.as_ref().and_then(|samples| samples.along(value));
            let key = (&info.ty, self.offers[value].clone(), divided, self.sizes.has(value), samples);
            self.kinds[value] = *known.entry(key).or_insert(next);
        }
    }

    /// The class of a node: nodes of one class have the same strategies.
    fn class_key(&self, graph: &Graph, node: NodeId) -> (Vec<u8>, SmallVec<[KindId; 2]>, [bool; 3]) {
        let results = graph.nodes[node].results().map(|value| self.kinds[value]).collect();
        // Whether a partial value may pass a few operators depends on where their operands come from.
        let row = aten::row(graph.op_name(node));
        let looks_back = row.is_some_and(|row| matches!(row.linear, Linear::Norms | Linear::Stacked));
        let of_norms = looks_back && graph.nodes[node].operands().all(|value| aten::is_norm(graph, value));
        let key = graph.nodes[node].key(|value| self.kinds[value].0);
        let flags = [of_norms, self.is_after_micro_batches(graph, node), self.divided.reaches(graph, node)];
        (key, results, flags)
    }

    /// Whether a node is computed when all micro-batches are over: to update a slice of the state after the other saves no memory.
    fn is_after_micro_batches(&self, graph: &Graph, node: NodeId) -> bool {
        self.axis.kind == AxisKind::Time && graph.part_kind(node) == PartKind::Update
    }

    fn note_missing_row(&mut self, op: &Op) {
        if aten::row_of(op).is_some_and(aten::Row::has_rule) {
            return;
        }
        match self.without_row.iter_mut().find(|(name, _)| *name == op.name) {
            Some((_, count)) => *count += 1,
            None => self.without_row.push((op.name.clone(), 1)),
        }
    }

    fn strategies_of(&self, graph: &Graph, node: NodeId) -> Vec<Strategy> {
        let call = Call::new(graph, node);
        let is_after = self.is_after_micro_batches(graph, node);
        // What a gradient goes through on the way to its shard may be of each micro-batch, so that shards are added up.
        let moves = |row: &Row| {
            let is_simple = matches!(row.work, Work::View | Work::Nothing | Work::Traffic);
            call.operands.len() == 1 && (is_simple || graph.is_communication(node))
        };
        let row = aten::row_of(call.op()).filter(|row| !is_after || moves(row));
        let Some(row) = row else { return vec![aten::replicated(&call)] };
        let seeds: Vec<Seed> = if is_after { Vec::new() } else { self.seeds(&call).collect() };
        let mut strategies = aten::strategies(row, &call, &seeds, self.axis.size);
        strategies.extend(self.divided.strategies(graph, node));
        if self.axis.kind == AxisKind::Time {
            for piece in seeds.iter().filter_map(|seed| aten::one_piece(&call, *seed, self.axis.size)) {
                if !strategies.contains(&piece) {
                    strategies.push(piece);
                }
            }
        }
        // Micro-batches are one after another on the same rank: none sends to another.
        strategies.retain(|one| self.axis.kind != AxisKind::Time || !one.realise.permutes());
        strategies.retain(|one| self.sizes.is_empty() || !self.divides_run_time_sizes(&call, one));
        strategies.retain(|one| self.leaves_slices(&call, one));
        strategies
    }

    /// Whether what a strategy shards has slices still: a tensor of masks, which knows of no samples, is offered shardings that what it is
    /// multiplied with must not have.
    fn leaves_slices(&self, call: &Call<'_>, strategy: &Strategy) -> bool {
        let Some(samples) = &self.samples else { return true };
        placed(call, strategy)
            .all(|(value, placement)| samples.leave_slices(*value, *placement, self.axis.size))
    }

    /// Whether a strategy has something whose size is known at run time only otherwise than whole or in groups: collectives want to know how
    /// large it is.
    fn divides_run_time_sizes(&self, call: &Call<'_>, strategy: &Strategy) -> bool {
        placed(call, strategy).any(|(value, placement)| {
            self.sizes.has(*value) && matches!(placement, Placement::Shard { .. } | Placement::Partial(_))
        })
    }

    fn seeds<'a>(&'a self, call: &'a Call<'_>) -> impl Iterator<Item = Seed> + 'a {
        let operands = call.operands.iter().enumerate().map(|(i, value)| (Slot::Operand(i), value));
        let results = call.results.iter().enumerate().map(|(i, value)| (Slot::Result(i), value));
        let offers = |(slot, value): (Slot, &ValueId)| {
            self.offers[*value].iter().filter_map(move |placement| Seed::of(slot, *placement))
        };
        operands.chain(results).flat_map(offers)
    }

    /// Offers every value each sharding of one dimension, and follows what rules make of it: views, splits and joins lead to sharding
    /// inside blocks, or in chunks of another size, on either side. Even ones come first, and no uneven one takes their place.
    fn offer(&mut self, graph: &Graph, offered: Offered) {
        let users = users(graph);
        let mut follower = match self.axis.kind {
            AxisKind::Time => Follower::of_iterations(graph, self.axis.size),
            AxisKind::Ranks | AxisKind::Stage => Follower::new(graph, self.axis.size),
        };
        let ranks = i64::from(self.axis.size);
        self.offer_where(graph, (&users, &mut follower), MOST_OFFERS, |size| size % ranks == 0);
        if offered != Offered::Even {
            let most = MOST_OFFERS + MOST_UNEVEN;
            let includes = |size| size % ranks != 0 && offered.includes(size, ranks as u32);
            self.offer_where(graph, (&users, &mut follower), most, includes);
        }
    }

    fn offer_where(
        &mut self,
        graph: &Graph,
        (users, follower): (&SecondaryMap<ValueId, SmallVec<[NodeId; 4]>>, &mut Follower<'_>),
        most: usize,
        is_offered: impl Fn(i64) -> bool,
    ) {
        let mut queue: Vec<(ValueId, Placement)> = Vec::new();
        for (value, info) in graph.values.iter() {
            for (dim, size) in info.ty.shape.iter().enumerate() {
                if *size > 0 && is_offered(*size) {
                    self.add(value, Placement::shard(dim), most.max(info.ty.rank()), &mut queue);
                }
            }
        }
        let mut next = 0;
        while let Some((value, offer)) = queue.get(next).copied() {
            next += 1;
            for node in graph.maker(value).into_iter().chain(users[value].iter().copied()) {
                for (value, placement) in follower.follow(node, (value, offer)) {
                    self.add(value, placement, most, &mut queue);
                }
            }
        }
    }

    fn add(&mut self, value: ValueId, offer: Placement, most: usize, queue: &mut Vec<(ValueId, Placement)>) {
        let leaves_slices = |samples: &Samples| samples.leave_slices(value, offer, self.axis.size);
        if self.sizes.has(value) || !self.samples.as_ref().is_none_or(leaves_slices) {
            return;
        }
        let offers = &mut self.offers[value];
        if !offers.contains(&offer) && offers.len() < most {
            offers.push(offer);
            queue.push((value, offer));
        }
    }
}

/// The operands and results of a call with their placements under a strategy.
fn placed<'a>(
    call: &'a Call<'_>,
    strategy: &'a Strategy,
) -> impl Iterator<Item = (&'a ValueId, &'a Placement)> {
    let operands = call.operands.iter().zip(&strategy.operands);
    operands.chain(call.results.iter().zip(&strategy.results))
}
