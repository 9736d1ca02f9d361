//! What a program that is cut into chunks takes under a schedule: its stages put through the passes and simulated, all together.

use base::{Diagnostic, Result};
use cost::Machine;
use ir::RankGraph;
use passes::{Pieces, Positions, Stays};
use schedule::{Costs, Kind, Schedule};
use shard::stages::{Staged, stage_graphs};

use crate::{
    axis::PICOS_PER_NANO,
    beyond::Known,
    choices::Choice,
    forward::Forward,
    hosting::Hosting,
    in_part::{InPart, Written, in_whole, schedule_of},
    plan::Prediction,
    run::{Request, settled},
    stage_costs::costs,
    stages::{OnHost, Stages},
    taken_apart::{all_with_again, predicted},
};

/// Smaller buckets may make up for this part of a memory limit.
const NEAR: u64 = 16;

/// A program cut into chunks that are on stages.
pub struct Cut {
    /// What the plan says of it, under no schedule yet.
    pub stages: Stages,
    /// The graph with the chunks of its operations.
    pub staged: Staged,
    /// The program of all stages, ready to be taken apart; none until it is known to be needed.
    pub written: Option<Known<Written>>,
    /// Until then, what the chunks of the first micro-batch cost by itself.
    pub costs: Costs,
    /// What parts of forward that run again take on a stage, on average, in nanoseconds.
    pub recomputed_ns: i64,
}

impl Cut {
    /// The same where what a choice says runs again in backward.
    pub fn again(&self, forward: &Forward, choice: &Choice, machine: Machine<'_>) -> Result<Self> {
        let again = forward.positions(choice);
        let own = &self.written()?.longer;
        let in_whole = in_whole(machine.mesh.micro_batches(), &again, own)?;
        let written = all_with_again(self.written()?, &again)?;
        let placement = &self.costs.placement;
        Ok(Self {
            stages: Stages { recompute: in_whole, ..self.stages.clone() },
            staged: self.staged.clone(),
            recomputed_ns: choice.time / i64::from(placement.stages) / PICOS_PER_NANO,
            costs: costs(&written.longer.program, placement, machine),
            written: Some(written),
        })
    }

    /// The program of all stages.
    pub fn written(&self) -> Result<&Known<Written>> {
        self.written.as_ref().ok_or_else(|| Diagnostic::bug("a cut program was not written out"))
    }
}

/// What was simulated: stages with what they take, all together, and what the passes did.
pub type Tried = (Stages, Prediction, passes::Settings);

/// How cut programs are tried.
#[derive(Clone, Copy)]
pub struct Trial<'a> {
    /// What is asked for.
    pub request: &'a Request<'a>,
    /// Costs.
    pub machine: Machine<'a>,
    /// The settings of the passes that a search along the other axes has found.
    pub passes: &'a passes::Settings,
    /// What of its micro-batches is written out; none where all are.
    pub part: Option<InPart>,
    /// Whether the program is so large that of smaller buckets only the smallest are tried, and none where they hardly keep the memory limit.
    pub is_vast: bool,
}

