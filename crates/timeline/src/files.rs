//! Traces as users have them: files, or directories with a file for each rank. The only module below `cli` that reads files.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use base::{Code, Diagnostic, Place, Result};
use rayon::prelude::*;

use crate::{Names, Rank, Timeline, cache::Cache, gzip, kineto, tensors};

/// Told the file and how many bytes of it have been read.
pub type FileProgress<'p> = &'p (dyn Fn(&Path, u64) + Sync);

/// Reads the traces of `paths`, each a file or a directory, one rank per file. What is large is kept as columns in the folder
/// `cache`, if one is named, and taken from there the next time.
pub fn load(paths: &[PathBuf], cache: Option<&Path>, progress: FileProgress<'_>) -> Result<Timeline> {
    let files = files(paths)?;
    // threads that have a file of their own do not help with others, so that few files are in memory at a time
    let threads = rayon::current_num_threads().div_ceil(files.len());
    let parts: Vec<Result<(Names, Rank)>> =
        files.par_iter().map(|file| read_with_tensors(threads, file, cache, progress)).collect();
    let mut timeline = Timeline::default();
    let mut ranks = Vec::new();
    let mut others = Vec::new();
    for (file, part) in files.iter().zip(parts) {
        match part {
            Ok(part) => ranks.push((file, part)),
            // a folder may hold other files; what is named must be a trace
            Err(error) if error.code == Code::NOT_A_TRACE && !paths.contains(file) => others.push(error),
            Err(error) => return Err(error),
        }
    }
    if ranks.is_empty() {
        return Err(others.swap_remove(0));
    }
    timeline.notes.extend(others.into_iter().map(|error| *left_out(*error)));
    let numbers =
        number(&ranks.iter().map(|(file, (_, rank))| (file.as_path(), rank.meta.rank)).collect::<Vec<_>>());
    let mut numbered: Vec<_> = ranks.into_iter().zip(numbers).collect();
    numbered.sort_by_key(|(_, (number, _))| *number);
    for ((_, (names, mut rank)), (number, note)) in numbered {
        rank.rank = number;
        rank.notes.extend(note);
        if timeline.ranks.last().is_some_and(|last| last.rank == number) {
            let other = timeline.ranks.pop().expect("there is a last one");
            timeline.notes.push(twice(number, &other.source, &rank.source));
        }
        timeline.add(names, rank);
    }
    note_missing(&mut timeline);
    Ok(timeline)
}

fn left_out(error: Diagnostic) -> Box<Diagnostic> {
    let other =
        Diagnostic::new(Code::NOT_A_TRACE, "a file of the folder is no profiler trace: it is left out");
    let other = other.because(error.cause.unwrap_or_default());
    match error.place {
        Some(place) => other.at(place),
        None => other,
    }
}

fn twice(rank: u32, left: &str, kept: &str) -> Diagnostic {
    *Diagnostic::new(Code::TRACE_RANKS, format!("two files are of rank {rank}"))
        .at(Place { file: kept.to_owned(), line: 0, column: 0 })
        .because(format!("`{left}` is of the same rank and is left out"))
        .hint("name the files of one run, one for each rank")
}

fn note_missing(timeline: &mut Timeline) {
    let world = timeline.ranks.iter().filter_map(|rank| rank.meta.world_size).max().unwrap_or(0);
    let missing: Vec<u32> =
        (0..world).filter(|number| timeline.ranks.iter().all(|rank| rank.rank != *number)).collect();
    if missing.is_empty() || timeline.ranks.len() < 2 {
        return;
    }
    let shown: Vec<String> = missing.iter().take(8).map(ToString::to_string).collect();
    let dots = if missing.len() > 8 { ", ..." } else { "" };
    let message = format!("{} of {world} ranks have no trace: {}{dots}", missing.len(), shown.join(", "));
    let note = Diagnostic::new(Code::TRACE_RANKS, message)
        .hint("what compares ranks knows only those that are there");
    timeline.notes.push(*note);
}

/// Tables of all ranks name a rank by its position in 16 bits.
const MOST_FILES: usize = 1 << 16;

/// All files of `paths`, those of directories in the order of their names.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).map_err(|error| unreadable(path, &error))?;
        let mut inside: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_trace_name(path)).collect();
        inside.sort();
        files.extend(inside);
    }
    if files.len() > MOST_FILES {
        let message = format!("{} traces are more than can be read at a time", files.len());
        return Err(Diagnostic::new(Code::TRACE_LIMIT, message).hint("name some of the ranks"));
    }
    if files.is_empty() {
        let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(Diagnostic::new(Code::TRACE_RANKS, "there is no trace")
            .at(Place { file: shown.join(", "), line: 0, column: 0 })
            .because("no file of it ends in .json or .json.gz")
            .hint("give the trace files, or the directory that holds one for each rank"));
    }
    Ok(files)
}

fn is_trace_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = EXECUTION_TRACES.iter().any(|ending| name.ends_with(ending));
    path.is_file() && !beside && (name.ends_with(".json") || name.ends_with(".gz"))
}

#[allow(clippy::unnecessary_box_returns, reason = "the form in which all diagnostics travel")]
fn unreadable(path: &Path, error: &std::io::Error) -> Box<Diagnostic> {
    Diagnostic::new(Code::UNREADABLE_FILE, "the file cannot be read")
        .at(Place { file: path.display().to_string(), line: 0, column: 0 })
        .because(error.to_string())
}

