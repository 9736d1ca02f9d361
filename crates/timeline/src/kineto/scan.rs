//! A scanner over JSON text: no tree, no recursion, no allocation. Lenient where traces are: extra commas, raw control
//! characters and unknown escapes in strings, `NaN` and `Infinity`.

use std::borrow::Cow;

/// Why a value could not be scanned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The data ends inside the value.
    End,
    /// Something else stands where the named thing should; the scanner's position says where.
    Bad(&'static str),
}

/// The result of scanning.
pub type Scan<T> = Result<T, Fault>;

/// A string as it stands in the data, between its quotes.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// The bytes between the quotes.
    pub raw: &'a [u8],
    /// Whether there is a backslash among them.
    pub escaped: bool,
}

impl<'a> Text<'a> {
    /// The text with escapes resolved; bytes that are no UTF-8 become replacement characters.
    pub fn decode(self) -> Cow<'a, str> {
        if self.escaped {
            return Cow::Owned(unescape(self.raw));
        }
        String::from_utf8_lossy(self.raw)
    }
}

/// A position in JSON text.
#[derive(Clone, Copy, Debug)]
pub struct Scanner<'a> {
    data: &'a [u8],
    /// Offset of the next byte.
    pub pos: usize,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// A mask with the high bit set in (at least the first of) the bytes of `word` that equal `byte`.
const fn equal_bytes(word: u64, byte: u8) -> u64 {
    let x = word ^ (ONES * byte as u64);
    x.wrapping_sub(ONES) & !x & HIGHS
}

impl<'a> Scanner<'a> {
    /// Starts at `pos` of `data`.
    pub const fn new(data: &'a [u8], pos: usize) -> Self {
        Self { data, pos }
    }

    /// The next byte.
    #[inline]
    pub fn peek(&self) -> Scan<u8> {
        self.data.get(self.pos).copied().ok_or(Fault::End)
    }

    /// The data from `from` to here.
    pub fn since(&self, from: usize) -> &'a [u8] {
        &self.data[from..self.pos]
    }

    /// Skips white space and returns the byte after it.
    #[inline]
    pub fn token(&mut self) -> Scan<u8> {
        while let Some(&byte) = self.data.get(self.pos) {
            if byte > b' ' {
                return Ok(byte);
            }
            self.pos += 1;
        }
        Err(Fault::End)
    }

    /// Skips white space and `byte`.
    #[inline]
    pub fn expect(&mut self, byte: u8, what: &'static str) -> Scan<()> {
        if self.token()? != byte {
            return Err(Fault::Bad(what));
        }
        self.pos += 1;
        Ok(())
    }

    /// A string, whose opening quote is the next byte.
    #[inline]
    pub fn string(&mut self) -> Scan<Text<'a>> {
        if self.peek()? != b'"' {
            return Err(Fault::Bad("a string"));
        }
        self.pos += 1;
        let from = self.pos;
        let mut escaped = false;
        loop {
            if self.quote_or_backslash()? == b'"' {
                let raw = &self.data[from..self.pos];
                self.pos += 1;
                return Ok(Text { raw, escaped });
            }
            escaped = true;
            self.pos += 2;
        }
    }

    /// Moves to the next quote or backslash.
    #[inline]
    fn quote_or_backslash(&mut self) -> Scan<u8> {
        let rest = self.data.get(self.pos..).unwrap_or_default();
        let mut skipped = 0;
        for word in rest.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            let mask = equal_bytes(word, b'"') | equal_bytes(word, b'\\');
            if mask != 0 {
                self.pos += skipped + (mask.trailing_zeros() / 8) as usize;
                return self.peek();
            }
            skipped += 8;
        }
        while let Some(&byte) = rest.get(skipped) {
            if byte == b'"' || byte == b'\\' {
                self.pos += skipped;
                return Ok(byte);
            }
            skipped += 1;
        }
        self.pos = self.data.len();
        Err(Fault::End)
    }

    /// Skips white space and any value, however deep.
    pub fn skip(&mut self) -> Scan<()> {
        match self.token()? {
            b'"' => self.string().map(drop),
            b'{' | b'[' => self.skip_nested(),
            _ => self.scalar().map(drop),
        }
    }

    fn skip_nested(&mut self) -> Scan<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        self.pos += 1;
                        return Ok(());
                    }
                }
                _ => {}
            }
            self.pos += 1;
        }
    }

    /// A number or a literal: everything up to a delimiter.
    #[inline]
    pub fn scalar(&mut self) -> Scan<&'a [u8]> {
        let from = self.pos;
        while let Some(&byte) = self.data.get(self.pos) {
            match byte {
                b',' | b'}' | b']' | b'"' | b'{' | b'[' | b':' => break,
                byte if byte <= b' ' => break,
                _ => self.pos += 1,
            }
        }
        if self.pos == self.data.len() {
            return Err(Fault::End);
        }
        if self.pos == from {
            return Err(Fault::Bad("a value"));
        }
        Ok(self.since(from))
    }

    /// After a member of an object or array: whether another one follows. Extra commas are skipped.
    #[inline]
    pub fn more(&mut self, close: u8) -> Scan<bool> {
        loop {
            match self.token()? {
                b',' => self.pos += 1,
                byte if byte == close => {
                    self.pos += 1;
                    return Ok(false);
                }
                b'}' | b']' => return Err(Fault::Bad("a member or the end of the object or list")),
                _ => return Ok(true),
            }
        }
    }

    /// A key with its colon.
    #[inline]
    pub fn key(&mut self) -> Scan<Text<'a>> {
        let key = self.string()?;
        self.expect(b':', "a colon")?;
        self.token()?;
        Ok(key)
    }
}

