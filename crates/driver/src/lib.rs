//! The way from a captured graph to a rank's graph, as few functions: what the command and the extension module call.

mod collectives;
mod kept;
mod simulate;

use base::Result;
use cluster::Cluster;
use indexmap::IndexMap;
use ir::{Graph, Mesh, MeshAxis, Placement, RankGraph};
use passes::{CommonSubexpressions, DeadCode, DropAliases, MergeViews, Outcome, Pass, pipeline};
use plan::{Pins, Plan, Request, search};
use serde::{Deserialize, Serialize};
use shard::canonical;

pub use collectives::collective_at;
pub use kept::Kept;
pub use simulate::{Ranks, simulate_plan, simulate_rank};

/// What is asked of the planner, as settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSettings {
    /// The mesh: names of its axes with their sizes, the outer axis first.
    pub mesh: IndexMap<String, u32>,
    /// Most bytes of one rank.
    #[serde(default)]
    pub memory_limit: Option<u64>,
    /// Demanded placements by axis, by name pattern of inputs.
    #[serde(default)]
    pub pins: Pins,
}

impl PlanSettings {
    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        let axis = |(name, size): (&String, &u32)| MeshAxis { name: name.clone(), size: *size };
        Mesh { axes: self.mesh.iter().map(axis).collect() }
    }
}

/// A captured graph without what nothing needs: aliases, chains of views, values computed twice, dead code. The planner sees this one.
fn cleaned(graph: &Graph) -> Result<Graph> {
    let passes: [Box<dyn Pass>; 4] =
        [Box::new(DropAliases), Box::new(MergeViews), Box::new(CommonSubexpressions), Box::new(DeadCode)];
    passes::run(&passes, graph, |_| {})
}

/// Plans a captured graph for a cluster.
pub fn plan_graph(graph: &Graph, cluster: &Cluster, settings: &PlanSettings) -> Result<Plan> {
    let mesh = settings.mesh();
    mesh.check()?;
    aten::check(graph)?;
    let cleaned = cleaned(graph)?;
    let request = Request {
        graph: &cleaned,
        captured: graph,
        cluster,
        mesh: &mesh,
        memory_limit: settings.memory_limit,
        pins: &settings.pins,
    };
    Ok(search(&request)?.plan)
}

/// The graph that `rank` runs under a plan for `graph`. On one rank it is the captured graph itself.
pub fn rank_graph(graph: &Graph, plan: &Plan, rank: u32) -> Result<RankGraph> {
    aten::check(graph)?;
    let canonical = canonical(&cleaned(graph)?);
    let local = plan.partition(&canonical, graph.fingerprint(), rank)?;
    Ok(if plan.mesh().ranks() == 1 { graph.clone() } else { local })
}

/// The program that `rank` runs under a plan for `graph`: its graph after the passes; `observe` hears of each.
pub fn program(graph: &Graph, plan: &Plan, rank: u32, observe: impl FnMut(&Outcome)) -> Result<RankGraph> {
    passes::run(&pipeline(&plan.passes), &rank_graph(graph, plan, rank)?, observe)
}

/// What a plan does, for people.
pub fn explain_plan(graph: &Graph, plan: &Plan) -> Result<String> {
    Ok(plan::explain(plan, &program(graph, plan, 0, |_| {})?))
}

/// One operation under one strategy, see [`shard::exam`].
#[derive(Clone, Debug, Serialize)]
pub struct Question {
    /// The operation, by its number in the graph.
    pub node: u32,
    /// The placement of each operand.
    pub operands: Vec<Placement>,
    /// The placement of each result.
    pub results: Vec<Placement>,
    /// Each rank's graph, as a message.
    pub graphs: Vec<serde_bytes::ByteBuf>,
}

/// Everything that the operation table claims about the operations of a graph, in a form that a test can run.
pub fn exam(graph: &Graph, ranks: u32) -> Result<Vec<Question>> {
    aten::check(graph)?;
    let canonical = canonical(graph).renumbered();
    let questions = shard::exam(&canonical, ranks).into_iter();
    let questions = questions.map(|question| Question {
        node: question.node.0,
        operands: question.strategy.operands.to_vec(),
        results: question.strategy.results.to_vec(),
        graphs: question.graphs.iter().map(|graph| serde_bytes::ByteBuf::from(graph.to_bytes())).collect(),
    });
    Ok(questions.collect())
}

/// The claims that the operation table makes about the operations of a graph: operator, claim, and whether [`exam`] asks it.
pub fn claims(graph: &Graph, ranks: u32) -> Vec<(String, String, bool)> {
    let canonical = canonical(graph).renumbered();
    let mut claims = Vec::new();
    for node in &canonical.order {
        let name = canonical.op_name(*node);
        let call = aten::Call::new(&canonical, *node);
        let made = aten::row(name).map(|row| aten::claims(row, &call, ranks)).unwrap_or_default();
        claims.extend(made.into_iter().map(|claim| (name.to_owned(), claim.what, claim.asked)));
    }
    claims
}

/// The canonical form of a graph, in which [`exam`] counts.
pub fn canonical_graph(graph: &Graph) -> Graph {
    canonical(graph).renumbered()
}
