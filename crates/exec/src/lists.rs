//! Operations that do the same to each tensor of a list, such as norms of gradients and a step of an optimizer, as kernels, one for each number
//! of elements: for small tensors PyTorch takes longer to go from one to the next than to compute.

use std::{borrow::Cow, cell::Cell, cmp::Ordering};

use aten::OnLists;
use base::Result;
use jit::Module;
use loops::{Access, Binary, Builder, Element, Kernel, Memory, Reduction, Unary, Value};
use torch_sys::{Arg, Cells, Dtype, Elements, Failure, Output, Schema, Slot, Slots, Tensor};

use crate::{
    Shape,
    copies::{copy_back, side_by_side},
    kernels::failed,
    moves::is_dense,
};

/// The most elements of a tensor of a list: of more, PyTorch shares the work among threads.
const MOST: i64 = 1 << 15;

/// A call of such an operation.
pub(crate) struct ListCall {
    what: What,
    /// How many elements the tensors have, one after the other.
    counts: Vec<i64>,
}

enum What {
    Norms { of: Vec<Slot>, to: Vec<Option<Slot>> },
    Multiply { all: Vec<Slot>, factor: Slot },
    Add { all: Vec<Slot>, number: Slot },
    AdamW(AdamW),
}

/// A step of AdamW.
struct AdamW {
    /// A parameter, its gradient, its first and its second moment.
    tensors: Vec<[Slot; 4]>,
    /// Which step it is for each of them.
    steps: Vec<Slot>,
    rate: Rate,
    betas: [f64; 2],
    decay: f64,
    epsilon: f64,
}

enum Rate {
    Number(f64),
    Tensor(Slot),
}

type Done = std::result::Result<(), Failure>;

impl ListCall {
    /// The call; none where the operation is no such, or a tensor is large, of another element type or does not lie side by side.
    /// `shape_of` gives the shapes of tensors whose sizes are known.
    pub(crate) fn of<'a>(
        schema: &Schema,
        args: &[Arg],
        outputs: &[Output],
        shape_of: impl Fn(Slot) -> Option<&'a Shape>,
    ) -> Option<Self> {
        let name = schema.full_name();
        let row = if schema.mutates() { aten::row_in_place(&name) } else { aten::row(&name) };
        let on_lists = row?.on_lists?;
        let writes = schema.mutates() && outputs.iter().all(|output| output.slots().next().is_none());
        let is_number = |slot: &Slot| shape_of(*slot).is_some_and(is_number);
        let counts = |all: &[Slot]| all.iter().map(|slot| elements(shape_of(*slot)?)).collect::<Option<_>>();
        let (what, counts) = match (on_lists, args, outputs) {
            (OnLists::Norm, [Arg::Tensors(of), order, Arg::None], [Output::Tensors(to)]) if is_two(order) => {
                (What::Norms { of: of.clone(), to: to.clone() }, counts(of)?)
            }
            (OnLists::Multiply, [Arg::Tensors(all), Arg::Tensor(factor)], _)
                if writes && is_number(factor) =>
            {
                (What::Multiply { all: all.clone(), factor: *factor }, counts(all)?)
            }
            (OnLists::Add, [Arg::Tensors(all), Arg::Tensor(number), Arg::Int(1)], _)
                // The number of a call has no shape in the program; it is one of `f32` beside such tensors.
                if writes && (shape_of(*number).is_none() || is_number(number)) && all.iter().all(is_number) =>
            {
                (What::Add { all: all.clone(), number: *number }, Vec::new())
            }
            (OnLists::AdamW, ..) if writes => {
                let step = AdamW::of(args, &shape_of)?;
                for list in 1..4 {
                    counts(&step.tensors.iter().map(|of| of[list]).collect::<Vec<_>>())?;
                }
                let counts = counts(&step.tensors.iter().map(|of| of[0]).collect::<Vec<_>>())?;
                (What::AdamW(step), counts)
            }
            _ => return None,
        };
        Some(Self { what, counts })
    }

    /// The call, ready to run.
    pub(crate) fn linked(self) -> Result<LinkedListCall> {
        let Self { what, counts } = self;
        let mut distinct = counts.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let kernel = |count: &i64| match &what {
            What::Norms { .. } => norm(*count),
            What::Multiply { .. } | What::Add { .. } => multiply(*count),
            What::AdamW(step) => step.kernel(*count),
        };
        let module = Module::new(&distinct.iter().map(kernel).collect::<Vec<_>>())?;
        let kernels = counts.iter().map(|count| distinct.partition_point(|other| other < count)).collect();
        Ok(LinkedListCall { what, module, kernels })
    }
}

