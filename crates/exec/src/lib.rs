//! The executor: lowers a flat list of operations to a program and runs it without Python.
//!
//! [`ProgramSpec`] says what to compute, [`lower`] makes a [`Program`] of it (pure data with a text form), and an
//! [`Executor`] runs that over tensors, each call by one of the routes of `torch-sys`.

mod attention;
mod buffers;
mod collectives;
mod copies;
mod device_kernels;
mod device_random;
mod effects;
mod element_types;
mod graph;
mod inplace;
mod kernels;
mod large;
mod link;
mod lists;
mod live;
mod lower;
mod moves;
mod numbers;
mod positions;
mod program;
mod random;
mod record;
mod rewrite;
mod route;
mod run;
mod spec;
mod steps;

pub use attention::with_attention;
pub use collectives::{collective_at, collective_of};
pub use device_kernels::DeviceKernels;
pub use device_random::draws_of;
pub use effects::{Role, is_pure, role};
pub use element_types::element_types;
pub use graph::{Groups, spec_of};
pub use kernels::{Write, fuse};
pub use link::{PythonCall, kernel_tier, proxy_document, python_calls};
pub use live::with_live_numbers;
pub use lower::lower;
pub use memory::BUFFERS;
pub use program::{Action, Instruction, Program, Route};
pub use record::{Record, timeline_of};
pub use rewrite::{rewrite, wanted_schemas};
pub use route::Abilities;
pub use run::{Executor, Progress};
pub use spec::{OpCall, ProgramSpec, Shape, Update};
