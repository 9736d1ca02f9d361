//! Plans: what was decided, as a small text file that can be read, kept and run again.

use std::collections::BTreeMap;

use aten::Call;
use base::{Code, Diagnostic, Fingerprint, Result};
use indexmap::IndexMap;
use ir::{Graph, Mesh, MeshAxis, NodeId, PartId, Placement, ValueId};
use serde::{Deserialize, Serialize};
use shard::{Assignment, Axis, Space};

/// The version of the text form.
const VERSION: u32 = 2;

/// What a plan is expected to cost.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// Time of a step after the passes, in nanoseconds: operations and collectives one after the other.
    pub step_ns: i64,
    /// Operations alone.
    pub compute_ns: i64,
    /// Collectives alone.
    pub communication_ns: i64,
    /// Most memory of one rank, in bytes.
    pub peak_bytes: u64,
    /// What of it stays from step to step for small results; the executor takes no more.
    #[serde(default)]
    pub buffer_bytes: u64,
    /// State of one rank: parameters, buffers, optimizer state, in bytes.
    pub state_bytes: u64,
    /// Collectives in a step.
    pub collectives: u32,
    /// No plan of the model costs less than this, in nanoseconds: the bound of the search.
    pub bound_ns: i64,
    /// What the model, which knows no buckets, says of this plan, in nanoseconds; its predicted time where only the passes showed that it is
    /// the fastest.
    pub model_ns: i64,
}

/// Another plan that was considered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunnerUp {
    /// What it is, in a few words.
    pub name: String,
    /// Its predicted time, in nanoseconds.
    pub step_ns: i64,
    /// Its predicted memory, in bytes.
    pub peak_bytes: u64,
    /// Whether it is within the memory limit.
    #[serde(default = "yes")]
    pub fits: bool,
}

const fn yes() -> bool {
    true
}

/// A plan along one axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The version of the text form.
    pub version: u32,
    /// The graph that it is for.
    pub graph: Fingerprint,
    /// The cluster that it was made for.
    pub cluster: Fingerprint,
    /// The mesh.
    pub mesh: IndexMap<String, u32>,
    /// The expected cost.
    pub prediction: Prediction,
    /// Other plans that were considered, best first.
    pub runners_up: Vec<RunnerUp>,
    /// What limits it, in a sentence.
    pub limit: String,
    /// Operators that run replicated because the operation table has no row for them, with their number.
    pub without_row: BTreeMap<String, u32>,
    /// How collectives are put into buckets and started ahead.
    #[serde(default)]
    pub passes: passes::Settings,
    /// Inputs that are not whole on every rank.
    pub inputs: BTreeMap<String, Placement>,
    /// Operations that are not replicated: `number = "operator: operands -> results"`, by position in program order.
    pub nodes: BTreeMap<String, String>,
    /// Placements in which values enter a later part of the program: `value.part`, by number.
    pub kept: BTreeMap<String, Placement>,
}

impl Plan {
    /// The plan that an assignment is.
    pub fn new(
        graph: &Graph,
        fingerprints: (Fingerprint, Fingerprint),
        axis: &Axis,
        assignment: &Assignment,
    ) -> Self {
        let inputs = graph.inputs.iter().filter_map(|(id, input)| {
            let placement = *assignment.inputs.get(&id)?;
            (placement != Placement::Replicate).then(|| (input.name.clone(), placement))
        });
        let nodes = graph.order.iter().enumerate().filter_map(|(position, id)| {
            let text = strategy_text(graph, *id, assignment)?;
            Some((position.to_string(), text))
        });
        let kept = assignment.kept.iter().map(|((value, part), p)| (format!("{}.{}", value.0, part.0), *p));
        Self {
            version: VERSION,
            graph: fingerprints.0,
            cluster: fingerprints.1,
            mesh: std::iter::once((axis.name.clone(), axis.ranks)).collect(),
            prediction: Prediction::default(),
            runners_up: Vec::new(),
            limit: String::new(),
            without_row: BTreeMap::new(),
            passes: passes::Settings::default(),
            inputs: inputs.collect(),
            nodes: nodes.collect(),
            kept: kept.collect(),
        }
    }

    /// The text form.
    pub fn text(&self) -> String {
        let header =
            "# A Unisono plan: which rank holds and computes what. `unisono explain` prints it for people.\n";
        format!("{header}{}", toml::to_string(self).expect("a plan has no keys that TOML lacks"))
    }

