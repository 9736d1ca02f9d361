//! A data set's samples in windows of planned steps, resumable at any step, on any number of ranks.

use std::{cmp::Reverse, sync::Arc};

use base::{Code, Diagnostic, Fingerprinter, Result};
use serde::{Deserialize, Serialize};

use crate::{
    cost::phase_unit,
    plan::{Layout, Plan},
    problem::Problem,
    random::Random,
    solve::solve,
    stream::{Composer, Sample, Stream},
};

/// What is known of every sample of a data set or stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Data {
    /// By phase, then sample.
    pub lengths: Vec<Vec<u64>>,
    /// Tokens that count in a per-token mean of the loss; the last phase's lengths if empty.
    pub loss_tokens: Vec<u64>,
    /// Where each sample comes from, from 0; one source if empty.
    pub sources: Vec<u32>,
}

impl Data {
    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.lengths.first().map_or(0, Vec::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn loss_tokens(&self, sample: usize) -> u64 {
        let lengths = || self.lengths.last().map_or(0, |lengths| lengths[sample]);
        self.loss_tokens.get(sample).copied().unwrap_or_else(lengths)
    }

    fn check(&self) -> Result<()> {
        let count = self.len();
        let optional = [("loss_tokens", self.loss_tokens.len()), ("sources", self.sources.len())];
        let phases = self.lengths.iter().map(|phase| ("lengths", phase.len()));
        for (name, len) in phases.chain(optional.into_iter().filter(|row| row.1 > 0)) {
            if len != count {
                let what = format!("`{name}` has {len} entries for {count} samples");
                return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
            }
        }
        for sample in 0..count {
            if self.lengths.iter().all(|phase| phase[sample] == 0) {
                let what = format!("`lengths[{sample}]` is 0: a length is a positive number of tokens");
                return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
            }
        }
        Ok(())
    }
}

/// What one rank does in one micro-batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MicroBatch {
    /// Sample ids.
    pub samples: Vec<u64>,
    /// Sum of their lengths (last phase).
    pub tokens: u64,
    /// Tokens that count in a per-token mean.
    pub loss_tokens: u64,
    /// The ranks that work on it together; empty if one alone.
    pub group: Vec<u32>,
}

/// One planned step, as one rank sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StepPlan {
    /// From 0 in each epoch.
    pub step: u64,
    /// Sample ids of all ranks, rising: the same on any number of ranks.
    pub samples: Vec<u64>,
    /// Tokens of all ranks that count in a per-token mean.
    pub loss_tokens: u64,
    /// This rank's work.
    pub micro_batches: Vec<MicroBatch>,
    /// Predicted time of every rank, in units of the cost (seconds with sequence parallelism).
    pub loads: Vec<f64>,
    /// Predicted time of the step.
    pub makespan: f64,
    /// What no plan can beat.
    pub lower_bound: f64,
    /// Most tokens of any rank in one micro-batch.
    pub tokens_max: u64,
    /// Most windows that one of the samples waited.
    pub delay: u32,
    /// Identifies the plan of all ranks.
    pub hash: u64,
    /// What found it.
    pub algorithm: String,
}

/// Where a sampler stands: at the start of a window.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Of this form.
    pub version: u32,
    /// Of what the composition of steps depends on: lengths, sources, costs, batch, window, seed. Not of ranks.
    pub fingerprint: u64,
    /// Passes over the data.
    pub epoch: u64,
    /// Samples of the epoch's order taken in so far.
    pub position: u64,
    /// Steps of the epoch given out so far.
    pub step: u64,
    /// The reserve and the window's number.
    pub composer: Composer,
}

/// The version of [`State`].
pub const STATE_VERSION: u32 = 1;

/// A window of planned steps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Where the sampler stood before it.
    pub start: State,
    /// Its steps; empty after the end of an epoch.
    pub steps: Vec<StepPlan>,
}

