//! A whole trace: an object with `traceEvents` among its members, or a list of events.

use base::{Code, Diagnostic, Result};
use serde_json::Value;

use super::{
    part::{Ending, Part},
    scan::{Fault, Scanner},
    split,
    window::Window,
};
use crate::{Group, Metadata, Names, Rank};

/// No value of a trace is longer than this: what is, is not read, so that memory stays bounded.
const LONGEST: usize = 1 << 26;

/// Told how many bytes of the source have been read so far.
pub type Progress<'p> = &'p (dyn Fn(u64) + Sync);

/// Reads the trace in `window`. `file` is how messages call it; `pieces` is how many chunks are read at a time.
pub fn read(window: Window<'_>, file: &str, pieces: usize, progress: Progress<'_>) -> Result<(Names, Rank)> {
    let mut document = Document {
        window,
        file,
        pieces,
        progress,
        part: Part::default(),
        meta: Metadata::default(),
        lists: 0,
    };
    document.root()?;
    document.finish()
}

struct Document<'s, 'p> {
    window: Window<'s>,
    file: &'p str,
    pieces: usize,
    progress: Progress<'p>,
    part: Part,
    meta: Metadata,
    /// How many lists of events there were.
    lists: usize,
}

/// What comes next at the top level.
enum Step {
    /// A member was read.
    Member,
    /// The list of events starts.
    Events,
    /// The object has ended.
    Close,
}

impl Document<'_, '_> {
    fn root(&mut self) -> Result<()> {
        if self.window.data().starts_with(b"\xef\xbb\xbf") {
            self.window.skip(3);
        }
        #[allow(
            clippy::redundant_closure_for_method_calls,
            reason = "the method alone is not general enough"
        )]
        let first = self.scan(|scanner| scanner.token())?;
        match first {
            Some(b'[') => {
                self.window.skip(1);
                self.events().map(drop)
            }
            Some(b'{') => {
                self.window.skip(1);
                self.object()
            }
            Some(_) => Err(self.no_trace("it begins with neither `{` nor `[`")),
            None => Err(self.no_trace("it is empty")),
        }
    }

    fn object(&mut self) -> Result<()> {
        loop {
            let mut meta = std::mem::take(&mut self.meta);
            let step = self.scan(|scanner| member(scanner, &mut meta));
            self.meta = meta;
            match step {
                Err(damage) if self.lists > 0 => {
                    let note =
                        Diagnostic::new(Code::TRACE_DAMAGED, "what follows the list of events is damaged");
                    self.part.rank.notes.push(*note.because(damage.cause.unwrap_or_default()));
                    return Ok(());
                }
                step => match step? {
                    Some(Step::Member) => {}
                    Some(Step::Events) => {
                        if !self.events()? {
                            return Ok(());
                        }
                    }
                    Some(Step::Close) => return Ok(()),
                    None if self.lists == 0 => return Err(self.no_trace("it ends before any `traceEvents`")),
                    None => {
                        self.note_cut("behind the list of events: no event is lost");
                        return Ok(());
                    }
                },
            }
        }
    }

    /// Runs `read` at the window's begin until it succeeds, with more and more data, and moves behind what it read.
    /// `None` where the data ends first.
    fn scan<T>(
        &mut self,
        mut read: impl FnMut(&mut Scanner<'_>) -> std::result::Result<T, Fault>,
    ) -> Result<Option<T>> {
        loop {
            let mut scanner = Scanner::new(self.window.data(), 0);
            match read(&mut scanner) {
                Ok(value) => {
                    let pos = scanner.pos;
                    self.window.skip(pos);
                    return Ok(Some(value));
                }
                Err(Fault::Bad(what)) => {
                    let offset = self.window.base() + scanner.pos as u64;
                    return Err(self.no_trace(&format!("{what} should stand at byte {offset}")));
                }
                Err(Fault::End) if self.window.is_last() => return Ok(None),
                Err(Fault::End) => self.more()?,
            }
        }
    }

    fn more(&mut self) -> Result<()> {
        if self.window.data().len() > LONGEST {
            let offset = self.window.base();
            return Err(Diagnostic::new(Code::TRACE_LIMIT, "a value of the trace is too long")
                .at_line(self.file, 0, 0)
                .because(format!("what begins at byte {offset} is longer than {LONGEST} bytes"))
                .hint("the file is damaged, or it is no trace"));
        }
        self.window.advance(0);
        Ok(())
    }

    /// Reads the list of events, whose bracket has been read; whether it is whole.
    fn events(&mut self) -> Result<bool> {
        self.lists += 1;
        loop {
            let (part, pieces) = (&mut self.part, self.pieces);
            let before = self.window.base();
            let last = self.window.is_last();
            let ending = self.window.advance_during(pieces > 1, |data, base| {
                let ending = split::elements(part, data, 0, pieces, base);
                let (Ending::Boundary(pos) | Ending::Inside(pos) | Ending::List(pos)) = ending;
                (ending, pos)
            });
            (self.progress)(self.window.base());
            match ending {
                Ending::List(_) => return Ok(true),
                _ if last => {
                    let events = self.part.rank.events.len();
                    self.note_cut(&format!("inside the list of events: the {events} events before are kept"));
                    return Ok(false);
                }
                _ if self.window.base() == before => self.more()?,
                _ => {}
            }
        }
    }

    fn note_cut(&mut self, what: &str) {
        let offset = self.window.base();
        let cause = match &self.window.failure {
            Some(error) => format!("reading stopped at byte {offset}: {error}"),
            None => format!("the file stops at byte {offset}"),
        };
        let note = Diagnostic::new(Code::TRACE_TRUNCATED, format!("the trace ends {what}"))
            .because(cause)
            .hint("the job was killed while it wrote the trace, or the copy is not complete");
        self.part.rank.notes.push(*note);
    }

    #[allow(clippy::unnecessary_box_returns, reason = "the form in which all diagnostics travel")]
    fn no_trace(&self, why: &str) -> Box<Diagnostic> {
        let cause = match &self.window.failure {
            Some(error) => format!("{why} (reading failed: {error})"),
            None => why.to_owned(),
        };
        Diagnostic::new(Code::NOT_A_TRACE, "this is no profiler trace")
            .at_line(self.file, 0, 0)
            .because(cause)
            .hint("a trace is what `torch.profiler` exports: an object with `traceEvents`, or a list of events, also as .gz")
    }

    fn finish(mut self) -> Result<(Names, Rank)> {
        if self.lists == 0 {
            return Err(self.no_trace("it has no `traceEvents`"));
        }
        if self.part.objects == 0 && self.part.rank.meta.elements > 0 {
            return Err(self.no_trace("its list holds no events, but other values"));
        }
        if self.lists > 1 {
            let message = format!("the trace has {} lists of events; all are read", self.lists);
            self.part.rank.notes.push(*Diagnostic::new(Code::TRACE_DAMAGED, message));
        }
        self.meta.bytes = self.window.base();
        if self.window.failure.is_some()
            && self.part.rank.notes.iter().all(|note| note.code != Code::TRACE_TRUNCATED)
        {
            self.note_cut("behind the list of events: no event is lost");
        }
        let (names, mut rank) = self.part.finish();
        self.meta.elements = rank.meta.elements;
        self.meta.fractional_times = rank.meta.fractional_times;
        for note in &mut rank.notes {
            note.place.get_or_insert(base::Place { file: self.file.to_owned(), line: 0, column: 0 });
        }
        self.file.clone_into(&mut rank.source);
        rank.rank = self.meta.rank.unwrap_or(0);
        rank.meta = self.meta;
        Ok((names, rank))
    }
}