/// The square root of the sum of squares of so many elements.
fn norm(count: i64) -> Kernel {
    let mut builder = Builder::default();
    let from = builder.operand(Access::Read, Element::F32, vec![count, 1]);
    let to = builder.operand(Access::Write, Element::F32, vec![1, 0]);
    let number = builder.load(from);
    let square = builder.binary(Binary::Mul, number, number);
    let sum = builder.reduce(Reduction::Sum, square);
    let root = builder.unary(Unary::Sqrt, sum);
    builder.store(to, root);
    builder.finish(vec![1, count])
}

/// The product of so many elements and a number, in their place.
fn multiply(count: i64) -> Kernel {
    let mut builder = Builder::default();
    let [from, factor] = [1, 0].map(|stride| builder.operand(Access::Read, Element::F32, vec![stride]));
    let to = builder.operand(Access::Write, Element::F32, vec![1]);
    let (number, factor) = (builder.load(from), builder.load(factor));
    let product = builder.binary(Binary::Mul, number, factor);
    builder.store(to, product);
    builder.finish(vec![count])
}

impl AdamW {
    fn of<'a>(args: &[Arg], shape_of: impl Fn(Slot) -> Option<&'a Shape>) -> Option<Self> {
        let [
            Arg::Tensors(parameters),
            Arg::Tensors(gradients),
            Arg::Tensors(first),
            Arg::Tensors(second),
            _,
            Arg::Tensors(steps),
            rate,
            beta1,
            beta2,
            decay,
            epsilon,
            Arg::Bool(false),
            Arg::Bool(false),
            Arg::None,
            Arg::None,
        ] = args
        else {
            return None;
        };
        let rate = match rate {
            Arg::Tensor(slot) => {
                let is_number = |shape: &Shape| shape.dtype.is_float() && shape.sizes.is_empty();
                shape_of(*slot).filter(|shape| is_number(shape)).map(|_| Rate::Tensor(*slot))?
            }
            rate => Rate::Number(float(rate)?),
        };
        let lists = [gradients, first, second, steps];
        let is_count = |slot: &Slot| shape_of(*slot).is_some_and(is_number);
        if lists.iter().any(|list| list.len() != parameters.len()) || !steps.iter().all(is_count) {
            return None;
        }
        let tensors = (0..parameters.len()).map(|at| [parameters[at], gradients[at], first[at], second[at]]);
        Some(Self {
            tensors: tensors.collect(),
            steps: steps.clone(),
            rate,
            betas: [float(beta1)?, float(beta2)?],
            decay: float(decay)?,
            epsilon: float(epsilon)?,
        })
    }

    /// A step of so many elements: PyTorch's formula, but for a product with the inverse of the correction of second moments, by which it
    /// divides. Operands are a parameter, its gradient and moments, what is [the same for all](Self::numbers), and then the new parameter and moments.
    fn kernel(&self, count: i64) -> Kernel {
        let mut builder = Builder::default();
        let reads = [1, 1, 1, 1, 0, 0, 0];
        let reads = reads.map(|stride| builder.operand(Access::Read, Element::F32, vec![stride]));
        let writes = [1; 3].map(|stride| builder.operand(Access::Write, Element::F32, vec![stride]));
        let [p, g, m, v, kept, size, correction] = reads.map(|operand| builder.load(operand));
        let [beta1, beta2] = self.betas;
        let mut number = |number: f64| builder.constant(number as f32);
        let (others, square, epsilon) = (number(beta2), number(1.0 - beta2), number(self.epsilon));
        // From the nearer end, as `lerp` has it.
        let own = 1.0 - beta1;
        let is_near = own.abs() < 0.5;
        let weight = number(if is_near { own } else { own - 1.0 });
        let mut on = |binary: Binary, a: Value, b: Value| builder.binary(binary, a, b);
        let apart = on(Binary::Sub, g, m);
        let (kept_of_v, scaled) = (on(Binary::Mul, v, others), on(Binary::Mul, square, g));
        let squared = on(Binary::Mul, scaled, g);
        let v = on(Binary::Add, kept_of_v, squared);
        let p = on(Binary::Mul, p, kept);
        let m = builder.fma(weight, apart, if is_near { m } else { g });
        let root = builder.unary(Unary::Sqrt, v);
        let mut on = |binary: Binary, a: Value, b: Value| builder.binary(binary, a, b);
        let root = on(Binary::Mul, root, correction);
        let root = on(Binary::Add, root, epsilon);
        let moved = on(Binary::Mul, size, m);
        let moved = on(Binary::Div, moved, root);
        let p = on(Binary::Add, p, moved);
        writes.into_iter().zip([p, m, v]).for_each(|(to, value)| builder.store(to, value));
        builder.finish(vec![count])
    }

    /// What is left of a parameter, how far it moves, and what the roots of second moments are multiplied with.
    fn numbers(&self, rate: f64, step: f64) -> [f32; 3] {
        let [beta1, beta2] = self.betas.map(|beta| 1.0 - beta.powf(step));
        [1.0 - rate * self.decay, -rate / beta1, 1.0 / beta2.sqrt()].map(|number| number as f32)
    }
}

