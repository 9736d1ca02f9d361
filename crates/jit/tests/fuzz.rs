//! Random kernels: machine code gives the interpreter's bits on every instruction set, and touches nothing outside of its operands.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "memory between pages that fault")]
#![allow(clippy::cast_ptr_alignment, reason = "elements end where a page does")]

use std::{cell::Cell, ops::Range};

use ir::testing::Random;
use loops::{
    Element, Interpreter, Kernel, Memory,
    testing::{Owned, memory_for, random_kernel},
};
use unisono_jit::{Module, Tier};

/// Memory whose end lies against a page that faults.
struct Guarded {
    pages: *mut libc::c_void,
    length: usize,
    start: *mut u8,
}

impl Guarded {
    fn new(bytes: usize) -> Self {
        const PAGE: usize = 4096;
        let room = bytes.next_multiple_of(PAGE);
        let length = room + 2 * PAGE;
        // SAFETY: new pages, of which only those in the middle are made accessible.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let first = pages.cast::<u8>().add(PAGE);
            if room > 0 {
                assert_eq!(libc::mprotect(first.cast(), room, libc::PROT_READ | libc::PROT_WRITE), 0);
            }
            Self { pages, length, start: first.add(room - bytes) }
        }
    }

    /// A copy of an operand's elements.
    fn of(owned: &Owned) -> Self {
        match owned {
            Owned::F32(cells) => Self::copy(cells),
            Owned::Bf16(cells) | Owned::F16(cells) => Self::copy(cells),
            Owned::Bool(cells) => Self::copy(cells),
            Owned::I64(cells) => Self::copy(cells),
        }
    }

    fn copy<T: Copy>(cells: &[Cell<T>]) -> Self {
        let guarded = Self::new(size_of_val(cells));
        // SAFETY: there is room for all elements, aligned because the pages' end is.
        let to = unsafe { std::slice::from_raw_parts(guarded.start.cast::<Cell<T>>(), cells.len()) };
        to.iter().zip(cells).for_each(|(to, from)| to.set(from.get()));
        guarded
    }

    fn memory(&self, element: Element, count: usize) -> Memory<'_> {
        // SAFETY: as above; the slice lives as long as the pages.
        unsafe {
            match element {
                Element::F32 => Memory::F32(std::slice::from_raw_parts(self.start.cast(), count)),
                Element::Bf16 => Memory::Bf16(std::slice::from_raw_parts(self.start.cast(), count)),
                Element::F16 => Memory::F16(std::slice::from_raw_parts(self.start.cast(), count)),
                Element::Bool => Memory::Bool(std::slice::from_raw_parts(self.start.cast(), count)),
                Element::I64 => Memory::I64(std::slice::from_raw_parts(self.start.cast(), count)),
            }
        }
    }

    fn bits(&self, element: Element, count: usize) -> Vec<u32> {
        match self.memory(element, count) {
            Memory::F32(cells) => Owned::F32(cells.to_vec()).bits(),
            Memory::Bf16(cells) => Owned::Bf16(cells.to_vec()).bits(),
            Memory::F16(cells) => Owned::F16(cells.to_vec()).bits(),
            Memory::Bool(cells) => Owned::Bool(cells.to_vec()).bits(),
            Memory::I64(cells) => Owned::I64(cells.to_vec()).bits(),
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the pages are this one's own.
        unsafe { libc::munmap(self.pages, self.length) };
    }
}

