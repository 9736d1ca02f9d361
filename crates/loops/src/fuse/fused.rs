//! A graph with its groups as single nodes: what the simulator and the prediction of memory see of kernels.

use ir::{Arg, Graph, KERNEL, NodeId, Return, ValueDef};

use super::partition::{Group, Item, Partition};

/// The same graph with each group of a partition as one node, which reads and makes what the kernel does; views that nothing reads any more are
/// gone. It says how much is moved and held, and cannot be run.
pub fn fused(graph: &Graph, partition: &Partition) -> Graph {
    let mut fused = graph.clone();
    fused.order.clear();
    for item in &partition.order {
        let id = match item {
            Item::Node(position) => graph.order[*position],
            Item::Group(number) => kernel(&mut fused, &partition.groups[*number]),
        };
        fused.order.push(id);
    }
    fused
}

/// Adds the node of a group, where its last operation is in the user's code and in the program.
fn kernel(graph: &mut Graph, group: &Group) -> NodeId {
    let last = group.nodes.last().expect("a group has operations");
    let ir::Node { place, module, part, label, stage, .. } = graph.nodes[*last];
    let reads = group.reads.iter().copied().map(Some).collect();
    let id = graph.push(KERNEL, vec![Arg::Values(reads)], Vec::new());
    graph.order.pop();
    let node = &mut graph.nodes[id];
    (node.place, node.module, node.part, node.label, node.stage) = (place, module, part, label, stage);
    for (position, value) in group.writes.iter().enumerate() {
        graph.values[*value].def = ValueDef::Result(id, position as u32);
    }
    graph.nodes[id].returns = vec![Return::Values(group.writes.clone())];
    id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rounding, partition};

    #[test]
    fn what_stays_within_a_kernel_is_in_no_result() {
        let text = r#"unisono graph 2
op aten::silu(Tensor self) -> Tensor
op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor
op aten::mm(Tensor self, Tensor mat2) -> Tensor
input v0: f32[64, 64] = batch "x"

v1: f32[64, 64] = aten::mm(v0, v0)
v2: f32[64, 64] = aten::silu(v1)
v3: f32[64, 64] = aten::mul.Tensor(v2, v0)

return v3
"#;
        let graph: Graph = Graph::from_text("test", text).expect("a graph");
        let fused = fused(&graph, &partition(&graph, Rounding::AtStores));
        let names: Vec<&str> = fused.order.iter().map(|id| fused.op_name(*id)).collect();
        assert_eq!(names, ["aten::mm", "unisono::kernel"]);
        let last = &fused.nodes[fused.order[1]];
        assert_eq!(last.operands().count(), 2);
        assert_eq!(last.results().collect::<Vec<_>>(), graph.returns);
    }
}
