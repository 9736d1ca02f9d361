//! The search for a plan with pipeline stages.
//!
//! Along all other axes the search is that of a mesh without stages, for a rank that has the memory of all stages. What it finds is taken apart
//! at the cuts that keep the slowest chunk least busy, for each way to put chunks on stages; the schedules that take least at the costs of
//! these chunks are put through the passes and simulated, all stages together, and with them some that are made for these costs. Where none
//! keeps the memory limit, parts of forward run again in backward.

use std::{cell::OnceCell, collections::BTreeSet};

use base::{Code, Diagnostic, Result};
use cost::Machine;
use schedule::{Costs, Kind, Name, Placement, Schedule};
use shard::Assignment;

use crate::{
    axis::PICOS_PER_NANO,
    beyond::Known,
    candidates::{Candidate, Learned, candidates, first_of_each_placement, promised},
    effort::Extent,
    forward::Forward,
    in_part::{InPart, Written, full},
    pins::Pins,
    plan::{Plan, Prediction, RunnerUp},
    recompute::{Corrections, corrected},
    run::{Found, Offloading, Recomputation, Request},
    runners_up::MOST_RUNNERS_UP,
    search::{Searched, search, too_small},
    stages::Stages,
    stays::Ways,
    tried::{Cut, Trial, Tried},
    wish::{ScheduleWish, Wanted},
};

/// Shares of the memory of all stages, in percent, that plans along the other axes are searched for until one keeps the limit in each stage:
/// stages need different amounts.
const SHARES: [u64; 6] = [100, 85, 70, 60, 50, 40];

/// Of large programs so many schedules are simulated at the least, and others where they take up to so many percent longer than the first at the
/// costs of their chunks, or put chunks on stages in another way.
const LEAST_SIMULATED: usize = 3;
const NEAR: i64 = 6;

/// Of vast programs at most so many schedules are simulated under a memory limit that decides, before less is held.
const MOST_UNDER_LIMIT: usize = 4;

/// Others are simulated where they promise to take so many percent less.
const LEAST_GAIN: i64 = 2;

/// How many times the memory that all stages need there is where it decides nothing: stages need different amounts.
const ROOM: u64 = 4;

/// For so many cuts a schedule is searched, those that take least under a named one.
const MOST_SEARCHED: usize = 3;

/// How much longer than what is known a pipeline takes at the costs of its chunks, in percent, that is not simulated: schedules that are searched for
/// took up to a third less than that.
const FAR_SLOWER: i64 = 75;

/// Programs of more operations, micro-batches counted, are not written out to find what of them may be on the host.
const MOST_WRITTEN: usize = 1 << 17;

/// What a search for a plan with stages comes to.
pub enum InStages {
    /// The plan.
    Plan(Box<Plan>),
    /// One that is not faster than what is known is not written down.
    Slower(Prediction),
}

impl InStages {
    /// What it is predicted to take.
    pub fn prediction(&self) -> Prediction {
        match self {
            Self::Plan(plan) => plan.prediction,
            Self::Slower(prediction) => *prediction,
        }
    }
}

