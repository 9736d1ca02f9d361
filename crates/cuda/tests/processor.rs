//! Random kernels as CUDA C, run on the processor block by block and thread by thread: they give the interpreter's bits, and touch nothing
//! behind their operands.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Batch, device, processor, set_order};
use ir::testing::Random;
use loops::testing::random_kernel;
use unisono_cuda::has_form;

/// How many random kernels are compared; `UNISONO_FUZZ` in the environment of the test gives another number.
fn rounds() -> u64 {
    std::env::var("UNISONO_FUZZ").ok().and_then(|count| count.parse().ok()).unwrap_or(120)
}

#[test]
fn random_kernels_give_the_bits_of_the_interpreter() {
    let Some((library, functions)) = processor() else { return };
    let device = device(&library);
    let mut wide = 0;
    let seeds: Vec<u64> = (0..rounds()).collect();
    for (number, seeds) in seeds.chunks(60).enumerate() {
        let kernels = seeds.iter().map(|seed| (*seed, random_kernel(&mut Random::new(*seed))));
        let batch = Batch::of(&device, kernels.filter(|(_, kernel)| has_form(kernel)).collect());
        set_order(&functions, number as u32);
        assert!(batch.kernels.len() * 20 > seeds.len() * 19, "{} of {}", batch.kernels.len(), seeds.len());
        wide += (0..batch.kernels.len()).filter(|index| batch.compare(*index)).count() as u64;
    }
    assert!(wide * 2 > rounds(), "only {wide} kernels ran in their wide form");
}
