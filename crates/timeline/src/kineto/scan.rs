//! A scanner over JSON text: no tree, no recursion, no allocation. Lenient where traces are: extra commas, raw control
//! characters and unknown escapes in strings, `NaN` and `Infinity`.

use std::borrow::Cow;

use super::number::Micros;

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
        // much faster than the lossy way where there is nothing to lose
        match std::str::from_utf8(self.raw) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => String::from_utf8_lossy(self.raw),
        }
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
        let mut rest = self.data.get(self.pos..).unwrap_or_default();
        while let Some((word, behind)) = rest.split_first_chunk::<8>() {
            let word = u64::from_le_bytes(*word);
            let mask = equal_bytes(word, b'"') | equal_bytes(word, b'\\');
            if mask != 0 {
                let place = mask.trailing_zeros() & !7;
                self.pos = self.data.len() - rest.len() + (place / 8) as usize;
                return Ok((word >> place) as u8);
            }
            rest = behind;
        }
        let last = rest.iter().position(|&byte| byte == b'"' || byte == b'\\');
        self.pos = self.data.len() - rest.len() + last.unwrap_or(rest.len());
        self.peek()
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

    /// An integer of at most 18 digits that a delimiter follows. `None`, and nothing is read, where something else stands.
    #[inline]
    pub fn plain_integer(&mut self) -> Option<i64> {
        let rest = self.data.get(self.pos..)?;
        let (negative, count, value) = whole(rest);
        if !(1..=18).contains(&count) || !is_delimiter(*rest.get(usize::from(negative) + count)?) {
            return None;
        }
        self.pos += usize::from(negative) + count;
        Some(if negative { -value } else { value })
    }

    /// Microseconds of at most 15 digits before the point that a delimiter follows. `None`, and nothing is read, where something
    /// else stands.
    #[inline]
    pub fn plain_micros(&mut self) -> Option<Micros> {
        let rest = self.data.get(self.pos..)?;
        let (negative, count, value) = whole(rest);
        let mut at = usize::from(negative) + count;
        // sixteen digits of microseconds may not fit when they become nanoseconds
        if !(1..=16).contains(&count) || value > i64::MAX / 1000 - 1 {
            return None;
        }
        let mut nanos = value * 1000;
        let integer = *rest.get(at)? != b'.';
        if !integer {
            at += 1;
            let from = at;
            let mut unit = 100;
            while let Some(digit) =
                rest.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10)
            {
                nanos += i64::from(digit) * unit + i64::from(at - from == 3 && digit >= 5);
                unit /= 10;
                at += 1;
            }
            if at == from {
                return None;
            }
        }
        if !is_delimiter(*rest.get(at)?) {
            return None;
        }
        self.pos += at;
        Some(Micros { nanos: if negative { -nanos } else { nanos }, integer })
    }

    /// A number or a literal: everything up to a delimiter.
    #[inline]
    pub fn scalar(&mut self) -> Scan<&'a [u8]> {
        let from = self.pos;
        while let Some(&byte) = self.data.get(self.pos) {
            match byte {
                byte if is_delimiter(byte) => break,
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
        // almost always a colon, a space or none, and the value
        match self.data.get(self.pos..self.pos + 3) {
            Some([b':', b' ', next]) if *next > b' ' => self.pos += 2,
            Some([b':', next, _]) if *next > b' ' => self.pos += 1,
            _ => {
                self.expect(b':', "a colon")?;
                self.token()?;
            }
        }
        Ok(key)
    }
}

/// Whether a number or literal ends before `byte`.
#[inline]
const fn is_delimiter(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b'"' | b'{' | b'[' | b':' | 0..=b' ')
}

/// A sign, how many digits follow, and their value; it has wrapped around if there are more than 18.
#[inline]
fn whole(text: &[u8]) -> (bool, usize, i64) {
    let negative = text.first() == Some(&b'-');
    let digits = &text[usize::from(negative)..];
    let (mut count, mut value) = (0, 0_i64);
    while let Some(digit) = digits.get(count).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10)
    {
        value = value.wrapping_mul(10).wrapping_add(i64::from(digit));
        count += 1;
    }
    (negative, count, value)
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
    fn plain_numbers_are_read_as_all_numbers_are() {
        use super::super::number::{integer, micros};
        base::testing::cases(500, |u| {
            let mut text: String = (0..u.int_in_range(0..=20)?)
                .map(|_| *u.choose(b"0123456789999..-e5").unwrap_or(&b'0') as char)
                .collect();
            if u.arbitrary()? {
                text.insert(0, '-');
            }
            let data = format!("{text},");
            let mut scanner = Scanner::new(data.as_bytes(), 0);
            if let Some(value) = scanner.plain_integer() {
                assert_eq!((Some(value), scanner.pos), (integer(text.as_bytes()), text.len()), "{text}");
            }
            let mut scanner = Scanner::new(data.as_bytes(), 0);
            if let Some(value) = scanner.plain_micros() {
                assert_eq!((Some(value), scanner.pos), (micros(text.as_bytes()), text.len()), "{text}");
            }
            // without what follows, more digits may follow
            assert_eq!(Scanner::new(b"12", 0).plain_integer(), None);
            Ok(())
        });
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
