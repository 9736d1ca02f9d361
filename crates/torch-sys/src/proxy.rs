//! Calls through an `AOTInductor` proxy executor: torch reads a JSON text with one node for each call, looks the operations
//! up once, and keeps the static arguments; tensors and integers are passed at each call.
//!
//! The text has the form of torch's exported graphs (`torch/_export/serde/schema.py`).

use std::{ffi::c_void, ptr::NonNull};

use serde_json::{Value, json};

use crate::{
    Schema, Slot, Slots, Type,
    raw::{Failure, RawTensor},
    value::{Arg, Output},
};

/// A proxy executor that torch has made; alive as long as the runner object that the caller keeps beside it.
#[derive(Clone, Copy)]
pub struct Proxy(NonNull<c_void>);

// SAFETY: torch's proxy executor is not changed by calls.
unsafe impl Send for Proxy {}
// SAFETY: as above.
unsafe impl Sync for Proxy {}

impl Proxy {
    /// # Safety
    /// `raw` is a proxy executor that outlives all calls through the result.
    pub(crate) const unsafe fn new(raw: NonNull<c_void>) -> Self {
        Self(raw)
    }
}

/// The JSON text of all nodes, for torch to read.
pub fn document(nodes: &[Value]) -> String {
    json!({ "nodes": nodes }).to_string()
}

/// The JSON of one call, or why the proxy route cannot take it.
pub fn node(schema: &Schema, args: &[Arg], outputs: &[Output]) -> Result<Value, String> {
    if schema.arguments.len() != args.len() || schema.returns.len() != outputs.len() {
        return Err("arguments or returns that are not as many as the schema's".to_owned());
    }
    let inputs = schema.arguments.iter().zip(args).map(|(argument, arg)| {
        let value =
            argument_json(&argument.ty, arg).map_err(|why| format!("argument `{}`: {why}", argument.name))?;
        Ok(json!({ "name": argument.name, "arg": value }))
    });
    let inputs = inputs.collect::<Result<Vec<_>, String>>()?;
    let returns =
        schema.returns.iter().zip(outputs).map(|(returned, output)| return_json(&returned.ty, output));
    let returns = returns.collect::<Result<Vec<_>, String>>()?;
    let call = json!({ "target": schema.full_name(), "inputs": inputs, "outputs": returns, "metadata": {} });
    Ok(json!({ "name": "call", "node": call }))
}

fn argument_json(ty: &Type, arg: &Arg) -> Result<Value, String> {
    let unsupported = || Err(format!("the proxy route does not pass {arg:?} as {ty:?}"));
    let tensor = || json!({ "as_tensor": { "name": "t" } });
    let finite = |value: f64| {
        if value.is_finite() { Ok(value) } else { Err(format!("{value} cannot be written as JSON")) }
    };
    Ok(match (ty, arg) {
        (Type::Optional(_) | Type::Any, Arg::None) => json!({ "as_none": true }),
        (Type::Optional(inner), arg) => return argument_json(inner, arg),
        (Type::Tensor | Type::Any, Arg::Tensor(_)) => tensor(),
        (Type::Int | Type::Scalar | Type::Any, Arg::Int(value)) => json!({ "as_int": value }),
        (Type::Int, Arg::Bool(value)) => json!({ "as_int": i64::from(*value) }),
        (Type::Float, Arg::Int(value)) => json!({ "as_float": finite(*value as f64)? }),
        (Type::Float | Type::Scalar | Type::Any, Arg::Float(value)) => json!({ "as_float": finite(*value)? }),
        (Type::Bool | Type::Scalar | Type::Any, Arg::Bool(value)) => json!({ "as_bool": value }),
        (Type::Str | Type::Any, Arg::Str(text)) => json!({ "as_string": text }),
        (Type::Dtype, Arg::Dtype(dtype)) => json!({ "as_scalar_type": dtype.serialized() }),
        (Type::Layout, Arg::Layout(layout)) => json!({ "as_layout": layout.serialized() }),
        (Type::MemoryFormat, Arg::MemoryFormat(format)) => json!({ "as_memory_format": format.serialized() }),
        (Type::Device, Arg::Device(device)) => {
            json!({ "as_device": { "type": device.kind, "index": device.index } })
        }
        (Type::List(inner), arg) => return list_json(inner, arg).unwrap_or_else(unsupported),
        _ => return unsupported(),
    })
}

