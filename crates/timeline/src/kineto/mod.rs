//! Reading the JSON that PyTorch's profiler (Kineto) writes.

mod document;
mod event;
mod number;
mod part;
mod scan;
mod split;
mod window;

use std::io::Read;

use base::Result;
pub use document::Progress;
use window::Window;

use crate::{Names, Rank};

/// Bytes that one thread gets at a time.
const CHUNK: usize = 4 << 20;

/// Reads a trace that is in memory. `file` is how messages call it.
pub fn read_bytes(data: Vec<u8>, file: &str) -> Result<(Names, Rank)> {
    document::read(Window::whole(data), file, pieces(), &|_| {})
}

/// Reads a trace from a stream, in memory that does not depend on its length.
pub fn read_stream(
    source: &mut (dyn Read + Send),
    file: &str,
    progress: Progress<'_>,
) -> Result<(Names, Rank)> {
    let pieces = pieces();
    document::read(Window::moving(source, CHUNK * pieces), file, pieces, progress)
}

/// As [`read_bytes`] and [`read_stream`], with windows and chunks of any size: for tests.
#[doc(hidden)]
pub fn read_in_pieces(mut data: &[u8], window: usize, pieces: usize) -> Result<(Names, Rank)> {
    document::read(Window::moving(&mut data, window), "test", pieces, &|_| {})
}

/// How many chunks to read at a time: one for each thread.
fn pieces() -> usize {
    rayon::current_num_threads().max(1)
}
