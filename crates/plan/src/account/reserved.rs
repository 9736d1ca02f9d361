//! What PyTorch's caching allocator holds, whose figure frameworks report as their memory.

use ir::{CollectiveKind, Graph, NodeId};
use serde::Serialize;

use super::collectives::moved;

/// What PyTorch's caching allocator holds of a rank, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Reserved {
    /// Where all results are made on one stream.
    pub together: u64,
    /// Where collectives make theirs on streams of their own: what everything else holds.
    pub operations: u64,
    /// Gathered parameters, the same.
    pub parameters: u64,
    /// Gradients that were summed between ranks, the same.
    pub gradients: u64,
}

/// What is held for a rank's graph; none on processors.
pub fn reserved(graph: &Graph) -> Option<Reserved> {
    let moved = moved(graph);
    let stream = |id: NodeId| match graph.collective(id) {
        Some(one) if one.kind == CollectiveKind::AllGather && moved(id) == "parameters" => 1,
        Some(one) if one.kind != CollectiveKind::AllGather && moved(id) == "gradients" => 2,
        _ => 0,
    };
    let [together] = memory::reserved(graph, |_| 0)?;
    let [operations, parameters, gradients] = memory::reserved(graph, stream)?;
    Some(Reserved {
        together: together.0,
        operations: operations.0,
        parameters: parameters.0,
        gradients: gradients.0,
    })
}
