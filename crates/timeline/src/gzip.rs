//! Compressed traces: whole where that is fast and small enough, as a stream where it is not.

use std::io::Read;

use flate2::read::MultiGzDecoder;

/// What is larger unpacked is read as a stream.
#[cfg(feature = "libdeflate")]
const WHOLE: usize = 8 << 20;

/// Whether `data` begins like a gzip file.
pub fn is_gzip(data: &[u8]) -> bool {
    data.starts_with(&[0x1f, 0x8b])
}

/// Unpacks `data` at once, if it is one complete member of a moderate size. `None` says: read it as a stream.
#[cfg(feature = "libdeflate")]
pub fn unpack(data: &[u8]) -> Option<Vec<u8>> {
    // the trailer of a file of one member holds checksum and length of everything
    let trailer = data.last_chunk::<8>()?;
    let checksum = u32::from_le_bytes(trailer[..4].try_into().expect("four bytes"));
    let length = u32::from_le_bytes(trailer[4..].try_into().expect("four bytes")) as usize;
    // deflate packs at most 1032 to 1: a length beyond that is no length
    if length > WHOLE || length / 1032 > data.len() {
        return None;
    }
    let mut unpacked = vec![0; length];
    let size = libdeflater::Decompressor::new().gzip_decompress(data, &mut unpacked).ok()?;
    let complete = size == length && libdeflater::crc32(&unpacked) == checksum;
    complete.then_some(unpacked)
}

/// Without libdeflate everything is read as a stream.
#[cfg(not(feature = "libdeflate"))]
pub fn unpack(_data: &[u8]) -> Option<Vec<u8>> {
    None
}

/// Unpacks as it is read; a truncated file gives what it holds, then an error.
pub fn stream<'a>(source: impl Read + Send + 'a) -> impl Read + Send + 'a {
    MultiGzDecoder::new(source)
}
