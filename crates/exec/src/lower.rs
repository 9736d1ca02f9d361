//! Lowering: from a flat list of operations to a program.
//!
//! Aliases vanish, numbers become tensors where tensors are expected, what is the same at every step (constants, views of
//! state) moves to the prologue, every call gets its route, and every slot is released by its last use.

use base::{Code, Diagnostic, Result};
use fixedbitset::FixedBitSet;
use loops::Kernel;
use memory::{Lifetimes, Once};
use rustc_hash::FxHashMap;
use torch_sys::{Arg, Dtype, Number, Output, Schema, Slot, Type};

use crate::{
    Abilities, Action, Instruction, OpCall, Program, ProgramSpec, Role, Route, Shape, Update, Write,
    attention::AttentionCall,
    effects::role,
    kernels::{Ends, is_kernel},
    lists::ListCall,
    moves::MoveCall,
    steps::{Forms, steps_of},
};

/// Makes a program of `spec` for a PyTorch with these `abilities`.
pub fn lower(spec: &ProgramSpec, abilities: &Abilities) -> Result<Program> {
    let schemas = spec.schemas.iter().map(|text| Schema::parse(text)).collect::<Result<Vec<_>>>()?;
    check(spec, &schemas)?;
    let forms = Forms::new(&schemas);
    let steps = steps_of(spec, &schemas, &forms);
    let buffers: Vec<u32> = spec.buffers.iter().map(|slot| slot.0).collect();
    let mut lowering = Lowering::new(spec, &schemas, abilities, Lifetimes::of(&steps));
    lowering.buffers()?;
    let once = memory::once(&steps, &buffers);
    for (index, call) in spec.calls.iter().enumerate() {
        if is_kernel(&schemas[call.op as usize]) {
            let ends = Ends { steps: &steps, lifetimes: &lowering.lifetimes, once: &once };
            let kernel = kernel_of(spec, call)?;
            // On other devices operands of sums are read again when others have been written.
            let reads_again = !abilities.device.is_host() && loops::phases::sums(kernel).next().is_some();
            let taken =
                if reads_again { vec![None; kernel.operands.len()] } else { ends.taken(index, kernel) };
            lowering.kernel(call, &taken, once[index])?;
        } else {
            let into = if once[index] == Once::No { lowering.kept(call, &forms) } else { None };
            lowering.call(into.as_ref().unwrap_or(call), once[index])?;
        }
    }
    lowering.keep_overwritten_values();
    lowering.finish()
}

/// The kernel that a call names.
fn kernel_of<'a>(spec: &'a ProgramSpec, call: &OpCall) -> Result<&'a Kernel> {
    let number =
        call.args.iter().find_map(|arg| if let Arg::Int(number) = arg { Some(*number) } else { None });
    let kernel = number.and_then(|number| spec.kernels.get(usize::try_from(number).ok()?));
    kernel.ok_or_else(|| Diagnostic::bug("a call names a kernel that is not there"))
}

