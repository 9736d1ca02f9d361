//! Kernels on CUDA devices: their text in CUDA C ([`Source`]), which gives the bits of the interpreter.
//!
//! A thread takes a few points that lie side by side. In a kernel by rows some threads have a row, and each of them a few of the lanes that
//! a reduction has everywhere: what they have gathered is joined as the interpreter joins it, so that no result depends on the device.

//!
//! NVRTC ([`Compiler`]) and the driver ([`Device`]) are loaded at run time, and nothing is linked.
#![allow(unsafe_code, reason = "foreign functions; every block carries its safety argument")]

mod compiler;
mod device;
mod draw;
mod emit;
mod form;
mod functions;
mod libraries;
mod lines;
mod module;
mod program;

pub use compiler::{Compiler, Image, Resources};
pub use device::{Device, Stream};
pub use draw::Draw;
pub use emit::{Emitted, Function};
pub use form::Width;
pub use module::{DeviceMemory, Module};
pub use program::{Source, has_form, partition};
