//! Operations that move elements, and do nothing else.

/// How an operation moves elements that stay what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moves {
    /// All of a tensor: `(tensor, memory format)`.
    Copy,
    /// Tensors side by side along a dimension: `(tensors, dim)`.
    Join,
    /// Tensors one behind the other along a dimension of their own: `(tensors, dim)`.
    Stack,
    /// A tensor several times along each dimension: `(tensor, times)`.
    Repeat,
    /// A tensor with a number around it: `(tensor, pad, number)`, the widths from the last dimension on.
    Pad,
    /// A tensor as each so-manyth element of a dimension, and 0 elsewhere: `(tensor, sizes, dim, start, end, step)`.
    Spread,
    /// A tensor with another one over each so-manyth element of a dimension: `(tensor, other, dim, start, end, step)`.
    Overwrite,
    /// The rows of a table at some positions: `(table, positions, ...)`.
    LookUp,
    /// Rows that are added up at their positions in a table, but for those at one: `(rows, positions, count, position without, whether scaled)`.
    AddUp,
    /// What a tensor has at positions along dimensions: `(tensor, positions by dimension)`.
    Choose,
    /// A tensor with others added at such positions, where it is said that they are added: `(tensor, positions by dimension, others, whether added)`.
    AddAt,
}
