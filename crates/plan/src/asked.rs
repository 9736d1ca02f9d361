//! What is asked of the planner for a captured step: the plan without stages, in stages, and with the micro-batches that a memory limit asks for.

use std::{cell::OnceCell, collections::BTreeSet};

use base::{Code, Diagnostic, Result};
use cluster::Cluster;
use ir::{Graph, Mesh, STAGES};
use shard::canonical;

use crate::{
    divides::{nearest_slices, require_slices, slices},
    effort::Effort,
    meshes::{Candidate, Prospect, prospect, search_meshes, suiting},
    pipelines::{InStages, search_stages},
    plan::{Plan, Prediction},
    run::{Request, Telling},
    search::search,
    settings::PlanSettings,
    shorter::Shorter,
    stage_counts::{Sought, faster_in_stages},
    suits::if_it_suits,
    wish::Wanted,
};

/// How many micro-batches are tried where the whole batch at once does not keep the memory limit, or only in more time.
const TRIED: [u32; 6] = [2, 4, 8, 16, 32, 64];

/// Programs of more nodes are not tried: all slices are written out.
const MOST_NODES: usize = 1 << 17;

/// For steps of more nodes, times axes, only those numbers of micro-batches are searched that promise most: to find what of forward to run again, or to
/// have on the host, takes several times as long as all else.
const MOST_WEIGHED: usize = 2_000;

/// So many of them.
const MOST_KEPT: usize = 2;

/// Micro-batches are not weighed against what takes less than one part in so many of a step.
const WORTH_WEIGHING: i64 = 50;

/// What is asked of the planner.
pub struct Asked<'a> {
    /// The step as it was captured.
    pub graph: &'a Graph,
    /// The same without what nothing needs.
    pub cleaned: &'a Graph,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The settings.
    pub settings: &'a PlanSettings,
    /// The step with fewer of its layers, once that is asked for.
    pub shorter: &'a OnceCell<Option<Shorter>>,
    /// What hears where the search is.
    pub telling: Option<Telling<'a>>,
}