/// Runs a kernel on every tier and compares; says how many tiers had machine code.
fn compare(kernel: &Kernel, random: &mut Random, what: &str) -> usize {
    let memory = memory_for(kernel, random);
    let guarded: Vec<Vec<Guarded>> =
        Tier::all().iter().map(|_| memory.iter().map(Guarded::of).collect()).collect();
    let views: Vec<Memory<'_>> = memory.iter().map(Owned::memory).collect();
    Interpreter::new(kernel).unwrap().run(&views).unwrap();
    let mut compiled = 0;
    for (tier, guarded) in Tier::all().into_iter().zip(&guarded) {
        let module = Module::with_tier(std::slice::from_ref(kernel), tier).unwrap();
        let sizes = || kernel.operands.iter().zip(&memory);
        let views: Vec<Memory<'_>> = sizes()
            .zip(guarded)
            .map(|((operand, owned), guarded)| guarded.memory(operand.element, owned.memory().len()))
            .collect();
        module.run(0, &views).unwrap();
        compiled += usize::from(module.tier(0) != Tier::Interpreter);
        for (index, ((operand, owned), guarded)) in sizes().zip(guarded).enumerate() {
            let found = guarded.bits(operand.element, owned.memory().len());
            assert_eq!(found, owned.bits(), "{what}: a{index} by {:?}\n{kernel}", module.tier(0));
        }
    }
    compiled
}

/// The random kernels that are compared; `UNISONO_FUZZ` in the environment of the test gives another number, or a part: `1000..2000`.
fn rounds() -> Range<u64> {
    let asked = std::env::var("UNISONO_FUZZ").unwrap_or_default();
    match asked.split_once("..") {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => 0..asked.parse().unwrap_or(2000),
    }
}

#[test]
fn machine_code_gives_the_bits_of_the_interpreter() {
    let mut compiled = 0;
    for seed in rounds() {
        let mut random = Random::new(seed);
        let kernel = random_kernel(&mut random);
        compiled += compare(&kernel, &mut random, &format!("seed {seed}"));
    }
    assert!(Tier::best() == Tier::Interpreter || compiled > 100, "only {compiled} kernels were compiled");
}

#[test]
fn quotients_by_constants_are_the_nearest_numbers() {
    use loops::{Access, Binary, Builder};
    let mut random = Random::new(7);
    let bits = |random: &mut Random| (random.below(1 << 16) << 16 | random.below(1 << 16)) as u32;
    // Mantissas of few ones and few zeros, all exponents, and numbers that no exponent says.
    let odd = [0, 1, 2, 0x7f_ffff, 0x7f_fffe, 0x40_0000, 0x3f_ffff, 0x2a_aaaa, 0x55_5555];
    let mut numbers: Vec<u32> = (0..512_u32).flat_map(|power| odd.map(|rest| power << 23 | rest)).collect();
    numbers.extend((0..20_000).map(|_| bits(&mut random)));
    let within = |random: &mut Random| (107 + random.below(41) as u32) << 23 | bits(random) & 0x807f_ffff;
    let mut by: Vec<u32> = (0..120).map(|_| within(&mut random)).collect();
    by.extend(odd.map(|rest| 127 << 23 | rest));
    by.extend([0, f32::INFINITY.to_bits(), f32::NAN.to_bits(), 1, 90 << 23 | 1, 160 << 23 | 1]);
    for by in by {
        let mut builder = Builder::default();
        let [from, to] = [Access::Read, Access::Write].map(|how| builder.operand(how, Element::F32, vec![1]));
        let (a, b) = (builder.load(from), builder.constant(f32::from_bits(by)));
        let quotient = builder.binary(Binary::Div, a, b);
        builder.store(to, quotient);
        let kernel = builder.finish(vec![numbers.len() as i64]);
        for tier in Tier::all() {
            let module = Module::with_tier(std::slice::from_ref(&kernel), tier).unwrap();
            let given: Vec<Cell<f32>> = numbers.iter().map(|bits| Cell::new(f32::from_bits(*bits))).collect();
            let made = vec![Cell::new(0.0_f32); numbers.len()];
            module.run(0, &[Memory::F32(&given), Memory::F32(&made)]).unwrap();
            for (a, made) in given.iter().zip(&made) {
                let nearest = a.get() / f32::from_bits(by);
                let same =
                    made.get().to_bits() == nearest.to_bits() || made.get().is_nan() && nearest.is_nan();
                assert!(
                    same,
                    "{:?} / {:?} is {:?}, not {nearest:?} ({tier:?})",
                    a.get(),
                    f32::from_bits(by),
                    made.get()
                );
            }
        }
    }
}

