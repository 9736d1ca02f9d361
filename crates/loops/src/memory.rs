//! The memory that a kernel runs over.

use std::cell::Cell;

use base::Result;

use crate::{
    Access, Element, Kernel,
    verify::{bad, extent},
};

/// The elements of an operand. Operands may share memory, so that elements are cells.
#[derive(Clone, Copy, Debug)]
pub enum Memory<'a> {
    /// `f32`
    F32(&'a [Cell<f32>]),
    /// `bf16`, by its bits.
    Bf16(&'a [Cell<u16>]),
}

impl Memory<'_> {
    /// The element type.
    pub const fn element(&self) -> Element {
        match self {
            Self::F32(_) => Element::F32,
            Self::Bf16(_) => Element::Bf16,
        }
    }

    /// How many elements.
    pub const fn len(&self) -> usize {
        match self {
            Self::F32(cells) => cells.len(),
            Self::Bf16(cells) => cells.len(),
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the first element.
    pub fn address(&self) -> usize {
        match self {
            Self::F32(cells) => cells.as_ptr() as usize,
            Self::Bf16(cells) => cells.as_ptr() as usize,
        }
    }
}

/// Checks that `memory` holds every index of a verified kernel, and that a written operand shares memory with no other one, unless both
/// lie exactly alike.
pub fn check(kernel: &Kernel, memory: &[Memory<'_>]) -> Result<()> {
    if memory.len() != kernel.operands.len() {
        return Err(bad(format!("{} operands are given, of {}", memory.len(), kernel.operands.len())));
    }
    for (index, (operand, memory)) in kernel.operands.iter().zip(memory).enumerate() {
        let needed = extent(&kernel.domain, operand).unwrap_or(i64::MAX);
        if operand.element != memory.element() || (memory.len() as i64) < needed && kernel.points() > 0 {
            let element = operand.element;
            return Err(bad(format!(
                "operand a{index} has not the {needed} elements of {element:?} it must have"
            )));
        }
    }
    let written = (0..memory.len()).filter(|index| kernel.operands[*index].access == Access::Write);
    for index in written {
        if let Some(other) =
            (0..memory.len()).find(|other| *other != index && clash(kernel, memory, index, *other))
        {
            return Err(bad(format!("operand a{index} is written where a{other} lies")));
        }
    }
    Ok(())
}

/// Whether writing operand `index` could change what another one's later points read or hold.
fn clash(kernel: &Kernel, memory: &[Memory<'_>], index: usize, other: usize) -> bool {
    let range = |index: usize| {
        let operand = &kernel.operands[index];
        let bytes = extent(&kernel.domain, operand).unwrap_or(0) as usize * operand.element.bytes();
        (memory[index].address(), memory[index].address() + bytes)
    };
    let ((a, a_end), (b, b_end)) = (range(index), range(other));
    let (one, two) = (&kernel.operands[index], &kernel.operands[other]);
    let alike =
        a == b && one.element == two.element && one.strides == two.strides && two.access == Access::Read;
    a < b_end && b < a_end && !alike
}
