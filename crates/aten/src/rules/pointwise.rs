//! Operations on each element, with broadcasting.

use base::Flops;

use crate::{Call, FactorKind, Factors};

/// Every dimension of the results is a factor; a dimension of an operand that is broadcast cannot be sharded.
pub fn broadcast(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let shape = (0..call.results.len()).map(|i| call.result(i)).max_by_key(|ty| ty.rank())?.shape.clone();
    for size in &shape {
        space.add(*size, FactorKind::Parallel);
    }
    for (map, ty) in space.operands.iter_mut().zip((0..).map(|i| call.operand(i))) {
        align(map, &ty.shape, &shape)?;
    }
    for (map, ty) in space.results.iter_mut().zip((0..).map(|i| call.result(i))) {
        align(map, &ty.shape, &shape)?;
        if map.iter().filter(|dim| dim.is_some()).count() != shape.len() {
            return None;
        }
    }
    Some(space)
}

/// Gives the trailing dimensions of a tensor the factors of `shape` that they run over.
fn align(map: &mut [Option<usize>], own: &[i64], shape: &[i64]) -> Option<()> {
    let missing = shape.len().checked_sub(own.len())?;
    for (dim, size) in own.iter().enumerate() {
        map[dim] = (*size == shape[dim + missing]).then_some(dim + missing);
    }
    Some(())
}

/// `log_sigmoid_forward(x)`, which keeps something for its backward on processors, and nothing elsewhere.
pub fn log_sigmoid(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let shape = &call.operand(0).shape;
    for (dim, size) in shape.iter().enumerate() {
        let factor = space.add(*size, FactorKind::Parallel);
        space.operand(0, dim, factor)?;
        space.result(0, dim, factor)?;
        if call.result(1).shape == *shape {
            space.result(1, dim, factor)?;
        }
    }
    Some(space)
}

/// Operations that make a tensor out of nothing but a shape: every dimension of the result is a factor.
pub fn filled(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    for (dim, size) in call.result(0).shape.iter().enumerate() {
        let factor = space.add(*size, FactorKind::Parallel);
        space.result(0, dim, factor)?;
    }
    Some(space)
}

/// `random_at(key, index, ..)`: dimension `d` of the result goes with the `d`th tensor of positions.
pub fn at_positions(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    for (dim, size) in call.result(0).shape.iter().enumerate() {
        let factor = space.add(*size, FactorKind::Parallel);
        space.operand(1 + dim, 0, factor)?;
        space.result(0, dim, factor)?;
    }
    Some(space)
}

/// What drawing an element takes: a quarter of a block of ten rounds, and the step from a word to a number.
pub fn drawn_flops(call: &Call<'_>) -> Flops {
    const EACH: u64 = 32;
    Flops(EACH * call.result(0).elements())
}