/// Turns samples into planned steps; knows the settings, not the data.
#[derive(Clone, Debug)]
pub struct Planner {
    /// Settings without lengths.
    pub template: Problem,
    /// Whose micro-batches are given out.
    pub rank: u32,
}

impl Planner {
    /// Checks the settings.
    pub fn new(template: Problem, rank: usize) -> Result<Self> {
        template.check_settings()?;
        if rank >= template.ranks {
            let what = format!("`rank` is {rank}, but there are {} ranks, from 0", template.ranks);
            return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        }
        Ok(Self { template, rank: rank as u32 })
    }

    /// The samples `from..` of `data` with their costs; ids are positions in `data` plus `first_id`.
    fn samples(&self, data: &Data, ids: impl Iterator<Item = usize>, first_id: u64) -> Result<Vec<Sample>> {
        let unit = phase_unit(&self.template.costs);
        let one = |index: usize| {
            let phases = self.template.costs.iter().zip(&data.lengths);
            let cost = phases.map(|(cost, lengths)| cost.at(lengths[index])).sum::<Option<u128>>();
            let cost = cost.and_then(|cost| u64::try_from(cost / u128::from(unit)).ok());
            let cost = cost.ok_or_else(|| {
                let lengths: Vec<u64> = data.lengths.iter().map(|phase| phase[index]).collect();
                let what = format!("the cost of sample {index} of length {lengths:?} overflows");
                Diagnostic::new(Code::COST_OVERFLOW, what)
            })?;
            let source = data.sources.get(index).copied().unwrap_or(0);
            Ok(Sample { id: first_id + index as u64, cost, source, age: 0 })
        };
        ids.map(one).collect()
    }

    /// Plans one step. `row` finds a sample's position in `data` by its id.
    fn plan(
        &self,
        step: u64,
        samples: &[Sample],
        data: &Data,
        row: impl Fn(u64) -> usize,
    ) -> Result<StepPlan> {
        let mut ids: Vec<u64> = samples.iter().map(|sample| sample.id).collect();
        ids.sort_unstable();
        let rows: Vec<usize> = ids.iter().map(|id| row(*id)).collect();
        let of = |values: &Vec<u64>| rows.iter().map(|row| values[*row]).collect();
        let problem = Problem { lengths: data.lengths.iter().map(of).collect(), ..self.template.clone() };
        let plan = solve(&problem).map_err(|diagnostic| rename(diagnostic, &ids))?;
        let loss = |local: &u32| data.loss_tokens(rows[*local as usize]);
        let micro = |batch: &Vec<u32>, group: Vec<u32>| MicroBatch {
            samples: batch.iter().map(|local| ids[*local as usize]).collect(),
            tokens: batch
                .iter()
                .map(|local| problem.lengths[problem.lengths.len() - 1][*local as usize])
                .sum(),
            loss_tokens: batch.iter().map(loss).sum(),
            group,
        };
        Ok(StepPlan {
            step,
            loss_tokens: (0..ids.len() as u32).map(|local| loss(&local)).sum(),
            micro_batches: self.own(&plan, micro),
            loads: plan.loads.iter().map(|load| plan.unit.scale(*load)).collect(),
            makespan: plan.unit.scale(plan.makespan),
            lower_bound: plan.unit.scale(plan.lower_bound),
            tokens_max: plan.tokens_max,
            delay: samples.iter().map(|sample| sample.age).max().unwrap_or(0),
            hash: plan_hash(&ids, &plan),
            algorithm: plan.algorithm,
            samples: ids,
        })
    }

