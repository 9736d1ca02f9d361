//! Collectives: found on each rank, matched across ranks, and what each rank waited.

use std::collections::BTreeMap;

use serde::Serialize;
use timeline::{Class, NameId};

use crate::{Frame, Frames};

/// A collective as one rank saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Position of the rank's frame.
    pub frame: usize,
    /// Row of the kernel or of the worker's range.
    pub row: usize,
    /// Row of the call that issued it.
    pub call: Option<usize>,
    /// Begin in nanoseconds, in the rank's clock.
    pub begin: i64,
    /// End in nanoseconds, in the rank's clock.
    pub end: i64,
    /// Bytes that went in, 0 where the trace does not say.
    pub bytes: i64,
}

impl Part {
    /// Duration in nanoseconds.
    pub const fn duration(&self) -> i64 {
        self.end - self.begin
    }
}

/// What identifies a collective on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    /// Name of the process group; where the trace does not say, the stream or the backend.
    pub group: String,
    /// The operation, such as `all_reduce`.
    pub operation: String,
    /// Sequence number in the group, or position among those of the same group and operation.
    pub number: i64,
}

/// A collective with the parts of all ranks that take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// What identifies it.
    pub key: Key,
    /// One part for each rank, in the order of ranks.
    pub parts: Vec<Part>,
    /// How many ranks the group has, as far as the trace says.
    pub group_size: usize,
}

/// All collectives that two ranks or more took part in, in the order of their first begin.
pub fn matched(frames: &Frames<'_>) -> Vec<Collective> {
    let mut collectives: BTreeMap<Key, Collective> = BTreeMap::new();
    for (number, frame) in frames.ranks.iter().enumerate() {
        for (key, part, size) in parts(frame, number) {
            let entry = collectives.entry(key.clone()).or_insert_with(|| Collective {
                key,
                parts: Vec::new(),
                group_size: 0,
            });
            entry.group_size = entry.group_size.max(size);
            entry.parts.push(part);
        }
    }
    let mut collectives: Vec<Collective> =
        collectives.into_values().filter(|collective| collective.parts.len() > 1).collect();
    for collective in &mut collectives {
        collective.group_size = collective.group_size.max(collective.parts.len());
    }
    collectives.sort_by_key(|collective| {
        (collective.parts.iter().map(|part| part.begin).min(), collective.key.clone())
    });
    collectives
}

/// The collectives of one rank with their keys and the size of their groups.
pub fn parts(frame: &Frame<'_>, number: usize) -> Vec<(Key, Part, usize)> {
    let is = |row: usize| frame.communicates(row);
    let mut rows: Vec<usize> =
        frame.rows().filter(|&row| frame.class(row) == Class::Kernel && is(row)).collect();
    if rows.is_empty() {
        // without device: ranges of the workers of a processor backend
        rows = frame.rows().filter(|&row| frame.class(row) == Class::Annotation && is(row)).collect();
    }
    rows.sort_by_key(|&row| frame.begin[row]);
    let calls = issuing_calls(frame);
    let mut counts: BTreeMap<(String, String), i64> = BTreeMap::new();
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    rows.into_iter()
        .map(|row| {
            let (key, size) = key_of(frame, row, &mut counts);
            let call = frame.link[row].row().or_else(|| {
                let order = taken.entry(key.operation.clone()).or_default();
                *order += 1;
                calls.get(&key.operation)?.get(*order - 1).copied()
            });
            let (begin, end) = frame.interval(row);
            (key, Part { frame: number, row, call, begin, end, bytes: bytes(frame, row) }, size)
        })
        .collect()
}

/// Calls that issue collectives of a processor backend, by operation, in the order of time.
fn issuing_calls(frame: &Frame<'_>) -> BTreeMap<String, Vec<usize>> {
    let mut calls: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let issues = frame.timeline.names.map(|name| name.starts_with("c10d::"));
    for row in
        frame.rows().filter(|&row| frame.class(row) == Class::Operator && issues[frame.name(row).0 as usize])
    {
        calls.entry(operation(frame.text(row))).or_default().push(row);
    }
    for rows in calls.values_mut() {
        rows.sort_by_key(|&row| frame.begin[row]);
    }
    calls
}

