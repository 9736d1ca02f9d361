//! Attention of short sequences: PyTorch's kernel takes longer to set up its blocks than these take to compute.

use std::{borrow::Cow, cell::Cell};

use jit::Tier;
use loops::attention::{Attention, Backward, FEATURES, Given, Heads, Made};
use smallvec::SmallVec;
use torch_sys::{Arg, Cells, Dtype, Elements, Failure, Output, Schema, Slot, Slots, Tensor};

use crate::{ProgramSpec, Shape, copies::side_by_side};

/// The most pairs of a query and a key that it sees, for each head: PyTorch's blocks are as fast where there are more.
const PAIRS: usize = 48 * 48;
/// The most multiplications of one of its products, which PyTorch shares among threads.
const MULTIPLICATIONS: usize = 1 << 19;

const FORWARD: [&str; 7] = ["query", "key", "value", "dropout_p", "is_causal", "attn_mask", "scale"];
const BACKWARD: [&str; 10] =
    ["grad_out", "query", "key", "value", "out", "logsumexp", "dropout_p", "is_causal", "attn_mask", "scale"];

type Done<T = ()> = Result<T, Failure>;

/// The same program with attention of short sequences computed here, where the processor has vectors that its loops are compiled for.
#[must_use]
pub fn with_attention(spec: ProgramSpec) -> ProgramSpec {
    let is_fast = cfg!(target_arch = "aarch64") || Tier::best() != Tier::Interpreter;
    ProgramSpec { computes: is_fast, ..spec }
}

/// The slots of queries, keys, values, and what is added to scores.
struct Inputs {
    queries: Slot,
    keys: Slot,
    values: Slot,
    mask: Option<Slot>,
}

/// What is computed.
enum Way {
    Forward,
    Backward { gradient: Slot, logs: Slot },
}

/// A call of attention, or of its backward, ready to run.
pub(crate) struct AttentionCall {
    what: Attention,
    inputs: Inputs,
    way: Way,
    /// The results, each with its shape: none where nothing uses it.
    results: Vec<Option<(Slot, Shape)>>,
}

