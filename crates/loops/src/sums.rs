//! In which order rows are added up: rows in groups, these in groups again, and so on until one sum is left. So sums of many rows stay exact,
//! and nothing of it depends on how rows are shared among threads.

use std::cell::Cell;

/// How many sums are added up by themselves before they are added to others.
pub const SUMS_OF_A_SUM: usize = 64;
/// A group has no fewer rows, so that little is added twice, and no more.
const LEAST_ROWS: usize = 8;
const MOST_ROWS: usize = 64;
/// Where there are more rows than the least, at least so many groups are left, and in all so many points for each row of a group: enough for all threads of a device.
const GROUPS: usize = 512;
const POINTS_OF_GROUPS: usize = 1 << 20;

/// How many rows of a kernel are added up one after the other: a power of two.
pub const fn rows_of_a_sum(rows: usize, points: usize) -> usize {
    let most = [rows / GROUPS, rows.saturating_mul(points) / POINTS_OF_GROUPS];
    let mut count = LEAST_ROWS;
    while count < MOST_ROWS && count * 2 <= most[0] && count * 2 <= most[1] {
        count *= 2;
    }
    count
}

/// Sums of groups of rows, for each element that rows are added up in.
pub struct Totals {
    /// What is not yet part of a sum of the next level: how many sums it has, and theirs.
    levels: Vec<(usize, Vec<f32>)>,
}

impl Totals {
    /// Nothing has been added to any of these elements.
    pub fn new(elements: usize) -> Self {
        Self { levels: vec![(0, vec![0.0; elements])] }
    }

    /// Adds the sums of the next group.
    #[inline(always)]
    pub fn add(&mut self, group: &[Cell<f32>]) {
        let (count, sums) = &mut self.levels[0];
        sums.iter_mut().zip(group).for_each(|(sum, number)| *sum += number.get());
        *count += 1;
        let mut level = 0;
        while self.levels[level].0 == SUMS_OF_A_SUM {
            self.carry(level);
            level += 1;
        }
    }

    /// Adds what a level has to the next one.
    fn carry(&mut self, level: usize) {
        let elements = self.levels[level].1.len();
        let (_, sums) = std::mem::replace(&mut self.levels[level], (0, vec![0.0; elements]));
        if level + 1 == self.levels.len() {
            self.levels.push((0, vec![0.0; elements]));
        }
        let (count, above) = &mut self.levels[level + 1];
        above.iter_mut().zip(sums).for_each(|(above, sum)| *above += sum);
        *count += 1;
    }

    /// The sums of all groups.
    pub fn finish(mut self) -> Vec<f32> {
        for level in 0..self.levels.len() - 1 {
            if self.levels[level].0 > 0 {
                self.carry(level);
            }
        }
        self.levels.pop().map(|(_, sums)| sums).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_rows_grow_with_what_there_is_to_add() {
        assert_eq!(rows_of_a_sum(0, 0), 8);
        assert_eq!(rows_of_a_sum(256, 1024), 8);
        assert_eq!(rows_of_a_sum(8192, 2048), 16);
        assert_eq!(rows_of_a_sum(8192, 1 << 14), 16);
        assert_eq!(rows_of_a_sum(1 << 17, 64), 8);
        assert_eq!(rows_of_a_sum(1 << 16, 1024), 64);
        assert_eq!(rows_of_a_sum(usize::MAX, usize::MAX), 64);
    }

    /// The sum of sums in groups, level by level.
    fn by_levels(mut sums: Vec<f32>) -> f32 {
        while sums.len() > 1 {
            sums = sums.chunks(SUMS_OF_A_SUM).map(|sums| sums.iter().fold(0.0, |a, b| a + b)).collect();
        }
        sums.first().copied().unwrap_or(0.0)
    }

    #[test]
    fn sums_of_groups_are_in_groups_again() {
        for count in [0, 1, 63, 64, 65, 4096, 4097, 4161, 10_000] {
            let numbers: Vec<f32> = (0..count).map(|index| 1.0 / (index as f32 + 0.7)).collect();
            let mut totals = Totals::new(1);
            for number in &numbers {
                totals.add(&[Cell::new(*number)]);
            }
            assert_eq!(totals.finish(), [by_levels(numbers)], "{count}");
        }
    }
}