/// The plan of least predicted time on a mesh with stages, its micro-batches given.
pub fn search_stages(request: &Request<'_>, wanted: Wanted<'_>) -> Result<InStages> {
    let machine = Machine { cluster: request.cluster, mesh: request.mesh };
    let stages = request.mesh.stages();
    let schedules = wanted.schedules(stages, request.mesh.micro_batches())?;
    let mut kept: Option<InStages> = None;
    let mut lightest: Option<Prediction> = None;
    let mut tried = None;
    let mut taken_apart: Vec<Vec<Assignment>> = Vec::new();
    let mut most = SHARES[0];
    for share in SHARES {
        if share > most {
            continue;
        }
        let all = request
            .memory_limit
            .map(|limit| (limit.saturating_mul(u64::from(stages)) / 100).saturating_mul(share));
        // What was tried is found again where it keeps what is left.
        if tried.is_some_and(|tried: Prediction| all.is_some() && tried.fits(all)) {
            continue;
        }
        // What is known may be of more memory alone.
        let of_this = |known: &&[Found]| share == SHARES[0] || known.iter().any(|one| one.fits(all));
        let expected = request.expected.filter(of_this);
        let searched = match search(&Request { memory_limit: all, expected, ..*request }) {
            Ok(searched) => searched,
            Err(refused) if kept.is_none() && lightest.is_none() => return Err(of_one(refused, request)),
            Err(refused) if refused.code == Code::NO_PLAN => break,
            Err(refused) => return Err(refused),
        };
        tried = Some(searched.best.prediction);
        // Less memory may only ask that more runs again, which each stage decides for itself.
        if taken_apart.contains(&searched.best.assignments) {
            continue;
        }
        taken_apart.push(searched.best.assignments.clone());
        let extent = Extent::of(request.effort, searched.canonical.order.len(), request.mesh);
        let part = part(request, wanted, &searched);
        let pipelines =
            Pipelines { request, wanted, machine, searched: &searched, extent, part, whole: OnceCell::new() };
        let found = pipelines.tried_best(schedules.clone())?;
        let prediction = found[0].1;
        // Whatever holds less takes no less.
        let fastest = found.iter().map(|(_, one, _)| *one).min_by_key(|one| one.step_ns);
        let slower = fastest.filter(|one| kept.is_none() && !wanted.is_faster(one));
        if let Some(slower) = slower {
            return Ok(InStages::Slower(slower));
        }
        if !prediction.fits(request.memory_limit) {
            if extent.is_thrifty && kept.is_none() && wanted.is_far_slower(&prediction) {
                return Ok(InStages::Slower(prediction));
            }
            let least = lightest.filter(|least| least.peak_bytes <= prediction.peak_bytes);
            lightest = least.or(Some(prediction));
            if let Some(limit) = request.memory_limit.filter(|_| extent.is_vast) {
                // Stages hold about as much less as all of them together do.
                let share = u128::from(share) * u128::from(limit) / u128::from(prediction.peak_bytes);
                most = u64::try_from(share).unwrap_or(SHARES[SHARES.len() - 1]).max(SHARES[SHARES.len() - 1]);
            }
            continue;
        }
        // To run forward again may take longer than to hold less along the other axes: that is tried once.
        let is_enough = !prediction.holds_less() || extent.is_thrifty || all.is_none() || kept.is_some();
        let known = kept.as_ref().map(|kept| kept.prediction().step_ns);
        if known.is_none_or(|known| prediction.step_ns < known) {
            kept = Some(if wanted.is_faster(&prediction) {
                InStages::Plan(Box::new(pipelines.plan(found)?))
            } else {
                InStages::Slower(prediction)
            });
        }
        if is_enough {
            break;
        }
    }
    kept.ok_or_else(|| too_small(request.memory_limit.unwrap_or(0), &lightest.unwrap_or_default()))
}

/// What of the micro-batches of a vast program is written out: all where a schedule is searched for or given, or where what goes to the host is to be
/// found, unless that would be too much.
fn part(request: &Request<'_>, wanted: Wanted<'_>, searched: &Searched<'_>) -> Option<InPart> {
    let micro_batches = request.mesh.micro_batches();
    let full = match wanted.schedule {
        None => Name::ALL.into_iter().filter_map(|(name, _)| full(Kind::Named(name))).max(),
        Some(ScheduleWish::Kind(kind)) => full(*kind),
        Some(ScheduleWish::File { .. }) => None,
    };
    let may_host = request.memory_limit.is_some() && request.cluster.device.host_bandwidth.is_some();
    let operations = searched.canonical.order.len();
    let stays = match request.offload {
        None => !may_host || operations * micro_batches as usize > MOST_WRITTEN,
        Some(offload) => offload == Offloading::None,
    };
    let of = |full| InPart::of(operations, (request.mesh.stages(), micro_batches), full);
    full.filter(|_| stays).and_then(of)
}

/// The refusal of a search for all stages together, said of a rank of one.
fn of_one(refused: Box<Diagnostic>, request: &Request<'_>) -> Box<Diagnostic> {
    let Some(limit) = request.memory_limit.filter(|_| refused.code == Code::NO_PLAN) else { return refused };
    let message = format!("no plan fits into {limit} bytes per rank");
    let cause = refused.cause.as_deref().unwrap_or("it is not known why");
    Diagnostic::new(Code::NO_PLAN, message)
        .because(format!("one rank of each of the {} stages together: {cause}", request.mesh.stages()))
        .hint("use more ranks, more micro-batches, a smaller batch, or a higher memory limit")
}