/// Checks slot numbers and argument counts.
pub(crate) fn check(spec: &ProgramSpec, schemas: &[Schema]) -> Result<()> {
    let bad = |what: String| Err(Diagnostic::new(Code::BAD_PROGRAM, what));
    let mut known = FixedBitSet::with_capacity(spec.slots as usize);
    for slot in spec.state.iter().chain(&spec.inputs) {
        if slot.0 >= spec.slots || known.put(slot.0 as usize) {
            return bad(format!("slot {slot} is no new slot of {}", spec.slots));
        }
    }
    for slot in &spec.buffers {
        if slot.0 >= spec.slots || known.put(slot.0 as usize) {
            return bad(format!("buffer {slot} is no new slot of {}", spec.slots));
        }
    }
    for (index, call) in spec.calls.iter().enumerate() {
        let Some(schema) = schemas.get(call.op as usize) else {
            return bad(format!("call {index} refers to schema {}, of {}", call.op, schemas.len()));
        };
        let name = schema.full_name();
        if call.args.len() != schema.arguments.len() || call.outputs.len() != schema.returns.len() {
            return bad(format!(
                "call {index} of `{name}` has not as many arguments and outputs as the schema"
            ));
        }
        if let Some(slot) =
            call.args.iter().flat_map(Arg::slots).find(|slot| !known.contains(slot.0 as usize))
        {
            return bad(format!("call {index} of `{name}` reads slot {slot} before anything is there"));
        }
        for slot in call.outputs.iter().flat_map(Output::slots) {
            if slot.0 >= spec.slots || known.put(slot.0 as usize) {
                return bad(format!("call {index} of `{name}` fills slot {slot}, which is no new slot"));
            }
        }
    }
    let ends = spec
        .updates
        .iter()
        .flat_map(|update| [update.state, update.value])
        .chain(spec.returns.iter().copied());
    match ends.into_iter().find(|slot| !known.contains(slot.0 as usize)) {
        Some(slot) => bad(format!("slot {slot} goes out, but nothing is there")),
        None => Ok(()),
    }
}

struct Lowering<'a> {
    spec: &'a ProgramSpec,
    schemas: &'a [Schema],
    abilities: &'a Abilities,
    /// What each slot stands for after aliases have vanished.
    same: Vec<Slot>,
    lifetimes: Lifetimes,
    /// Slots that hold the same tensor at every step: state, constants and their views.
    pinned: FixedBitSet,
    /// Slots whose *values* are the same at every step too.
    constant: FixedBitSet,
    prologue: Vec<Instruction>,
    body: Vec<Instruction>,
    updates: Vec<Update>,
    returns: Vec<Slot>,
    numbers: FxHashMap<(u64, u8, Dtype), Slot>,
    slots: u32,
}

impl<'a> Lowering<'a> {
    fn new(
        spec: &'a ProgramSpec,
        schemas: &'a [Schema],
        abilities: &'a Abilities,
        lifetimes: Lifetimes,
    ) -> Self {
        let slots = spec.slots as usize;
        let mut pinned = FixedBitSet::with_capacity(slots);
        pinned.extend(spec.state.iter().map(|slot| slot.0 as usize));
        Self {
            spec,
            schemas,
            abilities,
            same: (0..spec.slots).map(Slot).collect(),
            lifetimes,
            pinned,
            constant: FixedBitSet::with_capacity(slots),
            prologue: Vec::new(),
            body: Vec::new(),
            updates: Vec::new(),
            returns: Vec::new(),
            numbers: FxHashMap::default(),
            slots: spec.slots,
        }
    }

    fn buffers(&mut self) -> Result<()> {
        for target in self.spec.buffers.iter().copied() {
            let strided = |shape: &&Shape| shape.strides.as_ref().map(Vec::len) == Some(shape.sizes.len());
            let shape = self.spec.shape(target).filter(strided).ok_or_else(|| {
                Diagnostic::new(
                    Code::BAD_PROGRAM,
                    format!("buffer {target} has no size and stride by dimension"),
                )
            })?;
            let device = self.abilities.device.clone();
            self.pin(target, false);
            let action = Action::Buffer { shape: shape.clone(), device, target };
            self.prologue.push(Instruction { action, release: Vec::new(), place: None, node: None });
        }
        Ok(())
    }

    /// The call that writes the result into memory that is kept, where it is to be; the memory is made before it.
    fn kept(&mut self, call: &OpCall, forms: &Forms<'_>) -> Option<OpCall> {
        let [Output::Tensor(target)] = call.outputs.as_slice() else { return None };
        let shape = self.spec.shape(*target).filter(|_| self.spec.is_kept(*target))?.clone();
        let op = forms.out(&self.schemas[call.op as usize])?;
        let action = Action::Kept { op: call.op, shape, target: *target };
        self.body.push(Instruction { action, release: Vec::new(), place: call.place, node: None });
        let args = call.args.iter().cloned().chain([Arg::Tensor(*target)]).collect();
        Some(OpCall { op, args, outputs: vec![Output::Ignored], ..call.clone() })
    }

