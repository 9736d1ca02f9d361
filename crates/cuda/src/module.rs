//! Kernels that are compiled together, ready to be launched.

use std::{
    marker::PhantomData,
    sync::{Arc, OnceLock},
};

use base::{Diagnostic, Result};
use loops::{Element, Kernel, Lies};
use torch_sys::{Dtype, OnDevice};

use crate::{
    Device, Draw, Emitted, Function, Resources, Source, Stream, Width,
    device::{Handle, Loaded},
};

/// An operand's elements in the memory of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory<'a> {
    element: Element,
    elements: usize,
    address: usize,
    there: PhantomData<&'a ()>,
}

impl<'a> DeviceMemory<'a> {
    /// # Safety
    /// So many elements of this type lie there, in memory that kernels may touch until what is launched later on the same stream.
    pub const unsafe fn new(element: Element, elements: usize, address: usize) -> Self {
        Self { element, elements, address, there: PhantomData }
    }

    /// The elements of a tensor; none of a type that kernels do not have.
    pub fn of(tensor: OnDevice<'a>) -> Option<Self> {
        let element = match tensor.dtype()? {
            Dtype::Float32 => Element::F32,
            Dtype::Bfloat16 => Element::Bf16,
            Dtype::Float16 => Element::F16,
            Dtype::Bool => Element::Bool,
            Dtype::Int64 => Element::I64,
            _ => return None,
        };
        // SAFETY: a tensor's elements are there, and PyTorch gives their memory out again only for what comes later on its stream.
        Some(unsafe { Self::new(element, tensor.count(), tensor.address()) })
    }
}

impl Lies for DeviceMemory<'_> {
    fn element(&self) -> Element {
        self.element
    }
    fn elements(&self) -> usize {
        self.elements
    }
    fn address(&self) -> usize {
        self.address
    }
}

/// Kernels on a device.
pub struct Module {
    device: Arc<Device>,
    kernels: Vec<Runnable>,
    draws: Vec<Drawing>,
    /// What each function takes, as far as the compiler says.
    pub resources: Vec<Resources>,
}

/// A function that draws.
struct Drawing {
    draw: Draw,
    function: Function,
    handle: Handle,
    loaded: Arc<Loaded>,
}

struct Runnable {
    kernel: Kernel,
    wide: Compiled,
    /// For operands that begin where several elements cannot be taken at once.
    narrow: OnceLock<Compiled>,
}

struct Compiled {
    emitted: Emitted,
    functions: Vec<Handle>,
    loaded: Arc<Loaded>,
}

impl Compiled {
    fn of(emitted: Emitted, loaded: &Arc<Loaded>) -> Result<Self> {
        let functions = emitted
            .functions
            .iter()
            .map(|function| loaded.function(&function.name))
            .collect::<Result<_>>()?;
        Ok(Self { emitted, functions, loaded: loaded.clone() })
    }
}

/// What has been compiled together.
struct Together {
    kernels: Vec<Compiled>,
    draws: Vec<Drawing>,
    resources: Vec<Resources>,
}

fn compiled(device: &Arc<Device>, kernels: &[Kernel], draws: &[Draw], width: Width) -> Result<Together> {
    if kernels.is_empty() && draws.is_empty() {
        return Ok(Together { kernels: Vec::new(), draws: Vec::new(), resources: Vec::new() });
    }
    let source = Source::with_draws(kernels, draws, width)?;
    let emitted = source
        .kernels
        .into_iter()
        .map(|kernel| kernel.map_err(Diagnostic::bug))
        .collect::<Result<Vec<_>>>()?;
    let image = device.compiler.compile(&source.text, &device.architecture)?;
    let loaded = Arc::new(Loaded::new(device.clone(), &image.bytes)?);
    let kernels = emitted.into_iter().map(|emitted| Compiled::of(emitted, &loaded)).collect::<Result<_>>()?;
    let drawing = |(draw, function): (&Draw, Function)| {
        let handle = loaded.function(&function.name)?;
        Ok(Drawing { draw: draw.clone(), function, handle, loaded: loaded.clone() })
    };
    let draws = draws.iter().zip(source.draws).map(drawing).collect::<Result<_>>()?;
    Ok(Together { kernels, draws, resources: image.resources })
}

impl Module {
    /// Compiles kernels and loads them. Fails where a kernel is not valid or [cannot be one here](Source::kernels).
    pub fn new(device: &Arc<Device>, kernels: &[Kernel]) -> Result<Self> {
        Self::with_draws(device, kernels, &[], Width::Wide)
    }

    /// The same with threads that take so many elements at once, and with what is drawn beside.
    pub fn with_draws(
        device: &Arc<Device>,
        kernels: &[Kernel],
        draws: &[Draw],
        width: Width,
    ) -> Result<Self> {
        let Together { kernels: made, draws, resources } = compiled(device, kernels, draws, width)?;
        let kernels = kernels.iter().cloned().zip(made);
        let kernels = kernels.map(|(kernel, wide)| Runnable { kernel, wide, narrow: OnceLock::new() });
        Ok(Self { device: device.clone(), kernels: kernels.collect(), draws, resources })
    }

