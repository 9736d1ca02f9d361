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

/// Reads an execution trace: the uses of tensors in the order in which operators end. An operator that calls others counts for
/// what it reads itself, without them. `file` is how messages call it.
pub fn read(source: impl Read, file: &str) -> Result<Vec<TensorUse>> {
    let trace: Trace = serde_json::from_reader(std::io::BufReader::new(source)).map_err(|error| {
        Diagnostic::new(Code::NOT_A_TRACE, "this is no execution trace")
            .at_line(file, error.line() as u32, error.column() as u32)
            .because(error.to_string())
            .hint("an execution trace is what `torch.profiler.ExecutionTraceObserver` writes")
    })?;
    let mut nodes: Vec<&Node> = trace.nodes.iter().collect();
    nodes.sort_by_key(|node| node.id);
    let mut uses = Vec::new();
    // what callees have read, of the nodes that are open: callers have smaller numbers than those whom they call
    let mut open: Vec<(&Node, FxHashSet<i64>)> = Vec::new();
    for node in nodes {
        while open.last().is_some_and(|(caller, _)| caller.id != node.caller()) {
            close(&mut open, &mut uses);
        }
        open.push((node, FxHashSet::default()));
    }
    while !open.is_empty() {
        close(&mut open, &mut uses);
    }
    Ok(uses)
}

/// Notes what the innermost open node used, and tells its caller what has been read.
fn close(open: &mut Vec<(&Node, FxHashSet<i64>)>, uses: &mut Vec<TensorUse>) {
    let Some((node, mut below)) = open.pop() else { return };
    if node.text("op_schema").contains("::") {
        node.uses(&mut below, uses);
    }
    if let Some((_, caller)) = open.last_mut() {
        caller.extend(below);
    }
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

    /// The caller; a root is its own.
    fn caller(&self) -> i64 {
        self.parent.max(self.ctrl_deps)
    }

    /// Appends what this operator reads and writes beyond its callees, and adds to `below`, what they have read.
    fn uses(&self, below: &mut FxHashSet<i64>, uses: &mut Vec<TensorUse>) {
        let Some(external) = self.external() else { return };
        let has_callees = !below.is_empty();
        let changed = changed_arguments(self.text("op_schema"));
        let (mut reads, mut writes, mut inputs) = (Vec::new(), Vec::new(), FxHashSet::default());
        for (position, value) in self.inputs.list().iter().enumerate() {
            for tensor in tensors(value) {
                inputs.insert(tensor.0);
                if !below.contains(&tensor.0) {
                    reads.push(tensor);
                }
                if changed.get(position) == Some(&true) {
                    writes.push(tensor);
                }
            }
        }
        // an output that shares its storage with an input is a view of it, or was changed in place
        writes.extend(
            self.outputs.list().iter().flat_map(tensors).filter(|tensor| !inputs.contains(&tensor.0)),
        );
        // who makes a view touches nothing: those who use the view do
        let is_view = writes.is_empty() && !self.outputs.list().is_empty();
        if is_view || (has_callees && reads.is_empty()) {
            return;
        }
        below.extend(reads.iter().map(|read| read.0));
        let used = |(storage, bytes): (i64, i64), written| TensorUse { external, storage, bytes, written };
        uses.extend(reads.into_iter().map(|tensor| used(tensor, false)));
        uses.extend(writes.into_iter().map(|tensor| used(tensor, true)));
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
        assert_eq!(used(old), [(2, 10, 16, false), (2, 11, 16, false), (2, 10, 16, true)]);
        let new = r#"{"schema":"1.1.1","nodes":[
            {"name":"aten::linear","id":8,"ctrl_deps":2,"inputs":{"values":[[5,6,0,2,8,"cuda:0"]]},"outputs":{"values":[[1,9,0,4,4,"cpu"]]},
             "attrs":[{"name":"rf_id","value":4},{"name":"op_schema","value":"aten::linear(Tensor input) -> Tensor"}]},
            {"name":"aten::cat","id":9,"ctrl_deps":8,"inputs":{"values":[[[5,6,0,2,8,"cuda:0"],[7,8,0,1,8,"cuda:0"]],0]},"outputs":{"values":[[1,9,0,3,8,"cuda:0"]]},
             "attrs":[{"name":"rf_id","value":5},{"name":"op_schema","value":"aten::cat(Tensor[] tensors, int dim=0) -> Tensor"}]}]}"#;
        assert_eq!(used(new), [(5, 6, 16, false), (5, 8, 8, false), (5, 9, 24, true)]);
    }

    #[test]
    fn a_caller_counts_for_what_its_callees_do_not_read() {
        let node = |name: &str, id: i64, caller: i64, schema: &str, inputs: &str, output: &str| {
            format!(
                r#"{{"name":"{name}","id":{id},"rf_id":{id},"parent":{caller},"op_schema":"{name}{schema}","inputs":[{inputs}],"outputs":[{output}]}}"#
            )
        };
        let (x, w, b, y) =
            (r#"[1,1,0,4,4,"cpu"]"#, r#"[2,2,0,4,4,"cpu"]"#, r#"[3,3,0,2,4,"cpu"]"#, r#"[4,4,0,8,4,"cpu"]"#);
        let nodes = [
            node("aten::linear", 10, 1, "(Tensor a, Tensor b, Tensor c) -> Tensor", &[x, w, b].join(","), y),
            node("aten::t", 11, 10, "(Tensor(a) self) -> Tensor(a)", w, w),
            node("aten::addmm", 12, 10, "(Tensor a, Tensor b, Tensor c) -> Tensor", &[b, x, w].join(","), y),
            node("aten::copy_", 13, 12, "(Tensor(a!) self, Tensor src) -> Tensor(a!)", &[y, b].join(","), y),
        ];
        let found = used(&format!(r#"{{"nodes":[{}]}}"#, nodes.join(",")));
        // the copy of the bias, and the product by `addmm` itself; nothing is left for `linear`
        let copy = [(13, 4, 32, false), (13, 3, 8, false), (13, 4, 32, true)];
        let product = [(12, 1, 16, false), (12, 2, 16, false), (12, 4, 32, true)];
        assert_eq!(found, [copy, product].concat());
    }

    #[test]
    fn what_is_no_execution_trace_is_refused_with_its_place() {
        let error = read(&b"{\"traceEvents\":\n []}"[..], "et.json").expect_err("no nodes");
        assert_eq!((error.code, error.place.map(|place| place.line)), (Code::NOT_A_TRACE, Some(2)));
    }
}
