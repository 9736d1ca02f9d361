//! PyTorch's stable C interface, loaded at run time from the libtorch that the process already runs.
//!
//! Nothing is linked: one wheel serves every PyTorch whose library offers the symbols (probed by [`Library::load`]).
//! A call goes by one of three routes, all prepared once ([`DispatcherCall`], [`ProxyCall`], [`ShimCall`]) and run many times over a
//! table of numbered tensors ([`Slots`]):
//!
//! - the *dispatcher*: `aoti_torch_call_dispatcher`, which refuses `Scalar` and `Any` arguments;
//! - the *proxy*: a node of an `AOTInductor` proxy executor, which torch builds from a JSON text ([`proxy`]) and which
//!   takes every argument type that a captured graph holds;
//! - a *shim*: the function that the library of a device has for one operation ([`shim`]), for those that return numbers beside tensors.
//!
//! This crate is the only one that knows libtorch, and its interface is safe: the one obligation, that the library is
//! the libtorch whose schemas the calls are made from, is taken over by the caller of [`Library::load`].
#![allow(unsafe_code, reason = "foreign functions; every block carries its safety argument")]

mod container;
pub mod dispatcher;
mod elements;
mod kept;
mod library;
pub mod proxy;
mod raw;
mod schema;
pub mod shim;
mod slots;
mod tensor;
mod value;

pub use container::captured_proxy;
pub use dispatcher::DispatcherCall;
pub use elements::{Cells, Elements, OnDevice};
pub use kept::{Keeping, LARGE, Paused, kept_bytes};
pub use library::{GradModeOff, Library, Version};
pub use proxy::{Proxy, ProxyCall};
pub use raw::Failure;
pub use schema::{Argument, Returned, Schema, Type};
pub use shim::ShimCall;
pub use slots::{Slots, View};
pub use tensor::{Layout as TensorLayout, Tensor};
pub use value::{Arg, Device, Dtype, Layout, MemoryFormat, Number, Output, Slot};