/// Resolves escapes; unknown ones stay as they are.
fn unescape(raw: &[u8]) -> String {
    let quoted = [b"\"", raw, b"\""].concat();
    if let Ok(text) = serde_json::from_slice(&quoted) {
        return text;
    }
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        match rest.next() {
            Some(b'n') => bytes.push(b'\n'),
            Some(b't') => bytes.push(b'\t'),
            Some(b'r') => bytes.push(b'\r'),
            Some(byte @ (b'"' | b'\\' | b'/')) => bytes.push(byte),
            Some(byte) => bytes.extend([b'\\', byte]),
            None => bytes.push(b'\\'),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_end_at_their_own_quote_wherever_it_is() {
        for length in 0..40 {
            let body = "a".repeat(length);
            let json = format!("\"{body}\\\"{body}\" rest");
            let text = Scanner::new(json.as_bytes(), 0).string().unwrap();
            assert_eq!(text.decode(), format!("{body}\"{body}"));
        }
    }

    #[test]
    fn data_that_ends_inside_a_value_is_told_from_bad_data() {
        assert_eq!(Scanner::new(b"\"abc", 0).skip(), Err(Fault::End));
        assert_eq!(Scanner::new(b"[1, {\"a\": [2]", 0).skip(), Err(Fault::End));
        assert_eq!(Scanner::new(b"}", 0).skip(), Err(Fault::Bad("a value")));
        assert_eq!(Scanner::new(b"12", 0).skip(), Err(Fault::End));
    }

    #[test]
    fn nesting_of_any_depth_is_skipped_without_recursion() {
        let json = ["[".repeat(1_000_000), "]".repeat(1_000_000), " ".into()].concat();
        let mut scanner = Scanner::new(json.as_bytes(), 0);
        assert_eq!(scanner.skip(), Ok(()));
        assert_eq!(scanner.pos, 2_000_000);
    }

    #[test]
    fn escapes_are_resolved_and_unknown_ones_kept() {
        let decode = |raw: &[u8]| Text { raw, escaped: true }.decode().into_owned();
        assert_eq!(decode(br"a\u00e9\n"), "a\u{e9}\n");
        assert_eq!(decode(br"C:\dir\new"), "C:\\dir\new");
    }
}
