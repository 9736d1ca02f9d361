//! A moving window over a source: what has been read is thrown away, so that memory does not grow with the file.

use std::io::Read;

/// Room in front of fresh data for what the window before left over.
const HEADROOM: usize = 1 << 16;

/// A part of the source in memory.
pub struct Window<'s> {
    data: Vec<u8>,
    /// Where the part begins in `data`.
    begin: usize,
    /// Offset in the source of the part's first byte.
    base: u64,
    source: Option<&'s mut (dyn Read + Send)>,
    size: usize,
    /// What reading said when it failed.
    pub failure: Option<std::io::Error>,
}

impl<'s> Window<'s> {
    /// All of the source at once.
    pub const fn whole(data: Vec<u8>) -> Self {
        Self { data, begin: 0, base: 0, source: None, size: 0, failure: None }
    }

    /// A window of about `size` bytes that moves over `source`.
    pub fn moving(source: &'s mut (dyn Read + Send), size: usize) -> Self {
        let mut window =
            Self { data: Vec::new(), begin: 0, base: 0, source: Some(source), size, failure: None };
        window.advance(0);
        window
    }

    /// The bytes of the window.
    pub fn data(&self) -> &[u8] {
        &self.data[self.begin..]
    }

    /// Offset in the source of the window's first byte.
    pub const fn base(&self) -> u64 {
        self.base
    }

    /// Whether nothing comes behind this window.
    pub const fn is_last(&self) -> bool {
        self.source.is_none()
    }

    /// Forgets the first `count` bytes, without reading on.
    pub fn skip(&mut self, count: usize) {
        self.begin += count;
        self.base += count as u64;
    }

    /// Forgets the bytes before `pos` and reads on. A window that is kept whole grows to twice its size.
    pub fn advance(&mut self, pos: usize) {
        let size = self.size.max(self.data().len() - pos);
        let fresh = fill(&mut self.source, &mut self.failure, size);
        self.join(pos, fresh);
    }

    /// Runs `work` on the window and reads on, in `parallel` meanwhile; `work` says from where on its bytes are needed again.
    pub fn advance_during<T: Send>(
        &mut self,
        parallel: bool,
        work: impl FnOnce(&[u8], u64) -> (T, usize) + Send,
    ) -> T {
        if !parallel || self.is_last() {
            let (result, pos) = work(self.data(), self.base);
            self.advance(pos);
            return result;
        }
        let (data, base, size) = (&self.data[self.begin..], self.base, self.size);
        let (source, failure) = (&mut self.source, &mut self.failure);
        let ((result, pos), fresh) = rayon::join(|| work(data, base), || fill(source, failure, size));
        self.join(pos, fresh);
        result
    }

    /// Puts what is left from `pos` on in front of `fresh`, which starts with room for it.
    fn join(&mut self, pos: usize, mut fresh: Vec<u8>) {
        let rest = &self.data[self.begin + pos..];
        self.base += pos as u64;
        if fresh.is_empty() {
            self.begin += pos;
            return;
        }
        if rest.len() <= HEADROOM {
            let begin = HEADROOM - rest.len();
            fresh[begin..HEADROOM].copy_from_slice(rest);
            (self.data, self.begin) = (fresh, begin);
        } else {
            (self.data, self.begin) = ([rest, &fresh[HEADROOM..]].concat(), 0);
        }
    }
}

/// Reads `size` bytes behind the headroom; fewer at the end of the source, which is then dropped; empty if there are none.
fn fill(
    source: &mut Option<&mut (dyn Read + Send)>,
    failure: &mut Option<std::io::Error>,
    size: usize,
) -> Vec<u8> {
    let Some(reader) = source else { return Vec::new() };
    let mut fresh = Vec::with_capacity(HEADROOM + size);
    fresh.resize(HEADROOM, 0);
    match reader.take(size as u64).read_to_end(&mut fresh) {
        Ok(count) if count == size => {}
        Ok(_) => *source = None,
        Err(error) => {
            *failure = Some(error);
            *source = None;
        }
    }
    if fresh.len() == HEADROOM {
        fresh.clear();
    }
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moving_window_shows_every_byte_once_and_in_order() {
        let content: Vec<u8> = (0..10_000_u32).map(|i| (i % 251) as u8).collect();
        let mut source = content.as_slice();
        let mut window = Window::moving(&mut source, 64);
        let mut seen = Vec::new();
        loop {
            let keep = if window.is_last() { 0 } else { 7 };
            window.advance_during(seen.len() % 2 == 0, |data, _| {
                let pos = data.len() - keep;
                seen.extend_from_slice(&data[..pos]);
                ((), pos)
            });
            if window.is_last() && window.data().is_empty() {
                break;
            }
        }
        assert_eq!(seen, content);
        assert_eq!(window.base(), 10_000);
    }
}