    /// This rank's micro-batches. With groups: in step order, those of the groups that it belongs to.
    fn own(&self, plan: &Plan, micro: impl Fn(&Vec<u32>, Vec<u32>) -> MicroBatch) -> Vec<MicroBatch> {
        match &plan.layout {
            Layout::Ranks(ranks) => {
                ranks[self.rank as usize].iter().map(|batch| micro(batch, Vec::new())).collect()
            }
            Layout::Groups(groups) => {
                let mine = groups.iter().filter(|group| group.ranks.contains(&self.rank));
                let steps = mine.clone().map(|group| group.micro_batches.len()).max().unwrap_or(0);
                let work = |step: usize| {
                    let active = |group: &&crate::plan::Group| {
                        group.micro_batches.get(step).is_some_and(|batch| !batch.is_empty())
                    };
                    let group = mine.clone().find(active);
                    group.map_or_else(
                        || micro(&Vec::new(), Vec::new()),
                        |group| micro(&group.micro_batches[step], group.ranks.clone()),
                    )
                };
                (0..steps).map(work).collect()
            }
        }
    }
}

/// Puts the data set's number of a sample in place of its number within the step.
fn rename(mut diagnostic: Box<Diagnostic>, ids: &[u64]) -> Box<Diagnostic> {
    let words: Vec<String> = diagnostic.message.split(' ').map(str::to_owned).collect();
    let at = words.iter().position(|word| word == "sample").map(|at| at + 1);
    if let Some((at, local)) = at.and_then(|at| Some((at, words.get(at)?.parse::<usize>().ok()?)))
        && let Some(id) = ids.get(local)
    {
        let mut words = words;
        words[at] = id.to_string();
        diagnostic.message = words.join(" ");
    }
    diagnostic
}

fn plan_hash(ids: &[u64], plan: &Plan) -> u64 {
    let mut hasher = Fingerprinter::new();
    for id in ids {
        hasher.number(*id);
    }
    hasher.number(plan.hash()).finish().low64()
}

/// Samples a data set epoch after epoch.
#[derive(Clone, Debug)]
pub struct Sampler {
    data: Arc<Data>,
    planner: Planner,
    drop_last: bool,
    stream: Stream,
    order: Arc<Vec<u32>>,
    state: State,
}

impl Sampler {
    /// A sampler at the start of epoch 0. Fails on settings that make no sense and on samples that fit nowhere.
    pub fn new(data: Arc<Data>, planner: Planner, stream: Stream, drop_last: bool) -> Result<Self> {
        data.check()?;
        let phases = (planner.template.costs.len(), data.lengths.len());
        if phases.0 != phases.1 {
            let what = format!("`cost` has {} entries for {} phases of `lengths`", phases.0, phases.1);
            return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        }
        if data.is_empty() || data.len() > u32::MAX as usize {
            return Err(Diagnostic::new(Code::BAD_PROBLEM, format!("there are {} samples", data.len())));
        }
        if drop_last && data.len() < stream.batch {
            let what = format!("`batch_size` {} is more than the {} samples", stream.batch, data.len());
            return Err(
                Diagnostic::new(Code::BAD_PROBLEM, what).hint("with drop_last there is no step at all")
            );
        }
        planner.template.check_room(&data.lengths)?;
        let state = State {
            version: STATE_VERSION,
            fingerprint: fingerprint(&data, &planner.template, stream, drop_last),
            epoch: 0,
            position: 0,
            step: 0,
            composer: Composer::new(stream)?,
        };
        let order = Arc::new(order(&data, stream, 0));
        Ok(Self { data, planner, drop_last, stream, order, state })
    }