/// A schedule of a cut program that was simulated.
struct Simulated<'a> {
    cut: usize,
    kind: Kind,
    schedule: &'a Schedule,
    tried: Tried,
}

/// What a search along the other axes has found, to be taken apart.
pub struct Pipelines<'a> {
    /// What is asked for.
    pub request: &'a Request<'a>,
    /// What is asked of stages beside that.
    pub wanted: Wanted<'a>,
    /// Costs.
    pub machine: Machine<'a>,
    /// What was found.
    pub searched: &'a Searched<'a>,
    /// How much is tried.
    pub extent: Extent,
    /// What of the micro-batches is written out; none where all are.
    pub part: Option<InPart>,
    /// The program of all stages, once it is needed, its operations numbered.
    pub whole: OnceCell<Known<Written>>,
}

impl Pipelines<'_> {
    /// Ways to take it apart, the best first; there is one.
    fn tried_best(&self, mut schedules: Vec<(Kind, Schedule)>) -> Result<Vec<Tried>> {
        if self.part.is_some() {
            schedules.retain(|(kind, _)| full(*kind).is_some());
        }
        let schedules = &schedules[..];
        let mut cuts = self.cuts(schedules)?;
        if self.request.recompute == Some(Recomputation::Full) {
            cuts.iter_mut().try_for_each(|cut| self.write_out(cut))?;
            cuts = cuts.into_iter().map(|cut| self.all_again(cut)).collect::<Result<_>>()?;
        }
        let candidates = candidates(&cuts, schedules, self.extent.schedules);
        let has_many = self.request.mesh.micro_batches() > 1 && self.part.is_none();
        let searches = self.wanted.may_search() && has_many;
        // Of a large program schedules are searched for at once, which take no more than those with names at the costs of the chunks.
        let is_short = searches && self.extent.is_thrifty && self.has_room();
        if let Some(first) = candidates.first().filter(|first| self.is_far_slower(first)) {
            let all = self.searched.best.prediction;
            let peak_bytes = all.peak_bytes / u64::from(self.request.mesh.stages());
            let at_costs = Prediction { step_ns: first.step / PICOS_PER_NANO, peak_bytes, ..all };
            return Ok(vec![(cuts[first.cut].stages.clone(), at_costs, passes::Settings::default())]);
        }
        let mut found = if self.extent.is_vast && !self.has_room() && self.may_lighten() {
            self.simulated_under_limit(&mut cuts, &candidates)?
        } else {
            self.simulated(&mut cuts, &candidates, is_short)?
        };
        let lighter = self.lightened(&mut cuts, &found)?;
        found.extend(lighter);
        found.sort_by_key(|one| one.tried.1.fitness(self.request.memory_limit));
        let mut searched = Vec::new();
        if is_short {
            let first = first_of_each_placement(&candidates, |one| one.schedule);
            for one in first.into_iter().take(MOST_SEARCHED) {
                self.write_out(&mut cuts[one.cut])?;
                let room = self.ample_room(&cuts[one.cut], one.schedule);
                searched.extend(self.searched(&cuts[one.cut], one.schedule, room)?);
            }
        } else if searches {
            for one in self.to_search(&found) {
                let room = self.room(&cuts[one.cut], one);
                searched.extend(self.searched(&cuts[one.cut], one.schedule, room)?);
            }
        }
        let mut all: Vec<Tried> = found.into_iter().map(|one| one.tried).collect();
        if self.wanted.must_search() && !searched.is_empty() {
            all.clear();
        }
        all.extend(searched);
        all.sort_by_key(|(_, one, _)| one.fitness(self.request.memory_limit));
        if all.is_empty() {
            return Err(Diagnostic::bug("no schedule was tried"));
        }
        Ok(all)
    }

    /// What the first of these take, as many as are worth it; only the very first where others are searched for.
    fn simulated<'a>(
        &self,
        cuts: &mut [Cut],
        candidates: &[Candidate<'a>],
        is_short: bool,
    ) -> Result<Vec<Simulated<'a>>> {
        let mut found: Vec<Simulated<'_>> = Vec::new();
        for (number, one) in candidates.iter().enumerate() {
            if is_short && number > 0 {
                break;
            }
            let is_enough = number >= self.extent.schedules;
            if is_enough && (self.may_lighten() || self.is_kept(&found)) {
                break;
            }
            let is_far = number >= LEAST_SIMULATED && one.step / (100 + NEAR) * 100 > candidates[0].step;
            let is_known = found.iter().any(|known| known.schedule.placement == one.schedule.placement);
            if self.extent.is_thrifty && !is_enough && is_far && is_known {
                continue;
            }
            found.extend(self.simulated_one(cuts, one)?);
        }
        Ok(found)
    }

    /// Of a vast program under a limit that decides, those which promise most by how the ones before them differed from the costs of their chunks.
    fn simulated_under_limit<'a>(
        &self,
        cuts: &mut [Cut],
        candidates: &[Candidate<'a>],
    ) -> Result<Vec<Simulated<'a>>> {
        let limit = self.request.memory_limit.unwrap_or(u64::MAX);
        let mut found: Vec<Simulated<'_>> = Vec::new();
        let mut left: Vec<&Candidate<'_>> = candidates.iter().collect();
        let mut learned = Learned::default();
        while found.len() < MOST_UNDER_LIMIT {
            let promise = |one: &Candidate<'_>| learned.promise(one, limit);
            let Some(next) = (0..left.len()).min_by_key(|at| promise(left[*at])) else { break };
            let one = left.swap_remove(next);
            let known = found.iter().map(|known| promised(&known.tried.1, limit)).min();
            if known.is_some_and(|known| known / 100 * (100 - LEAST_GAIN) <= promise(one)) {
                break;
            }
            let simulated = self.simulated_one(cuts, one)?;
            if let Some(simulated) = simulated.first() {
                learned = Learned::of(one, &simulated.tried.1);
            }
            found.extend(simulated);
        }
        Ok(found)
    }

    /// A schedule of a cut program, under each of the settings of the passes that are tried.
    fn simulated_one<'a>(&self, cuts: &mut [Cut], one: &Candidate<'a>) -> Result<Vec<Simulated<'a>>> {
        let Candidate { cut, kind, schedule, .. } = *one;
        self.write_out(&mut cuts[cut])?;
        let tried = self.tried(&cuts[cut], kind, schedule)?.into_iter();
        Ok(tried.map(|tried| Simulated { cut, kind, schedule, tried }).collect())
    }

    /// Whether, in a large search, a schedule takes so much longer than what is known, at the costs of the chunks, that no search makes up for it.
    fn is_far_slower(&self, one: &Candidate<'_>) -> bool {
        let known = self.wanted.faster_than_ns.filter(|_| self.extent.is_thrifty);
        known.is_some_and(|known| one.step / PICOS_PER_NANO / (100 + FAR_SLOWER) * 100 > known)
    }

    /// Of what was simulated, the best first, the cuts that schedules are searched for: of a large program the best ones of each way to put
    /// chunks on stages before others of the same way.
    fn to_search<'a, 'b>(&self, found: &'b [Simulated<'a>]) -> Vec<&'b Simulated<'a>> {
        let mut seen = BTreeSet::new();
        let distinct: Vec<&Simulated<'_>> = found.iter().filter(|one| seen.insert(one.cut)).collect();
        let mut placements: Vec<&Placement> = Vec::new();
        let (mut first, mut others) = (Vec::new(), Vec::new());
        for one in distinct {
            let placement = &one.schedule.placement;
            if self.extent.is_thrifty && placements.contains(&placement) {
                others.push(one);
            } else {
                placements.push(placement);
                first.push(one);
            }
        }
        first.into_iter().chain(others).take(if self.extent.is_vast { 1 } else { MOST_SEARCHED }).collect()
    }

    /// Whether the memory limit is far from what all stages need together, so that it decides nothing.
    pub fn has_room(&self) -> bool {
        let all = self.searched.best.prediction.peak_bytes;
        self.request.memory_limit.is_none_or(|limit| {
            all.saturating_mul(ROOM) <= limit.saturating_mul(u64::from(self.request.mesh.stages()))
        })
    }

    /// Whether parts of forward may run again, or something may be on the host, so that the memory limit is kept.
    fn may_lighten(&self) -> bool {
        self.may_run_again() || self.trial().may_host()
    }

    const fn may_run_again(&self) -> bool {
        self.request.recompute.is_none() && self.request.memory_limit.is_some()
    }

    /// Whether one of these keeps the memory limit.
    fn is_kept(&self, found: &[Simulated<'_>]) -> bool {
        found.iter().any(|one| one.tried.1.fits(self.request.memory_limit))
    }

    /// A cut program of which all runs again in backward that can.
    fn all_again(&self, cut: Cut) -> Result<Cut> {
        let forward = Forward::new(&cut.written()?.longer.program, self.machine, Ways::AGAIN);
        match forward.full(Ways::AGAIN) {
            Some(choice) => cut.again(&forward, &choice, self.machine),
            None => Ok(cut),
        }
    }

    /// The first schedules, of those that are over the memory limit while none keeps it, with what of forward has to run again for them to keep
    /// it, or what has to be on the host, or both where neither is enough.
    fn lightened<'a>(&self, cuts: &mut Vec<Cut>, found: &[Simulated<'a>]) -> Result<Vec<Simulated<'a>>> {
        let may_be_faster = found.iter().any(|one| self.wanted.is_faster(&one.tried.1));
        if !self.may_lighten() || self.is_kept(found) || !may_be_faster {
            return Ok(Vec::new());
        }
        // Of each schedule, what it takes with the smallest buckets comes last.
        let mut last: Vec<&Simulated<'a>> = Vec::new();
        for one in found {
            match last.last_mut() {
                Some(known) if (known.cut, known.kind) == (one.cut, one.kind) => *known = one,
                _ => last.push(one),
            }
        }
        if self.extent.is_vast {
            let limit = self.request.memory_limit.unwrap_or(u64::MAX);
            last.sort_by_key(|one| promised(&one.tried.1, limit));
        }
        let mut lighter = Vec::new();
        for known in last.into_iter().take(self.extent.lightened) {
            // Of a vast program what runs again comes first, and the rest goes to the host alone.
            if !self.extent.is_vast || !self.may_run_again() {
                let hosted = self.hosted(&cuts[known.cut], known, &known.tried)?;
                lighter.extend(hosted.into_iter().map(|tried| Simulated { tried, ..*known }));
            }
            for limit in self.run_again_to(&known.tried.1) {
                let Some((cut, tried)) = self.lighter(&cuts[known.cut], known, limit)? else { continue };
                let of_cut = |tried| Simulated { cut: cuts.len(), tried, ..*known };
                if !tried.1.fits(self.request.memory_limit) {
                    let hosted = self.hosted(&cut, known, &tried)?;
                    lighter.extend(hosted.into_iter().map(of_cut));
                }
                lighter.push(of_cut(tried));
                cuts.push(cut);
            }
        }
        Ok(lighter)
    }

    /// A schedule of a cut program with what the memory limit asks for on the host, where that may still be faster than what is known: copies only
    /// take time.
    fn hosted(&self, cut: &Cut, known: &Simulated<'_>, tried: &Tried) -> Result<Vec<Tried>> {
        if !self.wanted.is_faster(&tried.1) {
            return Ok(Vec::new());
        }
        self.trial().hosted(cut, known.kind, known.schedule)
    }

    /// The limits under which parts of forward run again, of a program that takes so much: that of a rank, and, where the rest may be on the host,
    /// halfway there.
    fn run_again_to(&self, without: &Prediction) -> Vec<Option<u64>> {
        let Some(limit) = self.request.memory_limit.filter(|_| self.may_run_again()) else {
            return Vec::new();
        };
        let halfway = limit + without.peak_bytes.saturating_sub(limit) / 2;
        let may_host = !self.extent.is_vast && self.trial().may_host() && self.wanted.is_faster(without);
        std::iter::once(limit).chain(may_host.then_some(halfway)).map(Some).collect()
    }

    /// A schedule of a program of which so much runs again that it keeps a limit, or as much as can.
    fn lighter(&self, cut: &Cut, known: &Simulated<'_>, limit: Option<u64>) -> Result<Option<(Cut, Tried)>> {
        let forward = Forward::of_stages(&cut.written()?.longer.program, self.machine);
        let until = (limit, Corrections::OF_STAGES);
        let best = corrected(&forward, until, known.tried.1.peak_bytes, |choice| {
            if choice.again.is_clear() {
                return Ok(None);
            }
            let again = cut.again(&forward, choice, self.machine)?;
            let tried = self.tried(&again, known.kind, known.schedule)?;
            let best = tried.into_iter().min_by_key(|one| one.1.fitness(limit));
            Ok(best.map(|tried| (tried.1, (again, tried))))
        })?;
        Ok(best.map(|(_, made)| made))
    }

    /// The memory of each stage for a schedule that is made for a cut program: what the memory limit leaves, or else what the best one known takes.
    fn room(&self, cut: &Cut, known: &Simulated<'_>) -> Vec<i64> {
        let peaks = cut.costs.run(known.schedule).map(|run| run.peaks).unwrap_or_default();
        let Some(limit) = self.request.memory_limit else { return peaks };
        let stages = known.tried.0.predicted.iter().zip(&peaks);
        stages.map(|(stage, peak)| limit as i64 - (stage.peak_bytes as i64 - peak)).collect()
    }

    /// The same where the limit decides nothing: half of it.
    fn ample_room(&self, cut: &Cut, known: &Schedule) -> Vec<i64> {
        let peaks = cut.costs.run(known).map(|run| run.peaks).unwrap_or_default();
        let half = self.request.memory_limit.map_or(0, |limit| limit as i64 / 2);
        peaks.into_iter().map(|peak| peak.max(half)).collect()
    }

    /// What a schedule takes that is made for a cut program within so much memory of each stage.
    fn searched(&self, cut: &Cut, known: &Schedule, room: Vec<i64>) -> Result<Vec<Tried>> {
        if room.is_empty() {
            return Ok(Vec::new());
        }
        let costs = Costs { room, ..cut.costs.clone() };
        match schedule::searched(&costs, known.micro_batches) {
            Some(schedule) => {
                let mut tried = self.tried(cut, Kind::Searched, &schedule)?;
                let fits = tried.iter().any(|one| one.1.fits(self.request.memory_limit));
                if !fits && tried.iter().any(|one| self.wanted.is_faster(&one.1)) {
                    tried.extend(self.trial().hosted(cut, Kind::Searched, &schedule)?);
                }
                Ok(tried)
            }
            None => Ok(Vec::new()),
        }
    }

    /// What stages take with smaller and smaller buckets, until they keep the limit.
    fn tried(&self, cut: &Cut, kind: Kind, schedule: &Schedule) -> Result<Vec<Tried>> {
        self.trial().tried(cut, kind, schedule)
    }

    fn trial(&self) -> Trial<'_> {
        let (request, machine, passes) = (self.request, self.machine, &self.searched.best.passes);
        Trial { request, machine, passes, part: self.part, is_vast: self.extent.is_vast }
    }

    /// The plan with the best of what was tried, which comes first.
    fn plan(&self, found: Vec<Tried>) -> Result<Plan> {
        let mut found = found.into_iter();
        let (best, prediction, passes) =
            found.next().ok_or_else(|| Diagnostic::bug("no schedule was tried"))?;
        let mut plan = self.searched.plan()?;
        plan.label = format!("{} pipeline stages ({}); {}", best.count(), best.schedule, plan.label);
        plan.limit = "the pipeline: the slowest stage, and what the others wait for it".into();
        let is_other = |one: &Stages| {
            (&one.cuts, &one.actions, one.schedule) != (&best.cuts, &best.actions, best.schedule)
        };
        let runner_up = |(stages, prediction, _): Tried| RunnerUp {
            name: format!("stages from {:?} on in the order {}", stages.cuts, stages.schedule),
            step_ns: prediction.step_ns,
            peak_bytes: prediction.peak_bytes,
            exposed_ns: Some(prediction.exposed_ns),
            fits: prediction.fits(self.request.memory_limit),
            pins: Pins::default(),
        };
        plan.runners_up = found.filter(|(stages, ..)| is_other(stages)).map(runner_up).collect();
        plan.runners_up.sort_by_key(|other| (!other.fits, other.step_ns));
        let mut named = BTreeSet::new();
        plan.runners_up.retain(|other| named.insert(other.name.clone()));
        plan.runners_up.truncate(MOST_RUNNERS_UP);
        plan.prediction = prediction;
        plan.stages = Some(best);
        plan.passes = passes;
        Ok(plan)
    }
}
