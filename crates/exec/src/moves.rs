//! Operations that only move elements: where these are few, a call of PyTorch's takes longer than what it does.

use aten::{Fill, Moves};
use smallvec::SmallVec;
use torch_sys::{Arg, Cells, Dtype, Elements, Failure, Output, Schema, Slot, Slots, Tensor};

use crate::{
    Shape,
    copies::{Dim, copy, dims, other_types, side_by_side, whole_numbers},
    positions::{add_at, choose},
};

/// The most elements that are moved without PyTorch, which has threads for more.
const FEW: i64 = 1 << 16;

/// Whole numbers below it are told apart among numbers of floating point.
const EXACT: f64 = (1_u64 << 53) as f64;

/// What is moved.
enum Move {
    /// Nothing: memory is allocated.
    Nothing,
    /// A number everywhere.
    Number(Number),
    /// All elements of a tensor.
    Copy(Slot),
    /// Tensors side by side along a dimension.
    Joined(Vec<Slot>, usize),
    /// Tensors one behind the other along a dimension of their own.
    Stacked(Vec<Slot>, usize),
    /// A tensor several times along each dimension.
    Repeated(Slot, Vec<i64>),
    /// A tensor that begins so far behind the start of each dimension, and a number around it.
    Padded(Slot, Vec<usize>, Number),
    /// A tensor as each so-manyth element of a dimension from a position on, and 0 elsewhere.
    Spread { from: Slot, dim: usize, start: usize, step: usize },
    /// The rows of a table at some positions.
    Rows { table: Slot, at: Slot },
    /// A table of rows that are added up at their positions, but for those at one that counts for nothing.
    Added { rows: Slot, at: Slot, without: i64 },
    /// What a tensor has at positions along a dimension.
    Chosen { from: Slot, dim: usize, at: Slot },
    /// Tensors that are added to what is there at their positions along a dimension.
    AddedAt { others: Slot, dim: usize, at: Slot },
}

/// A number of an element type.
#[derive(Clone, Copy)]
enum Number {
    Float(f32),
    Int(i64),
}

/// Such an operation, ready to run.
pub(crate) struct MoveCall {
    what: Move,
    target: Slot,
    /// How the result lies, where the call allocates it.
    made: Option<Shape>,
}

type Done = Result<(), Failure>;

