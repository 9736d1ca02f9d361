//! Random numbers at positions: the operation of which a rank draws its own part.

use std::cell::Cell;

use base::{Code, Diagnostic, Result};
use jit::Tier;
use random::{Distribution, Out, Stream};
use smallvec::SmallVec;
use torch_sys::{Arg, Cells, Dtype, Failure, Output, Schema, Slot, Slots, Tensor};

/// Whether a call is one of the operation.
pub(crate) fn is_random_at(schema: &Schema) -> bool {
    schema.name == "unisono::random_at"
}

/// What a call asks for.
pub(crate) struct Asked {
    pub(crate) key: Slot,
    pub(crate) index: Vec<Slot>,
    /// The sizes of the tensor that this is a part of.
    pub(crate) sizes: Vec<i64>,
    pub(crate) operation: u32,
    pub(crate) drawn: Distribution,
    pub(crate) target: Slot,
    pub(crate) dtype: Dtype,
}

impl Asked {
    /// Reads the arguments; none where nothing uses the result.
    pub(crate) fn of(args: &[Arg], outputs: &[Output]) -> Result<Option<Self>> {
        let bad =
            || Diagnostic::new(Code::BAD_PROGRAM, "random numbers with arguments that they do not have");
        let [
            Arg::Tensor(key),
            index @ Arg::Tensors(_),
            Arg::Ints(sizes),
            Arg::Int(operation),
            Arg::Str(name),
            Arg::Float(a),
            Arg::Float(b),
            Arg::Int(digits),
            Arg::Dtype(dtype),
        ] = args
        else {
            return Err(bad());
        };
        let [Output::Tensor(target)] = outputs else { return Ok(None) };
        let index: Vec<Slot> = index.slots().collect();
        let drawn = Distribution::named(name, *a, *b, *digits as u32).ok_or_else(bad)?;
        let fits = index.len() == sizes.len();
        let operation = u32::try_from(*operation).ok().filter(|_| fits).ok_or_else(bad)?;
        let (sizes, target, dtype) = (sizes.clone(), *target, *dtype);
        Ok(Some(Self { key: *key, index, sizes, operation, drawn, target, dtype }))
    }
}

/// A call, ready to run.
pub(crate) struct RandomCall {
    asked: Asked,
    device: (i32, i32),
    tier: Tier,
}

/// For each dimension of the part, where its elements are in the whole tensor.
type Positions<'a> = SmallVec<[&'a [Cell<i64>]; 6]>;

impl RandomCall {
    /// Reads the arguments; none where nothing uses the result.
    pub(crate) fn new(args: &[Arg], outputs: &[Output], device: (i32, i32)) -> Result<Option<Self>> {
        let asked = Asked::of(args, outputs)?;
        Ok(asked.map(|asked| Self { asked, device, tier: Tier::best() }))
    }

    /// Allocates the result and draws it.
    pub(crate) fn run(&self, slots: &mut Slots) -> std::result::Result<(), Failure> {
        let Asked { key, index, sizes: whole, operation, drawn, target, dtype } = &self.asked;
        let sizes = index.iter().map(|slot| Ok(integers(slots, *slot)?.len() as i64));
        let sizes: SmallVec<[i64; 6]> = sizes.collect::<std::result::Result<_, Failure>>()?;
        let tensor =
            Tensor::empty(slots.library(), *dtype, &sizes, &ir::contiguous_strides(&sizes), self.device)?;
        slots.put(*target, tensor);
        let key = integers(slots, *key)?;
        let [seed, step] = key else { return Err(Failure("a key that has no two numbers".to_owned())) };
        let stream = Stream { seed: seed.get() as u64, step: step.get() as u32, operation: *operation };
        let index = index.iter().map(|slot| integers(slots, *slot));
        let index: Positions<'_> = index.collect::<std::result::Result<_, Failure>>()?;
        let out = match slots.elements(*target)?.cells {
            Cells::Float32(cells) => Out::F32(cells),
            Cells::Bfloat16(cells) => Out::Bf16(cells),
            Cells::Int64(cells) => Out::I64(cells),
            Cells::Bool(_) => return Err(Failure("no distribution gives bools".to_owned())),
        };
        let mut filled = 0;
        runs(whole, &index, |start, count| {
            jit::draw(self.tier, stream, *drawn, start, out.range(filled..filled + count));
            filled += count;
        });
        Ok(())
    }
}