impl Trial<'_> {
    /// What stages take with smaller and smaller buckets, until they keep the limit, with what is asked for on the host.
    pub fn tried(&self, cut: &Cut, kind: Kind, schedule: &Schedule) -> Result<Vec<Tried>> {
        let settled = self.settled(cut, (kind, schedule))?;
        let asked = Hosting::new(self.request, self.machine, &settled.longer).asked();
        self.under_rungs(cut, &cut.stages.with(kind, schedule), &settled, |_| Ok(vec![asked.clone()]))
    }

    /// The same with what the memory limit asks for on the host, in each way in which it may be; nothing where it may not.
    pub fn hosted(&self, cut: &Cut, kind: Kind, schedule: &Schedule) -> Result<Vec<Tried>> {
        if !self.may_host() {
            return Ok(Vec::new());
        }
        let settled = self.settled(cut, (kind, schedule))?;
        let hosting = Hosting::new(self.request, self.machine, &settled.longer);
        self.under_rungs(cut, &cut.stages.with(kind, schedule), &settled, |passes| {
            let mut found: Vec<Vec<OnHost>> = Vec::new();
            for going in hosting.ways() {
                found.extend(hosting.within(passes, *going)?.filter(|one| !found.contains(one)));
            }
            Ok(found)
        })
    }

    /// Whether anything may be on the host where the memory limit asks for it: nothing of a program that is not written out.
    pub fn may_host(&self) -> bool {
        self.part.is_none() && !Hosting::new(self.request, self.machine, &[]).ways().is_empty()
    }

    /// The settled programs of the stages.
    fn settled(&self, cut: &Cut, (kind, schedule): (Kind, &Schedule)) -> Result<Known<Vec<RankGraph>>> {
        cut.written()?.map(|one| {
            let schedule = schedule_of(kind, schedule, one.micro_batches)?;
            let graphs = stage_graphs(&one.program, &cut.staged.held, &schedule)?;
            graphs.iter().map(|graph| settled(graph, self.passes.without_checkpoints)).collect()
        })
    }

    /// What stages take with each of several things on the host, with smaller and smaller buckets, until one keeps the limit.
    fn under_rungs(
        &self,
        cut: &Cut,
        stages: &Stages,
        settled: &Known<Vec<RankGraph>>,
        on_host: impl Fn(&passes::Settings) -> Result<Vec<Vec<OnHost>>>,
    ) -> Result<Vec<Tried>> {
        let limit = self.request.memory_limit;
        let mut found = Vec::new();
        let mut rungs = rungs(self.passes);
        let mut next = rungs.next();
        while let Some(rung) = next {
            let (mut fits, mut is_over, mut is_near) = (false, true, false);
            for one in on_host(&rung)? {
                let (stages, prediction) = self.simulated(settled, stages.clone(), (&rung, one))?;
                let prediction = Prediction { recomputed_ns: cut.recomputed_ns, ..prediction };
                fits |= prediction.fits(limit);
                is_near |= prediction.fits(limit.map(|limit| limit + limit / NEAR));
                is_over &= prediction.is_over_without_collectives(limit);
                found.push((stages, prediction, rung.clone()));
            }
            if fits || self.is_vast && (is_over || !is_near) {
                break;
            }
            next = if is_over || self.is_vast { rungs.by_ref().last() } else { rungs.next() };
        }
        Ok(found)
    }

    /// What stages take with this on the host, state earlier than the update if that is faster.
    fn simulated(
        &self,
        settled: &Known<Vec<RankGraph>>,
        stages: Stages,
        (passes, on_host): (&passes::Settings, Vec<OnHost>),
    ) -> Result<(Stages, Prediction)> {
        let limit = self.request.memory_limit;
        let predicted = |on_host: &[OnHost]| predicted(settled, self.machine, (passes, on_host), limit);
        let (mut best, mut of_each) = predicted(&on_host)?;
        if settled.shorter.is_some() {
            return Ok((Stages { predicted: of_each, ..stages }, best));
        }
        let mut on_host = on_host;
        let hosting = Hosting::new(self.request, self.machine, &settled.longer);
        if let Some(ahead) = hosting.ahead(passes, &on_host, &of_each)? {
            let (other, of_other) = predicted(&ahead)?;
            if other.fitness(limit) < best.fitness(limit) {
                (best, of_each, on_host) = (other, of_other, ahead);
            }
        }
        Ok((Stages { predicted: of_each, ..stages.hosting(on_host) }, best))
    }
}

/// Settings of the passes, from those that a search has found on to smaller buckets.
fn rungs(found: &passes::Settings) -> impl Iterator<Item = passes::Settings> {
    let smaller = passes::Settings::ladder().filter(|rung| rung.bucket_limit < found.bucket_limit);
    let rung = |rung: passes::Settings| passes::Settings {
        direct: found.direct.clone(),
        without_checkpoints: found.without_checkpoints,
        reduce_dtype: found.reduce_dtype,
        ..rung
    };
    // What a search for all stages together runs again, or has on the host, is not what they do.
    let first = passes::Settings {
        recompute: Positions::default(),
        offload: Stays::default(),
        host_state: Pieces::default(),
        ..found.clone()
    };
    std::iter::once(first).chain(smaller.map(rung).collect::<Vec<_>>())
}