/// A call, ready to run.
pub(crate) struct LinkedListCall {
    what: What,
    module: Module,
    /// The kernel of each tensor.
    kernels: Vec<usize>,
}

impl LinkedListCall {
    /// Allocates the results, if there are some, and computes. `device` is PyTorch's number of the host, and its index.
    pub(crate) fn run(&self, slots: &mut Slots, device: (i32, i32)) -> Done {
        match &self.what {
            What::Norms { of, to } => {
                for ((of, to), kernel) in of.iter().zip(to).zip(&self.kernels) {
                    let Some(to) = to else { continue };
                    let tensor = Tensor::empty(slots.library(), Dtype::Float32, &[], &[], device)?;
                    slots.put(*to, tensor);
                    let (of, to) = (Whole::of(slots, *of)?, floats(slots, *to)?.0);
                    self.kernel(*kernel, &[&of.cells, to])?;
                }
            }
            What::Multiply { all, factor } => {
                let factor = floats(slots, *factor)?.0;
                for (slot, kernel) in all.iter().zip(&self.kernels) {
                    let all = Whole::of(slots, *slot)?;
                    self.kernel(*kernel, &[&all.cells, factor, &all.cells])?;
                    all.written();
                }
            }
            What::Add { all, number } => {
                let number = slots.number(*number)? as f32;
                for slot in all {
                    let to = floats(slots, *slot)?.0;
                    to[0].set(to[0].get() + number);
                }
            }
            What::AdamW(step) => self.adamw(step, slots)?,
        }
        Ok(())
    }

    fn adamw(&self, all: &AdamW, slots: &Slots) -> Done {
        let rate = match all.rate {
            Rate::Number(rate) => rate,
            Rate::Tensor(slot) => slots.number(slot)?,
        };
        // Most tensors have made as many steps as the one before.
        let (mut before, mut numbers) = (None, [0.0; 3].map(Cell::new));
        for ((of, step), kernel) in all.tensors.iter().zip(&all.steps).zip(&self.kernels) {
            let step = floats(slots, *step)?.0[0].get();
            if before != Some(step.to_bits()) {
                (before, numbers) = (Some(step.to_bits()), all.numbers(rate, f64::from(step)).map(Cell::new));
            }
            let found =
                [floats(slots, of[0])?, floats(slots, of[1])?, floats(slots, of[2])?, floats(slots, of[3])?];
            let same = numbers.each_ref().map(std::slice::from_ref);
            let run = |[p, g, m, v]: [&[Cell<f32>]; 4]| {
                self.kernel(*kernel, &[p, g, m, v, same[0], same[1], same[2], p, m, v])
            };
            let is_direct = found.iter().all(|(cells, lies)| {
                cells.len() == count_of(lies.sizes) && lies.strides == found[0].1.strides
            });
            if is_direct {
                run(found.map(|(cells, _)| cells))?;
                continue;
            }
            let copies = found.map(Whole::in_order);
            run(copies.each_ref().map(|one| &one.cells[..]))?;
            [&copies[0], &copies[2], &copies[3]].into_iter().for_each(Whole::written);
        }
        Ok(())
    }

