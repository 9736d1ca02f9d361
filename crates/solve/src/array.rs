//! Interned dense arrays of cells: equal arrays have equal ids, so that equality of tables is equality of numbers.

use std::hash::{Hash, Hasher};

use base::{PrimaryMap, define_id};
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use crate::Cost;

define_id!(
    /// An interned array.
    ArrayId, "a"
);

/// Sizes of the axes, the slowest first.
pub(crate) type Shape = SmallVec<[u32; 4]>;

/// The cell of what is forbidden.
pub(crate) const INFINITE: i64 = Cost::INFINITE.0;

/// A dense array in row-major order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Array {
    pub shape: Shape,
    pub cells: Box<[i64]>,
    /// The greatest finite cell; 0 where none is greater.
    pub max: i64,
    /// Whether a cell is finite.
    pub allows: bool,
}

/// An array of this shape seen along `axis`: how many blocks, how many states, how many cells in a run.
pub(crate) fn around(shape: &[u32], axis: usize) -> (usize, usize, usize) {
    let count = |sizes: &[u32]| sizes.iter().map(|&size| size as usize).product();
    (count(&shape[..axis]), shape[axis] as usize, count(&shape[axis + 1..]))
}

/// The arrays of a problem, each stored once.
#[derive(Clone, Default)]
pub(crate) struct Store {
    arrays: PrimaryMap<ArrayId, Array>,
    by_hash: FxHashMap<u64, SmallVec<[ArrayId; 1]>>,
}

impl Store {
    /// The id of this array: an old one if it was seen before.
    pub fn intern(&mut self, shape: Shape, cells: &[i64]) -> ArrayId {
        debug_assert_eq!(shape.iter().map(|&size| size as usize).product::<usize>(), cells.len());
        let candidates = self.by_hash.entry(hash(&shape, cells)).or_default();
        let arrays = &self.arrays;
        let same = |id: &&ArrayId| arrays[**id].shape == shape && *arrays[**id].cells == *cells;
        if let Some(&id) = candidates.iter().find(same) {
            return id;
        }
        let max = cells.iter().copied().filter(|&cell| cell < INFINITE).max();
        let (max, allows) = (max.unwrap_or(0).max(0), max.is_some());
        let id = self.arrays.push(Array { shape, cells: cells.into(), max, allows });
        candidates.push(id);
        id
    }

    /// Interns the array after its minimum was subtracted; returns the minimum too, or `None` where all is forbidden.
    pub fn intern_normalised(&mut self, shape: Shape, cells: &mut [i64]) -> Option<(ArrayId, i64)> {
        let minimum = normalise(cells)?;
        Some((self.intern(shape, cells), minimum))
    }
}

impl std::ops::Index<ArrayId> for Store {
    type Output = Array;
    fn index(&self, id: ArrayId) -> &Array {
        &self.arrays[id]
    }
}

/// Four hashes side by side, so that no multiplication waits for the one before.
fn hash(shape: &Shape, cells: &[i64]) -> u64 {
    let mut lanes: [FxHasher; 4] = std::array::from_fn(|_| FxHasher::default());
    let quads = cells.chunks_exact(4);
    let [a, b, c, d] = &mut lanes;
    for &cell in quads.remainder() {
        a.write_i64(cell);
    }
    for quad in quads {
        a.write_i64(quad[0]);
        b.write_i64(quad[1]);
        c.write_i64(quad[2]);
        d.write_i64(quad[3]);
    }
    let mut hasher = FxHasher::default();
    shape.hash(&mut hasher);
    for lane in lanes {
        hasher.write_u64(lane.finish());
    }
    hasher.finish()
}

/// Added to what is compared. Read as the bits of a floating-point number, integers between minus half of this and six
/// times this are positive and normal then, so that they compare as they do as integers, and machines have instructions
/// for the minimum of many at once.
pub(crate) const BIAS: i64 = 1 << 60;

/// More than any biased sum: the bits of infinity.
pub(crate) const WORST: i64 = f64::INFINITY.to_bits() as i64;

/// Whether one biased integer is less than another.
pub(crate) fn less(a: i64, b: i64) -> bool {
    f64::from_bits(a as u64) < f64::from_bits(b as u64)
}

/// The lesser of two biased integers.
pub(crate) fn lesser(a: i64, b: i64) -> i64 {
    let (a, b) = (f64::from_bits(a as u64), f64::from_bits(b as u64));
    (if a < b { a } else { b }).to_bits() as i64
}

