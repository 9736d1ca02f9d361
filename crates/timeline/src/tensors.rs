//! Execution traces: which tensors each operator reads and writes, as PyTorch's `ExecutionTraceObserver` records them beside
//! a trace. Schemas 1.0 (all in the node) and 1.1 (values nested, the rest in attributes).

use std::io::Read;

use base::{Code, Diagnostic, Result};
use rustc_hash::FxHashSet;
use serde::Deserialize;
use serde_json::Value;

/// An operator reads or writes a tensor's storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorUse {
    /// The operator: the external id of its event.
    pub external: i64,
    /// The storage: tensors that are views of each other share it.
    pub storage: i64,
    /// Bytes of the tensor.
    pub bytes: i64,
    /// Whether it is written; else it is read.
    pub written: bool,
}

#[derive(Deserialize)]
struct Trace {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: i64,
    /// The caller, as schema 1.0 calls it.
    #[serde(default)]
    parent: i64,
    /// The caller, as schema 1.1 calls it.
    #[serde(default)]
    ctrl_deps: i64,
    rf_id: Option<i64>,
    #[serde(default)]
    op_schema: String,
    #[serde(default)]
    inputs: Values,
    #[serde(default)]
    outputs: Values,
    #[serde(default)]
    attrs: Vec<Attribute>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    Flat(Vec<Value>),
    Nested { values: Vec<Value> },
}

impl Default for Values {
    fn default() -> Self {
        Self::Flat(Vec::new())
    }
}

impl Values {
    fn list(&self) -> &[Value] {
        match self {
            Self::Flat(values) | Self::Nested { values } => values,
        }
    }
}

#[derive(Deserialize)]
struct Attribute {
    name: String,
    #[serde(default)]
    value: Value,
}

/// Reads an execution trace: the uses of tensors in the order of the operators, those that call others left out. `file` is how
/// messages call it.
pub fn read(source: impl Read, file: &str) -> Result<Vec<TensorUse>> {
    let trace: Trace = serde_json::from_reader(std::io::BufReader::new(source)).map_err(|error| {
        Diagnostic::new(Code::NOT_A_TRACE, "this is no execution trace")
            .at_line(file, error.line() as u32, error.column() as u32)
            .because(error.to_string())
            .hint("an execution trace is what `torch.profiler.ExecutionTraceObserver` writes")
    })?;
    let mut nodes: Vec<&Node> = trace.nodes.iter().collect();
    nodes.sort_by_key(|node| node.id);
    let is_operator = |node: &Node| node.text("op_schema").contains("::");
    let callers: FxHashSet<i64> =
        nodes.iter().filter(|node| is_operator(node)).map(|node| node.parent.max(node.ctrl_deps)).collect();
    let mut uses = Vec::new();
    for node in nodes.into_iter().filter(|node| is_operator(node) && !callers.contains(&node.id)) {
        node.uses(&mut uses);
    }
    Ok(uses)
}

impl Node {
    /// A text of the node itself or of its attributes.
    fn text(&self, name: &str) -> &str {
        if !self.op_schema.is_empty() && name == "op_schema" {
            return &self.op_schema;
        }
        let attribute = self.attrs.iter().find(|attribute| attribute.name == name);
        attribute.and_then(|attribute| attribute.value.as_str()).unwrap_or("")
    }

    fn external(&self) -> Option<i64> {
        let attribute = || self.attrs.iter().find(|attribute| attribute.name == "rf_id")?.value.as_i64();
        self.rf_id.or_else(attribute)
    }

    fn uses(&self, uses: &mut Vec<TensorUse>) {
        let Some(external) = self.external() else { return };
        let changed = changed_arguments(self.text("op_schema"));
        let before = uses.len();
        let mut push = |(storage, bytes): (i64, i64), written| {
            uses.push(TensorUse { external, storage, bytes, written });
        };
        let mut read = FxHashSet::default();
        for (position, value) in self.inputs.list().iter().enumerate() {
            for tensor in tensors(value) {
                push(tensor, false);
                read.insert(tensor.0);
                if changed.get(position) == Some(&true) {
                    push(tensor, true);
                }
            }
        }
        // an output that shares its storage with an input is a view of it, or was changed in place
        let fresh = self.outputs.list().iter().flat_map(tensors).filter(|tensor| !read.contains(&tensor.0));
        fresh.for_each(|tensor| push(tensor, true));
        // who makes a view touches nothing: those who use the view do
        let is_view = !self.outputs.list().is_empty() && uses[before..].iter().all(|used| !used.written);
        if is_view {
            uses.truncate(before);
        }
    }
}

