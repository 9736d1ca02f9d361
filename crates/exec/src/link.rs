//! Linking: instructions become calls that are ready to run.

use std::sync::Arc;

use base::{Code, Diagnostic, Result};
use jit::{Module, Tier};
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::Value;
use torch_sys::{
    Arg, Device, DispatcherCall, Dtype, Failure, Library, Number, Output, ProxyCall, Schema, ShimCall, Slot,
    View, proxy,
};

use crate::{
    Action, DeviceKernels, Instruction, Program, Role, Route, Shape, Write,
    attention::AttentionCall,
    device_kernels::DeviceKernelCall,
    device_random::DeviceRandomCall,
    kernels::{KernelCall, Operands},
    lists::{LinkedListCall, ListCall},
    moves::MoveCall,
    random::{RandomCall, is_random_at},
};

/// What runs.
pub(crate) enum Step {
    Dispatcher(DispatcherCall),
    Proxy(ProxyCall),
    Shim(ShimCall),
    /// A view whose metadata is not known yet: a call that is replaced when it has been seen once.
    UnseenView {
        call: DispatcherCall,
        source: Slot,
        targets: Vec<Slot>,
    },
    Kernel(KernelCall),
    DeviceKernel(DeviceKernelCall),
    /// Random numbers at positions; none where nothing uses them.
    Random(Option<RandomCall>),
    DeviceRandom(Option<DeviceRandomCall>),
    /// Elements of the host that are moved; none where nothing uses them.
    Move {
        call: Option<MoveCall>,
        device: (i32, i32),
    },
    Attention {
        call: AttentionCall,
        device: (i32, i32),
    },
    /// What is done to each tensor of a list.
    Lists {
        call: LinkedListCall,
        device: (i32, i32),
    },
    View(View),
    Views(Box<[View]>),
    Number {
        value: Number,
        dtype: Dtype,
        target: Slot,
    },
    Buffer {
        shape: Shape,
        device: Device,
        target: Slot,
    },
    Kept {
        shape: Shape,
        device: (i32, i32),
        target: Slot,
    },
}

/// An instruction, ready to run.
pub(crate) struct Linked {
    pub(crate) step: Step,
    /// What is left to release after it.
    pub(crate) release: Box<[Slot]>,
}

/// How kernels run on this machine, and whether it forbids executable memory, as tried on one.
pub fn kernel_tier() -> Result<(&'static str, bool)> {
    let kernel =
        "kernel [8]\nread a0: f32 {1}\nwrite a1: f32 {1}\n%0 = load a0\n%1 = mul %0 %0\nstore a1 %1\n";
    let module = Module::new(&[kernel.parse()?])?;
    let tier = match module.tier(0) {
        Tier::Interpreter => "interpreter",
        Tier::Avx2 => "AVX2",
        Tier::Avx512 => "AVX-512",
    };
    Ok((tier, module.refused()))
}

/// A call that goes by Python: what the function of its name has to do.
#[derive(Debug, Serialize)]
pub struct PythonCall {
    /// The name of the operation to register, without the name space `unisono_python`.
    pub name: String,
    /// The operation that it has to call.
    pub op: String,
    /// Its arguments; each tensor stands for the next one of those that are passed.
    pub args: Vec<Arg>,
}

/// All calls by Python; `prefix` makes the names of this program different from those of others.
pub fn python_calls(program: &Program, prefix: &str) -> Vec<PythonCall> {
    let calls = program.instructions().filter_map(|instruction| match &instruction.action {
        Action::Call { op, route: Route::Python, args, .. } => Some((op, args)),
        _ => None,
    });
    let calls = calls.enumerate().map(|(index, (op, args))| PythonCall {
        name: python_name(prefix, index),
        op: program.schemas[*op as usize].full_name(),
        args: args.clone(),
    });
    calls.collect()
}

fn python_name(prefix: &str, index: usize) -> String {
    format!("{prefix}_{index}")
}

/// The JSON text of all proxy calls, in order, for torch to read.
pub fn proxy_document(program: &Program) -> Result<String> {
    let mut nodes: Vec<Value> = Vec::new();
    for instruction in program.instructions() {
        if let Action::Call { op, route: Route::Proxy, args, outputs, .. } = &instruction.action {
            let schema = &program.schemas[*op as usize];
            nodes.push(proxy::node(schema, args, outputs).map_err(Diagnostic::bug)?);
        }
    }
    Ok(proxy::document(&nodes))
}

