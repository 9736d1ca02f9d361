//! Plans for streams of which nothing is known ahead.

use base::{Code, Diagnostic, Result};

use crate::{
    data::Data,
    planner::{Planner, StepPlan},
    stream::{Composer, Stream},
};

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
