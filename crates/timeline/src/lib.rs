//! The event table that simulator, executor and profiler share, and the reading and writing of traces.
//!
//! A [`Timeline`] holds typed columns for each rank and one table of names for all. Times are integer nanoseconds.
//! [`files::load`] reads what users have: a file, several, or a directory of one file per rank, plain or gzip.

pub mod cache;
mod category;
pub mod chrome;
pub mod files;
pub mod gzip;
pub mod kineto;
mod names;
pub mod pickle;
mod side;
pub mod step;
mod table;
pub mod tensors;

pub use category::{Category, Class};
pub use names::{NameId, Names, Renaming};
pub use side::{CollectiveArgs, DeviceArgs, InputArgs, NodeArgs, PythonArgs, SequenceArgs, Sides, Sparse};
pub use table::{
    Event, Events, Flow, Group, Lane, Lanes, MemoryEvent, Metadata, Rank, Timeline, Track, TrackId,
};
