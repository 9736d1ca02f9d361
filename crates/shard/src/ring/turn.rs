//! Tensors with their dimensions in the order in which they lie in memory.

use ir::{TensorType, ValueId, memory_order};

use crate::emit::Emitter;

/// The dimension of positions of queries, keys, values, results and logarithms.
const POSITIONS: usize = 2;

/// An order of dimensions, the outermost in memory first.
pub struct Turn {
    dims: Vec<usize>,
}

impl Turn {
    /// The order in which dimensions of a tensor of this type lie in memory.
    pub fn of(ty: &TensorType) -> Self {
        Self { dims: memory_order(&ty.strides) }
    }

    /// Where positions are in a turned tensor.
    pub fn positions(&self) -> usize {
        self.dims.iter().position(|dim| *dim == POSITIONS).expect("tensors of attention have positions")
    }

    /// The value turned.
    pub fn there(&self, out: &mut Emitter<'_>, value: ValueId) -> ValueId {
        out.permute(value, &self.dims)
    }

    /// A turned value as it was.
    pub fn back(&self, out: &mut Emitter<'_>, value: ValueId) -> ValueId {
        out.permute(value, &ir::inverse(&self.dims))
    }

    /// Values turned and stacked.
    pub fn stacked(&self, out: &mut Emitter<'_>, values: &[ValueId]) -> ValueId {
        let turned: Vec<ValueId> = values.iter().map(|value| self.there(out, *value)).collect();
        out.stacked(&turned)
    }

    /// The values of which such a stack is.
    pub fn taken<const N: usize>(&self, out: &mut Emitter<'_>, stack: ValueId) -> [ValueId; N] {
        std::array::from_fn(|one| {
            let turned = out.select(stack, 0, one as i64);
            self.back(out, turned)
        })
    }
}
