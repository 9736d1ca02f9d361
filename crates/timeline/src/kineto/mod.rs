//! Reading the JSON that PyTorch's profiler (Kineto) writes.

mod document;
pub(crate) mod event;
mod number;
mod part;
pub(crate) mod scan;
mod split;
pub mod visit;
mod window;

use std::io::Read;

use base::Result;
pub use document::Progress;
use window::Window;

use crate::{Names, Rank};

/// Bytes that one thread alone reads at a time.
const ALONE: usize = 1 << 20;
/// Bytes that several threads read at a time, for each, ...
const PER_THREAD: usize = 2 << 20;
/// ... and at most.
const MOST: usize = 32 << 20;
/// Chunks for each thread: some, so that threads with other things to do get fewer.
const CHUNKS: usize = 4;

/// Reads a trace that is in memory on `threads` threads. `file` is its name in messages.
pub fn read_bytes_on(threads: usize, data: Vec<u8>, file: &str) -> Result<(Names, Rank)> {
    document::read(Window::whole(data), file, pieces(threads), &|_| {})
}

/// As [`read_bytes_on`], on all threads that there are.
pub fn read_bytes(data: Vec<u8>, file: &str) -> Result<(Names, Rank)> {
    read_bytes_on(rayon::current_num_threads(), data, file)
}

/// Reads a trace from a stream on `threads` threads, in memory that does not depend on its length.
pub fn read_stream(
    threads: usize,
    source: &mut (dyn Read + Send),
    file: &str,
    progress: Progress<'_>,
) -> Result<(Names, Rank)> {
    let size = if threads > 1 { MOST.min(PER_THREAD * threads) } else { ALONE };
    document::read(Window::moving(source, size), file, pieces(threads), progress)
}

/// As [`read_bytes`] and [`read_stream`], with windows and chunks of any size: for tests.
#[doc(hidden)]
pub fn read_in_pieces(mut data: &[u8], window: usize, pieces: usize) -> Result<(Names, Rank)> {
    document::read(Window::moving(&mut data, window), "test", pieces, &|_| {})
}

/// How many chunks to read at a time.
const fn pieces(threads: usize) -> usize {
    if threads > 1 { threads * CHUNKS } else { 1 }
}
