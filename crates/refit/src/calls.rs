//! The calls of a captured step, to be found again in traces of a profiler by their names and the shapes of their tensors.

use aten::Call;
use cost::Operation;
use ir::{Dtype, Graph};
use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::What;

/// What a profiler says of a call: the operator without overload, the first tensor's element type where it is no list, and the dimensions
/// of all tensors that have some.
type Key = (String, Option<Dtype>, Vec<Vec<u64>>);

/// What each call of captured steps does, by what a profiler says of it.
#[derive(Clone, Debug, Default)]
pub struct Calls(FxHashMap<Key, What>);

impl Calls {
    /// Of graphs; of calls that a profiler does not tell apart the first counts.
    pub fn of<'g>(graphs: impl IntoIterator<Item = &'g Graph>) -> Self {
        let mut calls = FxHashMap::default();
        for graph in graphs {
            for id in &graph.order {
                if graph.is_communication(*id) || graph.host_copy(*id).is_some() {
                    continue;
                }
                let call = Call::new(graph, *id);
                if let Some(Operation { name, dtype, reads, amounts, is_even }) = Operation::of(&call) {
                    let what = What::Operation { name: name.to_owned(), dtype, reads, amounts, is_even };
                    calls.entry(key(&call)).or_insert(what);
                }
            }
        }
        Self(calls)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a call does of which a profiler says its name, and the dimensions and types of its inputs as JSON.
    pub fn get(&self, name: &str, dims: &str, types: &str) -> Option<&What> {
        let dims: Value = serde_json::from_str(dims).ok()?;
        let types: Value = serde_json::from_str(types).unwrap_or_default();
        let (mut shapes, mut dtype) = (Vec::new(), None);
        for (at, entry) in dims.as_array()?.iter().enumerate() {
            let before = shapes.len();
            add_shapes(entry, &mut shapes);
            let is_tensor = entry.get(0).is_some_and(Value::is_u64);
            if before == 0 && is_tensor {
                dtype = types[at].as_str().and_then(dtype_of);
            }
        }
        self.0.get(&(plain(name).to_owned(), dtype, shapes))
    }
}

fn key(call: &Call<'_>) -> Key {
    let node = &call.graph.nodes[call.id];
    let (mut shapes, mut dtype) = (Vec::new(), None);
    for arg in &node.args {
        let is_tensor = matches!(arg, ir::Arg::Value(_));
        for value in arg.values() {
            let ty = call.graph.ty(value);
            if ty.shape.is_empty() {
                continue;
            }
            if shapes.is_empty() && is_tensor {
                dtype = Some(ty.dtype);
            }
            shapes.push(ty.shape.iter().map(|size| *size as u64).collect());
        }
    }
    (plain(call.name()).to_owned(), dtype, shapes)
}

/// An operator without its overload, and without the sign of what works in place.
fn plain(name: &str) -> &str {
    name.split('.').next().unwrap_or(name).trim_end_matches('_')
}

/// The dimensions of one tensor, or of a list of them.
fn add_shapes(entry: &Value, shapes: &mut Vec<Vec<u64>>) {
    let Some(entries) = entry.as_array().filter(|entries| !entries.is_empty()) else { return };
    match entries.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>() {
        Some(sizes) => shapes.push(sizes),
        None => entries.iter().for_each(|entry| add_shapes(entry, shapes)),
    }
}

/// An element type as a profiler calls it.
fn dtype_of(name: &str) -> Option<Dtype> {
    let text = match name {
        "float" => "f32",
        "double" => "f64",
        "c10::Half" => "f16",
        "c10::BFloat16" => "bf16",
        "long int" | "long" | "int64_t" => "i64",
        "int" => "i32",
        "short" | "short int" => "i16",
        "signed char" => "i8",
        "unsigned char" => "u8",
        "bool" => "bool",
        _ => return None,
    };
    Dtype::from_text(text)
}
