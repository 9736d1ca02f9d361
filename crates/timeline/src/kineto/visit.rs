//! Going through a trace element by element, with the text of each: for writing it again without losing what the table does
//! not hold.

use std::io::{Error, Read, Result};

use super::{
    event::{RawEvent, event, resynchronise},
    part::next_element,
    scan::{Fault, Scan, Scanner},
    window::Window,
};

/// A part of a trace.
pub enum Piece<'a> {
    /// A member of the root object that is no list of events: `"key": value`.
    Member {
        /// The key.
        key: &'a [u8],
        /// The value as JSON.
        value: &'a [u8],
    },
    /// An element of the list of events.
    Element {
        /// Its number, as the table's column `index` counts.
        index: u32,
        /// Its fields.
        fields: &'a RawEvent<'a>,
        /// All of it as JSON.
        text: &'a [u8],
    },
}

type Visit<'v> = &'v mut dyn FnMut(Piece<'_>) -> Result<()>;

/// Bytes that are read at a time.
const SIZE: usize = 4 << 20;

/// Calls `visit` with every part of a trace that can be read; what is damaged or cut is left out.
pub fn visit(source: &mut (dyn Read + Send), visit: Visit<'_>) -> Result<()> {
    let mut window = Window::moving(source, SIZE);
    let mut index = 0;
    if window.data().starts_with(b"\xef\xbb\xbf") {
        window.skip(3);
    }
    match scan(&mut window, |scanner| {
        let first = scanner.token()?;
        scanner.pos += 1;
        Ok(first)
    }) {
        Some(b'[') => elements(&mut window, &mut index, visit),
        Some(b'{') => members(&mut window, &mut index, visit),
        _ => Err(Error::other("it is no trace")),
    }
}

/// Runs `read` on more and more data until it succeeds, and moves behind what it read. `None` where it cannot succeed.
fn scan<T>(window: &mut Window<'_>, mut read: impl FnMut(&mut Scanner<'_>) -> Scan<T>) -> Option<T> {
    loop {
        let mut scanner = Scanner::new(window.data(), 0);
        match read(&mut scanner) {
            Ok(value) => {
                let pos = scanner.pos;
                window.skip(pos);
                return Some(value);
            }
            Err(Fault::End) if !window.is_last() => window.advance(0),
            Err(_) => return None,
        }
    }
}

fn members(window: &mut Window<'_>, index: &mut u32, visit: Visit<'_>) -> Result<()> {
    loop {
        let mut failed = Ok(());
        let is_list = scan(window, |scanner| {
            if !scanner.more(b'}')? {
                return Ok(None);
            }
            let key = scanner.key()?.raw;
            if key == b"traceEvents" && scanner.peek()? == b'[' {
                scanner.pos += 1;
                return Ok(Some(true));
            }
            let from = scanner.pos;
            scanner.skip()?;
            let value = scanner.since(from);
            scanner.token()?;
            failed = visit(Piece::Member { key, value });
            Ok(Some(false))
        });
        failed?;
        match is_list.flatten() {
            Some(true) => elements(window, index, visit)?,
            Some(false) => {}
            None => return Ok(()),
        }
    }
}

/// Visits the elements of a list, whose bracket has been read, and moves behind it.
fn elements(window: &mut Window<'_>, index: &mut u32, visit: Visit<'_>) -> Result<()> {
    loop {
        let (pos, ended) = window_of_elements(window.data(), index, visit)?;
        if ended || (window.is_last() && pos == window.data().len()) {
            window.skip(pos);
            return Ok(());
        }
        if window.is_last() {
            return Ok(());
        }
        window.advance(pos);
    }
}

/// Visits what is whole; where it stopped, and whether the list has ended there.
fn window_of_elements(data: &[u8], index: &mut u32, visit: Visit<'_>) -> Result<(usize, bool)> {
    let mut scanner = Scanner::new(data, 0);
    loop {
        let at = match next_element(&mut scanner) {
            Ok(Some(at)) => at,
            Ok(None) => return Ok((scanner.pos, true)),
            Err(_) => return Ok((scanner.pos, false)),
        };
        let read = if scanner.peek() == Ok(b'{') {
            event(&mut scanner).map(Some)
        } else {
            scanner.skip().map(|()| None)
        };
        match read {
            Ok(Some(fields)) => {
                visit(Piece::Element { index: *index, fields: &fields, text: scanner.since(at) })?;
                *index += 1;
            }
            Ok(None) => *index += 1,
            Err(Fault::End) => return Ok((at, false)),
            Err(Fault::Bad(_)) => match resynchronise(data, scanner.pos.max(at + 1)) {
                Some(next) => scanner.pos = next,
                None => return Ok((at, false)),
            },
        }
    }
}