impl MoveCall {
    /// The call; none where the operation is no such, elements are many or of another type, or nothing uses the result.
    /// `shape_of` gives the shapes of tensors whose sizes are known.
    pub(crate) fn of<'a>(
        schema: &Schema,
        args: &[Arg],
        outputs: &[Output],
        shape_of: impl Fn(Slot) -> Option<&'a Shape>,
    ) -> Option<Self> {
        let (target, made) = match (outputs, args.last()) {
            ([Output::Tensor(target)], _) => (*target, Some(shape_of(*target)?.clone())),
            ([Output::Ignored], Some(Arg::Tensor(target))) if schema.overload == "out" => (*target, None),
            ([Output::Ignored], _) => (args.first()?.slots().next()?, None),
            _ => return None,
        };
        let result = shape_of(target)?;
        let is_few = |shape: &Shape| elements(shape) <= FEW;
        let lies = result.strides.as_ref().is_some_and(|strides| is_dense(&result.sizes, strides));
        let is_moved = matches!(result.dtype, Dtype::Float32 | Dtype::Bfloat16 | Dtype::Int64 | Dtype::Bool);
        if !lies || !is_moved || !is_few(result) {
            return None;
        }
        let alike = |slot: &Slot| shape_of(*slot).is_some_and(|shape| shape.dtype == result.dtype);
        let in_order = result.strides.as_deref() == Some(&ir::contiguous_strides(&result.sizes)[..]);
        let whole = |slot: &Slot| shape_of(*slot).is_some_and(|shape| shape.dtype == Dtype::Int64);
        // Arguments that are truth values ask for memory that devices reach.
        let is_plain = !args.contains(&Arg::Bool(true));
        let name = schema.full_name();
        let writes_over = made.is_none() && schema.overload != "out";
        let row = if writes_over {
            aten::row_in_place(&name).filter(|row| row.moves == Some(Moves::AddAt))?
        } else {
            aten::row(&schema.name).or_else(|| aten::row(&name))?
        };
        let what = match (row.fills, row.moves, args) {
            (Some(Fill::Nothing), ..) if is_plain && made.is_some() => Move::Nothing,
            (Some(Fill::Number(0)), ..) if is_plain && made.is_some() => Move::Number(Number::Float(0.0)),
            (_, Some(Moves::Copy), [Arg::Tensor(from), _]) if alike(from) => Move::Copy(*from),
            (_, Some(Moves::Join), [Arg::Tensors(from), Arg::Int(dim), ..]) if from.iter().all(alike) => {
                Move::Joined(from.clone(), position(*dim, result.sizes.len())?)
            }
            (_, Some(Moves::Stack), [Arg::Tensors(from), Arg::Int(dim), ..]) if from.iter().all(alike) => {
                Move::Stacked(from.clone(), position(*dim, result.sizes.len())?)
            }
            (_, Some(Moves::Repeat), [Arg::Tensor(from), Arg::Ints(times)]) if alike(from) => {
                Move::Repeated(*from, times.clone())
            }
            (_, Some(Moves::Pad), [Arg::Tensor(from), Arg::Ints(pad), value]) if alike(from) => {
                Move::Padded(*from, before(pad, result.sizes.len())?, number(value, result.dtype)?)
            }
            (
                _,
                Some(Moves::Spread),
                [Arg::Tensor(from), _, Arg::Int(dim), Arg::Int(start), Arg::Int(_), Arg::Int(step)],
            ) if alike(from) => {
                let dim = position(*dim, result.sizes.len())?;
                let start = if *start < 0 { *start + result.sizes[dim] } else { *start };
                let start = start.clamp(0, result.sizes[dim]) as usize;
                Move::Spread { from: *from, dim, start, step: usize::try_from(*step).ok()? }
            }
            (_, Some(Moves::LookUp), [Arg::Tensor(table), Arg::Tensor(at), ..])
                if alike(table)
                    && whole(at)
                    && in_order
                    && result.dtype.is_float()
                    && shape_of(*table)?.sizes.len() == 2 =>
            {
                Move::Rows { table: *table, at: *at }
            }
            (
                _,
                Some(Moves::AddUp),
                [Arg::Tensor(rows), Arg::Tensor(at), _, Arg::Int(without), Arg::Bool(false)],
            ) if alike(rows)
                && whole(at)
                && in_order
                && result.dtype == Dtype::Float32
                && is_few(shape_of(*rows)?) =>
            {
                Move::Added { rows: *rows, at: *at, without: *without }
            }
            (_, Some(Moves::Choose), [Arg::Tensor(from), at]) if alike(from) => {
                let (dim, at) = along(at).filter(|(_, at)| whole(at))?;
                Move::Chosen { from: *from, dim, at }
            }
            (_, Some(Moves::AddAt), [_, at, Arg::Tensor(others), Arg::Bool(true)])
                if writes_over && alike(others) && result.dtype == Dtype::Float32 =>
            {
                let (dim, at) = along(at).filter(|(_, at)| whole(at))?;
                // Others of fewer dimensions or sizes are for several positions each.
                let (mut sizes, at_sizes) = (result.sizes.clone(), &shape_of(at)?.sizes);
                sizes.splice(dim..=dim, at_sizes.iter().copied());
                if at_sizes.len() != 1 || shape_of(*others)?.sizes != sizes {
                    return None;
                }
                Move::AddedAt { others: *others, dim, at }
            }
            _ => return None,
        };
        Some(Self { what, target, made })
    }

    /// Allocates the result, unless it is given, and moves the elements. `device` is PyTorch's number of the host, and its index.
    pub(crate) fn run(&self, slots: &mut Slots, device: (i32, i32)) -> Done {
        if let Some(Shape { dtype, sizes, strides }) = &self.made {
            let strides = strides.as_deref().unwrap_or_default();
            let tensor = Tensor::empty(slots.library(), *dtype, sizes, strides, device)?;
            slots.put(self.target, tensor);
        }
        let to = slots.elements(self.target)?;
        match &self.what {
            Move::Nothing => Ok(()),
            Move::Number(value) => fill(to.cells, *value),
            Move::Copy(from) => copy_into(&slots.elements(*from)?, &to, 0, to.strides),
            Move::Joined(from, dim) => {
                let mut start = 0;
                for one in from {
                    let from = slots.elements(*one)?;
                    if from.sizes.contains(&0) {
                        continue;
                    }
                    copy_into(&from, &to, start, to.strides)?;
                    start += (from.sizes[*dim] * to.strides[*dim]) as usize;
                }
                Ok(())
            }
            Move::Stacked(from, dim) => {
                let mut strides: SmallVec<[i64; 6]> = to.strides.into();
                let along = strides.remove(*dim) as usize;
                from.iter()
                    .enumerate()
                    .try_for_each(|(at, one)| copy_into(&slots.elements(*one)?, &to, at * along, &strides))
            }
            Move::Repeated(from, times) => repeat(&slots.elements(*from)?, times, &to),
            Move::Padded(from, before, value) => {
                fill(to.cells, *value)?;
                let starts = before.iter().zip(to.strides);
                let start = starts.map(|(before, stride)| before * *stride as usize).sum();
                copy_into(&slots.elements(*from)?, &to, start, to.strides)
            }
            Move::Spread { from, dim, start, step } => {
                fill(to.cells, Number::Float(0.0))?;
                let mut strides: SmallVec<[i64; 6]> = to.strides.into();
                strides[*dim] *= *step as i64;
                let start = start * to.strides[*dim] as usize;
                copy_into(&slots.elements(*from)?, &to, start, &strides)
            }
            Move::Rows { table, at } => rows(&slots.elements(*table)?, &slots.elements(*at)?, &to),
            Move::Added { rows, at, without } => {
                added(&slots.elements(*rows)?, &slots.elements(*at)?, *without, &to)
            }
            Move::Chosen { from, dim, at } => {
                choose(&slots.elements(*from)?, *dim, &slots.elements(*at)?, &to)
            }
            Move::AddedAt { others, dim, at } => {
                add_at(&slots.elements(*others)?, *dim, &slots.elements(*at)?, &to)
            }
        }
    }
}

