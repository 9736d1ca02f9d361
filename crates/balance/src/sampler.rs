//! A data set's samples in windows of planned steps, resumable at any step, on any number of ranks.

use std::{cmp::Reverse, sync::Arc};

use base::{Code, Diagnostic, Fingerprinter, Result};
use serde::{Deserialize, Serialize};

use crate::{
    data::Data,
    planner::{Planner, StepPlan},
    problem::Problem,
    random::Random,
    stream::{Composer, Stream},
};

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
pub const STATE_VERSION: u32 = 2;

/// A window of planned steps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Window {
    /// Where the sampler stood before it.
    pub start: State,
    /// Its steps; empty after the end of an epoch.
    pub steps: Vec<StepPlan>,
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
    use crate::{cost::Cost, machine::SequenceParallel, stream_planner::StreamPlanner};

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
