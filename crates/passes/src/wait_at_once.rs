//! Waits for each collective where it starts, so that nothing runs beside it: what each takes, and what operations take between them, can
//! be measured one by one.

use base::{Result, SecondaryMap};
use ir::{Graph, NodeId, Patch};

use crate::{
    Pass,
    facts::Facts,
    start_collectives::{Wanted, reorder},
};

/// Puts each wait right behind what it waits for.
pub struct WaitAtOnce;

impl Pass for WaitAtOnce {
    fn name(&self) -> &'static str {
        "wait_at_once"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        let facts = Facts::new(graph);
        let mut wanted: SecondaryMap<NodeId, Wanted> = SecondaryMap::with_default((0, 0));
        for (position, id) in graph.order.iter().enumerate() {
            let node = &graph.nodes[*id];
            let started =
                || node.operands().filter_map(|operand| graph.maker(operand)).map(|id| wanted[id].0).max();
            wanted[*id] = match started().filter(|_| facts.is_wait(node)) {
                Some(start) => (start, 1),
                None => (position, 0),
            };
        }
        reorder(graph, &mut patch, &wanted);
        Ok(patch)
    }
}