/// The JSON of a list; none where the types do not fit. An empty list of tensors or integers would arrive as `None`, and a
/// list of `Scalar`s as a list of floats, which operations refuse.
fn list_json(of: &Type, arg: &Arg) -> Option<Result<Value, String>> {
    let tensor = json!({ "as_tensor": { "name": "t" } });
    let name = json!({ "name": "t" });
    Some(Ok(match (of, arg) {
        (Type::Tensor | Type::Optional(_), Arg::Tensors(slots)) if slots.is_empty() => {
            return Some(Err(EMPTY.to_owned()));
        }
        (Type::Int, Arg::Ints(values)) if values.is_empty() => {
            return Some(Err(EMPTY.to_owned()));
        }
        (Type::Tensor, Arg::Tensors(slots)) => json!({ "as_tensors": vec![name; slots.len()] }),
        (Type::Optional(inner), Arg::Tensors(slots)) if **inner == Type::Tensor => {
            json!({ "as_optional_tensors": vec![tensor; slots.len()] })
        }
        (Type::Optional(inner), Arg::OptionalTensors(slots)) if **inner == Type::Tensor => {
            let none = json!({ "as_none": true });
            let items = slots.iter().map(|slot| if slot.is_some() { &tensor } else { &none });
            json!({ "as_optional_tensors": items.collect::<Vec<_>>() })
        }
        (Type::Int, Arg::Ints(values)) => json!({ "as_ints": values }),
        (Type::Float, Arg::Ints(values)) => {
            json!({ "as_floats": values.iter().map(|value| *value as f64).collect::<Vec<_>>() })
        }
        (Type::Float, Arg::Floats(values)) => {
            if values.iter().any(|value| !value.is_finite()) {
                return Some(Err("a number that cannot be written as JSON".to_owned()));
            }
            json!({ "as_floats": values })
        }
        (Type::Bool, Arg::Bools(values)) => json!({ "as_bools": values }),
        (Type::Str, Arg::Strs(texts)) => json!({ "as_strings": texts }),
        _ => return None,
    }))
}

const EMPTY: &str = "an empty list would arrive as None";

fn return_json(ty: &Type, output: &Output) -> Result<Value, String> {
    match (ty, output) {
        (Type::Tensor, Output::Tensor(_) | Output::Ignored) => Ok(json!({ "as_tensor": { "name": "t" } })),
        (Type::List(inner), Output::Tensors(slots)) if **inner == Type::Tensor => {
            Ok(json!({ "as_tensors": vec![json!({ "name": "t" }); slots.len()] }))
        }
        _ => Err(format!("the proxy route does not return {ty:?} as {output:?}")),
    }
}

/// A call through the proxy executor, ready to run.
pub struct ProxyCall {
    node: i32,
    ints: Box<[i64]>,
    inputs: Box<[Slot]>,
    outputs: Box<[Option<Slot>]>,
}

/// The most tensors of a call that are kept on the machine stack.
const FEW: usize = 16;

impl ProxyCall {
    /// The call of node `index` of the document, whose JSON [`node`] has made of the same arguments.
    pub fn new(index: usize, schema: &Schema, args: &[Arg], outputs: &[Output]) -> Self {
        let arguments = schema.arguments.iter().zip(args);
        let outputs = outputs.iter().flat_map(|output| match output {
            Output::Ignored => vec![None],
            Output::Tensor(slot) => vec![Some(*slot)],
            Output::Tensors(slots) => slots.clone(),
        });
        Self {
            node: index as i32,
            ints: arguments.flat_map(|(argument, arg)| integers(argument.ty.required(), arg)).collect(),
            inputs: args.iter().flat_map(Arg::slots).collect(),
            outputs: outputs.collect(),
        }
    }

    /// Runs the call over `slots`.
    pub fn run(&self, proxy: Proxy, slots: &mut Slots) -> Result<(), Failure> {
        let count = self.inputs.len() + self.outputs.len();
        if count <= FEW {
            self.run_with(proxy, slots, &mut [std::ptr::null_mut(); FEW][..count])
        } else {
            self.run_with(proxy, slots, &mut vec![std::ptr::null_mut(); count])
        }
    }