fn elements(shape: &Shape) -> i64 {
    shape.sizes.iter().product()
}

/// Whether each element lies by itself and nothing lies between them.
pub(crate) fn is_dense(sizes: &[i64], strides: &[i64]) -> bool {
    let mut dims: SmallVec<[(i64, i64); 6]> =
        strides.iter().copied().zip(sizes.iter().copied()).filter(|(_, size)| *size != 1).collect();
    dims.sort_unstable();
    let mut next = 1;
    sizes.contains(&0)
        || dims.iter().all(|(stride, size)| {
            let follows = *stride == next;
            next *= size;
            follows
        })
}

/// A dimension by its position, which may be counted from the end.
fn position(dim: i64, dims: usize) -> Option<usize> {
    let position = if dim < 0 { dim + dims as i64 } else { dim };
    usize::try_from(position).ok().filter(|position| *position < dims)
}

/// The one dimension that has positions, if it is one, and these.
fn along(at: &Arg) -> Option<(usize, Slot)> {
    let slots: SmallVec<[Option<Slot>; 6]> = match at {
        Arg::Tensors(slots) => slots.iter().copied().map(Some).collect(),
        Arg::OptionalTensors(slots) => slots.iter().copied().collect(),
        _ => return None,
    };
    let mut found = slots.iter().enumerate().filter_map(|(dim, at)| Some((dim, (*at)?)));
    let one = found.next()?;
    found.next().is_none().then_some(one)
}

/// How much stands before each dimension; `pad` has both sides of each, the last dimension first. None where it takes away.
fn before(pad: &[i64], dims: usize) -> Option<Vec<usize>> {
    if pad.iter().any(|side| *side < 0) || pad.len() > 2 * dims {
        return None;
    }
    let mut before = vec![0; dims];
    for (dim, sides) in before.iter_mut().rev().zip(pad.chunks_exact(2)) {
        *dim = sides[0] as usize;
    }
    Some(before)
}

