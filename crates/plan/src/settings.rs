//! What is asked of the planner, as settings.

use base::{Code, Diagnostic, Result, unknown_name_hint};
use cluster::Cluster;
use indexmap::IndexMap;
use ir::{Dtype, Mesh, STAGES};
use serde::{Deserialize, Serialize};
use shard::stages::StageSet;

use crate::{
    effort::Effort,
    forbidden::{self, Forbid},
    meshes::{meshes, steered},
    pins::Pins,
    plan::mesh_of,
    run::{Offloading, Recomputation},
    stages::Cut,
    wish::ScheduleWish,
};

/// What is asked of the planner, as settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSettings {
    /// The mesh: names of its axes with their sizes, the outer axis first. Without any, it is searched for.
    #[serde(default)]
    pub mesh: IndexMap<String, u32>,
    /// How many ranks there are, where the mesh is searched for.
    #[serde(default)]
    pub ranks: Option<u32>,
    /// How many pipeline stages it has, where the mesh is searched for; as many as are fastest where it is not said.
    #[serde(default)]
    pub stages: Option<u32>,
    /// How many micro-batches each rank computes one after the other. Unless it is said, the whole batch at once, or as many as keep the
    /// memory limit or are faster under it.
    #[serde(default)]
    pub micro_batches: Option<u32>,
    /// Most bytes of one rank.
    #[serde(default)]
    pub memory_limit: Option<u64>,
    /// Demanded placements by axis, by name pattern of inputs, or of modules whose outputs they are for.
    #[serde(default)]
    pub pins: Pins,
    /// Kinds of collectives that the plan does without, by axis.
    #[serde(default)]
    pub forbid: Forbid,
    /// How much the search tries.
    #[serde(default)]
    pub effort: Effort,
    /// What of forward is made again in backward: nothing, all that can be, or, unless it is said, what a memory limit needs.
    #[serde(default)]
    pub recompute: Option<Recomputation>,
    /// The element type in which gradients are summed between ranks; their own unless it is said.
    #[serde(default)]
    pub reduce_dtype: Option<Dtype>,
    /// What is on the host while the device does not need it: nothing, what a memory limit needs of what forward leaves, or all of it. Unless it is
    /// said, what a memory limit needs where the cluster has a link to the host.
    #[serde(default)]
    pub offload: Option<Offloading>,
    /// In which order pipeline stages run their micro-batches; the best one where it is not said.
    #[serde(default)]
    pub schedule: Option<ScheduleWish>,
    /// Whether groups of operations run as kernels.
    #[serde(default)]
    pub fuse: bool,
    /// The element types of 16 bits whose products kernels compute in `f32`, because ranks are processors without instructions for them.
    #[serde(default)]
    pub narrow: Vec<Dtype>,
    /// How many chunks of the program each pipeline stage has; what suits the schedule where it is not said.
    #[serde(default)]
    pub chunks: Option<u32>,
    /// Where pipeline stages begin, one for each chunk but the first; where the slowest takes least if it is not said.
    #[serde(default)]
    pub cuts: Option<Vec<Cut>>,
}

impl PlanSettings {
    /// The limit that plans keep: the given one, or all memory of a device that is known from a preset or a description with a network.
    /// Where this machine was measured, other processes share its memory, and nothing is limited unless it is said.
    pub fn memory_limit(&self, cluster: &Cluster) -> Option<u64> {
        self.memory_limit.or_else(|| cluster.ranks().map(|_| cluster.device.memory_bytes))
    }

    /// Refuses a mesh that is none, or that does not suit the cluster or the number of ranks.
    pub fn check(&self, cluster: &Cluster) -> Result<()> {
        let mesh = self.mesh();
        mesh.check()?;
        forbidden::check(&self.forbid, self.searched_ranks().is_none().then_some(&mesh))?;
        if let Some(held) = cluster.ranks().filter(|&held| held < mesh.ranks()) {
            let message = format!("a mesh of {} ranks on a cluster of {held}", mesh.ranks());
            let hint = "describe a larger cluster, or use fewer ranks";
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint(hint));
        }
        if mesh.stages() > 1 && !cluster.kinds.is_empty() {
            let message = format!("pipeline stages on several kinds of devices: {}", cluster.device.name);
            let hint = "use a mesh without stages, or describe a cluster of one kind";
            let cause = "stages are cut, and their times predicted, as if all ran on one kind";
            return Err(Diagnostic::new(Code::BAD_MESH, message).because(cause).hint(hint));
        }
        if let Some(ranks) = self.ranks.filter(|&ranks| ranks != mesh.ranks()) {
            let message = format!("the mesh has {} ranks, not {ranks}", mesh.ranks());
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint("say one of them"));
        }
        self.check_searched()?;
        let stages = self.stages.unwrap_or_else(|| mesh.stages());
        if stages == 1 && (self.schedule.is_some() || self.chunks.is_some() || self.cuts.is_some()) {
            let message = "a schedule, chunks or cuts of pipeline stages, and one stage";
            let hint = format!("give the mesh an axis `{STAGES}`, or leave them out");
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint(hint));
        }
        Ok(())
    }

    /// Refuses stages, pins and forbidden collectives that no mesh has room for which is searched for.
    fn check_searched(&self) -> Result<()> {
        let Some(ranks) = self.searched_ranks() else {
            if self.stages.is_none() {
                return Ok(());
            }
            let hint = format!("give the mesh an axis `{STAGES}`, or no mesh");
            return Err(
                Diagnostic::new(Code::BAD_MESH, "stages beside a mesh that says them itself").hint(hint)
            );
        };
        let divides = |stages: &u32| (1..=StageSet::MOST).contains(stages) && ranks.is_multiple_of(*stages);
        if let Some(stages) = self.stages.filter(|stages| !divides(stages)) {
            let message = format!("{ranks} ranks in {stages} stages");
            let hint = format!("use stages that divide the ranks, {} at most", StageSet::MOST);
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint(hint));
        }
        let named = steered(&self.pins, &self.forbid);
        let within = ranks / self.stages.unwrap_or(1);
        if meshes(within, None).iter().any(|mesh| named.iter().all(|name| mesh.axis(name).is_some())) {
            return Ok(());
        }
        let names: Vec<String> = named.iter().map(|name| format!("`{name}`")).collect();
        let what = if names.len() == 1 { "an axis" } else { "axes" };
        let message = format!(
            "a pin, or `forbid`, names {what} {} that no mesh of {within} ranks has, of those that are searched for",
            names.join(" and ")
        );
        let names = ["ranks", "outer", "inner"];
        let hint = named.iter().find(|name| !names.contains(name)).map_or_else(
            || "meshes have one axis `ranks`, or two, `outer` and `inner`; or give the mesh".to_owned(),
            |unknown| unknown_name_hint(unknown, names),
        );
        Err(Diagnostic::new(Code::BAD_PIN, message).hint(hint))
    }

    /// How many ranks there are, where the mesh is searched for.
    pub fn searched_ranks(&self) -> Option<u32> {
        self.ranks.filter(|_| self.mesh.is_empty())
    }

    /// The mesh; of one axis where it is searched for.
    pub fn mesh(&self) -> Mesh {
        self.mesh_of(self.micro_batches.unwrap_or(1))
    }

    /// The mesh with so many micro-batches.
    pub fn mesh_of(&self, micro_batches: u32) -> Mesh {
        match self.searched_ranks() {
            Some(ranks) => mesh_of(&IndexMap::from([("ranks".to_owned(), ranks)]), micro_batches),
            None => mesh_of(&self.mesh, micro_batches),
        }
    }
}
