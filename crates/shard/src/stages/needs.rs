//! On which stages operations run, and where their values are needed.

use aten::Work;
use base::SecondaryMap;
use ir::{Graph, InputClass, NodeId, ValueDef, ValueId};
use schedule::Placement;

use super::StageSet;
use crate::draws::draws;

/// What runs and is needed where.
pub struct Needs {
    /// The chunk that each operation is in; none for those that run wherever they are needed.
    pub chunks: SecondaryMap<NodeId, Option<u32>>,
    /// The stages that each operation runs on.
    pub runs: SecondaryMap<NodeId, StageSet>,
    /// The stages that need each value.
    pub needed: SecondaryMap<ValueId, StageSet>,
}

impl Needs {
    /// Of a graph whose nodes say in which chunk they are; a state is updated where `held` says that it is, and what the step returns is
    /// needed everywhere.
    pub fn of(graph: &Graph, placement: &Placement, held: impl Fn(ir::InputId) -> StageSet) -> Self {
        let all = StageSet::all(placement.stages);
        let mut needed: SecondaryMap<ValueId, StageSet> = SecondaryMap::default();
        let mut runs: SecondaryMap<NodeId, StageSet> = SecondaryMap::default();
        let chunks = chunks_of(graph);
        graph.returns.iter().for_each(|value| needed[*value] = all);
        for (input, value) in &graph.updates {
            needed[*value] = needed[*value].with(held(*input));
        }
        for id in graph.order.iter().rev() {
            let node = &graph.nodes[*id];
            let wanted = node.results().fold(StageSet::default(), |set, value| set.with(needed[value]));
            let here = match chunks[*id] {
                // Every rank draws all numbers, so that each draws what one device would.
                _ if draws(graph, *id) => all,
                Some(chunk) if !is_moved(graph, *id) => StageSet::one(placement.stage_of[chunk as usize]),
                _ => wanted,
            };
            runs[*id] = here;
            for value in node.operands() {
                needed[value] = needed[value].with(here);
            }
        }
        Self { chunks, runs, needed }
    }
}

/// The chunk of each node: that which it says, or, where it was made for what a plan needs at the end, the one that makes what it reads.
fn chunks_of(graph: &Graph) -> SecondaryMap<NodeId, Option<u32>> {
    let mut chunk: SecondaryMap<NodeId, Option<u32>> = SecondaryMap::with_default(None);
    for id in &graph.order {
        let node = &graph.nodes[*id];
        let of_operands = || {
            node.operands().find_map(|value| match graph.values[value].def {
                ValueDef::Result(maker, _) => chunk[maker],
                ValueDef::Input(_) => None,
            })
        };
        chunk[*id] = node.stage.or_else(of_operands);
    }
    chunk
}

/// Whether an operation takes no time to speak of: views, and what each element of its results is a function of.
pub fn is_light(graph: &Graph, id: NodeId) -> bool {
    aten::row(graph.op_name(id)).is_some_and(|row| !matches!(row.work, Work::Flops(_)))
}

/// Whether what a view looks at is sent rather than the view: it is no larger.
pub fn is_moved(graph: &Graph, id: NodeId) -> bool {
    let node = &graph.nodes[id];
    let is_view = aten::is_view(graph, id);
    let mut operands = node.operands();
    match (operands.next(), operands.next()) {
        (Some(only), None) if is_view && !graph.is_communication(id) => {
            let bytes = |value| graph.ty(value).bytes();
            bytes(only) <= node.results().map(bytes).sum()
        }
        _ => false,
    }
}

/// Whether every stage is given an input at each step.
pub const fn is_given(class: InputClass) -> bool {
    matches!(class, InputClass::Batch | InputClass::Hyper)
}