/// A number as elements of a type have it exactly.
fn number(value: &Arg, dtype: Dtype) -> Option<Number> {
    match (dtype, value) {
        (Dtype::Int64, Arg::Int(value)) => Some(Number::Int(*value)),
        (Dtype::Int64, Arg::Float(value)) => {
            Some(Number::Int(*value as i64)).filter(|_| value.fract() == 0.0 && value.abs() < EXACT)
        }
        (Dtype::Float32, Arg::Float(value)) => Some(Number::Float(*value as f32)),
        (Dtype::Float32, Arg::Int(value)) => Some(Number::Float(*value as f32)),
        _ => None,
    }
}

fn fill(to: Cells<'_>, value: Number) -> Done {
    match (to, value) {
        (Cells::Float32(to), Number::Float(value)) => to.iter().for_each(|cell| cell.set(value)),
        (Cells::Int64(to), Number::Int(value)) => to.iter().for_each(|cell| cell.set(value)),
        (Cells::Bfloat16(to), Number::Float(0.0)) => to.iter().for_each(|cell| cell.set(0)),
        (Cells::Int64(to), Number::Float(0.0)) => to.iter().for_each(|cell| cell.set(0)),
        (Cells::Bool(to), Number::Float(0.0)) => to.iter().for_each(|cell| cell.set(0)),
        _ => return Err(other_types()),
    }
    Ok(())
}

/// Copies all of a tensor to elements that begin so far behind the first one and have these strides.
fn copy_into(from: &Elements<'_>, to: &Elements<'_>, start: usize, strides: &[i64]) -> Done {
    if from.sizes.contains(&0) {
        return Ok(());
    }
    copy_by(from.cells, to.cells, start, &dims(from.sizes, from.strides, strides))
}