/// What has the kernels of a program.
enum Kernels {
    Host(Arc<Module>),
    Device(DeviceKernels),
}

/// Makes the calls of one program.
pub(crate) struct Linker<'a> {
    library: &'static Library,
    program: &'a Program,
    prefix: &'a str,
    kernels: Kernels,
    proxies: usize,
    pythons: usize,
}

impl<'a> Linker<'a> {
    pub(crate) fn new(
        library: &'static Library,
        program: &'a Program,
        prefix: &'a str,
        device: Option<&DeviceKernels>,
    ) -> Result<Self> {
        let kernels = match device {
            Some(kernels) => Kernels::Device(kernels.clone()),
            None => Kernels::Host(Arc::new(Module::new(&program.kernels)?)),
        };
        Ok(Self { library, program, prefix, kernels, proxies: 0, pythons: 0 })
    }

    /// Whether the host forbids executable memory, so that kernels are interpreted.
    pub(crate) fn refused(&self) -> bool {
        matches!(&self.kernels, Kernels::Host(module) if module.refused())
    }

    pub(crate) fn link(&mut self, instructions: &[Instruction]) -> Result<Vec<Linked>> {
        instructions.iter().map(|instruction| self.instruction(instruction)).collect()
    }

    fn instruction(&mut self, instruction: &Instruction) -> Result<Linked> {
        let (step, release) = match &instruction.action {
            Action::Number { value, dtype, target } => {
                (Step::Number { value: *value, dtype: *dtype, target: *target }, instruction.release.clone())
            }
            Action::Kernel { kernel, reads, writes } => {
                (self.kernel(*kernel as usize, reads, writes)?, instruction.release.clone())
            }
            Action::Buffer { shape, device, target } => {
                let step = Step::Buffer { shape: shape.clone(), device: device.clone(), target: *target };
                (step, instruction.release.clone())
            }
            Action::Kept { shape, target, .. } => {
                let step = Step::Kept { shape: shape.clone(), device: self.host()?, target: *target };
                (step, instruction.release.clone())
            }
            Action::Call { op, route, role, args, outputs } => {
                let schema = &self.program.schemas[*op as usize];
                let failed = |failure: Failure| unlinkable(self.program, instruction, &failure);
                match (route, role) {
                    (Route::Dispatcher, Role::View) => {
                        self.view(schema, args, outputs, instruction).map_err(failed)?
                    }
                    (Route::Dispatcher, _) => {
                        self.dispatch(schema, args, outputs, instruction).map_err(failed)?
                    }
                    (Route::Proxy, _) => {
                        let call = ProxyCall::new(self.proxies, schema, args, outputs);
                        self.proxies += 1;
                        (Step::Proxy(call), instruction.release.clone())
                    }
                    (Route::Shim, _) => {
                        let kind = &self.program.device.kind;
                        let call =
                            ShimCall::new(self.library, kind, schema, args, outputs).map_err(failed)?;
                        (Step::Shim(call), instruction.release.clone())
                    }
                    (Route::Own, _) if is_random_at(schema) => {
                        (self.random(args, outputs)?, instruction.release.clone())
                    }
                    (Route::Own, _) => {
                        let shape = |slot: Slot| self.program.shapes.get(slot.0 as usize)?.as_ref();
                        let device = self.host()?;
                        let step = if let Some(call) = AttentionCall::of(schema, args, outputs, shape) {
                            Step::Attention { call, device }
                        } else if let Some(call) = ListCall::of(schema, args, outputs, shape) {
                            Step::Lists { call: call.linked()?, device }
                        } else {
                            Step::Move { call: MoveCall::of(schema, args, outputs, shape), device }
                        };
                        (step, instruction.release.clone())
                    }
                    (Route::Python, _) => self.python(args, outputs, instruction)?,
                }
            }
        };
        Ok(Linked { step, release: release.into() })
    }

