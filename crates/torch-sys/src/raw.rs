//! What passes libtorch's border: tensors as pointers, and its failures.

use std::ffi::c_void;

/// A pointer to a heap-allocated `at::Tensor`.
pub(crate) type RawTensor = *mut c_void;

/// Why libtorch refused or failed, in its own words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure(pub String);
