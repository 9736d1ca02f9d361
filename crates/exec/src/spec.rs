//! What a program is made from: a flat list of operations over numbered slots, as plain data.

use base::{Bytes, Place};
use serde::{Deserialize, Serialize};
use torch_sys::{Arg, Dtype, Output, Slot};

/// A flat list of operations with its inputs and outputs. Lists of tensors are written out, arguments stand in the
/// order of the schema with defaults filled in, and a number may stand where a tensor is expected.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgramSpec {
    /// How many slots there are.
    pub slots: u32,
    /// Texts of the schemas, as PyTorch prints them.
    pub schemas: Vec<String>,
    /// Slots of parameters, buffers and optimizer state: bound once and kept from step to step.
    pub state: Vec<Slot>,
    /// Slots of what is passed at each step.
    pub inputs: Vec<Slot>,
    /// Slots whose memory the executor makes once, uninitialised, by their shapes; operations write into them.
    #[serde(default)]
    pub buffers: Vec<Slot>,
    /// Of what is returned, what only other programs of ours get.
    #[serde(default)]
    pub inner: Vec<Slot>,
    /// Slots of results whose memory is kept for others when they end, in order.
    #[serde(default)]
    pub kept: Vec<Slot>,
    /// Kernels that calls refer to.
    #[serde(default)]
    pub kernels: Vec<loops::Kernel>,
    /// Whether attention of short sequences, and what is done to each of many small tensors, is computed as kernels are, and not by PyTorch.
    #[serde(default)]
    pub computes: bool,
    /// The operations in order.
    pub calls: Vec<OpCall>,
    /// New values of state, written after all operations.
    #[serde(default)]
    pub updates: Vec<Update>,
    /// What a step returns.
    pub returns: Vec<Slot>,
    /// Element type and sizes by slot, where known; may be shorter than the slots are many.
    #[serde(default)]
    pub shapes: Vec<Option<Shape>>,
    /// Slots whose tensors have a size that is known at run time only, in order: what their shapes say is what is expected.
    #[serde(default)]
    pub run_time_sized: Vec<Slot>,
    /// Places in the user's code that calls refer to.
    #[serde(default)]
    pub places: Vec<Place>,
}

/// One operation.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpCall {
    /// Index of its schema.
    pub op: u32,
    /// Arguments, as many as the schema has.
    pub args: Vec<Arg>,
    /// Where the returns go, as many as the schema has.
    pub outputs: Vec<Output>,
    /// Index of the place in the user's code that it comes from.
    #[serde(default)]
    pub place: Option<u32>,
    /// Position in the program order of the graph that it comes from.
    #[serde(default)]
    pub node: Option<u32>,
    /// Whether it belongs to the end of the step (the optimizer), where state may be written.
    #[serde(default)]
    pub writes_state: bool,
}

/// A new value of a state slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Update {
    /// The state slot.
    pub state: Slot,
    /// The slot of the new value.
    pub value: Slot,
}

/// Element type and sizes of a tensor, and perhaps strides.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Element type.
    pub dtype: Dtype,
    /// Sizes of the dimensions.
    pub sizes: Vec<i64>,
    /// Strides in elements, where known.
    #[serde(default)]
    pub strides: Option<Vec<i64>>,
}

impl Shape {
    /// The bytes of its elements.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.sizes.iter().product::<i64>() as u64 * self.dtype.bytes())
    }
}

impl ProgramSpec {
    /// Element type and sizes of `slot`, where known.
    pub fn shape(&self, slot: Slot) -> Option<&Shape> {
        self.shapes.get(slot.0 as usize)?.as_ref()
    }

    /// Says which returns, by their positions, only other programs of ours get.
    pub fn keep_within(&mut self, positions: &[usize]) {
        let (inner, outer): (Vec<_>, Vec<_>) =
            self.returns.iter().enumerate().partition(|(position, _)| positions.contains(position));
        let leaves = |slot: &Slot| outer.iter().any(|(_, other)| *other == slot);
        self.inner = inner.into_iter().map(|(_, slot)| *slot).filter(|slot| !leaves(slot)).collect();
    }

    /// Whether memory of the tensor in `slot` is kept when it ends.
    pub fn is_kept(&self, slot: Slot) -> bool {
        self.kept.binary_search(&slot).is_ok()
    }

    /// Whether the size of the tensor in `slot` is known at run time only.
    pub fn is_run_time_sized(&self, slot: Slot) -> bool {
        self.run_time_sized.binary_search(&slot).is_ok()
    }
}
