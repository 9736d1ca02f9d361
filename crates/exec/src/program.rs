//! The program: instructions over numbered slots, each with its route and with the slots that end there.

use std::fmt;

use base::{Bytes, Place};
use fixedbitset::FixedBitSet;
use torch_sys::{Arg, Device, Dtype, Number, Output, Schema, Slot};

use crate::{Role, Shape, Update, Write};

/// The route by which an operation is called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Route {
    /// PyTorch's dispatcher, through its stable C interface.
    Dispatcher,
    /// A node of a proxy executor.
    Proxy,
    /// PyTorch's C function for this operation on the program's kind of device.
    Shim,
    /// A function of ours: random numbers at positions, and few elements that are moved on the host.
    Own,
    /// A Python function, for what none of the others passes.
    Python,
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Calls an operation.
    Call {
        /// Index of its schema.
        op: u32,
        /// How it is called.
        route: Route,
        /// How the executor treats it.
        role: Role,
        /// Its arguments.
        args: Vec<Arg>,
        /// Where its returns go.
        outputs: Vec<Output>,
    },
    /// Makes a tensor of a number.
    Number {
        /// The number.
        value: Number,
        /// The tensor's element type.
        dtype: Dtype,
        /// Where it goes.
        target: Slot,
    },
    /// Runs a kernel.
    Kernel {
        /// Its number.
        kernel: u32,
        /// What it reads.
        reads: Vec<Slot>,
        /// What it makes.
        writes: Vec<Write>,
    },
    /// Allocates an uninitialised tensor on the host whose memory is kept when it ends.
    Kept {
        /// The operation that it is the result of, an index into the program's schemas.
        op: u32,
        /// The tensor's element type, sizes and strides.
        shape: Shape,
        /// Where it goes.
        target: Slot,
    },
    /// Allocates an uninitialised tensor.
    Buffer {
        /// The tensor's element type, sizes and strides.
        shape: Shape,
        /// The device that it lies on.
        device: Device,
        /// Where it goes.
        target: Slot,
    },
}

/// One instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// What it does.
    pub action: Action,
    /// The slots that nothing uses after it.
    pub release: Vec<Slot>,
    /// Index of the place in the user's code that it comes from.
    pub place: Option<u32>,
    /// Position in the program order of the graph of the operation that it is.
    pub node: Option<u32>,
}

/// Instructions over slots, with their inputs and outputs.
#[derive(Clone, Debug)]
pub struct Program {
    /// How many slots there are.
    pub slots: u32,
    /// Schemas that calls refer to.
    pub schemas: Vec<Schema>,
    /// The device that it runs on.
    pub device: Device,
    /// Kernels that instructions refer to.
    pub kernels: Vec<loops::Kernel>,
    /// Slots of state.
    pub state: Vec<Slot>,
    /// Slots of what is passed at each step.
    pub inputs: Vec<Slot>,
    /// Run once: constants, and views of state. Its results stay.
    pub prologue: Vec<Instruction>,
    /// Run at each step.
    pub body: Vec<Instruction>,
    /// New values of state, written after the body.
    pub updates: Vec<Update>,
    /// What a step returns.
    pub returns: Vec<Slot>,
    /// Element type and sizes by slot, where known.
    pub shapes: Vec<Option<Shape>>,
    /// Places in the user's code that instructions refer to.
    pub places: Vec<Place>,
    /// Slots whose tensors stay from step to step: state and what the prologue makes.
    pub pinned: FixedBitSet,
}

impl Program {
    /// All instructions, the prologue's first.
    pub fn instructions(&self) -> impl Iterator<Item = &Instruction> {
        self.prologue.iter().chain(&self.body)
    }

    /// Whether the tensor in `slot` stays from step to step.
    pub fn is_pinned(&self, slot: Slot) -> bool {
        self.pinned.contains(slot.0 as usize)
    }

    /// The place of an instruction in the user's code.
    pub fn place(&self, instruction: &Instruction) -> Option<&Place> {
        self.places.get(instruction.place? as usize)
    }

    /// The name of what an instruction calls.
    pub fn name(&self, instruction: &Instruction) -> String {
        match &instruction.action {
            Action::Call { op, .. } | Action::Kept { op, .. } => self.schemas[*op as usize].full_name(),
            Action::Number { .. } => "number".to_owned(),
            Action::Kernel { kernel, .. } => format!("kernel {kernel}"),
            Action::Buffer { .. } => "buffer".to_owned(),
        }
    }

    /// How many calls of the body go by `route`, views not counted.
    pub fn calls_by(&self, route: Route) -> usize {
        let by = |instruction: &&Instruction| match &instruction.action {
            Action::Call { route: by, role, .. } => *by == route && *role != Role::View,
            Action::Number { .. } | Action::Buffer { .. } | Action::Kept { .. } | Action::Kernel { .. } => {
                false
            }
        };
        self.body.iter().filter(by).count()
    }

    /// Bytes of its buffers.
    pub fn buffer_bytes(&self) -> Bytes {
        let bytes = |instruction: &Instruction| match &instruction.action {
            Action::Buffer { shape, .. } => shape.bytes(),
            _ => Bytes(0),
        };
        self.prologue.iter().map(bytes).fold(Bytes(0), |sum, bytes| sum + bytes)
    }