/// Subtracts the minimum from all finite cells and returns it, or `None` where no cell is finite.
pub(crate) fn normalise(cells: &mut [i64]) -> Option<i64> {
    const FORBIDDEN: i64 = INFINITE + BIAS;
    let mut lanes = [WORST; 4];
    let quads = cells.chunks_exact(4);
    for (lane, &cell) in lanes.iter_mut().zip(quads.remainder()) {
        *lane = cell + BIAS;
    }
    for quad in quads {
        for (lane, &cell) in lanes.iter_mut().zip(quad) {
            *lane = lesser(*lane, cell + BIAS);
        }
    }
    let minimum = lanes.into_iter().fold(WORST, lesser);
    if !less(minimum, FORBIDDEN) {
        return None;
    }
    for cell in cells {
        let biased = *cell + BIAS;
        *cell = if less(biased, FORBIDDEN) { biased - minimum } else { INFINITE };
    }
    Some(minimum - BIAS)
}

/// Strides of a row-major array of `shape`.
pub(crate) fn strides(shape: &[u32]) -> SmallVec<[usize; 8]> {
    let mut strides: SmallVec<[usize; 8]> = SmallVec::from_elem(1, shape.len());
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as usize;
    }
    strides
}

/// The array with its axes rearranged: axis `i` of the result is axis `axes[i]` of `array`.
pub(crate) fn permute(shape: &[u32], cells: &[i64], axes: &[usize]) -> (Shape, Vec<i64>) {
    let source = strides(shape);
    let result: Shape = axes.iter().map(|&axis| shape[axis]).collect();
    let steps: SmallVec<[usize; 8]> = axes.iter().map(|&axis| source[axis]).collect();
    let mut permuted = Vec::with_capacity(cells.len());
    for_each_run(&result, &steps, |run| permuted.extend(run.of(cells)));
    (result, permuted)
}

/// Cells at equal distances in an array.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub offset: usize,
    pub step: usize,
    pub length: usize,
}

impl Run {
    /// The cells of the run.
    pub fn of(self, cells: &[i64]) -> impl Iterator<Item = i64> + use<'_> {
        (0..self.length).map(move |i| cells[self.offset + i * self.step])
    }
}

/// Visits an array with one stride per axis in row-major order of `shape`, in runs as long as its strides allow.
pub(crate) fn for_each_run(shape: &[u32], steps: &[usize], mut visit: impl FnMut(Run)) {
    let mut axes: SmallVec<[(usize, usize); 12]> = SmallVec::new();
    for (&size, &step) in shape.iter().zip(steps) {
        let size = size as usize;
        match axes.last_mut() {
            Some((slower, stride)) if *stride == step * size => (*slower, *stride) = (*slower * size, step),
            _ => axes.push((size, step)),
        }
    }
    let (length, step) = axes.pop().unwrap_or((1, 0));
    let mut index: SmallVec<[usize; 12]> = SmallVec::from_elem(0, axes.len());
    let mut offset = 0;
    for _ in 0..axes.iter().map(|(size, _)| size).product() {
        visit(Run { offset, step, length });
        for (i, (size, step)) in index.iter_mut().zip(&axes).rev() {
            *i += 1;
            offset += step;
            if *i < *size {
                break;
            }
            offset -= step * size;
            *i = 0;
        }
    }
}

impl ArrayId {
    /// Marks the absence of an array in dense tables.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_arrays_have_one_id_and_shape_counts() {
        let mut store = Store::default();
        let a = store.intern(Shape::from_slice(&[2, 3]), &[1; 6]);
        assert_eq!(store.intern(Shape::from_slice(&[2, 3]), &[1; 6]), a);
        assert_ne!(store.intern(Shape::from_slice(&[3, 2]), &[1; 6]), a);
        assert_eq!(store.arrays.len(), 2);
    }

    #[test]
    fn the_minimum_is_taken_from_what_is_allowed() {
        let mut cells = [-Cost::LIMIT.0, 7, INFINITE, Cost::LIMIT.0 - 1, 3 * INFINITE];
        assert_eq!(normalise(&mut cells), Some(-Cost::LIMIT.0));
        assert_eq!(cells, [0, Cost::LIMIT.0 + 7, INFINITE, 2 * Cost::LIMIT.0 - 1, INFINITE]);
        assert_eq!(normalise(&mut [INFINITE, 2 * INFINITE]), None);
    }

    #[test]
    fn permuting_twice_restores() {
        let cells: Vec<i64> = (0..24).collect();
        let (shape, permuted) = permute(&[2, 3, 4], &cells, &[2, 0, 1]);
        assert_eq!((shape.as_slice(), permuted[1]), ([4, 2, 3].as_slice(), 4));
        assert_eq!(permute(&shape, &permuted, &[1, 2, 0]).1, cells);
    }
}