    fn call(&mut self, call: &OpCall, once: Once) -> Result<()> {
        let schema = &self.schemas[call.op as usize];
        let role = role(schema);
        if role == Role::Alias {
            if let (Some(Arg::Tensor(from)), Some(Output::Tensor(to))) =
                (call.args.first(), call.outputs.first())
            {
                self.same[to.0 as usize] = self.same[from.0 as usize];
            }
            return Ok(());
        }
        // What a view shows is known once and for all where its size is.
        let sized =
            call.outputs.iter().flat_map(Output::slots).all(|slot| !self.spec.is_run_time_sized(slot));
        let role = if role == Role::View && !sized { Role::Compute } else { role };
        let args = self.arguments(call, schema)?;
        let args = if self.abilities.is_direct(schema) { self.with_floats(args, schema) } else { args };
        let shape = |slot: Slot| self.spec.shape(slot).filter(|_| !self.spec.is_run_time_sized(slot));
        let is_attention =
            || self.spec.computes && AttentionCall::of(schema, &args, &call.outputs, shape).is_some();
        let is_own = self.abilities.device.is_host()
            && (MoveCall::of(schema, &args, &call.outputs, shape).is_some()
                || is_attention()
                || self.spec.computes && ListCall::of(schema, &args, &call.outputs, shape).is_some());
        let route = if is_own { Route::Own } else { self.abilities.route(schema, &args, &call.outputs) };
        let outputs = call.outputs.clone();
        let action = Action::Call { op: call.op, route, role, args, outputs };
        let instruction = Instruction { action, release: Vec::new(), place: call.place, node: call.node };
        if once == Once::No {
            self.body.push(instruction);
        } else {
            let outputs = call.outputs.iter().flat_map(Output::slots);
            outputs.for_each(|slot| self.pin(slot, once == Once::Constant));
            self.prologue.push(instruction);
        }
        Ok(())
    }

    /// A call of a kernel, whose results may take the memory of what it reads.
    fn kernel(&mut self, call: &OpCall, taken: &[Option<usize>], once: Once) -> Result<()> {
        let ([Arg::Tensors(reads), Arg::Int(kernel)], [Output::Tensors(writes)]) =
            (call.args.as_slice(), call.outputs.as_slice())
        else {
            return Err(Diagnostic::bug("a kernel is called with other arguments than its schema has"));
        };
        let strided = |slot: Slot| self.spec.shape(slot).filter(|shape| shape.strides.is_some());
        let writes = writes.iter().flatten().zip(taken).map(|(slot, over)| {
            let shape =
                strided(*slot).cloned().ok_or_else(|| Diagnostic::bug("a kernel's result has no strides"))?;
            let kept = once == Once::No && self.spec.is_kept(*slot);
            // What leaves the program does not lie in memory that is kept.
            let over = over.filter(|read| kept || !self.is_in_kept(reads[*read]));
            Ok(Write { slot: *slot, shape, over, kept })
        });
        let writes: Vec<Write> = writes.collect::<Result<_>>()?;
        let reads = reads.iter().map(|slot| self.same[slot.0 as usize]).collect();
        for write in writes.iter().filter(|_| once == Once::Constant) {
            self.pin(write.slot, true);
        }
        let action = Action::Kernel { kernel: *kernel as u32, reads, writes };
        let instruction = Instruction { action, release: Vec::new(), place: call.place, node: call.node };
        if once == Once::Constant { &mut self.prologue } else { &mut self.body }.push(instruction);
        Ok(())
    }

    fn is_in_kept(&self, slot: Slot) -> bool {
        self.spec.is_kept(Slot(self.lifetimes.root(slot.0)))
    }

