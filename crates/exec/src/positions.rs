//! Elements at positions along a dimension, which a tensor of whole numbers says: chosen, and added to.

use std::cell::Cell;

use smallvec::SmallVec;
use torch_sys::{Cells, Elements, Failure};

use crate::copies::{Dim, copy, dims, other_types, whole_numbers};

type Done = Result<(), Failure>;

/// Writes what `from` has at the positions `at` along `dim`, in whose place their dimensions are in `to`.
pub(crate) fn choose(from: &Elements<'_>, dim: usize, at: &Elements<'_>, to: &Elements<'_>) -> Done {
    let starts = starts(from, dim, at)?;
    if to.sizes.contains(&0) {
        return Ok(());
    }
    let own = dim..dim + at.sizes.len();
    let places = places(at.sizes, &to.strides[own.clone()]);
    let [sizes, strides] = [from.sizes, from.strides].map(|all| without(all, dim..dim + 1));
    let dims = dims(&sizes, &strides, &without(to.strides, own));
    match (from.cells, to.cells) {
        (Cells::Float32(from), Cells::Float32(to)) => copy_each(from, &starts, to, places, &dims),
        (Cells::Bfloat16(from), Cells::Bfloat16(to)) => copy_each(from, &starts, to, places, &dims),
        (Cells::Int64(from), Cells::Int64(to)) => copy_each(from, &starts, to, places, &dims),
        (Cells::Bool(from), Cells::Bool(to)) => copy_each(from, &starts, to, places, &dims),
        _ => return Err(other_types()),
    }
    Ok(())
}

/// Adds each of `others`, which lie along `dim`, to what `to` has at its position, one after the other.
pub(crate) fn add_at(others: &Elements<'_>, dim: usize, at: &Elements<'_>, to: &Elements<'_>) -> Done {
    let starts = starts(to, dim, at)?;
    let (Cells::Float32(from), Cells::Float32(cells)) = (others.cells, to.cells) else {
        return Err(other_types());
    };
    if others.sizes.contains(&0) {
        return Ok(());
    }
    let [sizes, strides, ends] = [to.sizes, others.strides, to.strides].map(|all| without(all, dim..dim + 1));
    let dims = dims(&sizes, &strides, &ends);
    for (index, start) in starts.iter().enumerate() {
        add(&from[index * others.strides[dim] as usize..], &cells[*start..], &dims);
    }
    Ok(())
}

/// Where each position begins in memory; those below 0 count from the end.
fn starts(of: &Elements<'_>, dim: usize, at: &Elements<'_>) -> Result<SmallVec<[usize; 8]>, Failure> {
    let (size, stride) = (of.sizes[dim], of.strides[dim] as usize);
    let positions = whole_numbers(at)?;
    // What has elements lies in memory in all of its dimensions.
    let start = |position: &Cell<i64>| {
        let position = position.get();
        let from_start = if position < 0 { position + size } else { position };
        if (0..size).contains(&from_start) {
            return Ok(from_start as usize * stride);
        }
        Err(Failure(format!("index {position} is out of bounds for dimension {dim} with size {size}")))
    };
    positions.iter().take(at.sizes.iter().product::<i64>() as usize).map(start).collect()
}

/// Where elements of these sizes lie by these strides, in order.
fn places<'a>(sizes: &'a [i64], strides: &'a [i64]) -> impl Iterator<Item = usize> + 'a {
    let count = sizes.iter().product::<i64>() as usize;
    (0..count).map(move |index| {
        let (mut left, mut place) = (index, 0);
        for (size, stride) in sizes.iter().zip(strides).rev() {
            place += left % *size as usize * *stride as usize;
            left /= *size as usize;
        }
        place
    })
}

fn without(all: &[i64], dims: std::ops::Range<usize>) -> SmallVec<[i64; 6]> {
    all[..dims.start].iter().chain(&all[dims.end..]).copied().collect()
}

fn copy_each<T: Copy>(
    from: &[Cell<T>],
    starts: &[usize],
    to: &[Cell<T>],
    places: impl Iterator<Item = usize>,
    dims: &[Dim],
) {
    starts.iter().zip(places).for_each(|(start, place)| copy(&from[*start..], &to[place..], dims));
}

fn add(from: &[Cell<f32>], to: &[Cell<f32>], dims: &[Dim]) {
    match dims {
        [] => to[0].set(to[0].get() + from[0].get()),
        [outer, inner @ ..] => {
            (0..outer.count).for_each(|at| add(&from[at * outer.from..], &to[at * outer.to..], inner));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats<'a>(cells: &'a [Cell<f32>], sizes: &'a [i64], strides: &'a [i64]) -> Elements<'a> {
        Elements { cells: Cells::Float32(cells), sizes, strides }
    }

    fn wholes<'a>(cells: &'a [Cell<i64>], sizes: &'a [i64], strides: &'a [i64]) -> Elements<'a> {
        Elements { cells: Cells::Int64(cells), sizes, strides }
    }

    fn cells<T: Copy>(numbers: &[T]) -> Vec<Cell<T>> {
        numbers.iter().copied().map(Cell::new).collect()
    }

    fn read(cells: &[Cell<f32>]) -> Vec<f32> {
        cells.iter().map(Cell::get).collect()
    }

    #[test]
    fn positions_are_chosen_in_all_orders_and_count_from_both_ends() {
        let (from, at) = (cells(&[0.0, 1.0, 2.0, 10.0, 11.0, 12.0]), cells(&[-1_i64, 0, 0, 1]));
        let from = floats(&from, &[2, 3], &[3, 1]);
        let to = cells(&[9.0; 8]);
        choose(&from, 1, &wholes(&at, &[2, 2], &[2, 1]), &floats(&to, &[2, 2, 2], &[4, 2, 1])).unwrap();
        assert_eq!(read(&to), [2.0, 0.0, 0.0, 1.0, 12.0, 10.0, 10.0, 11.0]);
        // By columns, and with positions that lie apart.
        choose(&from, 1, &wholes(&at, &[2], &[3]), &floats(&to, &[2, 2], &[1, 2])).unwrap();
        assert_eq!(read(&to)[..4], [2.0, 12.0, 1.0, 11.0]);
    }

    #[test]
    fn what_is_added_at_one_position_is_added_one_after_the_other() {
        let (others, at) = (cells(&[1e8, 1.0, -1e8, 2.0, 3.0, 4.0]), cells(&[1_i64, -1, 1]));
        let to = cells(&[0.0, 5.0, 0.0, 0.5]);
        add_at(
            &floats(&others, &[2, 3], &[3, 1]),
            1,
            &wholes(&at, &[3], &[1]),
            &floats(&to, &[2, 2], &[2, 1]),
        )
        .unwrap();
        assert_eq!(read(&to), [0.0, (5.0 + 1e8 + 1.0) - 1e8, 0.0, 9.5]);
    }

    #[test]
    fn a_position_that_is_not_there_is_told_in_pytorchs_words() {
        let (from, at, to) = (cells(&[0.0, 1.0]), cells(&[2_i64]), cells(&[0.0]));
        let found = choose(&floats(&from, &[2], &[1]), 0, &wholes(&at, &[1], &[1]), &floats(&to, &[1], &[1]));
        assert_eq!(found.unwrap_err().0, "index 2 is out of bounds for dimension 0 with size 2");
    }
}
