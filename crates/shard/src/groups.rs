//! Dimensions that offsets divide into groups, of which each rank has some.
//!
//! A product of groups of rows says which dimension of its operands is divided, and by which offsets. All other tensors whose elements come of
//! these one by one are divided alike. A value is in groups by one dimension and one set of offsets, or not at all.

use aten::{Call, Slot, Strategy};
use base::SecondaryMap;
use ir::{Arg, AxisKind, Chunks, Graph, MeshAxis, NodeId, Placement, ValueDef, ValueId};
use rustc_hash::FxHashMap;

use crate::{emit::Emitter, users::users};

/// By what a value is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// The dimension.
    pub dim: u8,
    /// Where each group ends.
    pub offsets: ValueId,
}

impl Division {
    /// The placement in which each rank has some of the groups.
    pub const fn placement(self) -> Placement {
        Placement::Groups { dim: self.dim }
    }
}

/// The values of a graph that are divided, and the operations that may run on their groups.
#[derive(Default)]
pub struct Divided {
    ranks: u32,
    /// None for a value that two operations divide otherwise.
    values: FxHashMap<ValueId, Option<Division>>,
    /// Where in program order each node stands.
    positions: SecondaryMap<NodeId, u32>,
}

impl Divided {
    /// What is divided in a graph, for ranks along `axis`.
    pub fn new(graph: &Graph, axis: &MeshAxis) -> Self {
        let mut divided = Self { ranks: axis.size, ..Self::default() };
        let divides = |node: &NodeId| aten::row(graph.op_name(*node)).is_some_and(|row| row.groups.is_some());
        if axis.kind != AxisKind::Ranks || !graph.order.iter().any(divides) {
            return divided;
        }
        for (position, node) in graph.order.iter().enumerate() {
            divided.positions[*node] = position as u32;
        }
        let mut queue = Vec::new();
        for node in graph.order.iter().copied().filter(divides) {
            divided.begin(graph, node, &mut queue);
        }
        let users = users(graph);
        let mut next = 0;
        while let Some(value) = queue.get(next).copied() {
            next += 1;
            for node in graph.maker(value).into_iter().chain(users[value].iter().copied()) {
                divided.follow(graph, node, value, &mut queue);
            }
        }
        divided
    }

    /// By what a value is divided.
    pub fn of(&self, value: ValueId) -> Option<Division> {
        self.values.get(&value).copied().flatten()
    }

    /// Whether the offsets that divide something of a node are known when it runs.
    pub fn reaches(&self, graph: &Graph, node: NodeId) -> bool {
        let info = &graph.nodes[node];
        let mut values = info.operands().chain(info.results());
        values.any(|value| self.of(value).is_some_and(|division| self.is_known(graph, division, node)))
    }

    /// The strategies of a node in which each rank has some groups.
    pub fn strategies(&self, graph: &Graph, node: NodeId) -> Vec<Strategy> {
        let call = Call::new(graph, node);
        let mut found: Vec<Strategy> = Vec::new();
        for (slot, value) in slots(&call) {
            let Some(division) = self.of(value) else { continue };
            let strategy =
                self.strategy(&call, slot, division).filter(|one| self.agrees(&call, one, division));
            found.extend(strategy.filter(|one| !found.contains(one)));
        }
        found
    }

    fn begin(&mut self, graph: &Graph, node: NodeId, queue: &mut Vec<ValueId>) {
        let call = Call::new(graph, node);
        let Some(row) = aten::row(call.name()) else { return };
        let strategy = aten::of_groups(row, &call, self.ranks);
        if let (Some(strategy), Some(offsets)) = (strategy, aten::offsets(row, &call)) {
            self.note(&call, &strategy, offsets, queue);
        }
    }

    /// Divides what follows for the other operands and results of `node` from the division of `value`.
    fn follow(&mut self, graph: &Graph, node: NodeId, value: ValueId, queue: &mut Vec<ValueId>) {
        let Some(division) = self.of(value) else { return };
        let call = Call::new(graph, node);
        for (slot, _) in slots(&call).filter(|(_, other)| *other == value) {
            if let Some(strategy) = self.strategy(&call, slot, division) {
                self.note(&call, &strategy, division.offsets, queue);
            }
        }
    }

