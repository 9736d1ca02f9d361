//! What actions cost, and what a schedule takes at these costs.

use crate::{
    action::{Action, Pass},
    rows::{Placement, Schedule},
};

/// What actions take and hold. Units are the caller's: one of time, one of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Costs {
    /// On which stage each chunk is.
    pub placement: Placement,
    /// Forward of a micro-batch, for each chunk.
    pub forward: Vec<i64>,
    /// The half of backward that the chunk before needs.
    pub inputs: Vec<i64>,
    /// The other half.
    pub weights: Vec<i64>,
    /// Sending to the next chunk, and the gradient back from it; one less than chunks. Nothing else waits for it.
    pub sending: Vec<i64>,
    /// Memory that a micro-batch holds from its forward on until the first half of backward is done.
    pub kept: Vec<i64>,
    /// What is held until the second half is done, of that and of what the first half makes.
    pub left: Vec<i64>,
    /// The memory of each stage that micro-batches may take.
    pub room: Vec<i64>,
}

/// A schedule that was run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// When the last stage is done.
    pub step: i64,
    /// When each stage begins its first action and ends its last one.
    pub spans: Vec<(i64, i64)>,
    /// The most memory that micro-batches take on each stage.
    pub peaks: Vec<i64>,
}

/// Where stages wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// The first stage that waits.
    pub stage: u32,
    /// Where in its row.
    pub position: usize,
    /// What cannot begin.
    pub action: Action,
    /// What it waits for.
    pub waits_for: Action,
}

/// When forward and the halves of backward of each chunk and micro-batch end.
struct Ends {
    chunks: u32,
    forward: Vec<Option<i64>>,
    inputs: Vec<Option<i64>>,
}

impl Ends {
    const fn at(&self, chunk: u32, micro_batch: u32) -> usize {
        (micro_batch * self.chunks + chunk) as usize
    }

    /// What an action needs first: the work that is needed and what is sent of it.
    fn ready(&self, costs: &Costs, action: Action) -> Result<i64, Action> {
        let Action { chunk, work, micro_batch } = action;
        let needed = |ends: &[Option<i64>], chunk, work, sending: i64| {
            let end = ends[self.at(chunk, micro_batch)];
            end.map(|end| end + sending).ok_or(Action::new(chunk, work, micro_batch))
        };
        match work {
            Pass::Forward if chunk == 0 => Ok(0),
            Pass::Forward => {
                needed(&self.forward, chunk - 1, Pass::Forward, costs.sending[chunk as usize - 1])
            }
            Pass::Weights => needed(&self.inputs, chunk, Pass::Inputs, 0),
            Pass::Backward | Pass::Inputs => {
                let own = needed(&self.forward, chunk, Pass::Forward, 0)?;
                if chunk + 1 == self.chunks {
                    return Ok(own);
                }
                let sending = costs.sending[chunk as usize];
                Ok(own.max(needed(&self.inputs, chunk + 1, Pass::Inputs, sending)?))
            }
        }
    }

    /// Notes when an action ends that has begun.
    fn note(&mut self, costs: &Costs, action: Action, begin: i64) -> i64 {
        let end = begin + costs.time(action);
        let at = self.at(action.chunk, action.micro_batch);
        match action.work {
            Pass::Forward => self.forward[at] = Some(end),
            Pass::Inputs | Pass::Backward => self.inputs[at] = Some(end),
            Pass::Weights => {}
        }
        end
    }
}

impl Costs {
    /// Forward and each half of backward of a chunk take 1, sending nothing, and a micro-batch holds 1 until backward is over.
    pub fn even(placement: &Placement) -> Self {
        let chunks = placement.chunks() as usize;
        Self {
            placement: placement.clone(),
            forward: vec![1; chunks],
            inputs: vec![1; chunks],
            weights: vec![1; chunks],
            sending: vec![0; chunks.saturating_sub(1)],
            kept: vec![1; chunks],
            left: vec![1; chunks],
            room: vec![i64::MAX; placement.stages as usize],
        }
    }

    /// What an action takes.
    pub fn time(&self, action: Action) -> i64 {
        let chunk = action.chunk as usize;
        match action.work {
            Pass::Forward => self.forward[chunk],
            Pass::Backward => self.inputs[chunk] + self.weights[chunk],
            Pass::Inputs => self.inputs[chunk],
            Pass::Weights => self.weights[chunk],
        }
    }

    /// What a stage holds more, or less, behind an action.
    pub fn change(&self, action: Action) -> i64 {
        let chunk = action.chunk as usize;
        match action.work {
            Pass::Forward => self.kept[chunk],
            Pass::Backward => -self.kept[chunk],
            Pass::Inputs => self.left[chunk] - self.kept[chunk],
            Pass::Weights => -self.left[chunk],
        }
    }

    /// Runs a schedule: each stage does the next action of its row as soon as what it needs is there.
    pub fn run(&self, schedule: &Schedule) -> Result<Run, Stuck> {
        let chunks = self.placement.chunks();
        let all = (chunks * schedule.micro_batches) as usize;
        let mut ends = Ends { chunks, forward: vec![None; all], inputs: vec![None; all] };
        let mut next = vec![0; schedule.rows.len()];
        let mut spans: Vec<Option<(i64, i64)>> = vec![None; schedule.rows.len()];
        let mut step = 0;
        loop {
            let mut moved = false;
            let mut stuck = None;
            for (stage, row) in schedule.rows.iter().enumerate() {
                while let Some(action) = row.get(next[stage]).copied() {
                    let ready = match ends.ready(self, action) {
                        Ok(ready) => ready,
                        Err(waits_for) => {
                            let position = next[stage];
                            stuck =
                                stuck.or(Some(Stuck { stage: stage as u32, position, action, waits_for }));
                            break;
                        }
                    };
                    let begin = ready.max(spans[stage].map_or(0, |(_, end)| end));
                    let end = ends.note(self, action, begin);
                    spans[stage] = Some((spans[stage].map_or(begin, |(first, _)| first), end));
                    step = step.max(end);
                    next[stage] += 1;
                    moved = true;
                }
            }
            match stuck {
                None => break,
                Some(stuck) if !moved => return Err(stuck),
                Some(_) => {}
            }
        }
        let spans = spans.into_iter().map(Option::unwrap_or_default).collect();
        Ok(Run { step, spans, peaks: schedule.rows.iter().map(|row| self.peak(row)).collect() })
    }

    /// The most that a stage holds at once.
    pub fn peak(&self, row: &[Action]) -> i64 {
        let held = row.iter().scan(0, |held, action| {
            *held += self.change(*action);
            Some(*held)
        });
        held.max().unwrap_or(0).max(0)
    }

    /// Whether each stage has the room that a schedule takes.
    pub fn fits(&self, schedule: &Schedule) -> bool {
        schedule.rows.iter().zip(&self.room).all(|(row, room)| self.peak(row) <= *room)
    }
}