    /// Bytes of other tensors that are kept because they are the same at every step.
    pub fn constant_bytes(&self) -> Bytes {
        let bytes = |instruction: &Instruction| match &instruction.action {
            Action::Call { role: Role::Compute, outputs, .. } => {
                let shapes = outputs.iter().flat_map(Output::slots).filter_map(|slot| self.shape(slot));
                shapes.map(Shape::bytes).fold(Bytes(0), |sum, bytes| sum + bytes)
            }
            Action::Kernel { writes, .. } => {
                writes.iter().map(|write| write.shape.bytes()).fold(Bytes(0), |sum, bytes| sum + bytes)
            }
            _ => Bytes(0),
        };
        self.prologue.iter().map(bytes).fold(Bytes(0), |sum, bytes| sum + bytes)
    }

    fn shape(&self, slot: Slot) -> Option<&Shape> {
        self.shapes.get(slot.0 as usize)?.as_ref()
    }

    /// Whether memory of results is kept when they end.
    pub fn keeps_memory(&self) -> bool {
        self.body.iter().any(|instruction| match &instruction.action {
            Action::Kept { .. } => true,
            Action::Kernel { writes, .. } => writes.iter().any(|write| write.kept),
            _ => false,
        })
    }

    /// How many instructions of the body are views.
    pub fn views(&self) -> usize {
        let view = |i: &&Instruction| matches!(&i.action, Action::Call { role: Role::View, .. });
        self.body.iter().filter(view).count()
    }
}

/// The text form: one line for each instruction.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "state {}", list(&self.state))?;
        writeln!(f, "inputs {}", list(&self.inputs))?;
        for (title, instructions) in [("prologue", &self.prologue), ("body", &self.body)] {
            writeln!(f, "{title}:")?;
            for instruction in instructions {
                self.write(f, instruction)?;
            }
        }
        for update in &self.updates {
            writeln!(f, "update {} <- {}", update.state, update.value)?;
        }
        writeln!(f, "return {}", list(&self.returns))
    }
}

impl Program {
    fn write(&self, f: &mut fmt::Formatter<'_>, instruction: &Instruction) -> fmt::Result {
        match &instruction.action {
            Action::Number { value, dtype, target } => {
                write!(f, "  {target} = {value:?} as {}", dtype.name())?;
            }
            Action::Kernel { kernel, reads, writes } => {
                let targets: Vec<Slot> = writes.iter().map(|write| write.slot).collect();
                let over = writes.iter().filter_map(|write| Some(reads[write.over?])).collect::<Vec<_>>();
                let how = if over.is_empty() { String::new() } else { format!(" over {}", list(&over)) };
                write!(f, "  {} = kernel {kernel}({}){how}", list(&targets), list(reads))?;
            }
            Action::Buffer { shape, target, .. } => {
                write!(f, "  {target} = buffer of {} {:?}", shape.dtype.name(), shape.sizes)?;
            }
            Action::Kept { shape, target, .. } => {
                write!(f, "  {target} = kept {} {:?}", shape.dtype.name(), shape.sizes)?;
            }
            Action::Call { route, role, args, outputs, .. } => {
                let targets: Vec<String> = outputs.iter().map(output).collect();
                let args: Vec<String> = args.iter().map(arg).collect();
                let how = match (role, route) {
                    (Role::View, _) => "view".to_owned(),
                    (Role::Compute, route) => format!("{route:?}").to_lowercase(),
                    (role, route) => format!("{role:?} {route:?}").to_lowercase(),
                };
                let (targets, args) = (targets.join(", "), args.join(", "));
                write!(f, "  {targets} = {}({args}) by {how}", self.name(instruction))?;
            }
        }
        if !instruction.release.is_empty() {
            write!(f, "; release {}", list(&instruction.release))?;
        }
        match self.place(instruction) {
            Some(place) => writeln!(f, "  # {place}"),
            None => writeln!(f),
        }
    }
}

fn list(slots: &[Slot]) -> String {
    slots.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn gaps(slots: &[Option<Slot>]) -> String {
    let text = |slot: &Option<Slot>| slot.map_or_else(|| "_".to_owned(), |slot| slot.to_string());
    format!("[{}]", slots.iter().map(text).collect::<Vec<_>>().join(" "))
}

fn output(output: &Output) -> String {
    match output {
        Output::Ignored => "_".to_owned(),
        Output::Tensor(slot) => slot.to_string(),
        Output::Tensors(slots) => gaps(slots),
    }
}

fn arg(arg: &Arg) -> String {
    match arg {
        Arg::None => "None".to_owned(),
        Arg::Tensor(slot) => slot.to_string(),
        Arg::Tensors(slots) => format!("[{}]", list(slots)),
        Arg::OptionalTensors(slots) => gaps(slots),
        Arg::Int(value) => value.to_string(),
        Arg::Ints(values) => format!("{values:?}"),
        Arg::Float(value) => format!("{value:?}"),
        Arg::Floats(values) => format!("{values:?}"),
        Arg::Bool(value) => value.to_string(),
        Arg::Bools(values) => format!("{values:?}"),
        Arg::Str(text) => format!("{text:?}"),
        Arg::Strs(texts) => format!("{texts:?}"),
        Arg::Dtype(dtype) => dtype.name().to_owned(),
        Arg::Layout(layout) => layout.name().to_owned(),
        Arg::MemoryFormat(format) => format.name().to_owned(),
        Arg::Device(device) => match device.index {
            Some(index) => format!("{}:{index}", device.kind),
            None => device.kind.clone(),
        },
        Arg::Opaque(what) => format!("<{what}>"),
    }
}
