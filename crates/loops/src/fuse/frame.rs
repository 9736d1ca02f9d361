//! The domain that operations of several shapes share: how the dimensions of each tensor lie in it.

use super::views::Cut;

/// The pieces of a row, as if they were a dimension outside of it. No loop runs over them: each has values of its own.
pub(super) const PIECES: usize = usize::MAX;
/// The most pieces of a row.
const MOST_PIECES: i64 = 4;

/// For each dimension of a tensor the dimensions of the frame that it is, the outermost first; none where it has, or repeats, one element.
pub(super) type Dims = Vec<Vec<usize>>;

/// The domain of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// The sizes of its dimensions, of which the last one is a piece of the longest row.
    pub(super) sizes: Vec<i64>,
}

impl Frame {
    /// The frame of operations over these shapes, whose rows are cut where `cuts` says: the outer dimensions of all are taken apart as the
    /// finest one needs. Of shapes that do not fit together the first ones count: others may be views of these in another order. None where
    /// there is none, or a row would have too many pieces.
    pub(super) fn of(shapes: &[&[i64]], cuts: &[i64]) -> Option<Self> {
        if shapes.iter().any(|shape| shape.contains(&0)) {
            return None;
        }
        let lasts = || shapes.iter().map(|shape| shape.last().copied().unwrap_or(1));
        let row = lasts().max()?;
        let mut unit = row;
        for size in lasts().chain(cuts.iter().copied()).filter(|size| *size > 1) {
            unit = gcd(unit, size);
        }
        // A cut at the first element leaves nothing of a row.
        if cuts.contains(&1) || row / unit > MOST_PIECES || row > 1 && unit == 1 {
            return None;
        }
        let mut ends: Vec<i64> = vec![1];
        let mut points = None;
        for shape in shapes {
            let outer = &shape[..shape.len().saturating_sub(1)];
            let mut finer = ends.clone();
            let mut end = 1;
            for size in outer.iter().rev() {
                end *= size;
                finer.push(end);
            }
            if *points.get_or_insert(end) != end {
                return None;
            }
            finer.sort_unstable();
            finer.dedup();
            if finer.windows(2).all(|pair| pair[1] % pair[0] == 0) {
                ends = finer;
            }
        }
        let mut sizes = vec![unit];
        sizes.extend(ends.windows(2).map(|pair| pair[1] / pair[0]));
        sizes.reverse();
        Some(Self { sizes })
    }

    /// The dimension that is a piece of a row.
    pub(super) const fn row(&self) -> usize {
        self.sizes.len() - 1
    }

    /// The size of a row's piece.
    pub(super) fn unit(&self) -> i64 {
        self.sizes[self.row()]
    }

    /// How a tensor of this shape lies in the frame where its elements come in the frame's order.
    pub(super) fn in_order(&self, shape: &[i64]) -> Option<Dims> {
        let mut dims: Dims = vec![Vec::new(); shape.len()];
        let (last, outer) = shape.split_last().map_or((1, shape), |(last, outer)| (*last, outer));
        if last > 1 {
            let pieces = last / self.unit();
            if self.unit() == 1 || pieces * self.unit() != last {
                return None;
            }
            dims[shape.len() - 1] = if pieces == 1 { vec![self.row()] } else { vec![PIECES, self.row()] };
        }
        let mut next = self.row();
        for (dim, size) in outer.iter().enumerate().rev() {
            let mut reach = 1;
            while reach < *size {
                next = next.checked_sub(1)?;
                reach *= self.sizes[next];
                dims[dim].insert(0, next);
            }
            if reach != *size {
                return None;
            }
        }
        Some(dims)
    }

    /// How many pieces a tensor has: 1 where it has the frame's piece of a row, or one number for it.
    pub(super) fn pieces(&self, shape: &[i64], dims: &Dims) -> i64 {
        let cut = dims.iter().position(|dim| dim.first() == Some(&PIECES));
        cut.map_or(1, |dim| shape[dim] / self.inner(&dims[dim]))
    }

