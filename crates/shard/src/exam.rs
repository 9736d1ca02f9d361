//! What a proof of the operation table needs: for every operation of a graph and every strategy that it has, the graphs that each rank would
//! run, operands given in the required placements and results left in the provided ones.

use aten::{Call, Strategy};
use base::Result;
use ir::{Graph, InputClass, MeshAxis, NodeId, RankGraph};

use crate::{
    canonical::canonical,
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

/// Everything that the operation table claims about the operations of a graph.
pub struct Exam {
    /// The graph in canonical form, in which the questions count.
    pub canonical: Graph,
    /// The questions.
    pub questions: Vec<Question>,
    /// The claims: operator, claim, and whether it is among the questions.
    pub claims: Vec<(String, String, bool)>,
}

/// The exam that a graph gives rise to along an axis of `ranks`.
pub fn exam(graph: &Graph, ranks: u32) -> Result<Exam> {
    aten::check(graph)?;
    let canonical = canonical(graph).renumbered();
    let (questions, claims) = (questions(&canonical, ranks), claims(&canonical, ranks));
    Ok(Exam { canonical, questions, claims })
}

fn claims(graph: &Graph, ranks: u32) -> Vec<(String, String, bool)> {
    let mut claims = Vec::new();
    for node in &graph.order {
        let name = graph.op_name(*node);
        let made = aten::row(name).map(|row| aten::claims(row, &Call::new(graph, *node), ranks));
        claims.extend(made.into_iter().flatten().map(|claim| (name.to_owned(), claim.what, claim.asked)));
    }
    claims
}

fn questions(graph: &Graph, ranks: u32) -> Vec<Question> {
    let axis = MeshAxis::ranks("exam", ranks);
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
