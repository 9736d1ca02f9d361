//! Columns of numbers as bytes, hashed on their way.

use std::io::{Error, ErrorKind, Read, Result, Write};

use base::{Id, Nanos};
use xxhash_rust::xxh3::Xxh3;

use crate::{Category, Lane, NameId, TrackId};

/// Bytes that are converted at a time.
const BLOCK: usize = 1 << 16;

/// A value of a fixed number of bytes.
pub trait Fixed: Copy {
    /// How many.
    const SIZE: usize;
    /// Writes it to the begin of `bytes`.
    fn put(self, bytes: &mut [u8]);
    /// Reads it from the begin of `bytes`.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($type:ty),*) => {$(
        impl Fixed for $type {
            const SIZE: usize = size_of::<$type>();
            #[inline]
            fn put(self, bytes: &mut [u8]) {
                bytes[..Self::SIZE].copy_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn get(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes[..Self::SIZE].try_into().expect("as many bytes as it has"))
            }
        }
    )*};
}
number!(i64, u64, f64, i32, u32, u8);

/// A struct of fixed values, one after the other.
macro_rules! fields {
    ($type:ty { $($field:ident: $of:ty),* $(,)? }) => {
        impl $crate::cache::codec::Fixed for $type {
            const SIZE: usize = 0 $(+ <$of as $crate::cache::codec::Fixed>::SIZE)*;
            #[inline]
            #[allow(unused_assignments, reason = "nothing comes behind the last field")]
            fn put(self, bytes: &mut [u8]) {
                let mut at = 0;
                $(
                    self.$field.put(&mut bytes[at..]);
                    at += <$of as $crate::cache::codec::Fixed>::SIZE;
                )*
            }
            #[inline]
            #[allow(unused_assignments, reason = "nothing comes behind the last field")]
            fn get(bytes: &[u8]) -> Self {
                let mut at = 0;
                $(
                    let $field = <$of as $crate::cache::codec::Fixed>::get(&bytes[at..]);
                    at += <$of as $crate::cache::codec::Fixed>::SIZE;
                )*
                Self { $($field),* }
            }
        }
    };
}
pub(super) use fields;

macro_rules! through {
    ($($type:ty as $of:ty: |$value:ident| $to:expr, |$bytes:ident| $from:expr;)*) => {$(
        impl Fixed for $type {
            const SIZE: usize = <$of as Fixed>::SIZE;
            #[inline]
            fn put(self, bytes: &mut [u8]) {
                let $value = self;
                <$of as Fixed>::put($to, bytes);
            }
            #[inline]
            fn get(bytes: &[u8]) -> Self {
                let $bytes = <$of as Fixed>::get(bytes);
                $from
            }
        }
    )*};
}
through! {
    NameId as u32: |id| id.0, |id| NameId(id);
    TrackId as u32: |id| id.0, |id| TrackId(id);
    Nanos as i64: |nanos| nanos.0, |number| Nanos(number);
    bool as u8: |flag| u8::from(flag), |flag| flag != 0;
    Category as u8: |category| category as u8, |number| Category::ALL.get(usize::from(number)).copied().unwrap_or(Category::Other);
}

impl<A: Fixed, B: Fixed> Fixed for (A, B) {
    const SIZE: usize = A::SIZE + B::SIZE;
    fn put(self, bytes: &mut [u8]) {
        self.0.put(bytes);
        self.1.put(&mut bytes[A::SIZE..]);
    }
    fn get(bytes: &[u8]) -> Self {
        (A::get(bytes), B::get(&bytes[A::SIZE..]))
    }
}

impl Fixed for Lane {
    const SIZE: usize = 9;
    fn put(self, bytes: &mut [u8]) {
        let (kind, number) = match self {
            Self::Number(number) => (0_u8, number),
            Self::Text(name) => (1, i64::from(name.0)),
        };
        (kind, number).put(bytes);
    }
    fn get(bytes: &[u8]) -> Self {
        match <(u8, i64)>::get(bytes) {
            (0, number) => Self::Number(number),
            (_, name) => Self::Text(NameId::from_index(name as u32 as usize)),
        }
    }
}

/// Writes columns and hashes them.
pub struct Encoder<W> {
    out: W,
    hash: Xxh3,
    block: Vec<u8>,
}

impl<W: Write> Encoder<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out, hash: Xxh3::new(), block: vec![0; BLOCK] }
    }

    /// Writes bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    /// Writes how many values there are, and the values.
    pub fn column<T: Fixed>(&mut self, values: &[T]) -> Result<()> {
        self.bytes(&(values.len() as u64).to_le_bytes())?;
        for values in values.chunks(BLOCK / T::SIZE) {
            let mut block = std::mem::take(&mut self.block);
            for (value, bytes) in values.iter().zip(block.chunks_exact_mut(T::SIZE)) {
                value.put(bytes);
            }
            let written = self.bytes(&block[..values.len() * T::SIZE]);
            self.block = block;
            written?;
        }
        Ok(())
    }

    /// Writes the checksum of everything before it.
    pub fn finish(mut self) -> Result<W> {
        self.out.write_all(&self.hash.digest().to_le_bytes())?;
        Ok(self.out)
    }
}

/// Reads what [`Encoder`] wrote.
pub struct Decoder<R> {
    input: R,
    left: u64,
    hash: Xxh3,
    block: Vec<u8>,
}

impl<R: Read> Decoder<R> {
    /// Reads `left` bytes of `input`, and the checksum behind them; `hash` is of what has been read before.
    pub fn new(input: R, left: u64, hash: Xxh3) -> Self {
        Self { input, left, hash, block: vec![0; BLOCK] }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        let count = bytes.len() as u64;
        self.left = self.left.checked_sub(count).ok_or_else(|| bad("it is shorter than it says"))?;
        self.input.read_exact(bytes)?;
        self.hash.update(bytes);
        Ok(())
    }

    /// Reads a column.
    pub fn column<T: Fixed>(&mut self) -> Result<Vec<T>> {
        let mut count = [0; 8];
        self.fill(&mut count)?;
        let count = u64::from_le_bytes(count);
        if count > self.left / T::SIZE as u64 {
            return Err(bad("a column is longer than the file"));
        }
        let mut values = Vec::with_capacity(count as usize);
        let mut block = std::mem::take(&mut self.block);
        while values.len() < count as usize {
            let some = (count as usize - values.len()).min(BLOCK / T::SIZE) * T::SIZE;
            self.fill(&mut block[..some])?;
            values.extend(block[..some].chunks_exact(T::SIZE).map(T::get));
        }
        self.block = block;
        Ok(values)
    }

    /// Checks that everything was read and is what was written.
    pub fn finish(mut self) -> Result<()> {
        let mut sum = [0; 8];
        self.input.read_exact(&mut sum)?;
        if self.left > 0 || u64::from_le_bytes(sum) != self.hash.digest() {
            return Err(bad("its checksum is another"));
        }
        Ok(())
    }
}

/// What is not what was written.
pub fn bad(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}
