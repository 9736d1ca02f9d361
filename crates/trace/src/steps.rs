//! Profiler steps: which iteration a moment belongs to.

use std::collections::BTreeSet;

use timeline::{Class, Rank, Timeline};

use crate::Mode;

/// One `ProfilerStep#N` event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// N.
    pub number: i64,
    /// When it begins.
    pub begin: i64,
    /// When it ends.
    pub end: i64,
    /// Its row.
    pub row: u32,
}

/// The steps of a rank.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// In the order of the source.
    pub steps: Vec<Step>,
    /// From which moment on which step counts; `None` between steps.
    changes: Vec<(i64, Option<i64>)>,
}

impl Steps {
    /// Finds the steps. Compatible mode also takes their images on the device for steps.
    pub fn of(timeline: &Timeline, rank: &Rank, mode: Mode, begin: &[i64], duration: &[i64]) -> Self {
        let numbers = timeline.names.map(step_number);
        let is_step = |row: &usize| {
            mode == Mode::Hta
                || matches!(rank.events.category[*row].class(), Class::Annotation | Class::Operator)
        };
        let steps: Vec<Step> = (0..rank.events.len())
            .filter(is_step)
            .filter_map(|row| {
                let number = numbers[rank.events.name[row].0 as usize]?;
                Some(Step { number, begin: begin[row], end: begin[row] + duration[row], row: row as u32 })
            })
            .collect();
        let changes = changes(&steps);
        Self { steps, changes }
    }

    /// Moves all times.
    pub fn shift(&mut self, by: i64) {
        for step in &mut self.steps {
            step.begin += by;
            step.end += by;
        }
        for change in &mut self.changes {
            change.0 += by;
        }
    }

    /// Finds iterations of moments that mostly ascend.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { changes: &self.changes, at: 0 }
    }

    /// All numbers, ascending, once each.
    pub fn numbers(&self) -> Vec<i64> {
        let numbers: BTreeSet<i64> = self.steps.iter().map(|step| step.number).collect();
        numbers.into_iter().collect()
    }
}

/// Remembers where it was last.
pub struct Cursor<'s> {
    changes: &'s [(i64, Option<i64>)],
    at: usize,
}

impl Cursor<'_> {
    /// The step at `time`; the one last in the source where steps overlap.
    pub fn at(&mut self, time: i64) -> Option<i64> {
        let is_here = |at: usize| {
            self.changes.get(at).is_some_and(|change| change.0 <= time)
                && self.changes.get(at + 1).is_none_or(|next| time < next.0)
        };
        if !is_here(self.at) {
            self.at = self.changes.partition_point(|change| change.0 <= time).checked_sub(1)?;
        }
        self.changes[self.at].1
    }
}

/// The number behind `ProfilerStep#`.
fn step_number(name: &str) -> Option<i64> {
    name.strip_prefix("ProfilerStep")?.strip_prefix('#')?.trim().parse().ok()
}

/// Sweeps over begins and ends; of the steps that are open the last in the source counts.
fn changes(steps: &[Step]) -> Vec<(i64, Option<i64>)> {
    let mut edges: Vec<(i64, bool, usize)> = Vec::new();
    for (order, step) in steps.iter().enumerate().filter(|(_, step)| step.begin < step.end) {
        edges.push((step.begin, true, order));
        edges.push((step.end, false, order));
    }
    edges.sort_unstable();
    let mut open = BTreeSet::new();
    let mut changes: Vec<(i64, Option<i64>)> = Vec::new();
    for (time, opens, order) in edges {
        if opens {
            open.insert(order);
        } else {
            open.remove(&order);
        }
        let number = open.last().map(|&order| steps[order].number);
        match changes.last_mut() {
            Some(last) if last.0 == time => last.1 = number,
            _ => changes.push((time, number)),
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_steps_overlap_the_last_in_the_source_counts() {
        let step = |number, begin, end| Step { number, begin, end, row: 0 };
        let steps = [step(1, 0, 10), step(2, 12, 20), step(3, 8, 14)];
        let steps = Steps { changes: changes(&steps), steps: steps.to_vec() };
        let mut cursor = steps.cursor();
        let found: Vec<_> = [-1, 0, 7, 8, 13, 14, 19, 20, 5].map(|time| cursor.at(time)).to_vec();
        assert_eq!(found, [None, Some(1), Some(1), Some(3), Some(3), Some(2), Some(2), None, Some(1)]);
    }
}