    /// Where it stands.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Goes to the start of an epoch.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        let fingerprint = self.state.fingerprint;
        let composer =
            Composer::new(Stream { seed: self.stream.seed ^ epoch.rotate_left(32), ..self.stream })?;
        self.state = State { version: STATE_VERSION, fingerprint, epoch, position: 0, step: 0, composer };
        self.order = Arc::new(order(&self.data, self.stream, epoch));
        Ok(())
    }

    /// Goes to where another sampler of the same data and settings stood, on any number of ranks.
    pub fn resume(&mut self, state: State) -> Result<()> {
        let refuse = |what: String| Err(Diagnostic::new(Code::FOREIGN_STATE, what));
        if state.version != STATE_VERSION {
            return refuse(format!("the resume state has version {}, not {STATE_VERSION}", state.version));
        }
        if state.fingerprint != self.state.fingerprint {
            let what = format!(
                "the resume state is of another data set or setting (fingerprint {:016x}, not {:016x})",
                state.fingerprint, self.state.fingerprint
            );
            return refuse(what);
        }
        if state.position > self.order.len() as u64 || !state.composer.fits(self.data.len()) {
            return refuse(format!("the resume state is damaged: position {}", state.position));
        }
        if state.epoch != self.state.epoch {
            self.order = Arc::new(order(&self.data, self.stream, state.epoch));
        }
        self.state = state;
        Ok(())
    }

    /// Plans the next window; one without steps after the end of the epoch.
    pub fn next_window(&mut self) -> Result<Window> {
        loop {
            let window = self.one_window()?;
            if !window.steps.is_empty() || self.state.position as usize >= self.order.len() {
                return Ok(window);
            }
        }
    }

    /// A window may be used up by filling the reserve.
    fn one_window(&mut self) -> Result<Window> {
        let start = self.state.clone();
        let from = self.state.position as usize;
        if from >= self.order.len() {
            return Ok(Window { start, steps: Vec::new() });
        }
        let to = (from + self.state.composer.intake()).min(self.order.len());
        let ids = self.order[from..to].iter().map(|id| *id as usize);
        let fresh = self.planner.samples(&self.data, ids, 0)?;
        let last = to == self.order.len();
        let mut composed = self.state.composer.compose(fresh, last);
        if self.drop_last && last {
            composed.retain(|step| step.len() == self.stream.batch);
        }
        let numbered = (self.state.step..).zip(&composed);
        let steps = numbered
            .map(|(step, samples)| self.planner.plan(step, samples, &self.data, |id| id as usize))
            .collect::<Result<Vec<_>>>()?;
        self.state.position = to as u64;
        self.state.step += steps.len() as u64;
        Ok(Window { start, steps })
    }

    /// Steps of one epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        let (samples, batch) = (self.data.len() as u64, self.stream.batch as u64);
        if self.drop_last { samples / batch } else { samples.div_ceil(batch) }
    }
}

/// Plans a stream whose samples become known window by window.
#[derive(Clone, Debug)]
pub struct StreamPlanner {
    planner: Planner,
    composer: Composer,
    held: std::collections::BTreeMap<u64, Row>,
    taken: u64,
    step: u64,
}

#[derive(Clone, Debug)]
struct Row {
    lengths: Vec<u64>,
    loss_tokens: u64,
}

impl StreamPlanner {
    /// At the start of a stream.
    pub fn new(planner: Planner, stream: Stream) -> Result<Self> {
        let composer = Composer::new(stream)?;
        Ok(Self { planner, composer, held: std::collections::BTreeMap::new(), taken: 0, step: 0 })
    }

    /// Takes in the next samples and plans what comes out. Ids count from the stream's start.
    pub fn push(&mut self, fresh: &Data, last: bool) -> Result<Vec<StepPlan>> {
        fresh.check()?;
        let phases = (self.planner.template.costs.len(), fresh.lengths.len());
        if phases.0 != phases.1 && !fresh.is_empty() {
            let what = format!("`cost` has {} entries for {} phases of `lengths`", phases.0, phases.1);
            return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        }
        let samples = self.planner.samples(fresh, 0..fresh.len(), self.taken)?;
        for index in 0..fresh.len() {
            let lengths = fresh.lengths.iter().map(|phase| phase[index]).collect();
            self.held
                .insert(self.taken + index as u64, Row { lengths, loss_tokens: fresh.loss_tokens(index) });
        }
        self.taken += fresh.len() as u64;
        let composed = self.composer.compose(samples, last);
        let mut plans = Vec::with_capacity(composed.len());
        for samples in composed {
            let mut samples = samples;
            samples.sort_unstable_by_key(|sample| sample.id);
            let rows: Vec<Row> = samples.iter().filter_map(|sample| self.held.remove(&sample.id)).collect();
            let phase = |phase: usize| rows.iter().map(|row| row.lengths[phase]).collect();
            let data = Data {
                lengths: (0..phases.0).map(phase).collect(),
                loss_tokens: rows.iter().map(|row| row.loss_tokens).collect(),
                sources: Vec::new(),
            };
            let row = |id: u64| {
                let found = samples.binary_search_by_key(&id, |sample| sample.id);
                found.expect("ids are those of the samples")
            };
            plans.push(self.planner.plan(self.step, &samples, &data, row)?);
            self.step += 1;
        }
        Ok(plans)
    }
}

