//! What a trace lacks or what in it is contradictory, as notes: results are given all the same.

use base::{Code, Diagnostic, Place};
use timeline::Class;

use crate::{Frame, Frames};

/// Notes on the events of all ranks.
pub fn notes(frames: &Frames<'_>) -> Vec<Diagnostic> {
    let mut notes = Vec::new();
    for frame in &frames.ranks {
        notes.extend(negative(frame));
        notes.extend(overlapping(frame));
    }
    notes.extend(lacking(frames, "device events", |frame| !frame.rows().any(|row| frame.on_device(row))));
    notes.extend(lacking(frames, "profiler steps", |frame| frame.steps.steps.is_empty()));
    notes
}

fn note(frame: &Frame<'_>, code: Code, message: String) -> Box<Diagnostic> {
    Diagnostic::new(code, message).at(Place { file: frame.rank.source.clone(), line: 0, column: 0 })
}

fn negative(frame: &Frame<'_>) -> Option<Diagnostic> {
    let mut rows = frame.rows().filter(|&row| frame.duration[row] < 0);
    let first = rows.next()?;
    let message = format!("{} event(s) end before they begin", 1 + rows.count());
    let cause = format!(
        "the first is `{}`, number {} of the list",
        frame.text(first),
        frame.rank.events.index[first]
    );
    Some(*note(frame, Code::TRACE_ODD, message).because(cause))
}

/// Operators and runtime calls that begin inside another event of their thread and end behind it. Ranges may, and Python functions
/// that were running when the profiler stopped do.
fn overlapping(frame: &Frame<'_>) -> Option<Diagnostic> {
    let rows = &frame.calls().overlapping;
    let is_call = |row: usize| matches!(frame.class(row), Class::Operator | Class::Runtime);
    let mut rows = rows.iter().filter(|&&row| is_call(row as usize));
    let first = *rows.next()? as usize;
    let message =
        format!("{} call(s) overlap another event of their thread without lying inside it", 1 + rows.count());
    let cause = format!(
        "the first is `{}`, number {} of the list",
        frame.text(first),
        frame.rank.events.index[first]
    );
    Some(
        *note(frame, Code::TRACE_ODD, message).because(cause).hint("they are taken to lie beside each other"),
    )
}

fn lacking(frames: &Frames<'_>, what: &str, lacks: impl Fn(&Frame<'_>) -> bool) -> Option<Diagnostic> {
    let ranks: Vec<&Frame<'_>> = frames.ranks.iter().filter(|frame| lacks(frame)).collect();
    let first = ranks.first()?;
    let message = match &ranks[..] {
        [one] => format!("the trace of rank {} has no {what}", one.rank.rank),
        several => format!("the traces of {} ranks have no {what}", several.len()),
    };
    Some(*note(first, Code::TRACE_LACKS, message).because("analyses that need them answer with nothing"))
}