    fn strategy(&self, call: &Call<'_>, slot: Slot, division: Division) -> Option<Strategy> {
        let row = aten::row(call.name())?;
        let by_others = aten::offsets(row, call).is_some_and(|offsets| offsets != division.offsets);
        if by_others || !self.is_known(call.graph, division, call.id) {
            return None;
        }
        aten::by_groups(row, call, (slot, usize::from(division.dim)), self.ranks)
    }

    /// Whether offsets are there when a node runs.
    fn is_known(&self, graph: &Graph, division: Division, node: NodeId) -> bool {
        match graph.values[division.offsets].def {
            ValueDef::Result(maker, _) => self.positions[maker] < self.positions[node],
            ValueDef::Input(_) => true,
        }
    }

    fn note(&mut self, call: &Call<'_>, strategy: &Strategy, offsets: ValueId, queue: &mut Vec<ValueId>) {
        for (value, placement) in placed(call, strategy) {
            let Placement::Groups { dim } = placement else { continue };
            let division = Some(Division { dim, offsets });
            match self.values.get(&value) {
                Some(known) if *known == division => {}
                Some(_) => {
                    self.values.insert(value, None);
                }
                None => {
                    self.values.insert(value, division);
                    queue.push(value);
                }
            }
        }
    }

    /// Whether all that a strategy has in groups is divided by the same offsets.
    fn agrees(&self, call: &Call<'_>, strategy: &Strategy, division: Division) -> bool {
        placed(call, strategy).all(|(value, placement)| match placement {
            Placement::Groups { dim } => self.of(value) == Some(Division { dim, ..division }),
            _ => true,
        })
    }
}

fn slots(call: &Call<'_>) -> impl Iterator<Item = (Slot, ValueId)> {
    let operands = call.operands.iter().enumerate().map(|(at, value)| (Slot::Operand(at), *value));
    operands.chain(call.results.iter().enumerate().map(|(at, value)| (Slot::Result(at), *value)))
}

fn placed(call: &Call<'_>, strategy: &Strategy) -> impl Iterator<Item = (ValueId, Placement)> {
    let operands = call.operands.iter().copied().zip(strategy.operands.iter().copied());
    operands.chain(call.results.iter().copied().zip(strategy.results.iter().copied()))
}

/// The groups of one rank, as offsets say at run time.
pub struct OwnGroups {
    /// Where each group begins, and where the last one ends.
    bounds: ValueId,
    /// The first of the rank's own groups.
    first: i64,
    /// How many it has.
    own: i64,
}

impl OwnGroups {
    /// Those of the rank at `coordinate` of `ranks`.
    pub fn new(out: &mut Emitter<'_>, offsets: ValueId, ranks: u32, coordinate: u32) -> Self {
        let count = out.ty(offsets).shape[0];
        let chunks = Chunks::new(count, 1, 0, ranks).expect("a strategy shards what can be sharded");
        let (first, own) = chunks.part(coordinate);
        let bounds = out.pad(offsets, 0, 1, 0);
        Self { bounds, first, own }
    }

    /// Where each of them ends, counted from where the first begins.
    pub fn offsets(&self, out: &mut Emitter<'_>) -> ValueId {
        let start = self.bound(out, 0);
        let ends = out.slice(self.bounds, 0, self.first + 1, self.first + self.own + 1);
        out.sum("sub", ends, start)
    }

    /// Where group number `number` of them begins, as a tensor of one element.
    fn bound(&self, out: &mut Emitter<'_>, number: i64) -> ValueId {
        out.slice(self.bounds, 0, self.first + number, self.first + number + 1)
    }
}

/// Where each group ends within `own` elements from element `first` on.
pub fn offsets_within(out: &mut Emitter<'_>, offsets: ValueId, first: i64, own: i64) -> ValueId {
    let moved = out.shifted(offsets, Arg::Int(-first));
    let ty = out.ty(moved);
    let schema = "aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor";
    out.op(schema, vec![Arg::Value(moved), Arg::Int(0), Arg::Int(own)], ty)
}