    /// Reads the text form. `file` is what diagnostics call it.
    pub fn parse(text: &str, file: &str) -> Result<Self> {
        let plan: Self = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            base::malformed(Code::BAD_TEXT, "a plan", (text, file), error.message(), offset)
        })?;
        if plan.version != VERSION {
            let message = format!("a plan of version {}, not {VERSION}", plan.version);
            return Err(Diagnostic::new(Code::OTHER_VERSION, message).at_line(file, 0, 0).hint("plan again"));
        }
        let ranks: u32 = plan.mesh.values().product();
        if let Some(direct) = plan.passes.direct.filter(|direct| direct.ranks != ranks) {
            let message = format!("direct collectives for {} ranks in a plan for {ranks}", direct.ranks);
            return Err(Diagnostic::new(Code::BAD_TEXT, message)
                .at_line(file, 0, 0)
                .hint(format!("write `ranks = {ranks}` under `passes.direct`, or take it out")));
        }
        Ok(plan)
    }

    /// What identifies the plan: of what it decides, not of what it predicts.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut print = base::Fingerprinter::new();
        print.part(self.graph.to_string().as_bytes());
        for (axis, ranks) in &self.mesh {
            print.part(axis.as_bytes()).number(u64::from(*ranks));
        }
        print.part(toml::to_string(&self.passes).expect("settings have no keys that TOML lacks").as_bytes());
        for (name, placement) in self.inputs.iter().chain(&self.kept) {
            print.part(name.as_bytes()).part(placement.to_string().as_bytes());
        }
        for (position, text) in &self.nodes {
            print.part(position.as_bytes()).part(text.as_bytes());
        }
        print.finish()
    }

    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        Mesh {
            axes: self.mesh.iter().map(|(name, size)| MeshAxis { name: name.clone(), size: *size }).collect(),
        }
    }

    /// The only axis.
    pub fn axis(&self) -> Result<Axis> {
        let mut axes = self.mesh.iter();
        match (axes.next(), axes.next()) {
            (Some((name, ranks)), None) if *ranks > 0 => Ok(Axis { name: name.clone(), ranks: *ranks }),
            _ => Err(Diagnostic::new(Code::BAD_MESH, "a plan's mesh must have one axis")),
        }
    }

    /// The decisions of the plan on the graph that it is for, in canonical form. Fails where it is for another graph.
    pub fn assignment(&self, graph: &Graph, fingerprint: Fingerprint) -> Result<Assignment> {
        let foreign = |what: String| {
            Diagnostic::new(Code::FOREIGN_PLAN, "the plan is for another training step")
                .because(what)
                .hint("plan again: the model, the batch or the version of PyTorch has changed")
        };
        if self.graph != fingerprint {
            return Err(foreign(format!("its graph is {}, this step's is {fingerprint}", self.graph)));
        }
        let space = Space::new(graph, self.axis()?.ranks);
        let mut assignment = Assignment::default();
        for (id, input) in graph.inputs.iter() {
            let placement = self.inputs.get(&input.name).copied().unwrap_or(Placement::Replicate);
            if let Placement::Shard { dim, blocks } = placement
                && !space.offers[input.value].contains(&(dim, blocks))
            {
                return Err(foreign(format!("`{}` cannot be `{placement}`", input.name)));
            }
            assignment.inputs.insert(id, placement);
        }
        for (position, id) in graph.order.iter().enumerate() {
            let strategies = space.strategies(*id);
            let Some(wanted) = self.nodes.get(&position.to_string()) else { continue };
            let found = strategies.iter().find(|s| text_of(graph, *id, s) == *wanted);
            let found =
                found.ok_or_else(|| foreign(format!("operation {position} cannot run as `{wanted}`")))?;
            assignment.nodes.insert(*id, found.clone());
        }
        for (key, placement) in &self.kept {
            let (value, part) = parse_kept(key).ok_or_else(|| foreign(format!("`{key}` names no value")))?;
            assignment.kept.insert((value, part), *placement);
        }
        Ok(assignment)
    }
}

fn strategy_text(graph: &Graph, id: NodeId, assignment: &Assignment) -> Option<String> {
    let strategy = assignment.nodes.get(&id)?;
    let replicated = aten::replicated(&Call::new(graph, id));
    (*strategy != replicated).then(|| text_of(graph, id, strategy))
}

fn text_of(graph: &Graph, id: NodeId, strategy: &aten::Strategy) -> String {
    let list =
        |placements: &[Placement]| placements.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("{}: {} -> {}", graph.op_name(id), list(&strategy.operands), list(&strategy.results))
}

fn parse_kept(key: &str) -> Option<(ValueId, PartId)> {
    let (value, part) = key.split_once('.')?;
    Some((ValueId(value.parse().ok()?), PartId(part.parse().ok()?)))
}