impl Asked<'_> {
    /// The plan; `told` hears what quick searches predict for the meshes, where it is searched for.
    pub fn plan(&self, told: impl FnOnce(&[Candidate])) -> Result<Plan> {
        let PlanSettings { stages, effort, .. } = self.settings;
        match (self.settings.searched_ranks(), stages) {
            (Some(ranks), Some(stages)) if *stages > 1 => self.in_so_many_stages(ranks, *stages),
            (Some(_), None) if *effort == Effort::Full => self.or_in_stages(self.in_one_piece(told)),
            _ if self.settings.mesh().stages() > 1 => self.in_stages(),
            _ => self.in_one_piece(told),
        }
    }

    /// The plan without stages.
    fn in_one_piece(&self, told: impl FnOnce(&[Candidate])) -> Result<Plan> {
        let PlanSettings { micro_batches, effort, recompute, .. } = self.settings;
        let mut seen = Vec::new();
        let found = self.planned((micro_batches.unwrap_or(1), *effort), |candidates| {
            seen = candidates.to_vec();
            told(candidates);
        });
        if let Some(count) = micro_batches {
            return found.map_err(|refused| self.said_with_slices(refused, *count));
        }
        let found = match found {
            Err(refused) if refused.code == Code::NO_PLAN => {
                if self.is_large()
                    && let Some(promising) = self.in_slices(None, &[])?
                {
                    return Ok(promising);
                }
                let fewest = self.sliced((1, *effort)).next();
                fewest.map_or(Err(refused), |sliced| sliced.map(|(_, plan)| plan))
            }
            other => other,
        }?;
        // Slices may be faster than to run parts of forward twice.
        let takes_time = found.prediction.holding_less_ns() > found.prediction.step_ns / WORTH_WEIGHING;
        if takes_time && recompute.is_none() { self.weighed(found, &seen) } else { Ok(found) }
    }

    /// The error of a limit that no plan keeps, with the number of micro-batches with which all ranks can shard the batch, where this one is too large for that.
    fn said_with_slices(&self, refused: Box<Diagnostic>, micro_batches: u32) -> Box<Diagnostic> {
        let (graph, ranks) = (canonical(self.cleaned), self.settings.mesh().ranks());
        let divide = |count: u32| slices(&graph, count * ranks);
        if refused.code != Code::NO_PLAN || micro_batches == 1 || divide(micro_batches) {
            return refused;
        }
        let Some(fewer) = (1..micro_batches).rev().find(|count| divide(*count)) else { return refused };
        let cause = refused.cause.clone().unwrap_or_default();
        let slices = format!("{ranks} ranks cannot shard the batch in {micro_batches} slices");
        refused.because(format!("{cause}; {slices}")).hint(format!(
            "use {fewer} micro-batches, with which they can; or more ranks, a smaller batch, or a higher memory limit"
        ))
    }

    /// Whether a search for what may be held less takes long.
    fn is_large(&self) -> bool {
        self.cleaned.order.len() * self.settings.mesh().sharding_axes().count().max(1) > MOST_WEIGHED
    }

    /// The error of a limit that no plan keeps, with what would where memory of the host is all that is missing.
    pub fn said_with_host(&self, refused: Box<Diagnostic>) -> Box<Diagnostic> {
        let device = &self.cluster.device;
        let on_device =
            self.graph.inputs.values().any(|input| !self.graph.ty(input.value).device.kind.is_cpu());
        let is_apart = on_device || self.cluster.ranks().is_some();
        let may_help = device.host_bandwidth.is_none() || device.host_memory_bytes.is_some();
        if refused.code != Code::NO_PLAN || self.settings.offload.is_some() || !is_apart || !may_help {
            return refused;
        }
        let mut larger = self.cluster.clone();
        larger.device.host_bandwidth.get_or_insert(device.memory_bandwidth);
        larger.device.host_memory_bytes = None;
        let settings = PlanSettings { effort: Effort::Quick, ..self.settings.clone() };
        let asked = Asked { cluster: &larger, settings: &settings, ..*self };
        let Ok(plan) = asked.plan(|_| {}) else { return refused };
        let Prediction { peak_bytes, host_bytes, .. } = plan.prediction;
        let given =
            device.host_memory_bytes.map_or("none is given".to_owned(), |given| format!("{given} are given"));
        let cause = refused.cause.clone().unwrap_or_default();
        refused
            .because(format!(
                "{cause}; a plan with {host_bytes} bytes of memory of the host needs {peak_bytes} per rank, but {given}"
            ))
            .hint(
                "say what the host has in the cluster description: `host_bandwidth`, `host_latency_ns` and `host_memory_bytes` of the device; \
                 or use more ranks, a smaller batch, or a higher memory limit",
            )
    }

    /// The plan on a mesh that is searched for, or one in pipeline stages that is faster, or that keeps the limit where none does without.
    fn or_in_stages(&self, found: Result<Plan>) -> Result<Plan> {
        let settings = self.settings;
        let open = found.as_ref().map_or_else(|refused| refused.code == Code::NO_PLAN, |_| true);
        let (true, Some(ranks)) = (open && self.cluster.kinds.is_empty(), settings.ranks) else {
            return found;
        };
        let mesh = settings.mesh_of(1);
        let known = found.as_ref().ok();
        let sought =
            Sought { ranks, stages: None, micro_batches: settings.micro_batches, wanted: Wanted::default() };
        match faster_in_stages(&self.request(&mesh), sought, known)? {
            Some(faster) => Ok(faster),
            None => found,
        }
    }

    /// The plan with a number of micro-batches.
    fn planned(
        &self,
        (micro_batches, effort): (u32, Effort),
        told: impl FnOnce(&[Candidate]),
    ) -> Result<Plan> {
        let mesh = self.mesh_of(micro_batches)?;
        let request = Request { effort, ..self.request(&mesh) };
        match self.settings.searched_ranks() {
            Some(ranks) => search_meshes(&request, ranks, told),
            None => search(&request)?.plan(),
        }
    }

    /// The mesh with so many micro-batches; of one axis where it is searched for.
    fn mesh_of(&self, micro_batches: u32) -> Result<Mesh> {
        let mesh = self.settings.mesh_of(micro_batches);
        if let Some(axis) = mesh.time_axis() {
            require_slices(&canonical(self.cleaned), axis)?;
        }
        Ok(mesh)
    }

    fn request<'a>(&'a self, mesh: &'a Mesh) -> Request<'a> {
        // A search along a single axis is of the whole step.
        let is_single = self.settings.searched_ranks().is_none() && mesh.axes.len() == 1;
        let shorter = || self.shorter.get_or_init(|| Shorter::of(&canonical(self.cleaned))).as_ref();
        Request {
            graph: self.cleaned,
            captured: self.graph,
            shorter: if is_single { None } else { shorter() },
            expected: None,
            cluster: self.cluster,
            mesh,
            memory_limit: self.settings.memory_limit(self.cluster),
            pins: &self.settings.pins,
            forbid: &self.settings.forbid,
            effort: self.settings.effort,
            recompute: self.settings.recompute,
            reduce_dtype: self.settings.reduce_dtype,
            offload: self.settings.offload,
            known_ns: None,
            elsewhere: None,
            telling: self.telling,
        }
    }

    /// The plan in so many pipeline stages, on a mesh that is searched for.
    fn in_so_many_stages(&self, ranks: u32, stages: u32) -> Result<Plan> {
        let (wanted, micro_batches) = self.wanted()?;
        let mesh = self.settings.mesh_of(1);
        let request = self.request(&mesh);
        // The first mesh that suits, of one axis unless two are named, says what does not suit the step.
        let within = suiting(&request, ranks / stages, None).swap_remove(0);
        let axes = within.axes.into_iter().map(|axis| (axis.name, axis.size));
        let mesh = std::iter::once((STAGES.to_owned(), stages)).chain(axes).collect();
        let settings = PlanSettings { mesh, stages: None, ..self.settings.clone() };
        let on_first_mesh = || Asked { settings: &settings, ..*self }.in_stages();
        let sought = Sought { ranks, stages: Some(stages), micro_batches, wanted };
        if self.is_large() {
            return faster_in_stages(&request, sought, None)?.map_or_else(on_first_mesh, Ok);
        }
        let found = on_first_mesh();
        let known = if_it_suits(found.as_ref().map_err(Clone::clone))?;
        faster_in_stages(&request, sought, known)?.map_or(found, Ok)
    }

    /// What is asked of pipeline stages, and the number of micro-batches where it or their schedule says it.
    fn wanted(&self) -> Result<(Wanted<'_>, Option<u32>)> {
        let PlanSettings { schedule, chunks, cuts, micro_batches, .. } = self.settings;
        let (schedule, cuts) = (schedule.as_ref(), cuts.as_deref());
        let wanted = Wanted { schedule, chunks: *chunks, cuts, faster_than_ns: None };
        let scheduled = if micro_batches.is_some() { *micro_batches } else { wanted.micro_batches()? };
        Ok((wanted, scheduled))
    }

    /// The plan with pipeline stages: with the micro-batches that are asked for, or the best of once, twice and four times as many as stages, or of what is
    /// nearest to these as the batch can be sliced.
    fn in_stages(&self) -> Result<Plan> {
        let (wanted, micro_batches) = self.wanted()?;
        let faster = |count: u32, faster_than_ns: Option<i64>| {
            let mesh = self.mesh_of(count)?;
            let found = search_stages(&self.request(&mesh), Wanted { faster_than_ns, ..wanted })?;
            Ok(if let InStages::Plan(plan) = found { Some(*plan) } else { None })
        };
        let of = |count: u32| {
            faster(count, None)?.ok_or_else(|| Diagnostic::bug("a plan in stages is slower than none"))
        };
        if let Some(count) = micro_batches {
            return of(count);
        }
        let (stages, graph) = (self.settings.mesh().stages(), canonical(self.cleaned));
        let counts = [1, 2, 4].map(|times| nearest_slices(&graph, times * stages));
        let mut best: Option<Plan> = None;
        for count in BTreeSet::from(counts).into_iter().flatten().filter(|count| self.is_written_out(*count))
        {
            let known = best.as_ref().map(|plan| plan.prediction.step_ns);
            best = if_it_suits(faster(count, known))?.flatten().or(best);
        }
        best.map_or_else(|| of(1), Ok)
    }

    /// The numbers of micro-batches that are tried, from more than so many on.
    fn counts(&self, from: u32) -> impl Iterator<Item = u32> {
        TRIED.into_iter().filter(move |count| *count > from && self.is_written_out(*count))
    }

    /// Whether a program of so many micro-batches is small enough to be tried.
    fn is_written_out(&self, micro_batches: u32) -> bool {
        self.cleaned.order.len() * micro_batches as usize <= MOST_NODES
    }

    /// Plans with more and more micro-batches that keep the memory limit, from more than so many on.
    fn sliced(&self, (from, effort): (u32, Effort)) -> impl Iterator<Item = Result<(u32, Plan)>> {
        self.counts(from).filter_map(move |count| {
            let planned = if_it_suits(self.planned((count, effort), |_| {})).transpose()?;
            Some(planned.map(|plan| (count, plan)))
        })
    }

    /// The plan with as many micro-batches as quick searches promise most of, if that is faster than what is known. No more are tried than those with which
    /// all of what forward leaves can be held, and no meshes on which the whole batch at once was not `seen` to be faster.
    fn in_slices(&self, known: Option<&Plan>, seen: &[Candidate]) -> Result<Option<Plan>> {
        let known_ns = known.map(|plan| plan.prediction.step_ns);
        let mut sliced = Vec::new();
        for count in self.counts(known.map_or(1, |plan| plan.micro_batches)) {
            let Some(mesh) = if_it_suits(self.mesh_of(count))? else { continue };
            let mut meshes = match self.settings.searched_ranks() {
                Some(ranks) => suiting(&self.request(&mesh), ranks, mesh.time_axis()),
                None => vec![mesh],
            };
            let known_ns = known_ns.unwrap_or(i64::MAX);
            meshes.retain(|mesh| seen.iter().all(|one| one.may_be_faster_on(mesh, known_ns)));
            if meshes.is_empty() {
                break;
            }
            sliced.push(meshes);
        }
        let mut promises = Vec::new();
        for on in &sliced {
            let request = Request { known_ns, ..self.request(&on[0]) };
            match prospect(&request, on)? {
                Prospect::Promise(promise) => {
                    let is_last = promise.holds_all;
                    promises.push((request, promise));
                    if is_last {
                        break;
                    }
                }
                Prospect::Slower => break,
                Prospect::TooLarge => {}
            }
        }
        promises.sort_by_key(|(_, promise)| promise.step_ns);
        let mut best: Option<Plan> = None;
        for (request, promise) in promises.into_iter().take(MOST_KEPT) {
            let known_ns = best.as_ref().map_or(known_ns, |best| Some(best.prediction.step_ns));
            if known_ns.is_some_and(|known| known <= promise.step_ns) {
                break;
            }
            let plan = promise.kept(&Request { known_ns, ..request })?;
            best = [best, plan].into_iter().flatten().min_by_key(|plan| plan.prediction.step_ns);
        }
        Ok(best)
    }

    /// A plan that runs parts of forward again, or a faster one with micro-batches: of a large step those that promise most, of others those that are
    /// faster by a quick search, searched with all effort.
    fn weighed(&self, plan: Plan, seen: &[Candidate]) -> Result<Plan> {
        if self.is_large() {
            let sliced = self.in_slices(Some(&plan), seen)?;
            return Ok(faster(plan, sliced));
        }
        let from = (plan.micro_batches, Effort::Quick);
        let mut best = plan;
        for sliced in self.sliced(from) {
            let (count, sliced) = sliced?;
            // More slices than keep the limit by themselves only cost time.
            let is_enough = !sliced.prediction.holds_less();
            if sliced.prediction.step_ns < best.prediction.step_ns {
                let full = if_it_suits(self.planned((count, self.settings.effort), |_| {}))?;
                best = faster(sliced, full);
            }
            if is_enough {
                break;
            }
        }
        Ok(best)
    }
}

/// The faster of two plans, if there is another.
fn faster(plan: Plan, other: Option<Plan>) -> Plan {
    other.filter(|other| other.prediction.step_ns < plan.prediction.step_ns).unwrap_or(plan)
}
