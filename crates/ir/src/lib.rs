//! The graph of a training step and what is said about it: types, placements, source lines.
//!
//! One [`Graph`] type serves for the whole step (global shapes) and for one rank's part of it (local shapes and collectives). Node data, program
//! order and side tables (places, modules, parts) are kept apart; every id is dense.

mod build;
mod collective;
mod graph;
mod host;
mod key;
mod message;
mod patch;
mod placement;
mod renumber;
mod reshard;
mod rows;
mod schema;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod text;
mod types;
mod verify;

pub use build::ReturnType;
pub use collective::{
    Collective, CollectiveKind, GROUP_PREFIX, Reduction, WAIT, is_communication, is_wait, transfer_group,
    transfer_stages, wait_operator,
};
pub use graph::{
    Arg, Graph, Input, InputClass, InputId, KERNEL, LabelId, Module, ModuleId, Node, NodeId, Op, OpId, Part,
    PartId, PartKind, PlaceId, Return, Value, ValueDef, ValueId, is_kernel,
};
pub use host::{FROM_HOST, HostCopy, TO_HOST, TO_HOST_OVER, WAIT_COPY};
pub use message::{MAX_MESSAGE_BYTES, MESSAGE_VERSION};
pub use patch::{Change, Edits, Patch};
pub use placement::{
    AxisKind, Chunks, MICRO_BATCHES, Mesh, MeshAxis, Placement, Reduce, STAGES, expected, local_bytes,
    local_shape, local_shape_at,
};
pub use reshard::{GroupChange, Reshard, UNEVEN, group_change, reshard_steps};
pub use rows::{
    AMONG_ZEROS, ANY_SIZE, DEAL_COLUMNS, EXCHANGE_ROWS, FOR_EACH_RANK, GROUP_BOUNDS, JOIN_COLUMNS, OWN_ROWS,
    PRODUCT_OF_GROUPS, RowExchange, RowOperator,
};
pub use schema::{Parameter, Schema, SchemaType};
pub use text::{MAX_TEXT_BYTES, TEXT_VERSION};
pub use types::{Device, DeviceKind, Dims, Dtype, TensorType, contiguous_strides, inverse, memory_order};
pub use verify::{MAX_DIMS, verify};

/// A graph with one rank's local shapes and its collectives: what partition returns.
pub type RankGraph = Graph;