    /// Arguments with numbers as functions of one operation take them, which makes no difference beside floating-point tensors.
    fn with_floats(&self, args: Vec<Arg>, schema: &Schema) -> Vec<Arg> {
        let is_float = |slot: Slot| self.spec.shape(slot).is_some_and(|shape| shape.dtype.is_float());
        if !args.iter().flat_map(Arg::slots).all(is_float) {
            return args;
        }
        let whole = schema.arguments.iter().map(|argument| argument.ty == Type::Scalar);
        let float = |(arg, whole): (Arg, bool)| match arg {
            Arg::Int(value) if whole && (value as f64) as i64 == value => Arg::Float(value as f64),
            arg => arg,
        };
        args.into_iter().zip(whole).map(float).collect()
    }

    /// Arguments with aliases replaced and numbers made tensors.
    fn arguments(&mut self, call: &OpCall, schema: &Schema) -> Result<Vec<Arg>> {
        let dense = call.args.iter().zip(&schema.arguments).map(|(arg, argument)| {
            let number = match (argument.ty.required(), arg) {
                (Type::Tensor, Arg::Int(value)) => Number::Int(*value),
                (Type::Tensor, Arg::Float(value)) => Number::Float(*value),
                (Type::Tensor, Arg::Bool(value)) => Number::Bool(*value),
                _ => return Ok(arg.clone().map_slots(|slot| self.same[slot.0 as usize])),
            };
            self.number(number, call, schema).map(Arg::Tensor)
        });
        dense.collect()
    }

    /// The slot of `value` as a tensor that takes part in type promotion as a Python number does.
    fn number(&mut self, value: Number, call: &OpCall, schema: &Schema) -> Result<Slot> {
        let other = call.args.iter().find_map(|arg| match arg {
            Arg::Tensor(slot) => self.spec.shape(*slot),
            Arg::Tensors(slots) => self.spec.shape(*slots.first()?),
            _ => None,
        });
        let copies = aten::row(&schema.full_name()).is_some_and(|row| row.copies);
        let dtype = if copies { Some(own_type(value)) } else { number_type(value, other) };
        let dtype = dtype.ok_or_else(|| {
            Diagnostic::new(
                Code::BAD_PROGRAM,
                format!(
                    "`{}` has a number for a tensor, and no tensor of known shape beside it",
                    schema.full_name()
                ),
            )
        })?;
        let (bits, kind) = match value {
            Number::Int(value) => (value as u64, 0),
            Number::Float(value) => (value.to_bits(), 1),
            Number::Bool(value) => (u64::from(value), 2),
        };
        if let Some(slot) = self.numbers.get(&(bits, kind, dtype)) {
            return Ok(*slot);
        }
        let target = self.new_slot();
        self.numbers.insert((bits, kind, dtype), target);
        self.pin(target, true);
        let action = Action::Number { value, dtype, target };
        self.prologue.push(Instruction { action, release: Vec::new(), place: None, node: None });
        Ok(target)
    }

    fn new_slot(&mut self) -> Slot {
        let slot = Slot(self.slots);
        self.slots += 1;
        self.same.push(slot);
        slot
    }

    fn pin(&mut self, slot: Slot, constant: bool) {
        self.pinned.grow_and_insert(slot.0 as usize);
        if constant {
            self.constant.grow_and_insert(slot.0 as usize);
        }
    }

    /// Updates and returns must see values from before the updates: what shares memory with updated state is cloned first.
    fn keep_overwritten_values(&mut self) {
        let root = |this: &Self, slot: Slot| this.lifetimes.root(this.same[slot.0 as usize].0);
        let updates =
            self.spec.updates.iter().filter(|update| self.same[update.value.0 as usize] != update.state);
        let updates: Vec<Update> = updates.copied().collect();
        let overwritten: Vec<u32> = updates.iter().map(|update| root(self, update.state)).collect();
        let mut clones = FxHashMap::default();
        for update in updates {
            let mut value = self.same[update.value.0 as usize];
            if overwritten.contains(&root(self, value)) {
                value = self.cloned(value, &mut clones);
            }
            self.updates.push(Update { state: update.state, value });
        }
        for slot in &self.spec.returns {
            let mut slot = self.same[slot.0 as usize];
            // A constant is kept for later steps, and whoever gets it may write into it.
            if overwritten.contains(&root(self, slot)) || self.constant.contains(slot.0 as usize) {
                slot = self.cloned(slot, &mut clones);
            }
            self.returns.push(slot);
        }
    }

