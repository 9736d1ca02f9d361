//! Plans: what was decided, as a small text file that can be read, kept and run again.

use std::{borrow::Cow, collections::BTreeMap};

use base::{Code, Diagnostic, Fingerprint, Result};
use indexmap::IndexMap;
use ir::{AxisKind, Dtype, Graph, Mesh, MeshAxis, Placement, RankGraph};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use shard::{Assignment, partition_mesh, partition_mesh_in_part};

use crate::{
    divides::space,
    on_axes::{OnAxis, on_axes},
    pins::Pins,
    stages::Stages,
    text::{Decisions, decoded, encoded, inputs::Layouts},
};

pub use crate::prediction::Prediction;

/// The version of the text form.
const VERSION: u32 = 4;

/// Another plan that was considered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunnerUp {
    /// What it is, in the field's words.
    pub name: String,
    /// Its predicted time, in nanoseconds.
    pub step_ns: i64,
    /// Its predicted memory, in bytes.
    pub peak_bytes: u64,
    /// What of the time is waiting for collectives, in nanoseconds; none in plans of before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposed_ns: Option<i64>,
    /// Whether it is within the memory limit.
    #[serde(default = "yes")]
    pub fits: bool,
    /// Pins that demand its placements.
    #[serde(default)]
    pub pins: Pins,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

const fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// A plan: a mesh, and what is decided along each of its axes, the outer one first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The version of the text form.
    pub version: u32,
    /// The graph that it is for.
    pub graph: Fingerprint,
    /// The cluster that it was made for.
    pub cluster: Fingerprint,
    /// What it is, in the field's words.
    pub label: String,
    /// What limits it, in a sentence.
    pub limit: String,
    /// Axes of which no dimension of a matrix product or the like is a multiple.
    #[serde(default)]
    pub undivided: Vec<String>,
    /// The mesh.
    pub mesh: IndexMap<String, u32>,
    /// How many micro-batches each rank computes one after the other.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub micro_batches: u32,
    /// How the program is taken apart into pipeline stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<Stages>,
    /// The expected cost.
    pub prediction: Prediction,
    /// Other plans that were considered, best first.
    pub runners_up: Vec<RunnerUp>,
    /// Operators that run replicated because the operation table has no row for them, with their number.
    pub without_row: BTreeMap<String, u32>,
    /// What each of them takes on every rank at least, all its calls together.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub without_row_ns: BTreeMap<String, i64>,
    /// How collectives are put into buckets and started ahead.
    #[serde(default)]
    pub passes: passes::Settings,
    /// Whether groups of operations were predicted as kernels.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kernels: bool,
    /// The element types of 16 bits whose products were predicted in `f32`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub narrow: Vec<Dtype>,
    /// Inputs that are not replicated: a placement for each axis along which they are not.
    #[serde(with = "crate::text::inputs")]
    pub inputs: Layouts,
    /// Decisions by axis.
    pub axes: IndexMap<String, Decisions>,
}

impl Plan {
    /// The plan that assignments along the axes of a mesh are, for a graph in canonical form.
    pub fn new(
        graph: &Graph,
        fingerprints: (Fingerprint, Fingerprint),
        mesh: &Mesh,
        assignments: &[Assignment],
    ) -> Result<Self> {
        Ok(Self::of(&on_axes(graph, mesh, assignments)?, fingerprints, mesh))
    }

