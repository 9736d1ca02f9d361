//! How many pipeline stages a step is taken apart into, where the mesh is searched for.
//!
//! For each number of stages that divides the ranks a quick search along the other axes says what all stages compute together. Shared evenly,
//! and under the best of the named schedules for even chunks, that is the least that a pipeline can take. Of those that could be faster than what
//! is known, another quick search in their micro-batches says it more closely, and the most promising are searched with all effort.

use aten::Call;
use base::Result;
use cost::{Machine, local_time};
use ir::{Graph, Mesh, MeshAxis, STAGES};
use schedule::{Costs, Name};
use shard::{canonical, stages::StageSet};

use crate::{
    axis::PICOS_PER_NANO,
    divides::slices,
    folded::Folded,
    glance::{Glance, Outlook, extrapolated, glance_at_whole},
    meshes::{has_steered, meshes, samples},
    pipelines::{InStages, search_stages},
    plan::Plan,
    run::{Expected, Found, Offloading, Request},
    shorter::Shorter,
    suits::if_it_suits,
    wish::Wanted,
};

/// How much longer than what is known a quick search may say that a pipeline takes, in percent, for it to be tried further.
const NEAR: i64 = 10;
/// Maximum number of stages that is tried where none is asked for.
const MOST_TRIED: u32 = 64;

/// What is promised for two pipelines is kept alike but for this part of it.
const ALIKE: f64 = 0.06;

/// How many pipelines are searched in their micro-batches, with little effort.
const REFINED: usize = 6;

/// How many are searched with all effort.
const FINALISTS: usize = 2;

/// The same where nothing else keeps the memory limit.
const LAST_RESORTS: usize = 4;

/// At most so many micro-batches for each stage, where no number is asked for: more save little waiting.
const MOST_PER_STAGE: u32 = 4;

/// Programs of more nodes, all micro-batches counted, are not tried where no number is asked for.
const MOST_NODES: usize = 1 << 17;

/// What a step says of its batch, in canonical form with all its layers or fewer, and how many nodes it has with all.
struct Step<'a> {
    canonical: &'a Graph,
    nodes: usize,
    /// What all ranks compute together at the least: what one does that computes it all, in nanoseconds.
    computed_ns: i64,
    /// What is known to take less than this, in nanoseconds.
    least_ns: Option<i64>,
}

/// A pipeline with what it takes at the least.
struct Promise {
    mesh: Mesh,
    micro_batches: u32,
    step_ns: i64,
    /// What was found for few layers on it, the best first, where the step has layers.
    expected: Vec<Found>,
}

impl Promise {
    /// The mesh with its micro-batches.
    fn sliced(&self) -> Mesh {
        let time = (self.micro_batches > 1).then(|| MeshAxis::micro_batches(self.micro_batches));
        Mesh { axes: self.mesh.axes.iter().cloned().chain(time).collect() }
    }
}

/// The pipelines to choose among.
#[derive(Clone, Copy)]
pub struct Sought<'a> {
    /// How many ranks there are.
    pub ranks: u32,
    /// How many stages; any number that divides the ranks where it is not said.
    pub stages: Option<u32>,
    /// How many micro-batches; what suits the stages where it is not said.
    pub micro_batches: Option<u32>,
    /// What else is asked of them.
    pub wanted: Wanted<'a>,
}

impl Sought<'_> {
    /// The numbers of stages.
    fn counts(&self) -> impl Iterator<Item = u32> {
        let Self { ranks, stages, .. } = *self;
        let is_asked = move |count: &u32| stages.map_or(*count <= MOST_TRIED, |asked| asked == *count);
        (2..=ranks.min(StageSet::MOST)).filter(move |count| ranks.is_multiple_of(*count) && is_asked(count))
    }
}

