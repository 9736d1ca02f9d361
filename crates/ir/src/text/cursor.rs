//! Reading one line of text, character by character, with errors that know their column.

use base::{Code, Diagnostic, Result};

/// A position in a line.
pub(super) struct Cursor<'t> {
    file: &'t str,
    /// The line's number, from 1.
    number: u32,
    line: &'t str,
    /// The position of the next byte.
    at: usize,
}

impl<'t> Cursor<'t> {
    pub(super) const fn new(file: &'t str, number: u32, line: &'t str) -> Self {
        Self { file, number, line, at: 0 }
    }

    /// What is left of the line, blanks skipped.
    pub(super) fn rest(&mut self) -> &'t str {
        let rest = &self.line[self.at..];
        let trimmed = rest.trim_start_matches([' ', '\t']);
        self.at += rest.len() - trimmed.len();
        trimmed
    }

    /// Takes all that is left of the line.
    pub(super) fn take_rest(&mut self) -> &'t str {
        let rest = self.rest();
        self.at = self.line.len();
        rest.trim_end()
    }

    /// Whether nothing but a comment is left.
    pub(super) fn at_end(&mut self) -> bool {
        let rest = self.rest();
        rest.is_empty() || rest.starts_with('#')
    }

    /// Takes `token` if it is next.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        let next = self.rest().starts_with(token);
        self.at += if next { token.len() } else { 0 };
        next
    }

    /// Takes `token`, or fails.
    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.wrong(&format!("`{token}`"))) }
    }

    /// Takes the longest run of characters that names, numbers and operators are made of; may be empty.
    pub(super) fn word(&mut self) -> &'t str {
        let rest = self.rest();
        let part = |c: char| c.is_ascii_alphanumeric() || "_.:+-".contains(c);
        let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Takes a number that counts `what`.
    pub(super) fn count(&mut self, what: &str) -> Result<u32> {
        let before = self.mark();
        self.word().parse().map_err(|_| {
            self.back(before);
            self.wrong(what)
        })
    }

    /// Takes a number that follows `prefix`, such as the 12 of `v12`.
    pub(super) fn numbered(&mut self, prefix: char) -> Result<u32> {
        let before = self.mark();
        let word = self.word();
        let number = word.strip_prefix(prefix).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
        number.and_then(|digits| digits.parse().ok()).ok_or_else(|| {
            self.back(before);
            self.wrong(&format!("`{prefix}` and a number"))
        })
    }

    /// Takes an integer.
    pub(super) fn integer<N: std::str::FromStr>(&mut self, what: &str) -> Result<N> {
        self.rest();
        let digits = self.line[self.at..].find(|c: char| !c.is_ascii_digit() && c != '-');
        let end = digits.map_or(self.line.len(), |end| self.at + end);
        let number = self.line[self.at..end].parse().map_err(|_| self.wrong(what))?;
        self.at = end;
        Ok(number)
    }

    /// Takes a string in quotes.
    pub(super) fn quoted(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut text = String::new();
        loop {
            let rest = &self.line[self.at..];
            let plain =
                rest.find(['"', '\\']).ok_or_else(|| self.fault("a string without its closing quote"))?;
            text.push_str(&rest[..plain]);
            self.at += plain + 1;
            if rest[plain..].starts_with('"') {
                return Ok(text);
            }
            text.push(self.escaped()?);
        }
    }

    /// Takes what follows a backslash.
    fn escaped(&mut self) -> Result<char> {
        let rest = &self.line[self.at..];
        if let Some(end) = rest.strip_prefix("u{").and_then(|hex| hex.find('}')) {
            let code = u32::from_str_radix(&rest[2..2 + end], 16).ok().and_then(char::from_u32);
            let c = code.ok_or_else(|| self.fault("an escape that is no character"))?;
            self.at += end + 3;
            return Ok(c);
        }
        let c = match rest.chars().next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some(c @ ('"' | '\\')) => c,
            _ => return Err(self.fault("an unknown escape").hint("known: \\n \\t \\r \\\" \\\\ \\u{HEX}")),
        };
        self.at += 1;
        Ok(c)
    }

    /// Where it is, to come [`back`](Self::back) to.
    pub(super) fn mark(&mut self) -> usize {
        self.rest();
        self.at
    }

    /// Returns to a mark.
    pub(super) const fn back(&mut self, mark: usize) {
        self.at = mark;
    }

    /// Checks that the line ends here.
    pub(super) fn end(&mut self) -> Result<()> {
        if self.at_end() { Ok(()) } else { Err(self.wrong("the end of the line")) }
    }

    /// What went wrong at the next character: something else was expected.
    pub(super) fn wrong(&mut self, expected: &str) -> Box<Diagnostic> {
        const SHOWN: usize = 24;
        let rest = self.rest();
        let found: String = rest.chars().take(SHOWN).collect();
        let found = if found.is_empty() { "the end of the line".into() } else { format!("`{found}`") };
        self.fault(&format!("expected {expected}, found {found}"))
    }

    /// A fault at the next character.
    pub(super) fn fault(&self, message: &str) -> Box<Diagnostic> {
        let column = self.line[..self.at].chars().count() as u32 + 1;
        Diagnostic::new(Code::BAD_TEXT, message).at_line(self.file, self.number, column)
    }
}
