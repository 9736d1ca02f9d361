//! The memory that a kernel runs over.

use std::cell::Cell;

use base::Result;

use crate::{
    Access, Element, Kernel, Operand, OperandId, bf16_of, half_of,
    verify::{bad, extent},
};

/// The elements of an operand. Operands may share memory, so that elements are cells.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// `f32`
    F32(&'a [Cell<f32>]),
    /// `bf16`, by its bits.
    Bf16(&'a [Cell<u16>]),
    /// `f16`, by its bits.
    F16(&'a [Cell<u16>]),
    /// `bool`, 0 or 1.
    Bool(&'a [Cell<u8>]),
    /// `i64`
    I64(&'a [Cell<i64>]),
}

/// What is known of memory that a kernel runs over, wherever it is.
pub trait Lies {
    /// The element type.
    fn element(&self) -> Element;
    /// How many elements there are from the first to the last one.
    fn elements(&self) -> usize;
    /// The address of the first one.
    fn address(&self) -> usize;
}

impl Lies for Memory<'_> {
    #[inline]
    fn element(&self) -> Element {
        Memory::element(self)
    }
    #[inline]
    fn elements(&self) -> usize {
        self.len()
    }
    #[inline]
    fn address(&self) -> usize {
        Memory::address(self)
    }
}

impl Memory<'_> {
    /// The element type.
    pub const fn element(&self) -> Element {
        match self {
            Self::F32(_) => Element::F32,
            Self::Bf16(_) => Element::Bf16,
            Self::F16(_) => Element::F16,
            Self::Bool(_) => Element::Bool,
            Self::I64(_) => Element::I64,
        }
    }

    /// How many elements.
    pub const fn len(&self) -> usize {
        match self {
            Self::F32(cells) => cells.len(),
            Self::Bf16(cells) | Self::F16(cells) => cells.len(),
            Self::Bool(cells) => cells.len(),
            Self::I64(cells) => cells.len(),
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes numbers to the first elements, which are ones that kernels write.
    pub fn write(&self, numbers: impl IntoIterator<Item = f32>) {
        match self {
            Self::F32(cells) => cells.iter().zip(numbers).for_each(|(cell, number)| cell.set(number)),
            Self::Bf16(cells) => {
                cells.iter().zip(numbers).for_each(|(cell, number)| cell.set(bf16_of(number)));
            }
            Self::F16(cells) => {
                cells.iter().zip(numbers).for_each(|(cell, number)| cell.set(half_of(number)));
            }
            Self::Bool(_) | Self::I64(_) => unreachable!("the verifier lets no kernel write these"),
        }
    }

    /// The address of the first element.
    pub fn address(&self) -> usize {
        match self {
            Self::F32(cells) => cells.as_ptr() as usize,
            Self::Bf16(cells) | Self::F16(cells) => cells.as_ptr() as usize,
            Self::Bool(cells) => cells.as_ptr() as usize,
            Self::I64(cells) => cells.as_ptr() as usize,
        }
    }
}

/// What memory must hold so that a kernel can run over it.
#[derive(Clone, Debug)]
pub struct Bounds {
    operands: Vec<Bound>,
    /// Pairs of a written operand and another one, and whether both may lie at the same place.
    pairs: Vec<(usize, usize, bool)>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    element: Element,
    elements: usize,
}

/// Whether a kernel reads or writes any element of an operand: of rows without points it touches what there is once for a row.
fn is_touched(kernel: &Kernel, operand: &Operand) -> bool {
    let rows = kernel.domain.len().saturating_sub(1);
    let once = || {
        kernel.by_rows() && kernel.is_of_rows(operand) && kernel.domain[..rows].iter().all(|size| *size > 0)
    };
    let sum =
        operand.access == Access::Add && (kernel.is_of_rows(operand) || kernel.domain.last() != Some(&0));
    kernel.points() > 0 || sum || once()
}

impl Bounds {
    /// What a verified kernel needs: for every operand as many elements as it has indices. A written operand may share memory with no other one,
    /// unless that is read and both lie exactly alike.
    pub fn of(kernel: &Kernel) -> Self {
        let operands = kernel.operands.iter().enumerate().map(|(index, operand)| {
            let elements = if is_touched(kernel, operand) { extent(kernel, index) } else { None };
            let elements = elements.unwrap_or(0);
            Bound { element: operand.element, elements: elements as usize }
        });
        let count = kernel.operands.len();
        let is_written = |index: &usize| kernel.operands[*index].access != Access::Read;
        let others = |index| (0..count).filter(move |other| index != *other).map(move |other| (index, other));
        let pairs = (0..count).filter(is_written).flat_map(others).map(|(index, other)| {
            let id = |index: usize| OperandId(index as u32);
            (index, other, kernel.may_lie_alike(id(index), id(other)))
        });
        Self { operands: operands.collect(), pairs: pairs.collect() }
    }

    /// How many elements an operand has at least.
    pub fn elements(&self, operand: usize) -> usize {
        self.operands[operand].elements
    }

    /// Fails where `memory` does not fit.
    #[inline]
    pub fn check(&self, memory: &[impl Lies]) -> Result<()> {
        if memory.len() != self.operands.len() {
            return Err(bad(format!("{} operands are given, of {}", memory.len(), self.operands.len())));
        }
        let short = self.operands.iter().zip(memory).position(|(bound, memory)| {
            bound.element != memory.element() || memory.elements() < bound.elements
        });
        if let Some(index) = short {
            let Bound { element, elements } = self.operands[index];
            return Err(bad(format!(
                "operand a{index} has not the {elements} elements of {element:?} it must have"
            )));
        }
        match self.pairs.iter().find(|pair| self.clash(memory, **pair)) {
            Some((index, other, _)) => Err(bad(format!("operand a{index} is written where a{other} lies"))),
            None => Ok(()),
        }
    }

    /// Whether writing operand `index` could change what another one's later points read or hold.
    fn clash(&self, memory: &[impl Lies], (index, other, alike): (usize, usize, bool)) -> bool {
        let range = |index: usize| {
            let Bound { element, elements } = self.operands[index];
            let start = memory[index].address();
            (start, start + elements * element.bytes())
        };
        let ((a, a_end), (b, b_end)) = (range(index), range(other));
        a < b_end && b < a_end && !(alike && a == b)
    }
}
