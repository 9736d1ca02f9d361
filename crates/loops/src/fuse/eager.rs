//! When kernels round, and which operations they compute with the bits of eager PyTorch.

use aten::Formula;
use ir::{Dtype, Graph, NodeId};

/// When numbers of a kernel, which are `f32`, are rounded to the type of their tensor.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Rounding {
    /// When they are written to memory, or a cast asks for it.
    #[default]
    AtStores,
    /// Behind each operation, as in eager code. A kernel has only operations whose bits are those of PyTorch's kernels on processors.
    AsEager,
}

/// The formula by which an operation has PyTorch's bits; fails with the reason where there is none.
pub(super) fn formula(graph: &Graph, id: NodeId, formula: Formula) -> Result<Formula, String> {
    let node = &graph.nodes[id];
    let eager = formula.eager.ok_or("other bits than PyTorch's")?;
    let dtype = node.results().next().map(|result| graph.ty(result).dtype).ok_or("no result")?;
    if eager.only.is_some_and(|only| only != dtype) {
        return Err(format!("other bits than PyTorch's in {dtype}"));
    }
    let is_copy = aten::row(graph.op_name(id)).is_some_and(|row| row.copies);
    // What is made `f32` first, as a mask or a shorter number is, is so without a loss, and whole numbers are rounded as PyTorch does it.
    let suits = |of: Dtype| of == dtype || of == Dtype::Bool || dtype == Dtype::F32;
    if is_copy || node.operands().all(|operand| suits(graph.ty(operand).dtype)) {
        Ok(Formula { text: eager.text, ..formula })
    } else {
        Err("operands of several types".to_owned())
    }
}

/// Whether products and roots, each rounded to this type, are what PyTorch computes for an exponent.
pub(super) fn raises(exponent: f64, dtype: Dtype) -> bool {
    let roots: &[f64] = match dtype {
        Dtype::F32 => &[-0.5],
        Dtype::Bf16 => &[0.5],
        _ => &[],
    };
    [1.0, 2.0, 3.0, -1.0, -2.0].contains(&exponent) || roots.contains(&exponent)
}
