//! Operations that do the same to each tensor of a list, and that can be computed without PyTorch.

/// What such an operation does to each tensor, in its form that writes in place, if it has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLists {
    /// The square root of the sum of squares, where the order is 2: `(tensors, order, type)`.
    Norm,
    /// Multiplied by a number: `(tensors, number)`.
    Multiply,
    /// A number is added: `(tensors, number, factor of the number)`.
    Add,
    /// A step of AdamW: `(parameters, gradients, first moments, second moments, greatest second moments, counts of steps, learning rate, two
    /// betas, weight decay, epsilon, whether greatest moments count, whether to climb, scale of gradients, whether these are not finite)`.
    AdamW,
}
