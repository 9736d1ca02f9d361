//! The columns of a rank, one after the other.

use std::io::{Read, Result, Write};

use base::{Diagnostic, Nanos};
use serde::{Deserialize, Serialize};

use super::codec::{Decoder, Encoder, Fixed, bad, fields};
use crate::{
    Category, CollectiveArgs, DeviceArgs, Events, Flow, InputArgs, Lane, MemoryEvent, Metadata, NameId,
    Names, NodeArgs, PythonArgs, Rank, SequenceArgs, Sides, Sparse, Track, TrackId,
};

fields!(Track { process: Lane, thread: Lane, name: NameId });
fields!(DeviceArgs { bytes: i64, bandwidth: f64, wait_stream: i64, wait_event: i64, graph_node: i64 });
fields!(InputArgs { dims: NameId, types: NameId, strides: NameId, concrete: NameId });
fields!(SequenceArgs { number: i64, forward_thread: i64 });
fields!(NodeArgs { node: u32, place: NameId, cause: NameId, work: NameId });
fields!(PythonArgs { id: i64, parent: i64, module: i64 });
fields!(Flow { id: i64, time: Nanos, track: TrackId, begin: bool });
fields!(CollectiveArgs {
    operation: NameId,
    group: NameId,
    ranks: NameId,
    dtype: NameId,
    elements_in: i64,
    elements_out: i64,
    group_size: i64,
    sequence: i64,
});
fields!(MemoryEvent {
    time: Nanos,
    bytes: i64,
    address: u64,
    total_allocated: i64,
    total_reserved: i64,
    device_type: i32,
    device: i32,
    track: TrackId,
});

/// What is small and has many forms.
#[derive(Serialize, Deserialize)]
struct Rest {
    rank: u32,
    source: String,
    meta: Metadata,
    notes: Vec<Diagnostic>,
}

/// Writes everything of a rank.
pub fn write<W: Write>(out: &mut Encoder<W>, names: &Names, rank: &Rank) -> Result<()> {
    let rest = Rest {
        rank: rank.rank,
        source: rank.source.clone(),
        meta: rank.meta.clone(),
        notes: rank.notes.clone(),
    };
    out.column(&serde_json::to_vec(&rest)?)?;
    write_names(out, names)?;
    out.column(&rank.tracks.values().copied().collect::<Vec<Track>>())?;
    let Events { start, duration, name, category, track, index, stream, correlation, external } =
        &rank.events;
    for column in [start, duration, stream, correlation, external] {
        out.column(column)?;
    }
    out.column(name)?;
    out.column(category)?;
    out.column(track)?;
    out.column(index)?;
    let Sides { device, inputs, sequence, python, collective, counters, node } = &rank.sides;
    write_sparse(out, device)?;
    write_sparse(out, inputs)?;
    write_sparse(out, sequence)?;
    write_sparse(out, python)?;
    write_sparse(out, collective)?;
    out.column(&counters.rows)?;
    out.column(&counters.values.iter().map(|values| values.len() as u32).collect::<Vec<u32>>())?;
    out.column(&counters.values.iter().flatten().copied().collect::<Vec<(NameId, f64)>>())?;
    write_sparse(out, node)?;
    out.column(&rank.memory)?;
    out.column(&rank.flows)
}

/// Reads everything of a rank.
pub fn read<R: Read>(input: &mut Decoder<R>) -> Result<(Names, Rank)> {
    let Rest { rank, source, meta, notes } = serde_json::from_slice(&input.column::<u8>()?)?;
    let names = read_names(input)?;
    let tracks = input.column::<Track>()?.into_iter().collect();
    let (start, duration) = (input.column()?, input.column()?);
    let (stream, correlation, external) = (input.column()?, input.column()?, input.column()?);
    let name = input.column()?;
    let category: Vec<Category> = input.column()?;
    let (track, index) = (input.column()?, input.column()?);
    let events = Events { start, duration, name, category, track, index, stream, correlation, external };
    let (device, inputs, sequence) = (read_sparse(input)?, read_sparse(input)?, read_sparse(input)?);
    let (python, collective) = (read_sparse(input)?, read_sparse(input)?);
    let counters = read_counters(input)?;
    let sides = Sides { device, inputs, sequence, python, collective, counters, node: read_sparse(input)? };
    let (memory, flows) = (input.column()?, input.column()?);
    Ok((names, Rank { rank, source, meta, tracks, events, sides, memory, flows, tensors: Vec::new(), notes }))
}

fn write_names<W: Write>(out: &mut Encoder<W>, names: &Names) -> Result<()> {
    out.column(&names.iter().map(|text| text.len() as u32).collect::<Vec<u32>>())?;
    out.column(names.iter().collect::<String>().as_bytes())
}

fn read_names<R: Read>(input: &mut Decoder<R>) -> Result<Names> {
    let lengths: Vec<u32> = input.column()?;
    let texts = String::from_utf8(input.column()?).map_err(|_| bad("its names are no text"))?;
    let mut rest = texts.as_str();
    let mut names = Names::with_capacity(lengths.len());
    for length in lengths {
        let (text, behind) = rest.split_at_checked(length as usize).ok_or_else(|| bad("a name is cut"))?;
        names.intern(text);
        rest = behind;
    }
    Ok(names)
}

fn write_sparse<W: Write, T: Fixed>(out: &mut Encoder<W>, column: &Sparse<T>) -> Result<()> {
    out.column(&column.rows)?;
    out.column(&column.values)
}

fn read_sparse<R: Read, T: Fixed>(input: &mut Decoder<R>) -> Result<Sparse<T>> {
    Ok(Sparse { rows: input.column()?, values: input.column()? })
}

fn read_counters<R: Read>(input: &mut Decoder<R>) -> Result<Sparse<Vec<(NameId, f64)>>> {
    let (rows, lengths): (Vec<u32>, Vec<u32>) = (input.column()?, input.column()?);
    let mut flat = input.column::<(NameId, f64)>()?.into_iter();
    let values = lengths.into_iter().map(|length| flat.by_ref().take(length as usize).collect()).collect();
    Ok(Sparse { rows, values })
}