    /// Whether a tensor has each outer dimension of the frame once.
    pub(super) fn is_whole(&self, dims: &Dims) -> bool {
        let count = |dim: usize| dims.iter().flatten().filter(|other| **other == dim).count();
        (0..self.row()).all(|dim| count(dim) == 1) && count(self.row()) <= 1 && count(PIECES) <= 1
    }

    /// Whether a tensor has a number for each point of a row.
    pub(super) fn has_row(&self, dims: &Dims) -> bool {
        self.unit() == 1 || dims.iter().flatten().any(|dim| *dim == self.row())
    }

    /// How many elements of a dimension belong to one piece.
    fn inner(&self, dim: &[usize]) -> i64 {
        dim.iter().filter(|dim| **dim != PIECES).map(|dim| self.sizes[*dim]).product()
    }

    /// The steps along the dimensions of the frame, and between pieces, of a tensor with these strides. Dimensions for which `is_there` does not
    /// hold are repeated.
    pub(super) fn strides(
        &self,
        dims: &Dims,
        strides: &[i64],
        is_there: impl Fn(usize) -> bool,
    ) -> (Vec<i64>, i64) {
        let (mut found, mut between) = (vec![0; self.sizes.len()], 0);
        for (position, dim) in dims.iter().enumerate().filter(|(position, _)| is_there(*position)) {
            let mut stride = strides[position];
            for part in dim.iter().rev() {
                if *part == PIECES {
                    between = stride;
                } else {
                    found[*part] = stride;
                    stride *= self.sizes[*part];
                }
            }
        }
        (found, between)
    }

    /// How a view without elements of its own lies in the frame, by its strides and those of what it views.
    pub(super) fn viewed(
        &self,
        (shape, strides, dims): (&[i64], &[i64], &Dims),
        view: (&[i64], &[i64]),
    ) -> Option<Dims> {
        let pieces = self.pieces(shape, dims);
        let mut parts: Vec<(i64, i64, usize)> = Vec::new();
        for (dim, stride) in dims.iter().zip(strides) {
            let mut stride = *stride;
            for part in dim.iter().rev() {
                let size = if *part == PIECES { pieces } else { self.sizes[*part] };
                parts.push((stride, size, *part));
                stride *= size;
            }
        }
        parts.sort_unstable_by_key(|(stride, ..)| std::cmp::Reverse(*stride));
        let mut left = parts.len();
        let along = view.0.iter().zip(view.1).map(|(size, stride)| {
            if *size == 1 || *stride == 0 {
                return Some(Vec::new());
            }
            let own = parts.iter().filter(|(part, ..)| stride <= part && *part < stride * size);
            let own: Vec<&(i64, i64, usize)> = own.collect();
            let mut next = *stride;
            for (part, size, _) in own.iter().rev() {
                if *part != next {
                    return None;
                }
                next *= size;
            }
            left = left.checked_sub(own.len())?;
            (next == stride * size).then(|| own.iter().map(|(.., part)| *part).collect())
        });
        let found: Dims = along.collect::<Option<_>>()?;
        let pieces_inside = found.iter().any(|dim| dim.iter().skip(1).any(|part| *part == PIECES));
        (left == 0 && !pieces_inside).then_some(found)
    }

    /// How a part of a tensor along a dimension lies in the frame, and which pieces it has; none where a piece would be cut.
    pub(super) fn cut(&self, shape: &[i64], dims: &Dims, cut: Cut) -> Option<(Dims, std::ops::Range<usize>)> {
        let pieces = self.pieces(shape, dims);
        if cut.start == 0 && cut.size == shape[cut.dim] {
            return Some((dims.clone(), 0..pieces as usize));
        }
        let dim = &dims[cut.dim];
        let inner = self.inner(dim);
        if dim.first() != Some(&PIECES) || cut.start % inner != 0 || cut.size % inner != 0 || cut.size == 0 {
            return None;
        }
        let (first, count) = ((cut.start / inner) as usize, (cut.size / inner) as usize);
        let mut found = dims.clone();
        if count == 1 {
            found[cut.dim].remove(0);
        }
        Some((found, first..first + count))
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
