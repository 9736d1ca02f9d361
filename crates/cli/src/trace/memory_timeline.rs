//! The profiler's own memory timeline: `[time, action, bytes, category]` for each change, as `export_memory_timeline` writes
//! it to `*.raw.json.gz`.

use std::{
    io::{Read, Write},
    path::Path,
};

use ::trace::memory;
use base::{Code, Diagnostic, Place, Result};
use serde_json::Value;

use super::{json, written};

/// Such files are short lists: what is longer is none.
const MOST: u64 = 1 << 30;

/// The content of a memory timeline; `None` if the file is something else.
pub fn read(path: &Path) -> Result<Option<Value>> {
    if path.is_dir() {
        return Ok(None);
    }
    let mut source = timeline::files::open(path)?;
    let mut start = [0; 256];
    let count = source.read(&mut start).unwrap_or(0);
    let mut begins = start[..count].iter().filter(|byte| !byte.is_ascii_whitespace());
    if (begins.next(), begins.next()) != (Some(&b'['), Some(&b'[')) {
        return Ok(None);
    }
    let source = start[..count].chain(source).take(MOST);
    let content = serde_json::from_reader(std::io::BufReader::new(source)).map_err(|error| {
        let place = Place {
            file: path.display().to_string(),
            line: error.line() as u32,
            column: error.column() as u32,
        };
        Diagnostic::new(Code::NOT_A_TRACE, "the memory timeline cannot be read")
            .at(place)
            .because(error.to_string())
    })?;
    Ok(Some(content))
}

/// Prints the sums by category.
pub fn run(out: &mut dyn Write, path: &Path, raw: &Value, as_json: bool) -> Result<()> {
    let curve = memory::categories(raw).ok_or_else(|| {
        Diagnostic::new(Code::NOT_A_TRACE, "this is no memory timeline")
            .at(Place { file: path.display().to_string(), line: 0, column: 0 })
            .because("an entry is not `[time, action, bytes, category]` with a category of 0 to 7")
            .hint("a memory timeline is what `prof.export_memory_timeline(\"x.raw.json.gz\")` writes")
    })?;
    if as_json {
        return json(out, &serde_json::json!({ "memory_timeline": curve }));
    }
    written(print(out, &curve))
}

fn print(out: &mut dyn Write, curve: &memory::CategoryCurve) -> std::io::Result<()> {
    let bytes = |bytes: i64| base::Bytes(bytes.max(0) as u64);
    let total = |sums: &[i64; 8]| sums.iter().sum::<i64>();
    writeln!(out, "{} moments; the most at once: {}", curve.points.len(), bytes(curve.peak_bytes))?;
    let Some((time, peak)) = curve.points.iter().max_by_key(|(_, sums)| total(sums)) else { return Ok(()) };
    writeln!(out, "at the peak ({time} ns):")?;
    for (name, held) in curve.categories.iter().zip(peak).filter(|(_, held)| **held != 0) {
        writeln!(out, "  {name:<12} {}", bytes(*held))?;
    }
    Ok(())
}