/// The order in which an epoch takes samples in. Shuffled within each source; sources interleaved so that every stretch of
/// the order has the mixture of the whole, to one sample of each source.
fn order(data: &Data, stream: Stream, epoch: u64) -> Vec<u32> {
    if !stream.shuffle {
        return (0..data.len() as u32).collect();
    }
    let sources = data.sources.iter().copied().max().map_or(1, |most| most as usize + 1);
    let mut queues: Vec<Vec<u32>> = vec![Vec::new(); sources];
    for id in 0..data.len() as u32 {
        queues[data.sources.get(id as usize).copied().unwrap_or(0) as usize].push(id);
    }
    for (source, queue) in queues.iter_mut().enumerate() {
        Random::new(&[stream.seed, epoch, source as u64, 1]).shuffle(queue);
    }
    if sources == 1 {
        return queues.swap_remove(0);
    }
    let (total, mut taken) = (data.len() as i64, vec![0_usize; sources]);
    let due = |source: usize, taken: &[usize], place: i64| {
        queues[source].len() as i64 * (place + 1) - taken[source] as i64 * total
    };
    (0..total)
        .map(|place| {
            let open = (0..sources).filter(|source| taken[*source] < queues[*source].len());
            let next = open.max_by_key(|source| (due(*source, &taken, place), Reverse(*source)));
            let next = next.expect("as many places as samples");
            taken[next] += 1;
            queues[next][taken[next] - 1]
        })
        .collect()
}