#[test]
fn a_kernel_with_more_values_than_registers_keeps_them_on_the_stack() {
    use loops::{Access, Binary, Builder, Unary};
    let mut builder = Builder::default();
    let read = builder.operand(Access::Read, Element::F32, vec![1]);
    let x = builder.load(read);
    let mut values = vec![x];
    for index in 0..48 {
        let number = builder.constant(index as f32 * 0.25 - 3.0);
        let sum = builder.binary(Binary::Add, x, number);
        values.push(builder.unary(Unary::Tanh, sum));
    }
    // Each value is used late and in another order than it was made.
    let mut total = x;
    for index in 0..values.len() {
        let value = values[index * 29 % values.len()];
        total = builder.fma(total, value, values[index * 31 % values.len()]);
    }
    let write = builder.operand(Access::Write, Element::Bf16, vec![1]);
    builder.store(write, total);
    let kernel = builder.finish(vec![77]);
    let compiled = compare(&kernel, &mut Random::new(7), "many values");
    assert_eq!(compiled, Tier::all().len() - 1);
}

#[test]
fn rows_of_all_lengths_have_the_same_sums() {
    let mut compiled = 0;
    let lengths =
        [1, 7, 16, 17, 63, 64, 65, 96, 100, 255, 256, 257, 384, 391, 512, 1000, 1023, 1024, 1025, 3001];
    for length in lengths {
        let kernel = format!(
            "kernel [3, {length}]\nread a0: f32 {{{length}, 1}}\nread a1: bf16 {{0, 1}}\nwrite a2: f32 {{{length}, 1}}\n\
            add a3: f32 {{0, 1}}\nwrite a4: f32 {{1, 0}}\n%0 = load a0\n%1 = load a1\n%2 = row_max %0\n%3 = row_min %1\n\
            %4 = sub %0 %2\n%5 = exp %4\n%6 = row_sum %5\n%7 = mul %5 %1\n%8 = row_sum %7\n%9 = div %7 %6\n\
            %10 = add %9 %3\n%11 = row_max %5\n%12 = add %8 %11\n\
            store a2 %10\nstore a3 %7\nstore a4 %12\n"
        );
        let kernel: Kernel = kernel.parse().unwrap();
        compiled += compare(&kernel, &mut Random::new(length), &format!("{length} points"));
    }
    assert_eq!(compiled, lengths.len() * (Tier::all().len() - 1));
}

#[test]
fn distances_beyond_what_an_instruction_has_are_interpreted() {
    let tier = |stride: u64| {
        let kernel = format!(
            "kernel [2, 8]\nread a0: f32 {{{stride}, 1}}\nwrite a1: f32 {{8, 1}}\n%0 = load a0\n%1 = mul %0 %0\nstore a1 %1\n"
        );
        Module::with_tier(&[kernel.parse().unwrap()], Tier::best()).unwrap().tier(0)
    };
    assert_eq!(
        (tier(1 << 20), tier(1 << 31), tier(1 << 40)),
        (Tier::best(), Tier::Interpreter, Tier::Interpreter)
    );
}

#[test]
fn what_is_written_over_what_is_read_is_right() {
    let kernel: Kernel = "\
        kernel [100]\nread a0: f32 {1}\nread a1: f32 {1}\nwrite a2: f32 {1}\nwrite a3: f32 {1}\n\
        %0 = load a0\n%1 = load a1\n%2 = mul %0 %1\n%3 = add %0 %1\nstore a2 %2\nstore a3 %3\n"
        .parse()
        .unwrap();
    for tier in Tier::all() {
        let numbers = |first: f32| (0..100).map(|index| Cell::new(first + index as f32)).collect::<Vec<_>>();
        let (a, b) = (numbers(1.0), numbers(-50.0));
        let memory = [Memory::F32(&a), Memory::F32(&b), Memory::F32(&b), Memory::F32(&a)];
        Module::with_tier(std::slice::from_ref(&kernel), tier).unwrap().run(0, &memory).unwrap();
        for index in 0..100 {
            let (x, y) = (1.0 + index as f32, -50.0 + index as f32);
            assert_eq!((b[index].get(), a[index].get()), (x * y, x + y), "{tier:?} at {index}");
        }
    }
}