    fn kernel(&self, kernel: usize, operands: &[&[Cell<f32>]]) -> Done {
        let mut memory = [Memory::F32(&[]); 10];
        for (to, cells) in memory.iter_mut().zip(operands) {
            *to = Memory::F32(cells);
        }
        self.module.run(kernel, &memory[..operands.len()]).map_err(failed)
    }
}

/// A tensor's elements side by side: in memory, or copied.
struct Whole<'a> {
    cells: Cow<'a, [Cell<f32>]>,
    /// Those in memory, and how they lie.
    found: (&'a [Cell<f32>], Elements<'a>),
}

impl<'a> Whole<'a> {
    /// In whatever order.
    fn of(slots: &'a Slots, slot: Slot) -> std::result::Result<Self, Failure> {
        let found = floats(slots, slot)?;
        let is_direct = found.0.len() == count_of(found.1.sizes);
        Ok(if is_direct { Self { cells: Cow::Borrowed(found.0), found } } else { Self::in_order(found) })
    }

    /// In their order.
    fn in_order(found: (&'a [Cell<f32>], Elements<'a>)) -> Self {
        Self { cells: side_by_side(found.0, &found.1), found }
    }

    /// Copies what has been written back, if it is a copy.
    fn written(&self) {
        if let Cow::Owned(cells) = &self.cells {
            copy_back(cells, self.found.0, &self.found.1);
        }
    }
}

/// How many elements a tensor has, where it is of the type that is computed, small, and has them side by side.
fn elements(shape: &Shape) -> Option<i64> {
    let count: i64 = shape.sizes.iter().product();
    let is_dense = shape.strides.as_ref().is_some_and(|strides| is_dense(&shape.sizes, strides));
    (shape.dtype == Dtype::Float32 && (1..=MOST).contains(&count) && is_dense).then_some(count)
}

fn is_number(shape: &Shape) -> bool {
    shape.dtype == Dtype::Float32 && shape.sizes.is_empty()
}

fn count_of(sizes: &[i64]) -> usize {
    sizes.iter().product::<i64>() as usize
}

fn is_two(order: &Arg) -> bool {
    float(order).is_some_and(|order| order.total_cmp(&2.0) == Ordering::Equal)
}

const fn float(arg: &Arg) -> Option<f64> {
    match arg {
        Arg::Float(number) => Some(*number),
        Arg::Int(number) => Some(*number as f64),
        _ => None,
    }
}

fn floats(slots: &Slots, slot: Slot) -> std::result::Result<(&[Cell<f32>], Elements<'_>), Failure> {
    let elements = slots.elements(slot)?;
    match elements.cells {
        Cells::Float32(cells) => Ok((cells, elements)),
        _ => Err(Failure(format!("{slot} has elements of another type than the step was captured with"))),
    }
}

#[cfg(test)]
mod tests {
    use loops::Interpreter;

    use super::*;

    fn numbers(count: usize, seed: usize) -> Vec<Cell<f32>> {
        (0..count).map(|at| Cell::new(((at * 37 + seed * 11) % 29) as f32 / 7.0 - 2.0)).collect()
    }

    fn run(kernel: &Kernel, operands: &[&[Cell<f32>]]) {
        let memory: Vec<_> = operands.iter().map(|cells| Memory::F32(cells)).collect();
        Interpreter::new(kernel).unwrap().run(&memory).unwrap();
    }

    #[test]
    fn norms_are_those_of_all_elements_whatever_their_number() {
        for count in [1, 17, 64, 1000, 5000] {
            let (of, to) = (numbers(count, 3), [Cell::new(0.0)]);
            run(&norm(count as i64), &[&of, &to]);
            let exact: f64 = of.iter().map(|cell| f64::from(cell.get()).powi(2)).sum::<f64>().sqrt();
            assert!((f64::from(to[0].get()) - exact).abs() <= 1e-6 * exact, "{count}");
        }
    }