/// The elements of a tensor of whole numbers in one dimension, which lie side by side.
fn integers(slots: &Slots, slot: Slot) -> std::result::Result<&[Cell<i64>], Failure> {
    let elements = slots.elements(slot)?;
    match (elements.cells, elements.sizes, elements.strides) {
        (Cells::Int64(cells), [size], [stride]) if *stride == 1 || *size <= 1 => Ok(cells),
        _ => Err(Failure(format!("{slot} is no row of positions"))),
    }
}

/// Calls `run` for each stretch of a part that lies side by side in the whole tensor, in the order of the part: its first position, and how
/// many there are.
fn runs(sizes: &[i64], index: &[&[Cell<i64>]], mut run: impl FnMut(u64, usize)) {
    if index.iter().any(|positions| positions.is_empty()) {
        return;
    }
    let is_whole = |dim: usize| {
        index[dim].len() as i64 == sizes[dim] && index[dim].iter().zip(0..).all(|(at, own)| at.get() == own)
    };
    let mut split = sizes.len();
    while split > 0 && is_whole(split - 1) {
        split -= 1;
    }
    let inner = sizes[split..].iter().product::<i64>() as u64;
    let Some((last, outer)) = index[..split].split_last() else { return run(0, inner as usize) };
    let mut place: SmallVec<[usize; 6]> = SmallVec::from_elem(0, outer.len());
    loop {
        let base =
            place.iter().zip(outer).zip(sizes).fold(0, |sum, ((place, positions), size)| {
                sum * *size as u64 + positions[*place].get() as u64
            });
        let base = base * sizes[split - 1] as u64;
        let mut rest = *last;
        while let Some(first) = rest.first() {
            let together = rest.iter().zip(first.get()..).take_while(|(at, next)| at.get() == *next).count();
            run((base + first.get() as u64) * inner, together * inner as usize);
            rest = &rest[together..];
        }
        let Some(dim) = (0..outer.len()).rev().find(|dim| place[*dim] + 1 < outer[*dim].len()) else {
            return;
        };
        place[dim] += 1;
        place[dim + 1..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sizes: &[i64], index: &[&[i64]]) -> Vec<(u64, usize)> {
        let cells: Vec<Vec<Cell<i64>>> =
            index.iter().map(|positions| positions.iter().map(|at| Cell::new(*at)).collect()).collect();
        let cells: Vec<&[Cell<i64>]> = cells.iter().map(Vec::as_slice).collect();
        let mut found = Vec::new();
        runs(sizes, &cells, |start, count| found.push((start, count)));
        found
    }

    #[test]
    fn what_lies_side_by_side_is_drawn_at_once() {
        assert_eq!(found(&[], &[]), [(0, 1)]);
        assert_eq!(found(&[2, 3], &[&[0, 1], &[0, 1, 2]]), [(0, 6)]);
        assert_eq!(found(&[4, 3], &[&[2, 3], &[0, 1, 2]]), [(6, 6)]);
        assert_eq!(found(&[4, 3], &[&[0, 3], &[0, 1, 2]]), [(0, 3), (9, 3)]);
    }

    #[test]
    fn each_row_of_a_part_and_each_block_begins_anew() {
        assert_eq!(found(&[2, 4], &[&[0, 1], &[2, 3]]), [(2, 2), (6, 2)]);
        assert_eq!(found(&[2, 8], &[&[1], &[0, 1, 4, 5]]), [(8, 2), (12, 2)]);
        assert_eq!(found(&[2, 3, 4], &[&[1], &[0, 2], &[0, 1, 2, 3]]), [(12, 4), (20, 4)]);
    }

    #[test]
    fn an_empty_part_has_nothing_to_draw() {
        assert_eq!(found(&[2, 3], &[&[], &[0, 1, 2]]), []);
    }
}