/// The best of some pipelines that is faster than `known`, or the first within the memory limit where nothing is known. The mesh of the request does
/// not count. Pipelines that do not suit the step are passed over.
pub fn faster_in_stages(
    request: &Request<'_>,
    sought: Sought<'_>,
    known: Option<&Plan>,
) -> Result<Option<Plan>> {
    let ranks = sought.ranks;
    // Where the limit is kept without stages, nothing of them goes to the host unless that is asked for: it takes long to find.
    let without_stages = known.filter(|known| known.stages.is_none());
    let offload = request.offload.or(without_stages.map(|_| Offloading::None));
    let request = &Request { offload, ..*request };
    let whole = if request.shorter.is_none() { canonical(request.graph) } else { Graph::default() };
    let canonical = request.shorter.map_or(&whole, Shorter::graph);
    let mut least = known.map(|plan| plan.prediction.step_ns);
    let computed_ns = computed_ns(request, canonical);
    let step = Step { canonical, nodes: request.graph.order.len(), computed_ns, least_ns: least };
    let mut promises = Vec::new();
    for stages in sought.counts() {
        promises.extend(promised(request, &step, stages, &Mesh::along("ranks", ranks / stages), sought)?);
    }
    promises.sort_by_key(|promise| promise.step_ns);
    let most_promising = promises.first().filter(|promise| may_be_faster(promise.step_ns, least));
    if let Some(stages) = most_promising.map(|promise| promise.mesh.stages()) {
        let pairs = meshes(ranks / stages, None).into_iter().filter(|mesh| mesh.axes.len() > 1);
        for mesh in pairs {
            promises.extend(promised(request, &step, stages, &mesh, sought)?);
        }
        promises.sort_by_key(|promise| promise.step_ns);
    }
    promises.retain(|promise| may_be_faster(promise.step_ns, least));
    promises.truncate(REFINED);
    let tried = if known.is_some() { FINALISTS } else { LAST_RESORTS };
    let mut closer = refined_all(request, promises, (least, tried))?;
    closer.sort_by_key(|promise| promise.step_ns);
    let mut found = None;
    let mut kept = None;
    for promise in closer.into_iter().take(tried) {
        if !may_be_faster(promise.step_ns, least) || !may_be_faster_as(kept, &promise, least) {
            break;
        }
        let expected = Some(&promise.expected[..]).filter(|found| !found.is_empty());
        let sliced = promise.sliced();
        let asked = Request { mesh: &sliced, expected, ..*request };
        let wanted = Wanted { faster_than_ns: least, ..sought.wanted };
        let Some(in_stages) = if_it_suits(search_stages(&asked, wanted))? else { continue };
        let step_ns = in_stages.prediction().step_ns;
        kept = Some(step_ns as f64 / promise.step_ns as f64);
        if let InStages::Plan(plan) = in_stages {
            least = Some(step_ns);
            found = Some(*plan);
        }
    }
    Ok(found)
}

/// Whether a pipeline may take less than what is known: all effort finds better plans than the quick search that a promise comes from.
fn may_be_faster(promised_ns: i64, least: Option<i64>) -> bool {
    least.is_none_or(|least| promised_ns / (100 + NEAR) * 100 < least)
}

/// Whether a pipeline may take less than what is known where its promise is kept as another one was, which took so many times what was promised.
fn may_be_faster_as(kept: Option<f64>, promise: &Promise, least: Option<i64>) -> bool {
    let (Some(kept), Some(least)) = (kept, least) else { return true };
    promise.step_ns as f64 * kept * (1.0 - ALIKE) < least as f64
}

/// The same in their micro-batches, but for those that would take too long even if what is promised were kept as well as the best so far of
/// promises of no more micro-batches: what is gathered for each counts as often. Nor those that would take longer than as many others
/// as are `tried` with all effort.
fn refined_all(
    request: &Request<'_>,
    promises: Vec<Promise>,
    (least, tried): (Option<i64>, usize),
) -> Result<Vec<Promise>> {
    let mut closer: Vec<Promise> = Vec::new();
    let mut kept: Vec<(u32, f64)> = Vec::new();
    for promise in promises {
        let (promised, count) = (promise.step_ns as f64, promise.micro_batches);
        let of_no_more = kept.iter().filter(|(known, _)| *known <= count).map(|(_, kept)| *kept);
        let hoped = promised * of_no_more.reduce(f64::min).unwrap_or(1.0);
        let ahead = closer.iter().filter(|known| (known.step_ns as f64) < hoped * (1.0 - ALIKE)).count();
        if ahead < tried && may_be_faster(hoped as i64, least) {
            let refined = refined(request, promise, least)?;
            kept.push((count, refined.step_ns as f64 / promised));
            closer.push(refined);
        }
    }
    Ok(closer)
}