    #[test]
    fn a_step_of_adamw_is_that_of_its_formula() {
        for betas in [[0.9, 0.999], [0.3, 0.5]] {
            let (rate, decay, epsilon) = (1e-2, 0.1, 1e-8);
            let (tensors, steps) = (Vec::new(), Vec::new());
            let all = AdamW { tensors, steps, rate: Rate::Number(rate), betas, decay, epsilon };
            let [p, g, m] = [1, 2, 3].map(|seed| numbers(37, seed));
            let v: Vec<_> = numbers(37, 4).iter().map(|cell| Cell::new(cell.get().powi(2))).collect();
            let before = |all: &[Cell<f32>]| all.iter().map(|cell| f64::from(cell.get())).collect::<Vec<_>>();
            let (p0, g0, m0, v0) = (before(&p), before(&g), before(&m), before(&v));
            let same = all.numbers(rate, 3.0).map(|number| [Cell::new(number)]);
            run(&all.kernel(37), &[&p, &g, &m, &v, &same[0], &same[1], &same[2], &p, &m, &v]);
            for at in 0..37 {
                let first = betas[0] * m0[at] + (1.0 - betas[0]) * g0[at];
                let second = betas[1] * v0[at] + (1.0 - betas[1]) * g0[at] * g0[at];
                let root = (second / (1.0 - betas[1].powi(3))).sqrt() + epsilon;
                let moved = rate * first / (1.0 - betas[0].powi(3)) / root;
                let expected = p0[at] * (1.0 - rate * decay) - moved;
                let near = |found: &Cell<f32>, exact: f64| (f64::from(found.get()) - exact).abs() < 1e-6;
                assert!(near(&p[at], expected) && near(&m[at], first) && near(&v[at], second), "{at}");
            }
        }
    }

    #[test]
    fn lists_of_small_tensors_are_computed_here() {
        let of = |dtype, sizes: &[i64]| {
            let strides = Some(ir::contiguous_strides(sizes).to_vec());
            Shape { dtype, sizes: sizes.to_vec(), strides }
        };
        let apart = Shape { strides: Some(vec![8, 1]), ..of(Dtype::Float32, &[4, 4]) };
        let shapes = [
            of(Dtype::Float32, &[4, 4]),
            of(Dtype::Float32, &[256, 128]),
            of(Dtype::Float32, &[]),
            of(Dtype::Float32, &[257, 128]),
            of(Dtype::Float64, &[4]),
            apart,
            of(Dtype::Float32, &[0]),
        ];
        let is_own = |schema: &str, list: &[u32], more: &[Arg], outputs: &[Output]| {
            let list = Arg::Tensors(list.iter().copied().map(Slot).collect());
            let args: Vec<Arg> = [list].into_iter().chain(more.iter().cloned()).collect();
            let schema = Schema::parse(schema).unwrap();
            ListCall::of(&schema, &args, outputs, |slot| shapes.get(slot.0 as usize)).is_some()
        };
        let multiplied = |list: &[u32], factor: u32| {
            let schema = "aten::_foreach_mul_.Tensor(Tensor(a!)[] self, Tensor other) -> ()";
            is_own(schema, list, &[Arg::Tensor(Slot(factor))], &[])
        };
        assert!(multiplied(&[0, 1, 2], 2));
        assert!(!multiplied(&[0], 0), "no number");
        for (other, why) in [(3, "large"), (4, "of another type"), (5, "with gaps"), (6, "empty")] {
            assert!(!multiplied(&[0, other], 2), "{why}");
        }
        let norms = |order| {
            let schema =
                "aten::_foreach_norm.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]";
            is_own(schema, &[0, 1], &[order, Arg::None], &[Output::Tensors(vec![Some(Slot(7)), None])])
        };
        assert!(norms(Arg::Float(2.0)) && norms(Arg::Int(2)));
        assert!(!norms(Arg::Float(1.0)), "of another order");
    }
}