    /// The plan that is decided along the axes of a mesh.
    pub fn of(decided: &[OnAxis<'_>], fingerprints: (Fingerprint, Fingerprint), mesh: &Mesh) -> Self {
        let ranks = mesh.axes.iter().filter(|axis| axis.kind != AxisKind::Time);
        let mut plan = Self {
            version: VERSION,
            graph: fingerprints.0,
            cluster: fingerprints.1,
            label: String::new(),
            limit: String::new(),
            undivided: Vec::new(),
            mesh: ranks.map(|axis| (axis.name.clone(), axis.size)).collect(),
            micro_batches: mesh.micro_batches(),
            stages: None,
            prediction: Prediction::default(),
            runners_up: Vec::new(),
            without_row: BTreeMap::new(),
            without_row_ns: BTreeMap::new(),
            passes: passes::Settings::default(),
            kernels: false,
            narrow: Vec::new(),
            inputs: BTreeMap::new(),
            axes: IndexMap::new(),
        };
        for one in decided {
            plan.decide(one);
        }
        plan
    }

    /// Notes what is decided along an axis.
    fn decide(&mut self, one: &OnAxis<'_>) {
        let OnAxis { axis, graph, space, decided } = one;
        for (id, input) in graph.inputs.iter() {
            let placement = decided.inputs.get(&id).copied().unwrap_or(Placement::Replicate);
            if placement != Placement::Replicate {
                self.inputs.entry(input.name.clone()).or_default().insert(axis.name.clone(), placement);
            }
        }
        self.axes.insert(axis.name.clone(), encoded(graph, space, decided));
    }

    /// The text form.
    pub fn text(&self) -> String {
        let header =
            "# A Unisono plan: which rank holds and computes what. `unisono explain` prints it for people.\n";
        format!("{header}{}", toml::to_string(self).expect("a plan has no keys that TOML lacks"))
    }

    /// Reads the text form. `file` is what diagnostics call it.
    pub fn parse(text: &str, file: &str) -> Result<Self> {
        // Of another version the rest may be anything.
        if let Ok(Version { version }) = toml::from_str(text)
            && version != VERSION
        {
            let message = format!("a plan of version {version}, not {VERSION}");
            return Err(Diagnostic::new(Code::OTHER_VERSION, message).at_line(file, 0, 0).hint("plan again"));
        }
        let plan: Self = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            base::malformed(Code::BAD_TEXT, "a plan", (text, file), error.message(), offset)
        })?;
        for (axis, direct) in &plan.passes.direct {
            let size = plan.mesh.get(axis).copied();
            if size != Some(direct.ranks) {
                let there = match size {
                    Some(size) => format!("which has {size} in the plan"),
                    None => "an axis that the plan does not have".to_owned(),
                };
                let message =
                    format!("direct collectives for {} ranks along `{axis}`, {there}", direct.ranks);
                let hint = match size {
                    Some(size) => {
                        format!("write `ranks = {size}` under `passes.direct.{axis}`, or take it out")
                    }
                    None => format!("take `passes.direct.{axis}` out"),
                };
                return Err(Diagnostic::new(Code::BAD_TEXT, message).at_line(file, 0, 0).hint(hint));
            }
        }
        plan.mesh().check()?;
        if let Some(stages) = &plan.stages {
            stages.check_on_host().map_err(|wrong| wrong.at_line(file, 0, 0))?;
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
        if self.micro_batches != 1 {
            print.number(u64::from(self.micro_batches));
        }
        print.part(toml::to_string(&self.passes).expect("settings have no keys that TOML lacks").as_bytes());
        if let Some(stages @ Stages { schedule, chunks, actions, cuts, recompute, .. }) = &self.stages {
            print.part(schedule.to_string().as_bytes());
            if *chunks != 1 {
                print.number(u64::from(*chunks));
            }
            for row in actions {
                print.part(row.as_bytes());
            }
            for cut in cuts {
                print.number(*cut as u64);
            }
            if !recompute.is_empty() {
                print.part(recompute.to_string().as_bytes());
            }
            for stays in &stages.offload {
                print.part(b"offload").part(stays.to_string().as_bytes());
            }
            for pieces in &stages.host_state {
                print.part(b"state").part(pieces.to_string().as_bytes());
            }
        }
        for (name, layout) in &self.inputs {
            print.part(name.as_bytes());
            for (axis, placement) in layout {
                print.part(axis.as_bytes()).part(placement.to_string().as_bytes());
            }
        }
        for (axis, decisions) in &self.axes {
            print.part(axis.as_bytes());
            print
                .part(toml::to_string(decisions).expect("decisions have no keys that TOML lacks").as_bytes());
        }
        print.finish()
    }