impl AttentionCall {
    /// The call; none where the operation is no attention, or one of long sequences, of other element types or with dropout.
    /// `shape_of` gives the shapes of tensors whose sizes are known.
    pub(crate) fn of<'a>(
        schema: &Schema,
        args: &[Arg],
        outputs: &[Output],
        shape_of: impl Fn(Slot) -> Option<&'a Shape>,
    ) -> Option<Self> {
        aten::row(&schema.full_name()).filter(|row| row.is_attention())?;
        let names = || schema.arguments.iter().map(|argument| argument.name.as_str());
        let is_forward = names().eq(FORWARD) && outputs.len() == 2;
        let is_backward = names().eq(BACKWARD) && outputs.len() == 3;
        if !is_forward && !is_backward {
            return None;
        }
        let arg = |name: &str| args.get(names().position(|known| known == name)?);
        let shape = |slot: Slot| shape_of(slot).filter(|shape| shape.dtype == Dtype::Float32);
        let slot = |name: &str| match arg(name)? {
            Arg::Tensor(slot) => shape(*slot).map(|_| *slot),
            _ => None,
        };
        let is_without_dropout = matches!(arg("dropout_p")?, Arg::Float(0.0) | Arg::Int(0));
        let mask = if *arg("attn_mask")? == Arg::None { None } else { Some(slot("attn_mask")?) };
        let inputs = Inputs { queries: slot("query")?, keys: slot("key")?, values: slot("value")?, mask };
        let [batch, heads, queries, features] = sizes(shape(inputs.queries)?)?;
        let [.., keys, _] = sizes(shape(inputs.keys)?)?;
        let what = Attention {
            batch,
            heads,
            queries,
            keys,
            features,
            causal: *arg("is_causal")? == Arg::Bool(true),
            scale: match arg("scale")? {
                Arg::None => 1.0 / (features as f32).sqrt(),
                Arg::Float(scale) => *scale as f32,
                _ => return None,
            },
        };
        let of_keys = [batch, heads, keys, features];
        let is_whole = sizes(shape(inputs.keys)?)? == of_keys && sizes(shape(inputs.values)?)? == of_keys;
        if !is_without_dropout || !is_whole || !is_short(&what) {
            return None;
        }
        if let Some(mask) = mask {
            broadcast(&shape(mask)?.sizes, &what)?;
        }
        let way = if is_forward {
            Way::Forward
        } else {
            Way::Backward { gradient: slot("grad_out")?, logs: slot("logsumexp")? }
        };
        let result = |output: &Output| match output {
            Output::Tensor(slot) => {
                let shape = shape(*slot)?;
                let strides = shape.strides.as_ref()?;
                // Numbers of a query, a key or a value lie side by side.
                (shape.sizes.len() == 3 || strides.last() == Some(&1)).then(|| Some((*slot, shape.clone())))
            }
            _ => Some(None),
        };
        let results: Vec<_> = outputs.iter().map(result).collect::<Option<_>>()?;
        Some(Self { what, inputs, way, results })
    }

    /// Allocates the results and computes them. `device` is PyTorch's number of the host, and its index.
    pub(crate) fn run(&self, slots: &mut Slots, device: (i32, i32)) -> Done {
        for (slot, Shape { dtype, sizes, strides }) in self.results.iter().flatten() {
            let strides = strides.as_deref().unwrap_or_default();
            let tensor = Tensor::empty(slots.library(), *dtype, sizes, strides, device)?;
            slots.put(*slot, tensor);
        }
        let Attention { batch, heads, queries, keys, features, .. } = self.what;
        let (by_query, by_key) = ([batch, heads, queries, features], [batch, heads, keys, features]);
        let read = [
            Read::of(slots, self.inputs.queries, by_query)?,
            Read::of(slots, self.inputs.keys, by_key)?,
            Read::of(slots, self.inputs.values, by_key)?,
        ];
        let mask = self.inputs.mask.map(|mask| self.mask(slots, mask)).transpose()?;
        let [queries, keys, values] = read.each_ref().map(Read::heads);
        let given = Given { queries, keys, values, mask };
        match self.way {
            Way::Forward => {
                let mut unused = Vec::new();
                let logs = if let Some((logs, _)) = &self.results[1] {
                    self.logs(slots, *logs)?
                } else {
                    let sizes = [batch, heads, self.what.queries, 1];
                    unused.resize(sizes.iter().product(), Cell::new(0.0));
                    Heads { cells: &unused, strides: in_order(sizes) }
                };
                let mut scratch = Vec::new();
                let result = written(slots, self.results[0].as_ref(), by_query, &mut scratch)?;
                jit::attention(Tier::best(), &self.what, &given, &Made { result, logs });
            }
            Way::Backward { gradient, logs } => {
                let gradient = Read::of(slots, gradient, by_query)?;
                let of = Backward { given, logs: self.logs(slots, logs)?, gradient: gradient.heads() };
                let [mut first, mut second, mut third] = [const { Vec::new() }; 3];
                let gradients = [
                    written(slots, self.results[0].as_ref(), by_query, &mut first)?,
                    written(slots, self.results[1].as_ref(), by_key, &mut second)?,
                    written(slots, self.results[2].as_ref(), by_key, &mut third)?,
                ];
                jit::attention_backward(Tier::best(), &self.what, &of, gradients);
            }
        }
        Ok(())
    }

    fn mask<'a>(&self, slots: &'a Slots, slot: Slot) -> Done<Heads<'a>> {
        let elements = slots.elements(slot)?;
        let seen = broadcast(elements.sizes, &self.what).ok_or_else(|| other_sizes(slot, elements.sizes))?;
        let mut strides = [0; 4];
        for ((to, dim), repeats) in strides.iter_mut().rev().zip(elements.strides.iter().rev()).zip(seen) {
            *to = if repeats { 0 } else { *dim as usize };
        }
        Ok(Heads { cells: floats(&elements, slot)?, strides })
    }

    fn logs<'a>(&self, slots: &'a Slots, slot: Slot) -> Done<Heads<'a>> {
        let elements = slots.elements(slot)?;
        let Attention { batch, heads, queries, .. } = self.what;
        let expected = [batch, heads, queries].map(|size| size as i64);
        match elements.strides {
            [sample, head, query] if elements.sizes == expected => {
                let strides = [*sample, *head, *query, 1].map(|stride| stride as usize);
                Ok(Heads { cells: floats(&elements, slot)?, strides })
            }
            _ => Err(other_sizes(slot, elements.sizes)),
        }
    }
}

/// Whether it is worth to compute it here.
fn is_short(what: &Attention) -> bool {
    let Attention { batch, heads, queries, keys, features, causal, .. } = *what;
    let pairs = if causal { (0..queries).map(|query| keys.min(query + 1)).sum() } else { queries * keys };
    let is_there = [batch, heads, queries, keys, features].iter().all(|size| *size > 0);
    let is_short = pairs <= PAIRS && batch * heads * pairs * features <= MULTIPLICATIONS;
    is_there && is_short && features.is_multiple_of(FEATURES)
}

fn sizes(shape: &Shape) -> Option<[usize; 4]> {
    let sizes: [i64; 4] = shape.sizes.as_slice().try_into().ok()?;
    Some(sizes.map(|size| size as usize))
}

/// Whether each dimension of a mask, the last one first, repeats along that of the scores. None where it has another size.
fn broadcast(sizes: &[i64], what: &Attention) -> Option<SmallVec<[bool; 4]>> {
    let scores = [what.keys, what.queries, what.heads, what.batch];
    if sizes.len() > scores.len() {
        return None;
    }
    let dims = sizes.iter().rev().zip(scores);
    dims.map(|(size, of)| (*size == 1 || *size == of as i64).then_some(*size == 1)).collect()
}

