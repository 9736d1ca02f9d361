//! One element of a trace's event list: its fields and the arguments that the table keeps.

use super::{
    number::{Micros, float, integer, micros},
    scan::{Scan, Scanner, Text},
};

/// A process or thread as it is written.
#[derive(Clone, Copy, Debug)]
pub enum RawLane<'a> {
    /// A number, also one in quotes.
    Number(i64),
    /// A text.
    Text(Text<'a>),
}

/// A time field: absent, not a number, or a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RawTime {
    /// The field is absent, `null` or not finite.
    #[default]
    Absent,
    /// A number.
    At(Micros),
}

impl RawTime {
    /// The number, if there is one.
    pub fn some(self) -> Option<Micros> {
        match self {
            Self::Absent => None,
            Self::At(micros) => Some(micros),
        }
    }
}

/// The fields of an element that the table keeps, borrowed from the data. A key that comes twice counts the last time.
#[derive(Clone, Debug, Default)]
pub struct RawEvent<'a> {
    /// Phase.
    pub phase: u8,
    /// Category.
    pub category: Option<Text<'a>>,
    /// Name.
    pub name: Option<Text<'a>>,
    /// Begin.
    pub start: RawTime,
    /// Duration.
    pub duration: RawTime,
    /// Process or device.
    pub process: Option<RawLane<'a>>,
    /// Thread or stream.
    pub thread: Option<RawLane<'a>>,
    /// Id of a flow.
    pub id: Option<i64>,
    /// Arguments.
    pub args: RawArgs<'a>,
}

/// The arguments that the table keeps.
#[derive(Clone, Debug, Default)]
pub struct RawArgs<'a> {
    /// `stream`
    pub stream: Option<i64>,
    /// `correlation`
    pub correlation: Option<i64>,
    /// `External id`
    pub external: Option<i64>,
    /// `bytes`
    pub bytes: Option<i64>,
    /// `memory bandwidth (GB/s)`
    pub bandwidth: Option<f64>,
    /// `wait_on_stream`
    pub wait_stream: Option<i64>,
    /// `wait_on_cuda_event_record_corr_id`
    pub wait_event: Option<i64>,
    /// `graph node id`
    pub graph_node: Option<i64>,
    /// `Input Dims`, as JSON
    pub dims: Option<&'a [u8]>,
    /// `Input type`, as JSON
    pub types: Option<&'a [u8]>,
    /// `Input Strides`, as JSON
    pub strides: Option<&'a [u8]>,
    /// `Concrete Inputs`, as JSON
    pub concrete: Option<&'a [u8]>,
    /// `Sequence number`
    pub sequence: Option<i64>,
    /// `Fwd thread id`
    pub forward_thread: Option<i64>,
    /// `Python id`
    pub python: Option<i64>,
    /// `Python parent id`
    pub python_parent: Option<i64>,
    /// `Python module id`
    pub module: Option<i64>,
    /// Whether any argument of a collective is there.
    pub collective: bool,
    /// `Collective name`
    pub operation: Option<Text<'a>>,
    /// `Process Group Name`
    pub group: Option<Text<'a>>,
    /// `Process Group Ranks`, as JSON or text
    pub group_ranks: Option<&'a [u8]>,
    /// `dtype`
    pub dtype: Option<Text<'a>>,
    /// `In msg nelems`
    pub elements_in: Option<i64>,
    /// `Out msg nelems`
    pub elements_out: Option<i64>,
    /// `Group size`
    pub group_size: Option<i64>,
    /// `Seq`
    pub collective_sequence: Option<i64>,
    /// `Unisono node`
    pub node: Option<i64>,
    /// `Unisono place`
    pub place: Option<Text<'a>>,
    /// `Unisono cause`
    pub cause: Option<Text<'a>>,
    /// `Unisono work`, as JSON
    pub work: Option<&'a [u8]>,
    /// `name` of a metadata element
    pub name: Option<Text<'a>>,
    /// `Bytes` of a memory event
    pub memory_bytes: Option<i64>,
    /// `Addr` of a memory event
    pub address: Option<i64>,
    /// `Total Allocated` of a memory event
    pub total_allocated: Option<i64>,
    /// `Total Reserved` of a memory event
    pub total_reserved: Option<i64>,
    /// `Device Type` of a memory event
    pub device_type: Option<i64>,
    /// `Device Id` of a memory event
    pub device: Option<i64>,
    /// The whole object as JSON, for the rare events whose other members matter.
    pub whole: &'a [u8],
}

/// Reads an element, whose opening brace is the next byte.
pub fn event<'a>(scanner: &mut Scanner<'a>) -> Scan<RawEvent<'a>> {
    let mut raw = RawEvent::default();
    scanner.expect(b'{', "an object")?;
    while scanner.more(b'}')? {
        match scanner.key()?.raw {
            b"ph" => raw.phase = text(scanner)?.and_then(|text| text.raw.first().copied()).unwrap_or(0),
            b"cat" => raw.category = text(scanner)?,
            b"name" => raw.name = text(scanner)?,
            b"ts" => raw.start = time(scanner)?,
            b"dur" => raw.duration = time(scanner)?,
            b"pid" => raw.process = lane(scanner)?,
            b"tid" => raw.thread = lane(scanner)?,
            b"id" => raw.id = number(scanner)?,
            b"args" => raw.args = args(scanner)?,
            _ => scanner.skip()?,
        }
    }
    Ok(raw)
}

