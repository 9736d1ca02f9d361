//! Traces that were read once, kept as columns: reading them again takes a small part of the time that parsing took.
//!
//! A kept trace is one file: a header that says of which source it is, the columns as little-endian numbers, and a checksum of
//! everything before it. What does not fit its source, its format or its checksum is not used.

mod codec;
mod columns;

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use base::{Code, Diagnostic, Place};
use codec::{Decoder, Encoder};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::{Names, Rank};

/// Begins every kept trace; the number counts changes of the format, and of what the reader makes of a trace.
const MAGIC: &[u8; 12] = b"unitimeline3";
/// Sources smaller than this are read as fast as their kept columns.
const WORTHWHILE: u64 = 1 << 20;
/// Maximum bytes in the folder; beyond it the oldest files are removed.
const MOST: u64 = 4 << 30;
/// Number of samples of a source that tell whether it is still the same.
const PLACES: u64 = 64;
/// Bytes of each sample.
const SAMPLE: u64 = 4096;

/// Where traces are kept, and which source a kept trace is of.
pub struct Cache {
    file: PathBuf,
    folder: PathBuf,
    key: [u8; 24],
}

impl Cache {
    /// The place of `source` in `folder`; `None` where keeping is not worth it, or the source cannot be looked at.
    pub fn of(folder: &Path, source: &Path) -> Option<Self> {
        let mut file = File::open(source).ok()?;
        let about = file.metadata().ok().filter(|about| about.is_file() && about.len() >= WORTHWHILE)?;
        let changed = about.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let mut key = [0; 24];
        key[..8].copy_from_slice(&about.len().to_le_bytes());
        key[8..16].copy_from_slice(&(changed.as_nanos() as u64).to_le_bytes());
        key[16..].copy_from_slice(&sample(&mut file, about.len()).ok()?.to_le_bytes());
        let name = xxh3_64(source.canonicalize().ok()?.as_os_str().as_encoded_bytes());
        Some(Self { file: folder.join(format!("{name:016x}.timeline")), folder: folder.to_owned(), key })
    }

    /// The kept trace, and a note if there is one that is damaged. One of another source or format counts as none.
    pub fn get(&self) -> (Option<(Names, Rank)>, Option<Diagnostic>) {
        let Ok(file) = File::open(&self.file) else { return (None, None) };
        let mut header = [0; 36];
        let mut reader = BufReader::with_capacity(1 << 18, file);
        if reader.read_exact(&mut header).is_err() {
            return (None, Some(self.damaged("it is cut short")));
        }
        if header[..12] != *MAGIC || header[12..] != self.key {
            return (None, None);
        }
        match read(reader, &header) {
            Ok(kept) => (Some(kept), None),
            Err(error) => (None, Some(self.damaged(&error.to_string()))),
        }
    }

    fn damaged(&self, why: &str) -> Diagnostic {
        *Diagnostic::new(Code::TRACE_CACHE, "the kept columns of a trace are damaged: the trace is read anew")
            .at(Place { file: self.file.display().to_string(), line: 0, column: 0 })
            .because(why)
    }

    /// Keeps a trace. A folder that cannot be written keeps nothing.
    pub fn put(&self, names: &Names, rank: &Rank) {
        let part = self.file.with_extension(format!("{}.part", std::process::id()));
        let kept = fs::create_dir_all(&self.folder)
            .and_then(|()| self.write(&part, names, rank))
            .and_then(|()| fs::rename(&part, &self.file));
        if kept.is_err() {
            drop(fs::remove_file(&part));
        }
        drop(prune(&self.folder, &self.file));
    }

    fn write(&self, path: &Path, names: &Names, rank: &Rank) -> io::Result<()> {
        let mut encoder = Encoder::new(BufWriter::with_capacity(1 << 18, File::create(path)?));
        encoder.bytes(MAGIC)?;
        encoder.bytes(&self.key)?;
        columns::write(&mut encoder, names, rank)?;
        encoder.finish()?.flush()
    }
}

fn read(mut reader: BufReader<File>, header: &[u8]) -> io::Result<(Names, Rank)> {
    let end = reader.get_ref().metadata()?.len();
    let left = end.saturating_sub(header.len() as u64 + 8);
    let mut hash = Xxh3::new();
    hash.update(header);
    let mut decoder = Decoder::new(&mut reader, left, hash);
    let kept = columns::read(&mut decoder)?;
    decoder.finish()?;
    Ok(kept)
}

/// A hash of places all over the source: reading all of it would take as long as parsing a part of it.
fn sample(file: &mut File, length: u64) -> io::Result<u64> {
    let mut hash = Xxh3::new();
    let mut bytes = [0; SAMPLE as usize];
    for place in 0..PLACES {
        let at = length.saturating_sub(SAMPLE) / (PLACES - 1) * place;
        let at = if place + 1 == PLACES { length.saturating_sub(SAMPLE) } else { at };
        file.seek(SeekFrom::Start(at))?;
        let wanted = SAMPLE.min(length - at) as usize;
        file.read_exact(&mut bytes[..wanted])?;
        hash.update(&bytes[..wanted]);
    }
    Ok(hash.digest())
}