    fn run_with(&self, proxy: Proxy, slots: &mut Slots, handles: &mut [RawTensor]) -> Result<(), Failure> {
        let library = slots.library;
        let (inputs, outputs) = handles.split_at_mut(self.inputs.len());
        for (handle, slot) in inputs.iter_mut().zip(&self.inputs) {
            *handle = slots.raw(*slot)?;
        }
        for handle in outputs.iter_mut() {
            // SAFETY: one new reference is written.
            library.check(unsafe { (library.symbols.new_empty_handle)(&raw mut *handle) })?;
        }
        // SAFETY: the proxy is alive; inputs are borrowed and outputs are empty tensors, as many as the node's JSON says,
        // which torch checks.
        let status = unsafe {
            (library.symbols.call_proxy)(
                proxy.0.as_ptr(),
                self.node,
                self.ints.len() as i32,
                self.ints.as_ptr(),
                handles.len() as i32,
                handles.as_ptr(),
            )
        };
        let result = library.check(status);
        let outputs = &handles[self.inputs.len()..];
        for (handle, slot) in outputs.iter().zip(&self.outputs) {
            // SAFETY: the handle is owned: it goes into the table or is given back.
            unsafe {
                match slot {
                    Some(slot) if result.is_ok() => slots.put_raw(*slot, *handle),
                    _ => drop((library.symbols.delete_tensor)(*handle)),
                }
            }
        }
        result
    }
}

/// The integers that are passed at each call, as torch counts them.
fn integers(ty: &Type, arg: &Arg) -> Vec<i64> {
    match (ty, arg) {
        (Type::Int | Type::Scalar | Type::Any, Arg::Int(value)) => vec![*value],
        (Type::Int, Arg::Bool(value)) => vec![i64::from(*value)],
        (Type::List(inner), Arg::Ints(values)) if **inner != Type::Float => values.clone(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_every_argument_in_torch_s_words() {
        let schema = Schema::parse(
            "aten::f(Tensor self, Tensor?[] indices, SymInt[]? size, Scalar alpha, float p, str s, *, Device? d, ScalarType? t) -> (Tensor, Tensor[])",
        )
        .unwrap();
        let args = [
            Arg::Tensor(Slot(0)),
            Arg::OptionalTensors(vec![None, Some(Slot(1))]),
            Arg::Ints(vec![2, 3]),
            Arg::Int(5),
            Arg::Float(0.5),
            Arg::Str("sum".to_owned()),
            Arg::None,
            Arg::Dtype(crate::Dtype::Float32),
        ];
        let outputs = [Output::Ignored, Output::Tensors(vec![Some(Slot(2)), None])];
        let node = node(&schema, &args, &outputs).unwrap();
        let inputs = node["node"]["inputs"].as_array().unwrap();
        let kinds: Vec<String> = inputs
            .iter()
            .map(|input| input["arg"].as_object().unwrap().keys().next().unwrap().clone())
            .collect();
        assert_eq!(
            kinds,
            [
                "as_tensor",
                "as_optional_tensors",
                "as_ints",
                "as_int",
                "as_float",
                "as_string",
                "as_none",
                "as_scalar_type"
            ]
        );
        let call = ProxyCall::new(7, &schema, &args, &outputs);
        assert_eq!(
            (&*call.ints, &*call.inputs, call.outputs.len()),
            (&[2, 3, 5][..], &[Slot(0), Slot(1)][..], 3)
        );
    }

    #[test]
    fn what_json_or_the_proxy_cannot_hold_is_refused_with_the_argument_s_name() {
        let schema = Schema::parse("aten::f(Tensor[] xs, float p) -> Tensor").unwrap();
        let out = [Output::Ignored];
        let full = Arg::Tensors(vec![Slot(0)]);
        let why = node(&schema, &[full, Arg::Float(f64::NEG_INFINITY)], &out).unwrap_err();
        assert!(why.contains("`p`") && why.contains("JSON"), "{why}");
        let why = node(&schema, &[Arg::Tensors(vec![]), Arg::Float(0.0)], &out).unwrap_err();
        assert!(why.contains("`xs`") && why.contains("None"), "{why}");
    }
}