/// What a pipeline takes at the least where its step is searched in its micro-batches: slices may not be sharded as the whole batch is, and what
/// is gathered for each counts as often.
fn refined(request: &Request<'_>, promise: Promise, least: Option<i64>) -> Result<Promise> {
    let stages = promise.mesh.stages();
    // All effort may keep a memory limit that a quick search does not.
    let (sliced, stretch) = (promise.sliced(), stretch(stages, promise.micro_batches));
    let Some(all) = together(request, &sliced, (least, stretch))? else { return Ok(promise) };
    let step_ns = stretched(all.step_ns, stages, stretch);
    Ok(Promise { step_ns, expected: all.expected, ..promise })
}

/// What all stages take together.
struct Together {
    /// The time of a step, in nanoseconds.
    step_ns: i64,
    /// What was found for few layers, the best first, where the step has layers.
    expected: Vec<Found>,
}

/// What a quick search predicts for all stages together, in the memory of all of them. Where they take longer, even beyond the limit, than what is known
/// to take `least` for stages that wait so much, nothing closer is looked for.
fn together(
    request: &Request<'_>,
    mesh: &Mesh,
    (least, stretch): (Option<i64>, f64),
) -> Result<Option<Together>> {
    let stages = mesh.stages();
    let memory_limit = request.memory_limit.map(|limit| limit.saturating_mul(u64::from(stages)));
    let most = |least: i64| (least as f64 / stretch * f64::from(stages)) as i64 / 100 * (100 + NEAR);
    let elsewhere = least.map(|least| Expected { step_ns: most(least), byte_price: 0.0 });
    let request = Request { mesh, memory_limit, elsewhere, ..*request };
    match extrapolated(&request) {
        Some(Outlook { glance: Some(Glance { prediction, expected, .. }), .. }) => {
            Ok(Some(Together { step_ns: prediction.step_ns, expected }))
        }
        Some(Outlook { least_ns, .. }) if elsewhere.is_some_and(|most| least_ns >= most.step_ns) => {
            Ok(Some(Together { step_ns: least_ns, expected: Vec::new() }))
        }
        Some(_) | None => {
            let whole = if_it_suits(glance_at_whole(&Request { elsewhere: None, ..request }))?;
            Ok(whole.map(|one| Together { step_ns: one.prediction.step_ns, expected: one.expected }))
        }
    }
}

/// What so many stages take that share evenly what all of them take together, where that is stretched by so much.
fn stretched(step_ns: i64, stages: u32, stretch: f64) -> i64 {
    let share = step_ns / i64::from(stages);
    (share as f64 * stretch) as i64
}

/// What a rank takes that computes the whole step, in nanoseconds.
fn computed_ns(request: &Request<'_>, canonical: &Graph) -> i64 {
    let machine = Machine { cluster: request.cluster, mesh: request.mesh };
    let of = |graph: &Graph| -> i64 {
        graph.order.iter().map(|id| local_time(machine, &Call::new(graph, *id)).max(0)).sum()
    };
    let picos = request.shorter.map_or_else(
        || of(canonical),
        |shorter| {
            let Folded { pair, left_out } = &shorter.folded;
            let (few, more) = (of(&pair.from), of(&pair.to));
            more + (more - few) * left_out
        },
    );
    picos / PICOS_PER_NANO
}

/// What so many stages take at the least on a mesh within each; nothing where no micro-batches can be made, where what is computed takes too long
/// already if all ranks share it evenly, or where all their memory does not hold the step.
fn promised(
    request: &Request<'_>,
    step: &Step<'_>,
    stages: u32,
    within: &Mesh,
    sought: Sought<'_>,
) -> Result<Option<Promise>> {
    let inner = within.axes.iter().filter(|axis| axis.size > 1).cloned();
    let mesh = Mesh { axes: std::iter::once(MeshAxis::ranks(STAGES, stages)).chain(inner).collect() };
    if !has_steered(request, &mesh) {
        return Ok(None);
    }
    let rows = rows(step.canonical, within);
    let most = sought.micro_batches.unwrap_or_else(|| stages.saturating_mul(MOST_PER_STAGE));
    let counts = (2..=most.min(rows)).filter(|count| {
        let suits = match sought.micro_batches {
            Some(asked) => asked == *count,
            None => step.nodes * *count as usize <= MOST_NODES,
        };
        suits && rows.is_multiple_of(*count)
    });
    let stretches: Vec<(u32, f64)> = counts.map(|count| (count, stretch(stages, count))).collect();
    let shared = step.computed_ns / i64::from(within.ranks());
    let Some(least_stretch) = stretches.iter().map(|(_, stretch)| *stretch).reduce(f64::min) else {
        return Ok(None);
    };
    if !may_be_faster(stretched(shared, stages, least_stretch), step.least_ns) {
        return Ok(None);
    }
    let together = together(request, &mesh, (step.least_ns, least_stretch))?;
    let Some(Together { step_ns: together, .. }) = together else { return Ok(None) };
    let of = |(count, stretch): (u32, f64)| (stretched(together, stages, stretch), count);
    let mut counts: Vec<(i64, u32)> = stretches.into_iter().map(of).collect();
    counts.sort_unstable();
    let best = counts.into_iter().find(|(_, count)| slices(step.canonical, *count));
    Ok(best.map(|(step_ns, micro_batches)| Promise { mesh, micro_batches, step_ns, expected: Vec::new() }))
}