/// Removes what was kept first until the folder is small enough; `newest` stays.
fn prune(folder: &Path, newest: &Path) -> io::Result<()> {
    let mut kept = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        if entry.path().extension().is_some_and(|extension| extension == "timeline") {
            kept.push((about.modified()?, entry.path(), about.len()));
        }
    }
    let mut size: u64 = kept.iter().map(|(.., size)| size).sum();
    kept.sort();
    for (_, path, bytes) in kept.iter().filter(|(_, path, _)| path != newest) {
        if size <= MOST {
            break;
        }
        fs::remove_file(path)?;
        size -= bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kineto;

    const TRACE: &str = r#"{"distributedInfo":{"rank":3,"world_size":4,"backend":"gloo","pg_config":[{"pg_name":"0","pg_desc":"d","ranks":[0,3]}]},"traceEvents":[
        {"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":{"stream":7,"correlation":1,"bytes":3,"Collective name":"allreduce","In msg nelems":4,"dtype":"Float"}},
        {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":"Spans","tid":2,"ts":0,"dur":9,"args":{"Input Dims":[[1,2]],"Sequence number":5,"Unisono node":7,"Unisono place":"a.py:3","Unisono cause":"b","Unisono work":{"dtype":"f32","bytes":8,"tensors":3}}},
        {"ph":"X","cat":"cuda_profiler_range","name":"r","pid":1,"tid":2,"ts":0,"dur":9,"args":{"smsp":1.5,"dram":2}},
        {"ph":"X","cat":"python_function","name":"f","pid":1,"tid":2,"ts":0,"dur":-9,"args":{"Python id":1}},
        {"ph":"s","cat":"fwdbwd","name":"f","pid":1,"tid":2,"ts":0,"id":4},
        {"ph":"i","name":"[memory]","pid":1,"tid":2,"ts":3,"args":{"Bytes":-8,"Addr":140001,"Device Type":1,"Device Id":0}},
        {"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"main"}}, {"ph":"X" oops}]"#;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("unisono-cache-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    fn source(folder: &Path, fill: u8) -> PathBuf {
        let path = folder.join("source.json");
        fs::write(&path, vec![fill; WORTHWHILE as usize]).expect("a file");
        path
    }

    #[test]
    fn what_was_kept_comes_back_as_it_was() {
        let folder = folder("same");
        let cache = Cache::of(&folder, &source(&folder, b'a')).expect("large enough");
        let (names, rank) = kineto::read_bytes(TRACE.as_bytes().to_vec(), "x").expect("a trace");
        assert!(!rank.notes.is_empty());
        cache.put(&names, &rank);
        let (kept, note) = cache.get();
        let (kept_names, kept_rank) = kept.expect("kept");
        assert_eq!(names.iter().collect::<Vec<_>>(), kept_names.iter().collect::<Vec<_>>());
        assert_eq!(format!("{rank:?}"), format!("{kept_rank:?}"));
        assert_eq!((kept_names.find("aten::mm"), note), (names.find("aten::mm"), None));
        drop(fs::remove_dir_all(folder));
    }

    #[test]
    fn no_damage_to_a_kept_trace_is_believed() {
        let folder = folder("damage");
        let cache = Cache::of(&folder, &source(&folder, b'a')).expect("large enough");
        let (names, rank) = kineto::read_bytes(TRACE.as_bytes().to_vec(), "x").expect("a trace");
        cache.put(&names, &rank);
        let whole = fs::read(&cache.file).expect("kept");
        for at in 36..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x41;
            fs::write(&cache.file, &bytes).expect("writable");
            let (kept, note) = cache.get();
            assert!(kept.is_none(), "byte {at}");
            assert_eq!(note.expect("a note").code, Code::TRACE_CACHE);
            fs::write(&cache.file, &whole[..at]).expect("writable");
            assert!(cache.get().0.is_none(), "cut at byte {at}");
        }
        drop(fs::remove_dir_all(folder));
    }

    #[test]
    fn another_content_of_the_source_is_another_trace() {
        let folder = folder("stale");
        let path = source(&folder, b'a');
        let (names, rank) = kineto::read_bytes(TRACE.as_bytes().to_vec(), "x").expect("a trace");
        Cache::of(&folder, &path).expect("large enough").put(&names, &rank);
        source(&folder, b'b');
        let cache = Cache::of(&folder, &path).expect("large enough");
        assert_eq!((cache.get().0.is_none(), cache.get().1), (true, None));
        drop(fs::remove_dir_all(folder));
    }
}