    /// The position of what is drawn so, if it is.
    pub fn drawing(&self, draw: &Draw) -> Option<usize> {
        self.draws.iter().position(|known| known.draw == *draw)
    }

    /// Draws, by a key of two numbers, at what each dimension has of the positions of the part.
    pub fn draw(
        &self,
        index: usize,
        key: DeviceMemory<'_>,
        positions: &[DeviceMemory<'_>],
        to: DeviceMemory<'_>,
        stream: Stream,
    ) -> Result<()> {
        let Drawing { draw, function, handle, loaded } = &self.draws[index];
        let is = |memory: &DeviceMemory<'_>, element, elements| {
            memory.element == element && memory.elements >= elements
        };
        let mut sizes = positions.iter().zip(&draw.part);
        let fits = positions.len() == draw.part.len()
            && sizes.all(|(memory, size)| is(memory, Element::I64, *size as usize))
            && is(&key, Element::I64, 2)
            && is(&to, draw.element, draw.count());
        if !fits {
            return Err(Diagnostic::bug("memory that does not fit what is drawn"));
        }
        if function.blocks == 0 {
            return Ok(());
        }
        let all = [key].into_iter().chain(positions.iter().copied()).chain([to]);
        let addresses: Vec<usize> = all.map(|memory| memory.address).collect();
        // SAFETY: the function reads two numbers of the key and as many positions as there are, and writes as many numbers as fit.
        unsafe { loaded.launch(*handle, (function.blocks, function.threads), &addresses, stream) }
    }

    /// A kernel.
    pub fn kernel(&self, index: usize) -> &Kernel {
        &self.kernels[index].kernel
    }

    /// The device.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// How many numbers of single precision a kernel keeps beside its operands.
    pub fn kept(&self, index: usize) -> usize {
        self.kernels[index].wide.emitted.kept
    }

    /// Launches a kernel over `memory`, which has that of each operand; `kept` has as many numbers as it [keeps](Self::kept). Fails where
    /// memory does not fit.
    pub fn launch(
        &self,
        index: usize,
        memory: &[DeviceMemory<'_>],
        kept: Option<DeviceMemory<'_>>,
        stream: Stream,
    ) -> Result<()> {
        let runnable = &self.kernels[index];
        let compiled = self.fitting(runnable, memory)?;
        let emitted = &compiled.emitted;
        emitted.bounds.check(memory)?;
        emitted.check_apart(memory)?;
        let mut addresses: Vec<usize> = memory.iter().map(|memory| memory.address).collect();
        if emitted.kept > 0 {
            let fits = kept.filter(|kept| kept.element == Element::F32 && kept.elements >= emitted.kept);
            addresses.push(
                fits.ok_or_else(|| Diagnostic::bug("a kernel has no memory to keep numbers in"))?.address,
            );
        }
        for (function, handle) in emitted.functions.iter().zip(&compiled.functions) {
            if function.blocks > 0 {
                let grid = (function.blocks, function.threads);
                // SAFETY: `check` has shown that every index lies within its operand, and the operands are there, as whoever made them said.
                unsafe { compiled.loaded.launch(*handle, grid, &addresses, stream)? };
            }
        }
        Ok(())
    }

    /// Whether a kernel takes operands that begin there without being compiled again.
    pub fn fits(&self, index: usize, memory: &[DeviceMemory<'_>]) -> bool {
        self.kernels[index].wide.emitted.fits(memory)
    }

    /// The form of a kernel for operands that begin there.
    fn fitting<'a>(&self, runnable: &'a Runnable, memory: &[DeviceMemory<'_>]) -> Result<&'a Compiled> {
        if runnable.wide.emitted.fits(memory) {
            return Ok(&runnable.wide);
        }
        if runnable.narrow.get().is_none() {
            let kernel = std::slice::from_ref(&runnable.kernel);
            let mut made = compiled(&self.device, kernel, &[], Width::Narrow)?;
            let narrow = made.kernels.pop().ok_or_else(|| Diagnostic::bug("a kernel was not compiled"))?;
            let _ = runnable.narrow.set(narrow);
        }
        runnable.narrow.get().ok_or_else(|| Diagnostic::bug("a kernel was not compiled"))
    }
}

impl Emitted {
    fn fits(&self, memory: &[DeviceMemory<'_>]) -> bool {
        self.aligned.iter().all(|(operand, bytes)| {
            memory.get(*operand).is_none_or(|memory| memory.address.is_multiple_of(*bytes))
        })
    }

    /// Fails where operands that are read again lie where others are written.
    fn check_apart(&self, memory: &[DeviceMemory<'_>]) -> Result<()> {
        let apart = |a: &DeviceMemory<'_>, b: &DeviceMemory<'_>| {
            let end = |memory: &DeviceMemory<'_>| memory.address + memory.elements * memory.element.bytes();
            a.address >= end(b) || b.address >= end(a)
        };
        let meet = |index: usize| {
            let written = self.written[index];
            written && (0..memory.len()).any(|other| other != index && !apart(&memory[index], &memory[other]))
        };
        if self.reads_again && (0..memory.len()).any(meet) {
            return Err(Diagnostic::bug("a kernel that reads its operands twice writes over one"));
        }
        Ok(())
    }
}
