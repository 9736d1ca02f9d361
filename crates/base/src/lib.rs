//! What every crate of Unisono shares: typed ids with dense maps, units, fingerprints and diagnostics.
//!
//! Nothing here knows about tensors, graphs or devices.

mod codes;
mod diagnostic;
mod fingerprint;
mod id;
mod serialized;
mod suggest;
#[cfg(feature = "testing")]
pub mod testing;
mod units;

pub use codes::{Audience, CODES, Code, CodeInfo};
pub use diagnostic::{Diagnostic, Place, Result};
pub use fingerprint::{Fingerprint, Fingerprinter};
pub use id::{Id, PrimaryMap, SecondaryMap};
pub use suggest::{malformed, nearest, unknown_name_hint};
pub use units::{Bytes, Flops, Nanos};
