//! The text form of patterns, one operation to a line:
//!
//! ```text
//! pattern gated
//! slope = aten::sigmoid(x)
//! made = aten::mul.Tensor~(x, slope)
//! -> made
//! where x is f32
//! ```
//!
//! `~` stands behind an operation whose first two arguments may change places. A name that no operation gives is a capture, `_` is anything,
//! `[a, b]` a list; numbers, `true`, `none` and texts in quotes are themselves. Behind `->` stand the results that others may read.

use std::str::FromStr;

use crate::{Pattern, Step, Term};

impl FromStr for Pattern {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let first = lines.next().and_then(|line| line.strip_prefix("pattern ")).ok_or("no `pattern` line")?;
        let mut reader = Reader {
            pattern: Self {
                name: first.trim().to_owned(),
                steps: Vec::new(),
                captures: Vec::new(),
                roots: Vec::new(),
                properties: Vec::new(),
            },
        };
        lines.try_for_each(|line| reader.line(line).map_err(|why| format!("`{line}`: {why}")))?;
        let pattern = reader.pattern;
        if pattern.roots.is_empty() {
            return Err("nothing reads its results: no line with `->`".to_owned());
        }
        if pattern.is_connected() { Ok(pattern) } else { Err("its operations are not connected".to_owned()) }
    }
}

struct Reader {
    pattern: Pattern,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(roots) = line.strip_prefix("->") {
            for name in roots.split(',').map(str::trim) {
                let port = self.pattern.port(name).ok_or_else(|| format!("no operation makes `{name}`"))?;
                self.pattern.roots.push(port);
            }
            return Ok(());
        }
        if let Some(what) = line.strip_prefix("where ") {
            let (name, property) = what.split_once(" is ").ok_or("no ` is `")?;
            let capture = self.pattern.capture(name.trim()).ok_or_else(|| format!("no capture `{name}`"))?;
            self.pattern.properties.push((capture, property.trim().to_owned()));
            return Ok(());
        }
        let (names, call) = line.split_once('=').ok_or("neither an operation nor `->` nor `where`")?;
        let (op, rest) = call.trim().split_once('(').ok_or("no `(`")?;
        let inner = rest.strip_suffix(')').ok_or("no `)` at the end")?;
        let (op, commutes) = op.strip_suffix('~').map_or((op, false), |op| (op, true));
        let arguments = self.terms(inner)?;
        if commutes && arguments.len() < 2 {
            return Err("fewer than two arguments that could change places".to_owned());
        }
        let results = names.split(',').map(|name| name.trim().to_owned()).collect();
        self.pattern.steps.push(Step { op: op.to_owned(), commutes, arguments, results });
        Ok(())
    }

    fn terms(&mut self, text: &str) -> Result<Vec<Term>, String> {
        split(text).into_iter().map(|part| self.term(part)).collect()
    }

    fn term(&mut self, text: &str) -> Result<Term, String> {
        if text == "_" {
            return Ok(Term::Any);
        }
        let first = text.chars().next().ok_or("an argument is missing")?;
        let is_number = first.is_ascii_digit() || first == '-' || first == '"';
        if is_number || ["true", "false", "none", "[]"].contains(&text) {
            return Ok(Term::Is(text.to_owned()));
        }
        if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let parts = split(inner);
            let is_number = |part: &&str| part.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            return if parts.iter().all(is_number) {
                Ok(Term::Is(format!("[{}]", parts.join(", "))))
            } else {
                self.terms(inner).map(Term::List)
            };
        }
        if let Some(port) = self.pattern.port(text) {
            return Ok(Term::Made(port));
        }
        let known = self.pattern.capture(text);
        Ok(Term::Captured(known.unwrap_or_else(|| {
            self.pattern.captures.push(text.to_owned());
            self.pattern.captures.len() - 1
        })))
    }
}

/// The parts between commas that are in no brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() || start > 0 {
        parts.push(text[start..].trim());
    }
    parts
}