/// Reads the arguments; anything but an object has none.
fn args<'a>(scanner: &mut Scanner<'a>) -> Scan<RawArgs<'a>> {
    let mut raw = RawArgs::default();
    if scanner.token()? != b'{' {
        scanner.skip()?;
        return Ok(raw);
    }
    let from = scanner.pos;
    scanner.pos += 1;
    while scanner.more(b'}')? {
        let key = scanner.key()?.raw;
        argument(scanner, key, &mut raw)?;
    }
    raw.whole = scanner.since(from);
    Ok(raw)
}

#[rustfmt::skip] // a table
fn argument<'a>(scanner: &mut Scanner<'a>, key: &[u8], raw: &mut RawArgs<'a>) -> Scan<()> {
    match key {
        b"External id" => raw.external = number(scanner)?,
        b"Input Dims" | b"Input dims" => raw.dims = json(scanner)?,
        b"Input type" => raw.types = json(scanner)?,
        b"Input Strides" => raw.strides = json(scanner)?,
        b"Concrete Inputs" => raw.concrete = json(scanner)?,
        b"Python id" => raw.python = number(scanner)?,
        b"Python parent id" => raw.python_parent = number(scanner)?,
        b"Python module id" => raw.module = number(scanner)?,
        b"correlation" => raw.correlation = number(scanner)?,
        b"stream" => raw.stream = number(scanner)?,
        b"bytes" => raw.bytes = number(scanner)?,
        b"memory bandwidth (GB/s)" => raw.bandwidth = real(scanner)?,
        b"wait_on_stream" => raw.wait_stream = number(scanner)?,
        b"wait_on_cuda_event_record_corr_id" => raw.wait_event = number(scanner)?,
        b"graph node id" => raw.graph_node = number(scanner)?,
        b"Sequence number" => raw.sequence = number(scanner)?,
        b"Fwd thread id" => raw.forward_thread = number(scanner)?,
        b"Collective name" => { raw.collective = true; raw.operation = text(scanner)? }
        b"Process Group Name" => { raw.collective = true; raw.group = text(scanner)? }
        b"Process Group Ranks" => { raw.collective = true; raw.group_ranks = json(scanner)? }
        b"dtype" => raw.dtype = text(scanner)?,
        b"In msg nelems" => { raw.collective = true; raw.elements_in = number(scanner)? }
        b"Out msg nelems" => { raw.collective = true; raw.elements_out = number(scanner)? }
        b"Group size" => { raw.collective = true; raw.group_size = number(scanner)? }
        b"Seq" | b"seq" => raw.collective_sequence = number(scanner)?,
        b"Unisono node" => raw.node = number(scanner)?,
        b"Unisono place" => raw.place = text(scanner)?,
        b"Unisono cause" => raw.cause = text(scanner)?,
        b"Unisono work" => raw.work = json(scanner)?,
        b"name" => raw.name = text(scanner)?,
        b"Bytes" => raw.memory_bytes = number(scanner)?,
        b"Addr" => raw.address = number(scanner)?,
        b"Total Allocated" => raw.total_allocated = number(scanner)?,
        b"Total Reserved" => raw.total_reserved = number(scanner)?,
        b"Device Type" => raw.device_type = number(scanner)?,
        b"Device Id" => raw.device = number(scanner)?,
        _ => scanner.skip()?,
    }
    Ok(())
}

/// A string; other values are skipped.
#[inline]
fn text<'a>(scanner: &mut Scanner<'a>) -> Scan<Option<Text<'a>>> {
    if scanner.peek()? == b'"' {
        return scanner.string().map(Some);
    }
    scanner.skip().map(|()| None)
}

/// Any value but `null`, as JSON.
fn json<'a>(scanner: &mut Scanner<'a>) -> Scan<Option<&'a [u8]>> {
    let from = scanner.pos;
    scanner.skip()?;
    Ok(Some(scanner.since(from)).filter(|text| *text != b"null"))
}

/// A number or a literal, with or without quotes; other values are skipped.
#[inline]
fn word<'a>(scanner: &mut Scanner<'a>) -> Scan<&'a [u8]> {
    match scanner.peek()? {
        b'"' => scanner.string().map(|text| text.raw),
        b'{' | b'[' => scanner.skip().map(|()| &b""[..]),
        _ => scanner.scalar(),
    }
}

#[inline]
fn number(scanner: &mut Scanner<'_>) -> Scan<Option<i64>> {
    match scanner.plain_integer() {
        Some(value) => Ok(Some(value)),
        None => word(scanner).map(integer),
    }
}

fn real(scanner: &mut Scanner<'_>) -> Scan<Option<f64>> {
    word(scanner).map(float)
}

#[inline]
fn time(scanner: &mut Scanner<'_>) -> Scan<RawTime> {
    match scanner.plain_micros() {
        Some(micros) => Ok(RawTime::At(micros)),
        None => Ok(micros(word(scanner)?).map_or(RawTime::Absent, RawTime::At)),
    }
}

#[inline]
fn lane<'a>(scanner: &mut Scanner<'a>) -> Scan<Option<RawLane<'a>>> {
    if scanner.peek()? != b'"' {
        return Ok(number(scanner)?.map(RawLane::Number));
    }
    let text = scanner.string()?;
    Ok(Some(integer(text.raw).map_or(RawLane::Text(text), RawLane::Number)))
}

/// Finds the start of the next element after damage: a brace that is followed by a key with which elements begin.
pub fn resynchronise(data: &[u8], from: usize) -> Option<usize> {
    (from..data.len()).filter(|&at| data[at] == b'{').find(|&at| {
        let mut scanner = Scanner::new(data, at + 1);
        let found = scanner.token().is_ok();
        let begins = |key: &[u8]| data[scanner.pos..].starts_with(key);
        found && (begins(b"\"ph\"") || begins(b"\"name\"") || begins(b"\"cat\""))
    })
}
