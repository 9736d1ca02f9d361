//! Random kernels as CUDA C, run on the processor block by block and thread by thread: they give the interpreter's bits, and touch nothing
//! behind their operands.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::{Guarded, device, processor, set_order, stream};
use ir::testing::Random;
use loops::{
    Interpreter, Kernel, Memory,
    testing::{Owned, memory_for, random_kernel},
};
use unisono_cuda::{Device, Module, Source, Width};

/// How many random kernels are compared; `UNISONO_FUZZ` in the environment of the test gives another number.
fn rounds() -> u64 {
    std::env::var("UNISONO_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(160)
}

/// Kernels, with the seeds of their memory, compiled in both forms.
struct Batch {
    kernels: Vec<(u64, Kernel)>,
    forms: [Module; 2],
}

impl Batch {
    fn of(device: &Arc<Device>, kernels: Vec<(u64, Kernel)>) -> Self {
        let list: Vec<Kernel> = kernels.iter().map(|(_, kernel)| kernel.clone()).collect();
        let forms =
            [Width::Wide, Width::Narrow].map(|width| Module::with_width(device, &list, width).unwrap());
        Self { kernels, forms }
    }

    /// Runs a kernel in both forms and compares; whether its wide form could run.
    fn compare(&self, index: usize) -> bool {
        let (seed, kernel) = &self.kernels[index];
        let memory = memory_for(kernel, &mut Random::new(*seed));
        let guarded: Vec<Vec<Guarded>> = (0..2).map(|_| memory.iter().map(Guarded::of).collect()).collect();
        let views: Vec<Memory<'_>> = memory.iter().map(Owned::memory).collect();
        Interpreter::new(kernel).unwrap().run(&views).unwrap();
        let expected: Vec<Vec<u32>> = memory.iter().map(Owned::bits).collect();
        let mut wide = false;
        for (module, guarded) in self.forms.iter().zip(&guarded) {
            let operands: Vec<_> =
                guarded.iter().zip(&memory).map(|(guarded, owned)| guarded.memory(owned)).collect();
            if !module.fits(index, &operands) {
                continue;
            }
            wide |= std::ptr::eq(module, &raw const self.forms[0]);
            let (kept, room) = kept(module, index);
            module.launch(index, &operands, Some(kept.memory(&room)), stream()).unwrap();
            for (operand, (guarded, owned)) in guarded.iter().zip(&memory).enumerate() {
                guarded.read(owned);
                assert_eq!(owned.bits(), expected[operand], "seed {seed}: a{operand}\n{kernel}");
            }
        }
        wide
    }
}

/// Room for what a kernel keeps, with NaN in it.
fn kept(module: &Module, index: usize) -> (Guarded, Owned) {
    let room = Owned::F32(vec![std::cell::Cell::new(f32::NAN); module.kept(index)]);
    (Guarded::of(&room), room)
}

/// Whether CUDA C has a form of a kernel.
fn has_form(kernel: &Kernel) -> bool {
    Source::of(std::slice::from_ref(kernel), Width::Narrow).unwrap().kernels[0].is_ok()
}

#[test]
fn random_kernels_give_the_bits_of_the_interpreter() {
    let Some((library, functions)) = processor() else { return };
    let device = device(&library);
    let mut wide = 0;
    let seeds: Vec<u64> = (0..rounds()).collect();
    for (number, seeds) in seeds.chunks(80).enumerate() {
        let kernels = seeds.iter().map(|seed| (*seed, random_kernel(&mut Random::new(*seed))));
        let batch = Batch::of(&device, kernels.filter(|(_, kernel)| has_form(kernel)).collect());
        set_order(&functions, number as u32);
        assert!(batch.kernels.len() * 20 > seeds.len() * 19, "{} of {}", batch.kernels.len(), seeds.len());
        wide += (0..batch.kernels.len()).filter(|index| batch.compare(*index)).count() as u64;
    }
    assert!(wide * 2 > rounds(), "only {wide} kernels ran in their wide form");
}