    /// The settings of the passes for the program of a rank: stages have different things on the host.
    pub fn passes_of(&self, rank: u32) -> Cow<'_, passes::Settings> {
        let mesh = self.mesh();
        let on_host = self
            .stages
            .as_ref()
            .zip(mesh.stage_axis())
            .map(|(stages, (number, _))| stages.on_host(mesh.coordinate(rank, number) as usize));
        match on_host.filter(|on_host| !on_host.is_nothing()) {
            Some(on_host) => Cow::Owned(on_host.settings(&self.passes)),
            None => Cow::Borrowed(&self.passes),
        }
    }

    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        mesh_of(&self.mesh, self.micro_batches)
    }

    /// The graph that a rank runs: `graph`, the step that the plan is for in canonical form, along each axis as decided. Fails where the
    /// plan is for another step.
    pub fn partition(&self, graph: &Graph, fingerprint: Fingerprint, rank: u32) -> Result<RankGraph> {
        self.check_graph(fingerprint)?;
        let mesh = self.mesh();
        if rank >= mesh.ranks() {
            let message = format!("a plan for {} ranks has no rank {rank}", mesh.ranks());
            return Err(Diagnostic::new(Code::FOREIGN_PLAN, message)
                .hint("start as many processes as the plan has ranks"));
        }
        partition_mesh(graph, &mesh, rank, |graph, axis| self.assignment(graph, axis))
    }

    /// The graph of the first rank with the first `micro_batches` alone; none where these do not say what all take.
    pub fn partition_in_part(
        &self,
        graph: &Graph,
        fingerprint: Fingerprint,
        micro_batches: u32,
    ) -> Result<Option<RankGraph>> {
        self.check_graph(fingerprint)?;
        let decide = |graph: &Graph, axis: &MeshAxis| self.assignment(graph, axis);
        partition_mesh_in_part(graph, &self.mesh(), (0, micro_batches), decide)
    }

    fn check_graph(&self, fingerprint: Fingerprint) -> Result<()> {
        if self.graph == fingerprint {
            return Ok(());
        }
        Err(foreign(&format!("its graph is {}, this step's is {fingerprint}", self.graph)))
    }

    /// The decisions along an axis, on the graph that the axes outside it leave.
    fn assignment(&self, graph: &Graph, axis: &MeshAxis) -> Result<Assignment> {
        let space = space(graph, &self.mesh(), axis);
        let mut inputs = FxHashMap::default();
        for (id, input) in graph.inputs.iter() {
            let placement = self.inputs.get(&input.name).and_then(|layout| layout.get(&axis.name));
            let placement = placement.copied().unwrap_or(Placement::Replicate);
            if matches!(placement, Placement::Shard { .. }) && !space.offers[input.value].contains(&placement)
            {
                return Err(foreign(&format!(
                    "`{}` cannot be `{placement}` along `{}`",
                    input.name, axis.name
                )));
            }
            inputs.insert(id, placement);
        }
        let none = Decisions::default();
        decoded(self.axes.get(&axis.name).unwrap_or(&none), graph, &space, inputs).map_err(|what| {
            Diagnostic::new(Code::FOREIGN_PLAN, "the plan's lines do not suit this training step")
                .because(format!("along `{}` {what}", axis.name))
                .hint("mend the line, or plan again")
        })
    }
}

/// A mesh of axes of ranks, with one of micro-batches behind them if there are several.
pub fn mesh_of(ranks: &IndexMap<String, u32>, micro_batches: u32) -> Mesh {
    let axes = ranks.iter().map(|(name, size)| MeshAxis::ranks(name, *size));
    let time = (micro_batches != 1).then(|| MeshAxis::micro_batches(micro_batches));
    Mesh { axes: axes.chain(time).collect() }
}

fn foreign(what: &str) -> Box<Diagnostic> {
    Diagnostic::new(Code::FOREIGN_PLAN, "the plan is for another training step")
        .because(what)
        .hint("plan again: the model, the batch or the version of PyTorch has changed")
}
