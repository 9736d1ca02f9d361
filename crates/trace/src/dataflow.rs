//! Data flow: which operator read what which other one wrote, from an execution trace beside the trace.

use rustc_hash::FxHashMap;
use serde::Serialize;
use timeline::{Class, NameId};

use crate::{
    Frame, Frames,
    source::{Origin, Sources},
};

/// Tensors that went from operators of one name to operators of another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Flow {
    /// The rank.
    pub rank: u32,
    /// The operator that wrote; absent for what was there before the trace: parameters, batches.
    pub producer: Option<String>,
    /// The operator that read.
    pub consumer: String,
    /// How many tensors.
    pub count: usize,
    /// Their bytes.
    pub bytes: i64,
    /// Where the first of them was read.
    #[serde(flatten)]
    pub origin: Origin,
}

/// The data flow of every rank that has an execution trace, most bytes first.
pub fn data_flow(frames: &Frames<'_>) -> Vec<Flow> {
    frames.ranks.iter().filter(|frame| !frame.rank.tensors.is_empty()).flat_map(of_rank).collect()
}

/// The row that wrote, if any, and the row that read, with the bytes: one for each read, in the order of the operators.
pub fn links(frame: &Frame<'_>) -> Vec<(Option<u32>, u32, i64)> {
    let is_operator = |row: &usize| frame.class(*row) == Class::Operator;
    let rows: FxHashMap<i64, u32> =
        frame.rows().filter(is_operator).map(|row| (frame.rank.events.external[row], row as u32)).collect();
    let mut writer: FxHashMap<i64, u32> = FxHashMap::default();
    let mut links = Vec::new();
    for used in &frame.rank.tensors {
        // operators of steps that the trace does not hold
        let Some(&row) = rows.get(&used.external) else { continue };
        if used.written {
            writer.insert(used.storage, row);
        } else {
            links.push((writer.get(&used.storage).copied(), row, used.bytes));
        }
    }
    links
}

fn of_rank(frame: &Frame<'_>) -> Vec<Flow> {
    let mut groups: FxHashMap<(Option<NameId>, NameId), (usize, i64, u32)> = FxHashMap::default();
    for (producer, consumer, bytes) in links(frame) {
        let key = (producer.map(|row| frame.name(row as usize)), frame.name(consumer as usize));
        let group = groups.entry(key).or_insert((0, 0, consumer));
        *group = (group.0 + 1, group.1 + bytes, group.2);
    }
    let sources = Sources::of(frame);
    let text = |name: NameId| frame.timeline.names.text(name).to_owned();
    let mut flows: Vec<Flow> = groups
        .into_iter()
        .map(|((producer, consumer), (count, bytes, row))| Flow {
            rank: frame.rank.rank,
            producer: producer.map(text),
            consumer: text(consumer),
            count,
            bytes,
            origin: sources.origin(row as usize),
        })
        .collect();
    flows.sort_by(|a, b| (b.bytes, &a.producer, &a.consumer).cmp(&(a.bytes, &b.producer, &b.consumer)));
    flows
}