/// Reads one member of the root object.
fn member(scanner: &mut Scanner<'_>, meta: &mut Metadata) -> std::result::Result<Step, Fault> {
    if !scanner.more(b'}')? {
        return Ok(Step::Close);
    }
    let key = scanner.key()?.raw;
    if key == b"traceEvents" && scanner.peek()? == b'[' {
        scanner.pos += 1;
        return Ok(Step::Events);
    }
    let from = scanner.pos;
    scanner.skip()?;
    // the value must be followed by something, or it may go on in the next window
    scanner.token()?;
    if matches!(key, b"distributedInfo" | b"deviceProperties" | b"baseTimeNanoseconds")
        && let Ok(value) = serde_json::from_slice(scanner.since(from))
    {
        note_member(key, &value, meta);
    }
    Ok(Step::Member)
}

fn note_member(key: &[u8], value: &Value, meta: &mut Metadata) {
    let small = |value: &Value| value.as_u64().and_then(|value| u32::try_from(value).ok());
    match key {
        b"baseTimeNanoseconds" => meta.base_time = value.as_i64().unwrap_or(0),
        b"deviceProperties" => {
            let devices = value.as_array().map(Vec::as_slice).unwrap_or_default();
            meta.devices = devices.iter().map(|device| text(&device["name"])).collect();
        }
        _ => {
            meta.rank = small(&value["rank"]);
            meta.world_size = small(&value["world_size"]);
            meta.backend = value["backend"].as_str().map(str::to_owned);
            let groups = value["pg_config"].as_array().map(Vec::as_slice).unwrap_or_default();
            meta.groups = groups
                .iter()
                .map(|group| Group {
                    name: text(&group["pg_name"]),
                    description: text(&group["pg_desc"]),
                    ranks: group["ranks"].as_array().into_iter().flatten().filter_map(small).collect(),
                })
                .collect();
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