/// Copies a tensor so many times along each dimension of another, which may have more than it has.
fn repeat(from: &Elements<'_>, times: &[i64], to: &Elements<'_>) -> Done {
    if to.sizes.contains(&0) {
        return Ok(());
    }
    let more = times.len() - from.sizes.len();
    let (mut sizes, mut starts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for (dim, (times, stride)) in times.iter().zip(to.strides).enumerate() {
        let (size, along) = dim.checked_sub(more).map_or((1, 0), |own| (from.sizes[own], from.strides[own]));
        sizes.extend([*times, size]);
        starts.extend([0, along]);
        ends.extend([size * stride, *stride]);
    }
    copy_by(from.cells, to.cells, 0, &dims(&sizes, &starts, &ends))
}

fn copy_by(from: Cells<'_>, to: Cells<'_>, start: usize, dims: &[Dim]) -> Done {
    match (from, to) {
        (Cells::Float32(from), Cells::Float32(to)) => copy(from, &to[start..], dims),
        (Cells::Bfloat16(from), Cells::Bfloat16(to)) => copy(from, &to[start..], dims),
        (Cells::Int64(from), Cells::Int64(to)) => copy(from, &to[start..], dims),
        (Cells::Bool(from), Cells::Bool(to)) => copy(from, &to[start..], dims),
        _ => return Err(other_types()),
    }
    Ok(())
}

fn rows(table: &Elements<'_>, at: &Elements<'_>, to: &Elements<'_>) -> Done {
    let positions = whole_numbers(at)?;
    let (count, width) = (table.sizes[0], table.sizes[1] as usize);
    if let Some(beyond) = positions.iter().find(|position| !(0..count).contains(&position.get())) {
        return Err(Failure(format!("index out of range in self: {} of {count} rows", beyond.get())));
    }
    let row = [Dim { count: width, from: table.strides[1] as usize, to: 1 }];
    let starts = positions.iter().map(|position| position.get() as usize * table.strides[0] as usize);
    let starts = starts.enumerate().filter(|_| width > 0);
    match (table.cells, to.cells) {
        (Cells::Float32(from), Cells::Float32(to)) => {
            starts.for_each(|(index, start)| copy(&from[start..], &to[index * width..], &row));
        }
        (Cells::Bfloat16(from), Cells::Bfloat16(to)) => {
            starts.for_each(|(index, start)| copy(&from[start..], &to[index * width..], &row));
        }
        _ => return Err(other_types()),
    }
    Ok(())
}

/// Adds rows one after the other, as PyTorch does.
fn added(rows: &Elements<'_>, at: &Elements<'_>, without: i64, to: &Elements<'_>) -> Done {
    let (Cells::Float32(table), Cells::Float32(cells)) = (to.cells, rows.cells) else {
        return Err(other_types());
    };
    fill(to.cells, Number::Float(0.0))?;
    let (positions, numbers) = (whole_numbers(at)?, side_by_side(cells, rows));
    let width = to.sizes[1] as usize;
    for (position, row) in positions.iter().zip(numbers.chunks_exact(width.max(1))) {
        let is_there = position.get() != without && (0..to.sizes[0]).contains(&position.get());
        if is_there && width > 0 {
            let sums = &table[position.get() as usize * width..][..width];
            sums.iter().zip(row).for_each(|(sum, number)| sum.set(sum.get() + number.get()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn cells<T: Copy>(numbers: &[T]) -> Vec<Cell<T>> {
        numbers.iter().copied().map(Cell::new).collect()
    }

    fn read<T: Copy>(cells: &[Cell<T>]) -> Vec<T> {
        cells.iter().map(Cell::get).collect()
    }

    fn floats<'a>(cells: &'a [Cell<f32>], sizes: &'a [i64], strides: &'a [i64]) -> Elements<'a> {
        Elements { cells: Cells::Float32(cells), sizes, strides }
    }

    fn wholes<'a>(cells: &'a [Cell<i64>], sizes: &'a [i64], strides: &'a [i64]) -> Elements<'a> {
        Elements { cells: Cells::Int64(cells), sizes, strides }
    }

    #[test]
    fn elements_are_copied_by_their_strides() {
        let (from, to) = (cells(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), cells(&[9.0; 8]));
        let given = floats(&from, &[3, 2], &[1, 3]);
        copy_into(&given, &floats(&to, &[4, 2], &[2, 1]), 2, &[2, 1]).unwrap();
        assert_eq!(read(&to), [9.0, 9.0, 0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(read(&side_by_side(&from, &given)), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    }

    #[test]
    fn rows_are_looked_up_and_added_up_in_order() {
        let (table, at) = (cells(&[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]), cells(&[2_i64, 0, 2]));
        let to = cells(&[0.0; 6]);
        let positions = wholes(&at, &[3], &[1]);
        rows(&floats(&table, &[3, 2], &[2, 1]), &positions, &floats(&to, &[3, 2], &[2, 1])).unwrap();
        assert_eq!(read(&to), [20.0, 21.0, 0.0, 1.0, 20.0, 21.0]);
        let sums = cells(&[7.0; 6]);
        added(&floats(&to, &[3, 2], &[2, 1]), &positions, 0, &floats(&sums, &[3, 2], &[2, 1])).unwrap();
        assert_eq!(read(&sums), [0.0, 0.0, 0.0, 0.0, 40.0, 42.0]);
    }

    #[test]
    fn a_position_beyond_the_table_is_told() {
        let (table, at, to) = (cells(&[0.0, 1.0]), cells(&[1_i64, -1]), cells(&[0.0; 2]));
        let found =
            rows(&floats(&table, &[2, 1], &[1, 1]), &wholes(&at, &[2], &[1]), &floats(&to, &[2, 1], &[1, 1]));
        assert_eq!(found.unwrap_err().0, "index out of range in self: -1 of 2 rows");
    }

    #[test]
    fn padding_stands_for_the_last_dimension_first_and_takes_nothing_away() {
        assert_eq!(before(&[1, 2, 3, 4], 3), Some(vec![0, 3, 1]));
        assert_eq!(before(&[], 2), Some(vec![0, 0]));
        assert_eq!(before(&[1, -1], 2), None);
        assert_eq!(before(&[1, 1], 0), None);
    }

    #[test]
    fn what_lies_densely_may_be_in_any_order() {
        assert!(is_dense(&[2, 3, 1], &[1, 2, 9]));
        assert!(is_dense(&[0, 3], &[5, 5]));
        assert!(!is_dense(&[2, 3], &[4, 1]));
        assert!(!is_dense(&[2, 3], &[0, 1]));
    }
}
