//! Functions over tiles, and tiles from and to memory.

use std::cell::Cell;

use crate::{
    Binary, Memory, Nest, Unary, bf16_of, f32_of, f32_of_half, half_of,
    math::{self, Math, Scalar},
};

#[inline(always)]
fn one(to: &mut [f32], a: &[f32], function: impl Fn(f32) -> f32) {
    for (to, a) in to.iter_mut().zip(a) {
        *to = function(*a);
    }
}

#[inline(always)]
fn two(to: &mut [f32], a: &[f32], b: &[f32], function: impl Fn(f32, f32) -> f32) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = function(*a, *b);
    }
}

#[inline(always)]
pub(super) fn three(
    to: &mut [f32],
    a: &[f32],
    b: &[f32],
    c: &[f32],
    function: impl Fn(f32, f32, f32) -> f32,
) {
    for (((to, a), b), c) in to.iter_mut().zip(a).zip(b).zip(c) {
        *to = function(*a, *b, *c);
    }
}

#[inline(always)]
pub(super) fn unary(op: Unary, to: &mut [f32], a: &[f32]) {
    match op {
        Unary::Neg => one(to, a, |x| math::neg(&mut Scalar, x)),
        Unary::Abs => one(to, a, |x| math::abs(&mut Scalar, x)),
        Unary::Sqrt => one(to, a, |x| Scalar.sqrt(x)),
        Unary::Exp => one(to, a, |x| math::exp(&mut Scalar, x)),
        Unary::Log => one(to, a, |x| math::log(&mut Scalar, x)),
        Unary::Tanh => one(to, a, |x| math::tanh(&mut Scalar, x)),
        Unary::Sigmoid => one(to, a, |x| math::sigmoid(&mut Scalar, x)),
        Unary::Erf => one(to, a, |x| math::erf(&mut Scalar, x)),
        Unary::RoundF16 => one(to, a, |x| math::round_f16(&mut Scalar, x)),
        Unary::RoundBf16 => one(to, a, |x| math::round_bf16(&mut Scalar, x)),
    }
}

#[inline(always)]
pub(super) fn binary(op: Binary, to: &mut [f32], a: &[f32], b: &[f32]) {
    match op {
        Binary::Add => two(to, a, b, |a, b| Scalar.add(a, b)),
        Binary::Sub => two(to, a, b, |a, b| Scalar.sub(a, b)),
        Binary::Mul => two(to, a, b, |a, b| Scalar.mul(a, b)),
        Binary::Div => two(to, a, b, |a, b| Scalar.div(a, b)),
        Binary::Max => two(to, a, b, |a, b| math::maximum(&mut Scalar, a, b)),
        Binary::Min => two(to, a, b, |a, b| math::minimum(&mut Scalar, a, b)),
        Binary::Less => two(to, a, b, |a, b| Scalar.less(a, b)),
        Binary::LessEqual => two(to, a, b, |a, b| Scalar.less_equal(a, b)),
        Binary::Equal => two(to, a, b, |a, b| Scalar.equal(a, b)),
    }
}

/// The elements that an operand has at `count` points from `start` on.
pub(super) struct Row<'a> {
    pub(super) nest: &'a Nest,
    pub(super) operand: usize,
    /// How many elements behind those of the points.
    pub(super) offset: usize,
    pub(super) start: usize,
    pub(super) count: usize,
}

impl Row<'_> {
    /// Calls `piece` for each part of a row: where it begins in the tile, how many points it has, where its elements begin.
    #[inline(always)]
    fn each(&self, mut piece: impl FnMut(usize, usize, usize)) {
        let inner = self.nest.inner;
        let (mut row, mut column) = (self.start / inner, self.start % inner);
        let mut at = 0;
        while at < self.count {
            let length = (inner - column).min(self.count - at);
            let start = self.nest.start(self.operand, row) + column * self.stride();
            piece(at, length, start + self.offset);
            (at, row, column) = (at + length, row + 1, 0);
        }
    }

    #[inline(always)]
    fn stride(&self) -> usize {
        self.nest.inner_strides[self.operand]
    }

    #[inline(always)]
    pub(super) fn load(&self, to: &mut [f32], memory: Memory<'_>) {
        let stride = self.stride();
        self.each(|at, length, index| {
            let to = &mut to[at..at + length];
            match memory {
                Memory::F32(cells) => load_piece(to, &cells[index..], stride, |number| number),
                Memory::Bf16(cells) => load_piece(to, &cells[index..], stride, f32_of),
                Memory::F16(cells) => load_piece(to, &cells[index..], stride, f32_of_half),
                Memory::Bool(cells) => load_piece(to, &cells[index..], stride, f32::from),
                Memory::I64(cells) => load_piece(to, &cells[index..], stride, |number| number as f32),
            }
        });
    }

    #[inline(always)]
    pub(super) fn store(&self, from: &[f32], memory: Memory<'_>) {
        let stride = self.stride();
        self.each(|at, length, index| {
            let from = &from[at..at + length];
            match memory {
                Memory::F32(cells) => store_piece(from, &cells[index..], stride, |number| number),
                Memory::Bf16(cells) => store_piece(from, &cells[index..], stride, bf16_of),
                Memory::F16(cells) => store_piece(from, &cells[index..], stride, half_of),
                Memory::Bool(_) | Memory::I64(_) => unreachable!("the verifier lets no kernel write these"),
            }
        });
    }
}

#[inline(always)]
fn load_piece<E: Copy>(to: &mut [f32], cells: &[Cell<E>], stride: usize, convert: impl Fn(E) -> f32) {
    match stride {
        0 => to.fill(convert(cells[0].get())),
        1 => to.iter_mut().zip(cells).for_each(|(to, cell)| *to = convert(cell.get())),
        _ => to.iter_mut().zip(cells.iter().step_by(stride)).for_each(|(to, cell)| *to = convert(cell.get())),
    }
}

#[inline(always)]
fn store_piece<E: Copy>(from: &[f32], cells: &[Cell<E>], stride: usize, convert: impl Fn(f32) -> E) {
    match stride {
        0 | 1 => from.iter().zip(cells).for_each(|(from, cell)| cell.set(convert(*from))),
        _ => from.iter().zip(cells.iter().step_by(stride)).for_each(|(from, cell)| cell.set(convert(*from))),
    }
}