    fn cloned(&mut self, slot: Slot, clones: &mut FxHashMap<Slot, Slot>) -> Slot {
        if let Some(clone) = clones.get(&slot) {
            return *clone;
        }
        let target = self.new_slot();
        clones.insert(slot, target);
        let action = Action::Call {
            op: self.schemas.len() as u32,
            route: Route::Dispatcher,
            role: Role::Compute,
            args: vec![Arg::Tensor(slot), Arg::None],
            outputs: vec![Output::Tensor(target)],
        };
        self.body.push(Instruction { action, release: Vec::new(), place: None, node: None });
        target
    }

    fn finish(mut self) -> Result<Program> {
        self.release();
        let mut schemas = self.schemas.to_vec();
        schemas
            .push(Schema::parse("aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor")?);
        Ok(Program {
            slots: self.slots,
            schemas,
            device: self.abilities.device.clone(),
            kernels: self.spec.kernels.clone(),
            state: self.spec.state.clone(),
            inputs: self.spec.inputs.clone(),
            prologue: self.prologue,
            body: self.body,
            updates: self.updates,
            returns: self.returns,
            shapes: self.spec.shapes.clone(),
            places: self.spec.places.clone(),
            pinned: self.pinned,
        })
    }

    /// Releases every slot at its last use, and drops outputs that nothing uses.
    fn release(&mut self) {
        let mut live = self.pinned.clone();
        live.grow(self.slots as usize);
        let ends = self.updates.iter().map(|update| update.value).chain(self.returns.iter().copied());
        live.extend(ends.map(|slot| slot.0 as usize));
        for instruction in self.body.iter_mut().rev() {
            if let Action::Kernel { reads, .. } = &instruction.action {
                let ended = reads.iter().filter(|slot| !live.put(slot.0 as usize));
                instruction.release.extend(ended);
                continue;
            }
            let Action::Call { args, outputs, .. } = &mut instruction.action else { continue };
            for output in outputs.iter_mut() {
                match output {
                    Output::Tensor(slot) if !live.contains(slot.0 as usize) => *output = Output::Ignored,
                    Output::Tensors(slots) => {
                        let unused = |slot: &&mut Option<Slot>| {
                            slot.is_some_and(|slot| !live.contains(slot.0 as usize))
                        };
                        slots.iter_mut().filter(unused).for_each(|slot| *slot = None);
                    }
                    _ => {}
                }
            }
            for slot in args.iter().flat_map(Arg::slots) {
                if !live.put(slot.0 as usize) {
                    instruction.release.push(slot);
                }
            }
        }
    }
}

/// The element type of the tensor that a number is by itself.
const fn own_type(value: Number) -> Dtype {
    match value {
        Number::Float(_) => Dtype::Float64,
        Number::Int(_) => Dtype::Int64,
        Number::Bool(_) => Dtype::Bool,
    }
}

/// The element type of the tensor that stands for a number beside a tensor of the shape `other`. A tensor without dimensions
/// does not change the type of one with dimensions, unless it is of a higher kind; then a number counts as default type.
fn number_type(value: Number, other: Option<&Shape>) -> Option<Dtype> {
    let other = other?;
    let scalar32 = other.sizes.is_empty() && other.dtype == Dtype::Float32;
    Some(match value {
        Number::Float(_) if scalar32 || !other.dtype.is_float() => Dtype::Float32,
        Number::Float(_) => Dtype::Float64,
        Number::Int(_) if scalar32 => Dtype::Float32,
        Number::Int(_) => Dtype::Int64,
        Number::Bool(_) => Dtype::Bool,
    })
}
