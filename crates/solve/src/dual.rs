//! A lower bound: costs are moved between the tables of a network, leaving every sum as it is, until as much as possible is
//! a constant. Sequential tree-reweighted message passing (Kolmogorov 2006, 2014), in integers.
//!
//! No cell is ever negative, so that the constant is a bound by itself, whatever was moved.

use smallvec::SmallVec;

use crate::{
    array::{ArrayId, INFINITE, Shape, Store, normalise},
    network::{Incidence, Network},
};

/// Minimum for each state of `axis`.
pub(crate) fn minima(shape: &[u32], cells: &[i64], axis: usize) -> Vec<i64> {
    let size = shape[axis] as usize;
    let run: usize = shape[axis + 1..].iter().map(|&size| size as usize).product();
    let mut minima = vec![INFINITE; size];
    for block in cells.chunks_exact(size * run) {
        for (minimum, cells) in minima.iter_mut().zip(block.chunks_exact(run)) {
            *minimum = cells.iter().copied().fold(*minimum, i64::min);
        }
    }
    minima
}

/// The tables of a network, each on its own.
struct Tables<'a> {
    network: &'a Network,
    incidence: Incidence,
    shapes: Vec<Shape>,
    cells: Vec<Vec<i64>>,
    /// Per variable, the sum of its own tables.
    own: Vec<Vec<i64>>,
    constant: i128,
}

/// Moves costs through the network, forward and backward, `sweeps` times. Returns the new network, whose tables are at
/// least 0 everywhere and 0 somewhere, and the constant: the sums of the old are those of the new plus the constant.
pub(crate) fn reparametrise(network: &Network, store: &mut Store, sweeps: u32) -> (Network, i128) {
    let mut tables = Tables::new(network, store);
    let order: Vec<u32> =
        (0..network.sizes.len() as u32).filter(|&x| network.sizes[x as usize] > 1).collect();
    for _ in 0..sweeps {
        for &variable in &order {
            tables.pass(variable, Direction::Forward);
        }
        for &variable in order.iter().rev() {
            tables.pass(variable, Direction::Backward);
        }
    }
    tables.finish(store)
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Backward,
}

impl<'a> Tables<'a> {
    fn new(network: &'a Network, store: &Store) -> Self {
        let mut own: Vec<Vec<i64>> = network.sizes.iter().map(|&size| vec![0; size as usize]).collect();
        let (mut shapes, mut cells) = (Vec::new(), Vec::new());
        for (factor, &array) in network.arrays.iter().enumerate() {
            let array = &store[array];
            if let &[variable] = network.scope(factor) {
                for (sum, &cell) in own[variable as usize].iter_mut().zip(&array.cells) {
                    *sum = (*sum + cell).min(INFINITE);
                }
                shapes.push(Shape::new());
                cells.push(Vec::new());
            } else {
                shapes.push(array.shape.clone());
                cells.push(array.cells.to_vec());
            }
        }
        Self { network, incidence: network.incidence(), shapes, cells, own, constant: 0 }
    }

