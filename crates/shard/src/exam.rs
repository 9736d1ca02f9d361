//! What a proof of the operation table needs: for every operation of a graph and every strategy that it has, the graphs that each rank would
//! run, operands given in the required placements and results left in the provided ones.

use aten::{Call, RunTimeSizes, Strategy};
use base::Result;
use ir::{Graph, InputClass, Mesh, MeshAxis, NodeId, Placement, RankGraph, Reshard, ValueId, reshard_steps};
use rustc_hash::FxHashMap;

use crate::{
    canonical::canonical,
    emit::{Emitter, Origin, Script},
    local::local_type,
    operation::Realised,
    partition::Assignment,
    reshard::Resharder,
    space::{Offered, Space},
    unroll::partition_mesh,
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

/// A graph under strategies that nobody chose.
pub struct Drawn {
    /// The placements of each input along each axis.
    pub inputs: Vec<Vec<Placement>>,
    /// For each rank its graph.
    pub graphs: Vec<RankGraph>,
}

/// The graphs of all ranks of a mesh where `numbers` say which of its strategies each operation has along each axis, and where each input is: as
/// many numbers as there are, begun again where they end.
pub fn drawn(graph: &Graph, mesh: &Mesh, numbers: &[u64]) -> Result<Drawn> {
    aten::check(graph)?;
    let canonical = canonical(graph).renumbered();
    let mut numbers = numbers.iter().cycle();
    let mut below =
        |count: usize| numbers.next().map_or(0, |number| (*number % count.max(1) as u64) as usize);
    let mut assignments = Vec::new();
    let first = partition_mesh(&canonical, mesh, 0, |graph, axis| {
        let offered = if mesh.may_be_uneven(&axis.name) { Offered::All } else { Offered::Even };
        assignments.push(assigned(graph, &Space::new(graph, axis, offered), &mut below));
        Ok(assignments[assignments.len() - 1].clone())
    })?;
    let others = (1..mesh.ranks()).map(|rank| {
        let mut decided = assignments.iter().cloned();
        partition_mesh(&canonical, mesh, rank, |_, _| {
            Ok(decided.next().expect("an assignment for each axis"))
        })
    });
    let graphs = std::iter::once(Ok(first)).chain(others).collect::<Result<_>>()?;
    let along_all = |id| assignments.iter().map(|assignment| assignment.inputs[&id]).collect();
    Ok(Drawn { inputs: canonical.inputs.ids().map(along_all).collect(), graphs })
}

/// Decisions along an axis, each of which `below` draws among so many.
fn assigned(graph: &Graph, space: &Space, mut below: impl FnMut(usize) -> usize) -> Assignment {
    let mut assignment = Assignment::default();
    let mut held: FxHashMap<ValueId, Placement> = FxHashMap::default();
    for (id, input) in graph.inputs.iter() {
        let offers = &space.offers[input.value];
        let placement =
            below(offers.len() + 1).checked_sub(1).map_or(Placement::Replicate, |one| offers[one]);
        assignment.inputs.insert(id, placement);
        held.insert(input.value, placement);
    }
    for node in &graph.order {
        let call = Call::new(graph, *node);
        let leads = |value: &ValueId, to: Placement| {
            let reshard = Reshard { from: held[value], to };
            reshard_steps(graph.ty(*value), reshard, &space.axis).is_some()
        };
        let possible: Vec<&Strategy> = space
            .strategies(*node)
            .iter()
            .filter(|one| call.operands.iter().zip(&one.operands).all(|(value, to)| leads(value, *to)))
            .collect();
        let strategy = possible[below(possible.len())].clone();
        held.extend(call.results.iter().copied().zip(strategy.results.iter().copied()));
        assignment.nodes.insert(*node, strategy);
    }
    assignment
}

fn claims(graph: &Graph, ranks: u32) -> Vec<(String, String, bool)> {
    let mut claims = Vec::new();
    for node in &graph.order {
        let name = graph.op_name(*node);
        let call = Call::new(graph, *node);
        let made = aten::row_of(call.op()).map(|row| aten::claims(row, &call, ranks));
        claims.extend(made.into_iter().flatten().map(|claim| (name.to_owned(), claim.what, claim.asked)));
    }
    claims
}

fn questions(graph: &Graph, ranks: u32) -> Vec<Question> {
    let axis = MeshAxis::ranks("exam", ranks);
    let space = Space::new(graph, &axis, Offered::All);
    let mut questions = Vec::new();
    for node in &graph.order {
        let call = Call::new(graph, *node);
        for strategy in space.strategies(*node) {
            let mut script = Script::default();
            let graphs = (0..ranks).map(|coordinate| {
                let graph = alone(&call, strategy, (&axis, coordinate), &mut script);
                script = std::mem::take(&mut script).followed();
                graph
            });
            let graphs = graphs.collect();
            questions.push(Question { node: *node, strategy: strategy.clone(), graphs });
        }
    }
    questions
}

fn alone(
    call: &Call<'_>,
    strategy: &Strategy,
    (axis, coordinate): (&MeshAxis, u32),
    script: &mut Script,
) -> RankGraph {
    let mut graph =
        Graph { ops: call.graph.ops.clone(), parts: call.graph.parts.clone(), ..Graph::default() };
    let operands = call.operands.iter().zip(&strategy.operands).enumerate();
    let operands = operands
        .map(|(number, (value, placement))| {
            let ty = local_type(call.graph.ty(*value), *placement, axis.size, coordinate);
            graph.input(InputClass::Constant, format!("constants.{number}"), ty)
        })
        .collect();
    let resharder = Resharder { axis, coordinate, group: "axis:exam" };
    let sizes = RunTimeSizes::default();
    let realised = Realised { call, strategy, operands, resharder: &resharder, sizes: &sizes };
    let origin = Origin::default();
    let results = realised.write(&mut Emitter { graph: &mut graph, origin, script: Some(script) });
    graph.returns = results.to_vec();
    graph.into_renumbered()
}
