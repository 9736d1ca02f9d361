//! Which operations of a graph draw random numbers.

use ir::{Graph, NodeId, Schema};

/// Whether an operation draws random numbers, as its row says of its arguments.
pub fn draws(graph: &Graph, id: NodeId) -> bool {
    let node = &graph.nodes[id];
    let op = &graph.ops[node.op];
    let by_schema = || Schema::parse(&op.schema).map(|schema| aten::random(&op.name, &schema));
    // To read the schema of every operation takes several times as long.
    let random = aten::row(&op.name).map(|row| row.random).or_else(by_schema);
    random.is_some_and(|random| random.draws(&node.args)) && !graph.is_communication(id)
}

/// Whether an operation may draw random numbers; of one without a row it is not known.
pub fn may_draw(graph: &Graph, id: NodeId) -> bool {
    let is_known = aten::row(graph.op_name(id)).is_some();
    draws(graph, id) || !is_known && !graph.is_communication(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_draws_where_it_drops_some_and_of_operations_without_a_row_it_is_not_known() {
        let text = "unisono graph 2
op aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)
op mine::f(Tensor x) -> Tensor
input v0: f32[1, 1, 2, 2] = batch \"batch.0\"
(v1: f32[1, 1, 2, 2], v2: f32[1, 1, 2]) = aten::_scaled_dot_product_flash_attention_for_cpu(v0, v0, v0, 0.0, true, none, none)
(v3: f32[1, 1, 2, 2], v4: f32[1, 1, 2]) = aten::_scaled_dot_product_flash_attention_for_cpu(v0, v0, v0, 0.5, true, none, none)
v5: f32[1, 1, 2, 2] = mine::f(v1)
return v3, v5
";
        let graph = Graph::from_text("case", text).unwrap();
        let found = |ask: fn(&Graph, NodeId) -> bool| {
            graph.order.iter().map(|id| ask(&graph, *id)).collect::<Vec<_>>()
        };
        assert_eq!(found(draws), [false, true, false]);
        assert_eq!(found(may_draw), [false, true, true]);
    }
}