    /// Gathers what the tables around a variable cost at least in each of its states, takes out what all states cost, and
    /// shares the rest among the tables that the direction leads to.
    fn pass(&mut self, variable: u32, direction: Direction) {
        let mut around: SmallVec<[(u32, u32); 16]> = SmallVec::from_slice(self.incidence.of(variable));
        around.retain(|(factor, _)| !self.shapes[*factor as usize].is_empty());
        let own = &mut self.own[variable as usize];
        for &(factor, axis) in &around {
            let (shape, cells) = (&self.shapes[factor as usize], &mut self.cells[factor as usize]);
            let minima = minima(shape, cells, axis as usize);
            for (sum, &minimum) in own.iter_mut().zip(&minima) {
                *sum = (*sum + minimum).min(INFINITE);
            }
            shift(shape, cells, axis as usize, &minima, -1);
        }
        self.constant += i128::from(normalise(own).unwrap_or(0));
        let last = |&(factor, axis): &(u32, u32)| axis as usize + 1 == self.shapes[factor as usize].len();
        let ahead = around.iter().filter(|entry| !last(entry)).count();
        let behind = around.iter().filter(|(_, axis)| *axis > 0).count();
        let shares = ahead.max(behind).max(1) as i64;
        let leads = |entry: &(u32, u32)| match direction {
            Direction::Forward => !last(entry),
            Direction::Backward => entry.1 > 0,
        };
        let share: Vec<i64> = own.iter().map(|&sum| if sum < INFINITE { sum / shares } else { 0 }).collect();
        let to: SmallVec<[(u32, u32); 16]> = around.into_iter().filter(leads).collect();
        for (factor, axis) in to {
            shift(&self.shapes[factor as usize], &mut self.cells[factor as usize], axis as usize, &share, 1);
            for (sum, &share) in self.own[variable as usize].iter_mut().zip(&share) {
                *sum -= if *sum < INFINITE { share } else { 0 };
            }
        }
    }

    fn finish(mut self, store: &mut Store) -> (Network, i128) {
        let mut result = Network::new(self.network.sizes.clone());
        let mut push = |shape: Shape, mut cells: Vec<i64>, scope: &[u32], constant: &mut i128| {
            *constant += i128::from(normalise(&mut cells).unwrap_or(0));
            let array: ArrayId = store.intern(shape, &cells);
            result.push(array, scope);
        };
        for (variable, cells) in self.own.into_iter().enumerate().filter(|(_, cells)| cells.len() > 1) {
            push(Shape::from_slice(&[cells.len() as u32]), cells, &[variable as u32], &mut self.constant);
        }
        for (factor, (shape, cells)) in self.shapes.into_iter().zip(self.cells).enumerate() {
            if !shape.is_empty() {
                push(shape, cells, self.network.scope(factor), &mut self.constant);
            }
        }
        (result, self.constant)
    }
}

/// Adds `sign * by[state]` to all cells of each state of `axis` that are not forbidden.
fn shift(shape: &[u32], cells: &mut [i64], axis: usize, by: &[i64], sign: i64) {
    let run: usize = shape[axis + 1..].iter().map(|&size| size as usize).product();
    for block in cells.chunks_exact_mut(by.len() * run) {
        for (by, cells) in by.iter().zip(block.chunks_exact_mut(run)) {
            for cell in cells {
                *cell += if *cell < INFINITE { sign * by } else { 0 };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{approximate::value, scatter::scatter};

    #[test]
    fn every_sum_is_what_it_was() {
        let mut store = Store::default();
        let mut network = Network::new(vec![3; 9]);
        let mut number = 0..;
        let mut cells = |count: usize| -> Vec<i64> {
            (0..count).map(|_| (scatter(7, number.next().unwrap_or(0)) % 90) as i64).collect()
        };
        for i in 0..9 {
            let array = store.intern(Shape::from_slice(&[3]), &cells(3));
            network.push(array, &[i]);
        }
        for scope in
            [&[0, 1][..], &[1, 2], &[0, 2], &[2, 3, 5], &[4, 5, 6], &[3, 7], &[7, 8], &[0, 8], &[1, 6, 8]]
        {
            let array =
                store.intern(scope.iter().map(|_| 3).collect(), &cells(3_usize.pow(scope.len() as u32)));
            network.push(array, scope);
        }
        let (moved, constant) = reparametrise(&network, &mut store, 10);
        let choices = |seed: u64| (0..9).map(|x| (scatter(seed, x) % 3) as u32).collect::<Vec<_>>();
        let least = (0..500).map(choices).map(|choices| {
            let before = value(&network, &store, &choices).expect("nothing is forbidden");
            assert_eq!(value(&moved, &store, &choices).map(|value| value + constant), Some(before));
            before
        });
        assert!(0 < constant && constant <= least.min().expect("a choice"));
    }
}