/// Storage and bytes of the tensors in a value: `[tensor, storage, offset, elements, bytes of one, device]`, or a list of such.
fn tensors(value: &Value) -> Vec<(i64, i64)> {
    let Some(list) = value.as_array() else { return Vec::new() };
    if let [_, storage, _, elements, size, Value::String(_)] = &list[..]
        && let (Some(storage), Some(elements), Some(size)) =
            (storage.as_i64(), elements.as_i64(), size.as_i64())
    {
        return vec![(storage, elements.saturating_mul(size))];
    }
    list.iter().filter(|value| value.is_array()).flat_map(tensors).collect()
}

/// For each argument of an operator's schema, whether it is changed in place: `Tensor(a!) self`.
fn changed_arguments(schema: &str) -> Vec<bool> {
    let arguments = schema.split_once('(').map_or("", |(_, rest)| rest);
    let (mut depth, mut changed) = (0, vec![false]);
    for letter in arguments.chars() {
        match letter {
            '(' | '[' => depth += 1,
            ')' if depth == 0 => break,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => changed.push(false),
            '!' => *changed.last_mut().expect("has one") = true,
            _ => {}
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(json: &str) -> Vec<(i64, i64, i64, bool)> {
        let uses = read(json.as_bytes(), "et.json").expect("an execution trace");
        uses.iter().map(|u| (u.external, u.storage, u.bytes, u.written)).collect()
    }

    #[test]
    fn reads_writes_and_views_are_told_apart_in_both_schemas() {
        let old = r#"{"schema":"1.0.1","nodes":[
            {"name":"aten::add_","id":4,"rf_id":2,"parent":1,"op_schema":"aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)",
             "inputs":[[1,10,0,4,4,"cpu"],[2,11,0,4,4,"cpu"],1],"outputs":[[1,10,0,4,4,"cpu"]]},
            {"name":"aten::t","id":3,"rf_id":1,"parent":1,"op_schema":"aten::t(Tensor(a) self) -> Tensor(a)","inputs":[[1,10,0,4,4,"cpu"]],"outputs":[[3,10,0,4,4,"cpu"]]}]}"#;
        assert_eq!(used(old), [(2, 10, 16, false), (2, 10, 16, true), (2, 11, 16, false)]);
        let new = r#"{"schema":"1.1.1","nodes":[
            {"name":"aten::linear","id":8,"ctrl_deps":2,"inputs":{"values":[]},"outputs":{"values":[[1,9,0,4,4,"cpu"]]},
             "attrs":[{"name":"rf_id","value":4},{"name":"op_schema","value":"aten::linear(Tensor input) -> Tensor"}]},
            {"name":"aten::cat","id":9,"ctrl_deps":8,"inputs":{"values":[[[5,6,0,2,8,"cuda:0"],[7,8,0,1,8,"cuda:0"]],0]},"outputs":{"values":[[1,9,0,3,8,"cuda:0"]]},
             "attrs":[{"name":"rf_id","value":5},{"name":"op_schema","value":"aten::cat(Tensor[] tensors, int dim=0) -> Tensor"}]}]}"#;
        assert_eq!(used(new), [(5, 6, 16, false), (5, 8, 8, false), (5, 9, 24, true)]);
    }

    #[test]
    fn what_is_no_execution_trace_is_refused_with_its_place() {
        let error = read(&b"{\"traceEvents\":\n []}"[..], "et.json").expect_err("no nodes");
        assert_eq!((error.code, error.place.map(|place| place.line)), (Code::NOT_A_TRACE, Some(2)));
    }
}