    fn kernel(&self, kernel: usize, reads: &[Slot], writes: &[Write]) -> Result<Step> {
        let shape = |slot: &Slot| self.program.shapes.get(slot.0 as usize).and_then(Clone::clone);
        let reads = reads.iter().map(|slot| Some((*slot, shape(slot)?))).collect::<Option<Vec<_>>>();
        let reads = reads.ok_or_else(|| Diagnostic::bug("a kernel reads a tensor of unknown shape"))?;
        if kernel >= self.program.kernels.len() {
            return Err(Diagnostic::bug(format!("there is no kernel {kernel}")));
        }
        let writes = writes.to_vec();
        let on = |device| Operands { reads, writes, device };
        Ok(match &self.kernels {
            Kernels::Host(module) => Step::Kernel(KernelCall::new(module.clone(), kernel, on(self.host()?))),
            Kernels::Device(DeviceKernels { module, numbers }) => {
                Step::DeviceKernel(DeviceKernelCall::new(module.clone(), kernel, on(*numbers)))
            }
        })
    }

    fn random(&self, args: &[Arg], outputs: &[Output]) -> Result<Step> {
        Ok(match &self.kernels {
            Kernels::Host(_) => Step::Random(RandomCall::new(args, outputs, self.host()?)?),
            Kernels::Device(kernels) => {
                Step::DeviceRandom(DeviceRandomCall::new(kernels, args, outputs, &self.program.shapes)?)
            }
        })
    }

    fn host(&self) -> Result<(i32, i32)> {
        self.library.device_numbers(&Device::host()).map_err(|failure| Diagnostic::bug(failure.0))
    }

    /// A dispatcher call that gives away the slots that end there, each with its last use.
    fn dispatch(
        &self,
        schema: &Schema,
        args: &[Arg],
        outputs: &[Output],
        instruction: &Instruction,
    ) -> Result<(Step, Vec<Slot>), Failure> {
        let mut uses: FxHashMap<Slot, usize> = FxHashMap::default();
        for slot in args.iter().flat_map(Arg::slots) {
            *uses.entry(slot).or_default() += 1;
        }
        let mut takes = |slot: Slot| {
            let left = uses.entry(slot).or_default();
            *left = left.saturating_sub(1);
            *left == 0 && instruction.release.contains(&slot)
        };
        let call = DispatcherCall::new(self.library, schema, args, outputs, &mut takes)?;
        Ok((Step::Dispatcher(call), Vec::new()))
    }

    fn view(
        &self,
        schema: &Schema,
        args: &[Arg],
        outputs: &[Output],
        instruction: &Instruction,
    ) -> Result<(Step, Vec<Slot>), Failure> {
        let Some(Arg::Tensor(source)) = args.first() else {
            return self.dispatch(schema, args, outputs, instruction);
        };
        let call = DispatcherCall::new(self.library, schema, args, outputs, &mut |_| false)?;
        let targets = outputs.iter().flat_map(Output::slots).collect();
        Ok((Step::UnseenView { call, source: *source, targets }, instruction.release.clone()))
    }

    fn python(
        &mut self,
        args: &[Arg],
        outputs: &[Output],
        instruction: &Instruction,
    ) -> Result<(Step, Vec<Slot>)> {
        let name = python_name(self.prefix, self.pythons);
        self.pythons += 1;
        let schema = Schema::parse(&format!("unisono_python::{name}(Tensor[] tensors) -> Tensor[]"))?;
        let args = [Arg::Tensors(args.iter().flat_map(Arg::slots).collect())];
        let outputs = outputs.iter().flat_map(|output| match output {
            Output::Ignored => vec![None],
            Output::Tensor(slot) => vec![Some(*slot)],
            Output::Tensors(slots) => slots.clone(),
        });
        let outputs = [Output::Tensors(outputs.collect())];
        self.dispatch(&schema, &args, &outputs, instruction)
            .map_err(|failure| unlinkable(self.program, instruction, &failure))
    }
}

fn unlinkable(program: &Program, instruction: &Instruction, failure: &Failure) -> Box<Diagnostic> {
    let what = format!("`{}` cannot be called", program.name(instruction));
    let diagnostic = Diagnostic::new(Code::BAD_PROGRAM, what).because(failure.0.clone());
    match program.place(instruction) {
        Some(place) => diagnostic.at(place.clone()),
        None => diagnostic,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn how_kernels_run_is_tried_on_one() {
        let (tier, refused) = super::kernel_tier().expect("the kernel is valid");
        assert!(["interpreter", "AVX2", "AVX-512"].contains(&tier));
        assert!(!refused || tier == "interpreter");
    }
}
