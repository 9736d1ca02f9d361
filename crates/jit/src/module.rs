//! Kernels that are compiled together.

use base::Result;
use loops::{Interpreter, Kernel, Memory};

use crate::Tier;

/// Kernels, ready to run; their code lies side by side.
pub struct Module {
    // Dropped before the pages that it runs in.
    kernels: Vec<Runnable>,
    #[cfg(target_arch = "x86_64")]
    _pages: Option<crate::pages::Pages>,
    refused: bool,
}

struct Runnable {
    interpreter: Interpreter,
    #[cfg(target_arch = "x86_64")]
    compiled: Option<(Tier, crate::call::Compiled)>,
}

impl Module {
    /// Compiles kernels by the fastest way that this processor has.
    pub fn new(kernels: &[Kernel]) -> Result<Self> {
        Self::with_tier(kernels, Tier::best())
    }

    /// Prepares kernels for a tier; one that this processor does not have is that of the interpreter. Fails where a kernel is not valid; what
    /// cannot be compiled is interpreted.
    pub fn with_tier(kernels: &[Kernel], tier: Tier) -> Result<Self> {
        let tier = if Tier::all().contains(&tier) { tier } else { Tier::Interpreter };
        let interpreters = kernels.iter().map(Interpreter::new).collect::<Result<Vec<_>>>()?;
        Ok(Self::compile(interpreters, tier))
    }

    #[cfg(target_arch = "x86_64")]
    fn compile(interpreters: Vec<Interpreter>, tier: Tier) -> Self {
        use crate::{call::Compiled, emit, isa::Isa, pages::Pages};
        let isa = Isa::of(tier);
        let emitted: Vec<Option<emit::Emitted>> = interpreters
            .iter()
            .map(|interpreter| emit::emit(interpreter.kernel(), interpreter.nest(), isa?))
            .collect();
        let functions: Vec<&[u8]> = emitted.iter().flatten().map(|emitted| &emitted.code[..]).collect();
        let placed = if functions.is_empty() { None } else { Pages::of(&functions) };
        let refused = placed.is_none() && !functions.is_empty();
        let (pages, starts) = placed.map_or((None, Vec::new()), |(pages, starts)| (Some(pages), starts));
        let mut starts = starts.into_iter();
        let kernels = interpreters.into_iter().zip(emitted).map(|(interpreter, emitted)| {
            let compiled = pages.as_ref().zip(emitted).map(|(pages, emitted)| {
                let start = starts.next().expect("a start for each function");
                let code = pages.address(start);
                // SAFETY: the code of this kernel lies there, in pages that the module keeps; the tier is one that the processor has.
                (tier, unsafe { Compiled::new(code, &emitted, &interpreter) })
            });
            Runnable { interpreter, compiled }
        });
        Self { kernels: kernels.collect(), _pages: pages, refused }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn compile(interpreters: Vec<Interpreter>, _tier: Tier) -> Self {
        let kernels = interpreters.into_iter().map(|interpreter| Runnable { interpreter }).collect();
        Self { kernels, refused: false }
    }

    /// Whether the host forbids executable memory, so that all kernels are interpreted.
    pub const fn refused(&self) -> bool {
        self.refused
    }

    /// A kernel.
    pub fn kernel(&self, index: usize) -> &Kernel {
        self.kernels[index].interpreter.kernel()
    }

    /// How a kernel runs.
    pub fn tier(&self, index: usize) -> Tier {
        self.kernels[index].tier()
    }

    /// Runs a kernel over `memory`, which has that of each operand. Fails where memory does not fit.
    pub fn run(&self, index: usize, memory: &[Memory<'_>]) -> Result<()> {
        self.kernels[index].run(memory)
    }
}

#[cfg(target_arch = "x86_64")]
impl Runnable {
    fn tier(&self) -> Tier {
        self.compiled.as_ref().map_or(Tier::Interpreter, |(tier, _)| *tier)
    }

    fn run(&self, memory: &[Memory<'_>]) -> Result<()> {
        match &self.compiled {
            Some((_, compiled)) => compiled.run(&self.interpreter, memory),
            // SAFETY: the processor has what is asked for.
            None if crate::tier::has_avx2() => unsafe { self.interpreter.run_avx2(memory) },
            None => self.interpreter.run(memory),
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Runnable {
    fn tier(&self) -> Tier {
        Tier::Interpreter
    }

    fn run(&self, memory: &[Memory<'_>]) -> Result<()> {
        self.interpreter.run(memory)
    }
}
