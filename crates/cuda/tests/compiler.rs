//! Kernels compiled by NVRTC for two architectures, without a device. Where there is no NVRTC beside this repository's Python, nothing is
//! compiled.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test says what it has not tried")]
#![allow(unsafe_code, reason = "a library is loaded")]

mod common;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use common::layer_norm_backward;
use ir::testing::Random;
use loops::{Element, Kernel, testing::random_kernel};
use random::Distribution;
use unisono_cuda::{Compiler, Draw, Source, Width};

/// Files of this beginning in the folders where Python's packages bring NVRTC.
fn files(beginning: &str) -> Vec<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let Ok(output) = Command::new(python).args(["-c", "import sys; print(*sys.path, sep='\\n')"]).output()
    else {
        return Vec::new();
    };
    let paths = String::from_utf8(output.stdout).unwrap();
    let folders =
        paths.lines().flat_map(|path| Path::new(path).join("nvidia").read_dir().into_iter().flatten());
    let files =
        folders.flat_map(|folder| folder.unwrap().path().join("lib").read_dir().into_iter().flatten());
    let files = files.map(|file| file.unwrap().path());
    files.filter(|file| file.file_name().unwrap().to_str().unwrap().starts_with(beginning)).collect()
}

fn compiler() -> Option<Compiler> {
    let Some(library) = files("libnvrtc.so.").pop() else {
        eprintln!("there is no NVRTC here: kernels are not compiled for CUDA");
        return None;
    };
    // SAFETY: these are the files of NVRTC.
    Some(unsafe { Compiler::load(&library, &files("libnvrtc-builtins.so.")).unwrap() })
}

#[test]
fn random_kernels_compile_for_two_architectures_without_spilling() {
    let Some(compiler) = compiler() else { return };
    for (architecture, seeds) in [("sm_90", 0..12), ("sm_80", 12..18)] {
        for width in [Width::Wide, Width::Narrow] {
            let kernels: Vec<Kernel> =
                seeds.clone().map(|seed| random_kernel(&mut Random::new(seed))).collect();
            let source = Source::of(&kernels, width).unwrap();
            let image = compiler.compile(&source.text, architecture).unwrap();
            let functions: usize = source.kernels.iter().flatten().map(|kernel| kernel.functions.len()).sum();
            assert_eq!(image.resources.len(), functions);
            assert!(image.bytes.starts_with(b"\x7fELF"));
            for one in &image.resources {
                assert!(one.registers > 0 && one.spilled == 0, "{one:?}");
            }
        }
    }
}

#[test]
fn threads_that_hold_sums_of_rows_have_registers_for_them() {
    let Some(compiler) = compiler() else { return };
    let sizes = [64, 256, 768, 1024, 2048, 4096, 5120];
    for (architecture, element) in [("sm_80", "f32"), ("sm_90", "bf16")] {
        let kernels =
            sizes.map(|length| layer_norm_backward(8192, length, element).parse::<Kernel>().unwrap());
        let source = Source::of(&kernels, Width::Wide).unwrap();
        assert!(source.kernels.iter().flatten().all(|kernel| !kernel.reads_again));
        let image = compiler.compile(&source.text, architecture).unwrap();
        for one in &image.resources {
            assert!(one.spilled == 0, "{element}: {one:?}");
        }
    }
}

#[test]
fn what_draws_compiles() {
    let Some(compiler) = compiler() else { return };
    let drawn = [
        Distribution::Bernoulli { p: 0.1 },
        Distribution::Uniform { low: 0.0, high: 1.0, digits: 24 },
        Distribution::Normal { mean: 0.0, std: 1.0 },
        Distribution::Exponential { rate: 1.0 },
        Distribution::Cauchy { median: 0.0, sigma: 1.0 },
        Distribution::Geometric { p: 0.5 },
        Distribution::Integers { low: -5, high: 5 },
    ];
    let draw =
        |drawn| Draw { sizes: vec![8, 64], part: vec![4, 64], operation: 0, drawn, element: Element::F16 };
    let source = Source::with_draws(&[], &drawn.map(draw), Width::Wide).unwrap();
    let image = compiler.compile(&source.text, "sm_90").unwrap();
    assert_eq!(image.resources.len(), drawn.len());
    assert!(image.resources.iter().all(|one| one.spilled == 0), "{:?}", image.resources);
}

#[test]
fn what_the_compiler_refuses_is_said_in_its_own_words() {
    let Some(compiler) = compiler() else { return };
    let error = compiler.compile("__global__ void f() { this is no statement; }", "sm_90").err().unwrap();
    assert_eq!(error.code, base::Code::CUDA_FAILED);
    assert!(error.cause.as_ref().unwrap().contains("kernels.cu"), "{error}");
}