/// How many rows of the batch a rank has where they are sharded over all ranks of a stage, over its outer axis where there are too few, or not at
/// all.
fn rows(graph: &Graph, within: &Mesh) -> u32 {
    let rows = samples(graph);
    let outer = within.axes.first().map_or(1, |axis| axis.size);
    let shares = [rows / within.ranks(), rows / outer];
    shares.into_iter().find(|share| *share > 0).unwrap_or(rows)
}

/// How many times longer than their work even stages take under the best named schedule.
fn stretch(stages: u32, micro_batches: u32) -> f64 {
    let of = |name: Name| {
        let chunks = name.chunks(None).ok()?;
        let schedule = name.schedule(stages, chunks, micro_batches);
        let costs = Costs::even(&schedule.placement);
        let work = i64::from(schedule.placement.most() * 3 * micro_batches);
        Some(costs.run(&schedule).ok()?.step as f64 / work as f64)
    };
    let known = Name::ALL.iter().filter_map(|(name, _)| of(*name));
    known.fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use base::Audience;
    use cluster::testing::{link, uniform};

    use super::*;
    use crate::jointly::tests::asked;

    #[test]
    fn even_stages_wait_less_the_more_micro_batches_there_are() {
        assert!(stretch(4, 4) > stretch(4, 8) && stretch(4, 8) > stretch(4, 16));
        assert!((1.0..1.07).contains(&stretch(4, 8)), "zb-v waits for a seventeenth of the step");
    }

    /// Two layers; what a step has no business to do is to send something to a stage by itself, which that one does not expect.
    fn step(sent: &str) -> Graph {
        let text = format!(
            r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::t(Tensor(a) self) -> Tensor(a)
op _c10d_functional::broadcast(Tensor input, int src, str group_name) -> Tensor
op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor
input v0: f32[512, 512] = parameter "params.first"
input v1: f32[512, 512] = parameter "params.last"
input v2: f32[4096, 512] = batch "batch.x"
v3: f32[4096, 512] = aten::mm(v2, v0)
v4: f32[4096, 512] = aten::mm(v3, v1)
part backward
v5: f32[512, 4096]{{1, 512}} = aten::t(v3)
v6: f32[512, 512] = aten::mm(v5, v4)
v7: f32[512, 4096]{{1, 512}} = aten::t(v2)
v8: f32[512, 512] = aten::mm(v7, v4)
part update
{sent}
return v4
update "params.first" = v8
update "params.last" = v6
"#
        );
        Graph::from_text("step", &text).unwrap()
    }

    #[test]
    fn a_bug_in_a_pipeline_that_is_tried_is_not_passed_over() {
        // Between stages everything costs nothing.
        let cluster = uniform(1e12, 1e12, link(0.0, 1e15));
        let sent = "v9: f32[512, 512] = _c10d_functional::broadcast(v6, 0, \"axis:stages:0>1\")\n\
                    v10: f32[512, 512] = _c10d_functional::wait_tensor(v9)";
        let found = |sent: &str| {
            let graph = step(sent);
            asked(&graph, &cluster, &Mesh::along("ranks", 2), None, |request| {
                let wanted = Wanted::default();
                let sought = Sought { ranks: 2, stages: None, micro_batches: Some(4), wanted };
                faster_in_stages(request, sought, None)
            })
        };
        assert!(found("").unwrap().is_some());
        let refused = found(sent).unwrap_err();
        assert_eq!(refused.audience(), Audience::Bug);
        let said = "of `axis:stages:0>1` on rank 1 is not that of rank 0";
        assert!(refused.message.ends_with(said), "{}", refused.message);
    }
}