/// A trace with the execution trace that lies beside it: `rank0.et.json` beside `rank0.json.gz`.
fn read_with_tensors(
    threads: usize,
    path: &Path,
    cache: Option<&Path>,
    progress: FileProgress<'_>,
) -> Result<(Names, Rank)> {
    let (names, mut rank) = read_or_take(threads, path, cache, progress)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.trim_end_matches(".gz").trim_end_matches(".json");
    for beside in EXECUTION_TRACES.map(|ending| path.with_file_name(format!("{stem}{ending}"))) {
        if beside.is_file() && beside != path {
            match open(&beside).and_then(|file| tensors::read(file, &beside.display().to_string())) {
                Ok(uses) => rank.tensors = uses,
                Err(damage) => rank.notes.push(*damage),
            }
        }
    }
    Ok((names, rank))
}

/// How names of execution traces end.
const EXECUTION_TRACES: [&str; 2] = [".et.json", ".et.json.gz"];

/// What is kept of a file, or what is read of it, which is then kept.
fn read_or_take(
    threads: usize,
    path: &Path,
    folder: Option<&Path>,
    progress: FileProgress<'_>,
) -> Result<(Names, Rank)> {
    let Some(cache) = folder.and_then(|folder| Cache::of(folder, path)) else {
        return read_file(threads, path, progress);
    };
    let (kept, note) = cache.get();
    if let Some((names, mut rank)) = kept {
        rename_source(&mut rank, path);
        return Ok((names, rank));
    }
    let (names, mut rank) = read_file(threads, path, progress)?;
    cache.put(&names, &rank);
    rank.notes.extend(note);
    Ok((names, rank))
}

/// The source as it is called now: it may have been read by another path.
fn rename_source(rank: &mut Rank, path: &Path) {
    let old = std::mem::replace(&mut rank.source, path.display().to_string());
    for place in
        rank.notes.iter_mut().filter_map(|note| note.place.as_mut()).filter(|place| place.file == old)
    {
        place.file.clone_from(&rank.source);
    }
}

/// Reads one file, plain or gzip, on `threads` threads.
pub fn read_file(threads: usize, path: &Path, progress: FileProgress<'_>) -> Result<(Names, Rank)> {
    let name = path.display().to_string();
    let open = || File::open(path).map_err(|error| unreadable(path, &error));
    let mut start = Vec::new();
    open()?.take(2).read_to_end(&mut start).map_err(|error| unreadable(path, &error))?;
    if !gzip::is_gzip(&start) {
        return kineto::read_stream(threads, &mut open()?, &name, &|bytes| progress(path, bytes));
    }
    let packed = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
    if let Some(data) = gzip::unpack(&packed) {
        drop(packed);
        return kineto::read_bytes_on(threads, data, &name);
    }
    kineto::read_stream(threads, &mut gzip::stream(packed.as_slice()), &name, &|bytes| progress(path, bytes))
}

/// The bytes of a file, unpacked.
pub fn open(path: &Path) -> Result<Box<dyn Read + Send>> {
    let file = || File::open(path).map_err(|error| unreadable(path, &error));
    let mut start = Vec::new();
    file()?.take(2).read_to_end(&mut start).map_err(|error| unreadable(path, &error))?;
    let file = file()?;
    Ok(if gzip::is_gzip(&start) { Box::new(gzip::stream(file)) } else { Box::new(file) })
}

/// The rank of each file: what it says itself, else what its name says, else the lowest free number.
fn number(files: &[(&Path, Option<u32>)]) -> Vec<(u32, Option<Diagnostic>)> {
    let known: Vec<Option<u32>> =
        files.iter().map(|(path, said)| said.or_else(|| rank_of_name(path))).collect();
    let mut free = (0..).filter(|number| !known.contains(&Some(*number)));
    let guess = |(position, rank): (usize, &Option<u32>)| {
        if let Some(rank) = rank {
            return (*rank, None);
        }
        let number = free.next().expect("numbers do not run out");
        (number, (files.len() > 1).then(|| unknown_rank(files[position].0, number)))
    };
    known.iter().enumerate().map(guess).collect()
}

fn unknown_rank(path: &Path, number: u32) -> Diagnostic {
    *Diagnostic::new(
        Code::TRACE_RANKS,
        format!("the trace does not say its rank: it is taken for rank {number}"),
    )
    .at(Place { file: path.display().to_string(), line: 0, column: 0 })
    .hint("put the rank into the file's name, as in rank3.json.gz")
}

/// The number behind `rank` or `worker` in a file's name.
fn rank_of_name(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    ["rank", "worker"].iter().find_map(|word| {
        let digits = name.split(word).nth(1)?.trim_start_matches(['-', '_', '.']);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        digits[..end].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_from_the_trace_then_from_the_name_then_from_what_is_free() {
        let files = [
            ("a/rank-1.x.json", None),
            ("a/worker3_step_12.json", None),
            ("a/rank0.json", Some(7)),
            ("b.json", None),
        ];
        let files: Vec<_> = files.iter().map(|(path, rank)| (Path::new(*path), *rank)).collect();
        let numbers: Vec<u32> = number(&files).into_iter().map(|(rank, _)| rank).collect();
        assert_eq!(numbers, [1, 3, 7, 0]);
    }
}
