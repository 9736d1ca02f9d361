//! Who reads what.

use base::SecondaryMap;
use ir::{Graph, NodeId, ValueId};
use smallvec::SmallVec;

/// The nodes that read each value.
pub fn users(graph: &Graph) -> SecondaryMap<ValueId, SmallVec<[NodeId; 4]>> {
    let mut users: SecondaryMap<ValueId, SmallVec<[NodeId; 4]>> = SecondaryMap::default();
    for node in &graph.order {
        for value in graph.nodes[*node].operands() {
            if users[value].last() != Some(node) {
                users[value].push(*node);
            }
        }
    }
    users
}
