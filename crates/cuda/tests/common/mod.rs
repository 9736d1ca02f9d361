//! The processor in place of a device, memory that faults behind its end, and the library that runs kernels over it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "memory between pages that fault, and libraries")]
#![allow(clippy::print_stderr, reason = "a test says what it has not tried")]
#![allow(dead_code, reason = "each test uses some of it")]

use std::{
    cell::Cell,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use ir::testing::Random;
use loops::{
    Interpreter, Kernel, Memory,
    testing::{Owned, memory_for},
};
use unisono_cuda::{Compiler, Device, DeviceMemory, Module, Stream, Width};

/// The library in place of CUDA's own, and its functions for tests. None where there is no compiler.
pub fn processor() -> Option<(PathBuf, libloading::Library)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/processor");
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in &files {
        std::fs::read(file).unwrap().hash(&mut hasher);
    }
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("processor-{:x}.so", hasher.finish()));
    if !library.exists() {
        let made = library.with_extension(std::process::id().to_string());
        let sources = files.iter().filter(|file| file.extension().is_some_and(|ext| ext == "cpp"));
        let status = Command::new("c++")
            .args(["-std=c++20", "-O1", "-fPIC", "-shared"])
            .arg(format!("-DUNISONO_PROCESSOR=\"{}\"", folder.display()))
            .args(sources)
            .arg("-o")
            .arg(&made)
            .status();
        let Ok(status) = status else {
            eprintln!("there is no C++ compiler here: kernels of CUDA are not run");
            return None;
        };
        assert!(status.success(), "the processor is not built");
        std::fs::rename(made, &library).unwrap();
    }
    // SAFETY: it is ours.
    let loaded = unsafe { libloading::Library::new(&library).unwrap() };
    Some((library, loaded))
}

/// The processor as a device.
pub fn device(library: &Path) -> Arc<Device> {
    // SAFETY: it has the functions of both libraries.
    unsafe {
        let compiler = Compiler::load(library, &[]).unwrap();
        Arc::new(Device::open(library, 0, "sm_90", compiler).unwrap())
    }
}

pub fn stream() -> Stream {
    // SAFETY: the processor has no streams, and kernels are over when they have been launched.
    unsafe { Stream::of(0) }
}

/// Who of a block's threads goes first: 0 by number, another one in some other order.
pub fn set_order(library: &libloading::Library, order: u32) {
    // SAFETY: the function has this type.
    unsafe { library.get::<extern "C" fn(u32)>(b"processor_set_order\0").unwrap()(order) }
}

/// Memory whose end lies against a page that faults.
pub struct Guarded {
    pages: *mut libc::c_void,
    length: usize,
    start: *mut u8,
}

impl Guarded {
    pub fn new(bytes: usize) -> Self {
        const PAGE: usize = 4096;
        let room = bytes.next_multiple_of(PAGE);
        let length = room + PAGE;
        // SAFETY: new pages, of which all but the last one are made accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            if room > 0 {
                assert_eq!(libc::mprotect(pages, room, libc::PROT_READ | libc::PROT_WRITE), 0);
            }
            Self { pages, length, start: pages.cast::<u8>().add(room - bytes) }
        }
    }

    /// A copy of an operand's elements.
    pub fn of(owned: &Owned) -> Self {
        match owned {
            Owned::F32(cells) => Self::copy(cells),
            Owned::Bf16(cells) | Owned::F16(cells) => Self::copy(cells),
            Owned::Bool(cells) => Self::copy(cells),
            Owned::I64(cells) => Self::copy(cells),
        }
    }

    fn copy<T: Copy>(cells: &[Cell<T>]) -> Self {
        let guarded = Self::new(size_of_val(cells));
        for (index, cell) in cells.iter().enumerate() {
            // SAFETY: there is room for all elements.
            unsafe { guarded.start.cast::<T>().add(index).write_unaligned(cell.get()) };
        }
        guarded
    }

    /// As a kernel takes it, for an operand like `owned`.
    pub fn memory(&self, owned: &Owned) -> DeviceMemory<'_> {
        let memory = owned.memory();
        // SAFETY: so many elements are there.
        unsafe { DeviceMemory::new(memory.element(), memory.len(), self.start as usize) }
    }

    /// Copies its elements back.
    pub fn read(&self, owned: &Owned) {
        match owned {
            Owned::F32(cells) => self.read_cells(cells),
            Owned::Bf16(cells) | Owned::F16(cells) => self.read_cells(cells),
            Owned::Bool(cells) => self.read_cells(cells),
            Owned::I64(cells) => self.read_cells(cells),
        }
    }

    fn read_cells<T: Copy>(&self, cells: &[Cell<T>]) {
        for (index, cell) in cells.iter().enumerate() {
            // SAFETY: so many elements are there.
            cell.set(unsafe { self.start.cast::<T>().add(index).read_unaligned() });
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the pages are this one's own.
        unsafe { libc::munmap(self.pages, self.length) };
    }
}

/// Kernels, with the seeds of their memory, compiled in both forms.
pub struct Batch {
    pub kernels: Vec<(u64, Kernel)>,
    pub forms: [Module; 2],
}

impl Batch {
    pub fn of(device: &Arc<Device>, kernels: Vec<(u64, Kernel)>) -> Self {
        let list: Vec<Kernel> = kernels.iter().map(|(_, kernel)| kernel.clone()).collect();
        let forms =
            [Width::Wide, Width::Narrow].map(|width| Module::with_draws(device, &list, &[], width).unwrap());
        Self { kernels, forms }
    }

    /// Runs a kernel in both forms and compares; whether its wide form could run.
    pub fn compare(&self, index: usize) -> bool {
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
pub fn kept(module: &Module, index: usize) -> (Guarded, Owned) {
    let room = Owned::F32(vec![std::cell::Cell::new(f32::NAN); module.kept(index)]);
    (Guarded::of(&room), room)
}

/// The backward of a LayerNorm over rows of so many numbers: the gradients of what it normalises, of weights and of biases.
pub fn layer_norm_backward(rows: usize, length: usize, element: &str) -> String {
    let count = length as f32;
    format!(
        "kernel [{rows}, {length}]\nread a0: {element} {{{length}, 1}}\nread a1: {element} {{{length}, 1}}\nread a2: f32 {{1, 0}}\n\
         read a3: f32 {{1, 0}}\nread a4: {element} {{0, 1}}\nwrite a5: {element} {{{length}, 1}}\nadd a6: {element} {{0, 1}}\n\
         add a7: {element} {{0, 1}}\n%0 = load a0\n%1 = load a1\n%2 = load a2\n%3 = load a3\n%4 = load a4\n%5 = sub %1 %2\n\
         %6 = mul %5 %3\n%7 = mul %0 %4\n%8 = const {count}\n%9 = row_sum %7\n%10 = div %9 %8\n%11 = mul %7 %6\n%12 = row_sum %11\n\
         %13 = div %12 %8\n%14 = sub %7 %10\n%15 = mul %6 %13\n%16 = sub %14 %15\n%17 = mul %16 %3\n%18 = mul %0 %6\n\
         store a5 %17\nstore a6 %18\nstore a7 %0\n"
    )
}