fn key_of(frame: &Frame<'_>, row: usize, counts: &mut BTreeMap<(String, String), i64>) -> (Key, usize) {
    let args = frame.rank.sides.collective.get(row as u32);
    let text = |name: NameId| frame.timeline.names.text(name).to_owned();
    let named = |name: NameId| name.some().map(text).filter(|text| !text.is_empty());
    let operation = args
        .and_then(|args| named(args.operation))
        .map_or_else(|| operation(frame.text(row)), |name| operation(&name));
    let group = args.and_then(|args| named(args.group)).unwrap_or_else(|| match frame.stream(row) {
        -1 => "default".to_owned(),
        stream => format!("stream {stream}"),
    });
    let count = counts.entry((group.clone(), operation.clone())).or_insert(-1);
    *count += 1;
    let sequence = args.map(|args| args.sequence).filter(|&sequence| sequence >= 0);
    let size = args.map_or(0, |args| args.group_size.max(0) as usize);
    (Key { group, operation, number: sequence.unwrap_or(*count) }, size)
}

/// The operation that a kernel, range, call or argument names, in one spelling.
pub fn operation(name: &str) -> String {
    const SPELLINGS: &[(&str, &[&str])] = &[
        ("reduce_scatter", &["reducescatter", "reduce_scatter"]),
        ("all_reduce", &["allreduce", "all_reduce", "cross_device_reduce", "quick_reduce"]),
        ("all_gather", &["allgather", "all_gather"]),
        ("all_to_all", &["alltoall", "all_to_all"]),
        ("broadcast", &["broadcast"]),
        ("barrier", &["barrier"]),
        ("send_recv", &["sendrecv"]),
        ("gather", &["gather"]),
        ("scatter", &["scatter"]),
        ("reduce", &["reduce"]),
        ("recv", &["recv"]),
        ("send", &["send"]),
    ];
    let lower = name.to_lowercase();
    let known =
        SPELLINGS.iter().find(|(_, spellings)| spellings.iter().any(|spelling| lower.contains(spelling)));
    known.map_or(lower, |(operation, _)| (*operation).to_owned())
}

/// Bytes that went in: elements by the size of their type, or the input dimensions of a worker's range.
fn bytes(frame: &Frame<'_>, row: usize) -> i64 {
    let text = |name: NameId| frame.timeline.names.text(name);
    if let Some(args) = frame.rank.sides.collective.get(row as u32) {
        return args.elements_in.max(args.elements_out).max(0) * element_size(text(args.dtype));
    }
    let Some(inputs) = frame.rank.sides.inputs.get(row as u32) else { return 0 };
    let dims: serde_json::Value = serde_json::from_str(text(inputs.dims)).unwrap_or_default();
    let types: serde_json::Value = serde_json::from_str(text(inputs.types)).unwrap_or_default();
    let elements = |dims: &serde_json::Value| -> i64 {
        let sizes =
            dims.as_array().filter(|sizes| !sizes.is_empty() && sizes.iter().all(serde_json::Value::is_i64));
        sizes.map_or(0, |sizes| sizes.iter().filter_map(serde_json::Value::as_i64).product())
    };
    let tensors = dims.as_array().map(Vec::as_slice).unwrap_or_default();
    tensors
        .iter()
        .enumerate()
        .map(|(at, dims)| elements(dims) * element_size(types[at].as_str().unwrap_or("")))
        .sum()
}

fn element_size(dtype: &str) -> i64 {
    match dtype.to_lowercase().as_str() {
        "double" | "float64" | "long" | "int64" | "long int" => 8,
        "half" | "float16" | "bfloat16" | "c10::half" | "c10::bfloat16" | "short" => 2,
        "byte" | "char" | "bool" | "uint8" | "int8" | "signed char" | "unsigned char" => 1,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings_of_an_operation_are_one() {
        for name in [
            "ncclDevKernel_AllReduce_Sum_f32",
            "gloo:all_reduce",
            "c10d::allreduce_",
            "allreduce",
            "nccl:all_reduce",
        ] {
            assert_eq!(operation(name), "all_reduce", "{name}");
        }
        assert_eq!(operation("ncclKernel_ReduceScatter_RING_LL"), "reduce_scatter");
        assert_eq!(operation("c10d::_allgather_base_"), "all_gather");
        assert_eq!(operation("ncclDevKernel_SendRecv"), "send_recv");
    }
}