/// A tensor `[batch, heads, rows, columns]` that is read, with the columns of a row side by side.
struct Read<'a> {
    cells: Cow<'a, [Cell<f32>]>,
    strides: [usize; 4],
}

impl<'a> Read<'a> {
    fn of(slots: &'a Slots, slot: Slot, sizes: [usize; 4]) -> Done<Self> {
        let elements = slots.elements(slot)?;
        let cells = floats(&elements, slot)?;
        let strides: [i64; 4] = match elements.strides.try_into() {
            Ok(strides) if elements.sizes == sizes.map(|size| size as i64) => strides,
            _ => return Err(other_sizes(slot, elements.sizes)),
        };
        if strides[3] == 1 {
            return Ok(Self { cells: Cow::Borrowed(cells), strides: strides.map(|stride| stride as usize) });
        }
        Ok(Self { cells: side_by_side(cells, &elements), strides: in_order(sizes) })
    }

    fn heads(&self) -> Heads<'_> {
        Heads { cells: &self.cells, strides: self.strides }
    }
}

/// A result, or memory beside the program's where nothing uses it.
fn written<'a>(
    slots: &'a Slots,
    result: Option<&(Slot, Shape)>,
    sizes: [usize; 4],
    unused: &'a mut Vec<Cell<f32>>,
) -> Done<Heads<'a>> {
    if let Some((slot, _)) = result {
        let elements = slots.elements(*slot)?;
        let strides: [i64; 4] =
            elements.strides.try_into().map_err(|_| other_sizes(*slot, elements.sizes))?;
        let strides = strides.map(|stride| stride as usize);
        return Ok(Heads { cells: floats(&elements, *slot)?, strides });
    }
    unused.resize(sizes.iter().product(), Cell::new(0.0));
    Ok(Heads { cells: unused, strides: in_order(sizes) })
}

const fn in_order([_, heads, rows, columns]: [usize; 4]) -> [usize; 4] {
    [heads * rows * columns, rows * columns, columns, 1]
}

fn floats<'a>(elements: &Elements<'a>, slot: Slot) -> Done<&'a [Cell<f32>]> {
    match elements.cells {
        Cells::Float32(cells) => Ok(cells),
        _ => Err(Failure(format!("{slot} has elements of another type than the step was captured with"))),
    }
}

#[cold]
fn other_sizes(slot: Slot, sizes: &[i64]) -> Failure {
    Failure(format!("{slot} has sizes {sizes:?}, with which the step was not captured"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = "aten::_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0., bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)";

    /// Whether a call of so many queries and features, with changed arguments, is computed here.
    fn is_own(queries: i64, features: i64, change: impl Fn(&mut Vec<Arg>)) -> bool {
        let of = |sizes: Vec<i64>| {
            let strides = Some(ir::contiguous_strides(&sizes).to_vec());
            Shape { dtype: Dtype::Float32, sizes, strides }
        };
        let four = of(vec![2, 3, queries, features]);
        let mask = of(vec![queries, 1]);
        let double = Shape { dtype: Dtype::Float64, ..four.clone() };
        let shapes = [four.clone(), four.clone(), four.clone(), mask, double, four, of(vec![2, 3, queries])];
        let mut args: Vec<Arg> = [0, 1, 2].map(|slot| Arg::Tensor(Slot(slot))).into();
        args.extend([Arg::Float(0.0), Arg::Bool(false), Arg::None, Arg::None]);
        change(&mut args);
        let outputs = [5, 6].map(|slot| Output::Tensor(Slot(slot)));
        let schema = Schema::parse(SCHEMA).unwrap();
        AttentionCall::of(&schema, &args, &outputs, |slot| shapes.get(slot.0 as usize)).is_some()
    }

    #[test]
    fn attention_of_short_sequences_is_computed_here() {
        assert!(is_own(32, 16, |_| ()));
        assert!(is_own(32, 16, |args| args[5] = Arg::Tensor(Slot(3))), "with a mask");
        assert!(!is_own(64, 16, |_| ()), "long");
        assert!(is_own(64, 16, |args| args[4] = Arg::Bool(true)), "half of the pairs are not seen");
        assert!(!is_own(32, 12, |_| ()), "rows are no whole vectors");
        assert!(!is_own(32, 16, |args| args[3] = Arg::Float(0.1)), "dropout");
        assert!(!is_own(32, 16, |args| args[1] = Arg::Tensor(Slot(4))), "of another element type");
        assert!(!is_own(32, 16, |args| args[5] = Arg::Tensor(Slot(0))), "a mask of other sizes");
        assert!(!is_own(0, 16, |_| ()), "empty");
    }
}
