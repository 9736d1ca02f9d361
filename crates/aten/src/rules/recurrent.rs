//! Cells of recurrent layers, one time step each. Gates are `[batch, gates * features]`, hidden states `[batch, features]`, biases have one
//! dimension. Features are not sharded: those of a gate are a block of the second dimension, those of the hidden state all of it.

use ir::Reduce;

use crate::{Call, FactorKind, Factors};

/// A cell or its backward: the batch; gradients of biases are partial.
pub fn cell(call: &Call<'_>) -> Option<Factors> {
    let size = call.size(0, 0)?;
    let mut space = Factors::none(call);
    let batch = space.add(size, FactorKind::Reduce(Reduce::Sum));
    for operand in (0..call.operands.len()).filter(|operand| call.operand(*operand).rank() == 2) {
        (call.size(operand, 0)? == size).then_some(())?;
        space.operand(operand, 0, batch)?;
    }
    for result in (0..call.results.len()).filter(|result| call.result(*result).rank() == 2) {
        (call.result_size(result, 0)? == size).then_some(())?;
        space.result(result, 0, batch)?;
    }
    Some(space)
}