fn fingerprint(data: &Data, template: &Problem, stream: Stream, drop_last: bool) -> u64 {
    let mut hasher = Fingerprinter::new();
    for lengths in &data.lengths {
        let bytes: Vec<u8> = lengths.iter().flat_map(|length| length.to_le_bytes()).collect();
        hasher.part(&bytes);
    }
    let sources: Vec<u8> = data.sources.iter().flat_map(|source| source.to_le_bytes()).collect();
    hasher.part(&sources).part(format!("{:?}", template.costs).as_bytes());
    hasher.part(format!("{stream:?} {drop_last}").as_bytes()).finish().low64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cost::Cost, machine::SequenceParallel};

    fn data() -> Arc<Data> {
        let lengths = (0..200_u64).map(|id| 1 + id * id % 97).collect();
        Arc::new(Data {
            lengths: vec![lengths],
            sources: (0..200).map(|id| id % 3).collect(),
            ..Data::default()
        })
    }

    fn sampler(ranks: usize, rank: usize) -> Sampler {
        let template = Problem { costs: vec![Cost::polynomial(10, 1, 0)], ranks, ..Problem::default() };
        let stream = Stream { batch: 12, window: 4, delay: 1, seed: 3, shuffle: true };
        Sampler::new(data(), Planner::new(template, rank).unwrap(), stream, false).unwrap()
    }

    fn epoch(sampler: &mut Sampler) -> Vec<StepPlan> {
        let windows =
            std::iter::from_fn(|| Some(sampler.next_window().unwrap().steps).filter(|s| !s.is_empty()));
        windows.flatten().collect()
    }

    #[test]
    fn ranks_together_see_every_sample_once_and_agree_on_the_plan() {
        let all: Vec<Vec<StepPlan>> = (0..3).map(|rank| epoch(&mut sampler(3, rank))).collect();
        let mut seen: Vec<u64> = all
            .iter()
            .flatten()
            .flat_map(|step| &step.micro_batches)
            .flat_map(|b| b.samples.clone())
            .collect();
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..200));
        assert_eq!(all[0].len() as u64, sampler(3, 0).steps_per_epoch());
        assert!(all[0].iter().zip(&all[2]).all(|(a, b)| a.hash == b.hash && a.samples == b.samples));
    }

    #[test]
    fn the_composition_of_steps_does_not_depend_on_ranks() {
        let samples =
            |ranks| epoch(&mut sampler(ranks, 0)).into_iter().map(|s| s.samples).collect::<Vec<_>>();
        assert_eq!(samples(4), samples(3));
        assert_eq!(samples(4), samples(8));
    }

    #[test]
    fn a_state_resumes_on_another_number_of_ranks() {
        let mut four = sampler(4, 1);
        four.set_epoch(2).unwrap();
        four.next_window().unwrap();
        let state = four.state().clone();
        let mut eight = sampler(8, 5);
        eight.resume(state).unwrap();
        let rest = |sampler: &mut Sampler| epoch(sampler).into_iter().map(|s| s.samples).collect::<Vec<_>>();
        assert_eq!(rest(&mut eight), rest(&mut four));
    }

    #[test]
    fn foreign_states_are_refused() {
        let mut here = sampler(4, 0);
        let state = here.state().clone();
        let error = here.resume(State { fingerprint: 1, ..state.clone() }).unwrap_err();
        assert_eq!(error.code, Code::FOREIGN_STATE);
        assert!(here.resume(State { version: 9, ..state }).unwrap_err().message.contains("version 9"));
    }

    #[test]
    fn a_stream_plans_as_a_data_set_in_the_same_order() {
        let mut whole = sampler(4, 2);
        whole.stream.shuffle = false;
        let mut streamed = StreamPlanner::new(whole.planner.clone(), whole.stream).unwrap();
        let mut whole = Sampler::new(data(), whole.planner, whole.stream, false).unwrap();
        let mut plans = Vec::new();
        for from in (0..200).step_by(48) {
            let to = (from + 48).min(200);
            let part = Data {
                lengths: vec![data().lengths[0][from..to].to_vec()],
                sources: data().sources[from..to].to_vec(),
                ..Data::default()
            };
            plans.extend(streamed.push(&part, to == 200).unwrap());
        }
        assert_eq!(plans, epoch(&mut whole));
    }

    #[test]
    fn every_rank_of_a_group_gets_its_micro_batches() {
        let parallel = SequenceParallel {
            degrees: vec![1, 2, 4],
            bytes_per_token: 10.0,
            bandwidth: vec![(4, 1e9)],
            ranks_per_node: 4,
            rate: 1e9,
            passes: 3.0,
        };
        let template = Problem {
            costs: vec![Cost::polynomial(10, 1, 0)],
            ranks: 8,
            tokens_per_rank: Some(40),
            sequence_parallel: Some(parallel),
            ..Problem::default()
        };
        let stream = Stream { batch: 20, window: 2, delay: 0, seed: 3, shuffle: true };
        let mut counts = vec![0; 200];
        for rank in 0..8 {
            let planner = Planner::new(template.clone(), rank).unwrap();
            let mut sampler = Sampler::new(data(), planner, stream, false).unwrap();
            for batch in epoch(&mut sampler).into_iter().flat_map(|step| step.micro_batches) {
                let share = 12 / batch.group.len().max(1);
                batch.samples.iter().for_each(|sample| counts[*sample as usize] += share);
            }
        }
        assert!(counts.iter().all(|count| *count == 12), "{counts:?}");
    }
}
