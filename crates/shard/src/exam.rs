//! What a proof of the operation table needs: for every operation of a graph and every strategy that it has, the graphs that each rank would
//! run, operands given in the required placements and results left in the provided ones.

use aten::{Call, Strategy};
use ir::{Graph, InputClass, MeshAxis, NodeId, RankGraph};

use crate::{
    emit::{Emitter, Origin},
    local::local_type,
    realise::Realised,
    reshard::Resharder,
    space::Space,
};

/// One operation under one strategy.
pub struct Question {
    /// The operation.
    pub node: NodeId,
    /// How it runs.
    pub strategy: Strategy,
    /// For each rank its graph: an input for each operand, a return for each result.
    pub graphs: Vec<RankGraph>,
}

/// All questions that a graph gives rise to along an axis of `ranks`.
pub fn exam(graph: &Graph, ranks: u32) -> Vec<Question> {
    let axis = MeshAxis { name: "exam".into(), size: ranks };
    let space = Space::new(graph, &axis);
    let mut questions = Vec::new();
    for node in &graph.order {
        let call = Call::new(graph, *node);
        for strategy in space.strategies(*node) {
            let graphs = (0..ranks).map(|coordinate| alone(&call, strategy, &axis, coordinate)).collect();
            questions.push(Question { node: *node, strategy: strategy.clone(), graphs });
        }
    }
    questions
}

fn alone(call: &Call<'_>, strategy: &Strategy, axis: &MeshAxis, coordinate: u32) -> RankGraph {
    let mut graph =
        Graph { ops: call.graph.ops.clone(), parts: call.graph.parts.clone(), ..Graph::default() };
    let operands = call.operands.iter().zip(&strategy.operands).enumerate();
    let operands = operands
        .map(|(number, (value, placement))| {
            let ty = local_type(call.graph.ty(*value), *placement, axis.size);
            graph.input(InputClass::Constant, format!("constants.{number}"), ty)
        })
        .collect();
    let resharder = Resharder { axis, coordinate, group: "axis:exam" };
    let realised = Realised { call, strategy, operands, resharder: &resharder };
    let results = realised.write(&mut Emitter { graph: &mut graph, origin: Origin::default() });
    graph.returns = results.to_vec();
    graph.into_renumbered()
}
