//! Chosen kernels as CUDA C on the processor: sizes around what a thread takes at once, forms that random kernels seldom have, and memory
//! that does not fit.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::{cell::Cell, fmt::Write};

use common::{Batch, Guarded, device, kept, layer_norm_backward, processor, set_order, stream};
use loops::{Kernel, testing::Owned};
use unisono_cuda::{Module, Source, Width};

/// Rows that are divided by what is reduced from them, with their sums over rows.
fn rows(count: usize, length: usize, apart: usize) -> String {
    let own = length.max(1);
    format!(
        "kernel [{count}, {length}]\nread a0: f32 {{{apart}, 1}}\nwrite a1: bf16 {{{own}, 1}}\nwrite a2: f32 {{1, 0}}\n\
         add a3: f32 {{0, 1}}\nadd a4: f16 {{0, 0}}\n%0 = load a0\n%1 = row_sum %0\n%2 = div %0 %1\n%3 = row_max %2\n\
         store a1 %2\nstore a2 %3\nstore a3 %2\nstore a4 %3\n"
    )
}

/// Points whose rows are so far apart.
fn points(count: usize, length: usize, apart: usize) -> String {
    format!(
        "kernel [{count}, {length}]\nread a0: f16 {{{apart}, 1}}\nread a1: bool {{0, 1}}\nwrite a2: f32 {{{apart}, 1}}\n\
         %0 = load a0\n%1 = load a1\n%2 = fma %0 %1 %0\n%3 = exp %2\nstore a2 %3\n"
    )
}

/// Columns that lie apart, of which some elements are no sum.
const GAPS: &str = "\
kernel [70, 12]\nread a0: f32 {12, 1}\nadd a1: bf16 {0, 3}\n%0 = load a0\n%1 = neg %0\nstore a1 %0\nstore a1 +1 %1\n";

#[test]
fn sizes_around_what_a_thread_takes_at_once_give_the_bits_of_the_interpreter() {
    let Some((library, functions)) = processor() else { return };
    let mut texts: Vec<String> = (1..=9).map(|length| points(3, length, 12)).collect();
    texts.extend([rows(0, 8, 8), rows(5, 0, 1), rows(1, 1, 1), rows(65, 7, 8), rows(130, 33, 36)]);
    // Many long rows have a warp each, a few a block.
    texts.extend([rows(2048, 260, 260), rows(3, 1030, 1032), GAPS.to_owned()]);
    let kernels: Vec<(u64, Kernel)> = (0..).zip(texts.iter().map(|text| text.parse().unwrap())).collect();
    let batch = Batch::of(&device(&library), kernels);
    for order in [0, 5] {
        set_order(&functions, order);
        for index in 0..batch.kernels.len() {
            batch.compare(index);
        }
    }
}

/// Columns that are added up beside what is written, without anything that is reduced.
fn columns(rows: usize, length: usize) -> String {
    format!(
        "kernel [{rows}, {length}]\nread a0: bf16 {{{length}, 1}}\nwrite a1: f32 {{{length}, 1}}\nadd a2: f32 {{0, 1}}\n\
         %0 = load a0\n%1 = mul %0 %0\nstore a1 %1\nstore a2 %1\n"
    )
}

/// The smallest and the largest one of each row, in two loops, with sums that lie apart and one for all rows.
fn extremes(rows: usize, length: usize) -> String {
    format!(
        "kernel [{rows}, {length}]\nread a0: f32 {{{length}, 1}}\nwrite a1: f32 {{1, 0}}\nadd a2: f32 {{0, 2}}\nadd a3: f32 {{0, 0}}\n\
         %0 = load a0\n%1 = row_max %0\n%2 = sub %0 %1\n%3 = row_min %2\n%4 = row_sum %2\n%5 = mul %2 %3\n%6 = row_max %5\n\
         store a1 %6\nstore a2 %5\nstore a2 +1 %0\nstore a3 %4\n"
    )
}

#[test]
fn rows_and_their_sums_in_one_pass_give_the_bits_of_the_interpreter() {
    let Some((library, functions)) = processor() else { return };
    let sizes = [(9, 5), (70, 64), (33, 255), (20, 260), (17, 1030), (9, 1024), (9, 5120)];
    let mut texts: Vec<String> =
        sizes.map(|(rows, length)| layer_norm_backward(rows, length, "f32")).to_vec();
    texts.extend([layer_norm_backward(65, 96, "bf16"), layer_norm_backward(3, 2048, "f16")]);
    texts.extend([extremes(20, 40), extremes(9, 700), columns(100, 7), columns(2100, 1000)]);
    // More groups of rows than the last function adds up.
    texts.push(columns(33_000, 3));
    let kernels: Vec<(u64, Kernel)> = (0..).zip(texts.iter().map(|text| text.parse().unwrap())).collect();
    let batch = Batch::of(&device(&library), kernels);
    set_order(&functions, 7);
    for index in 0..batch.kernels.len() {
        batch.compare(index);
    }
}

/// Rows that are divided by what is reduced from them, without sums over rows; `apart` is the distance of rows.
fn softmax(count: usize, length: usize, apart: usize, element: &str) -> String {
    format!(
        "kernel [{count}, {length}]\nread a0: {element} {{{apart}, 1}}\nread a1: f32 {{1, 0}}\nwrite a2: {element} {{{apart}, 1}}\n\
         write a3: f32 {{1, 0}}\n%0 = load a0\n%1 = row_max %0\n%2 = sub %0 %1\n%3 = exp %2\n%4 = row_sum %3\n%5 = div %3 %4\n\
         %6 = column\n%7 = mul %5 %6\n%8 = row_min %7\n%9 = row_sum %7\n%10 = load a1\n%11 = mul %7 %10\n%12 = add %8 %9\n\
         store a2 %11\nstore a3 %12\n"
    )
}

#[test]
fn long_rows_whose_spans_have_threads_each_give_the_bits_of_the_interpreter() {
    let Some((library, functions)) = processor() else { return };
    let of = |(length, element): (usize, &'static str)| {
        [softmax(3, length, length, element), softmax(2, length, length + 1, element)]
    };
    let sizes =
        [(1025, "f32"), (1537, "bf16"), (2048, "f32"), (4096, "bf16"), (5000, "f32"), (17_003, "f16")];
    let texts: Vec<String> = sizes.into_iter().flat_map(of).collect();
    let kernels: Vec<(u64, Kernel)> = (0..).zip(texts.iter().map(|text| text.parse().unwrap())).collect();
    let batch = Batch::of(&device(&library), kernels);
    for order in [0, 3] {
        set_order(&functions, order);
        for index in 0..batch.kernels.len() {
            batch.compare(index);
        }
    }
}

#[test]
fn rows_that_no_threads_can_hold_are_computed_again_for_their_sums() {
    let Some((library, _)) = processor() else { return };
    let text = layer_norm_backward(9, 9000, "f32");
    let batch = Batch::of(&device(&library), vec![(1, text.parse().unwrap())]);
    batch.compare(0);
    let long = Source::of(&[text.parse().unwrap()], Width::Wide).unwrap();
    assert!(long.kernels[0].as_ref().is_ok_and(|kernel| kernel.reads_again));
}

fn numbers(count: usize) -> Owned {
    Owned::F32((0..count).map(|number| Cell::new(number as f32)).collect())
}

fn squares(memory: &Owned) -> String {
    let Owned::F32(cells) = memory else { return String::new() };
    cells.iter().fold(String::new(), |mut text, cell| {
        let _ = write!(text, "{} ", cell.get());
        text
    })
}

const SQUARE: &str =
    "kernel [6]\nread a0: f32 {1}\nwrite a1: f32 {1}\n%0 = load a0\n%1 = mul %0 %0\nstore a1 %1\n";

#[test]
fn operands_that_begin_elsewhere_get_a_kernel_for_single_elements_and_one_may_be_written_over() {
    let Some((library, _)) = processor() else { return };
    let module = Module::new(&device(&library), &[SQUARE.parse().unwrap()]).unwrap();
    // Six numbers that end where a page does begin at no multiple of 16 bytes.
    let from = numbers(6);
    let memory = Guarded::of(&from);
    let operands = [memory.memory(&from), memory.memory(&from)];
    assert!(!module.fits(0, &operands));
    module.launch(0, &operands, None, stream()).unwrap();
    memory.read(&from);
    assert_eq!(squares(&from), "0 1 4 9 16 25 ");
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    let Some((library, _)) = processor() else { return };
    let sums = rows(8, 8, 8).parse().unwrap();
    let module = Module::new(&device(&library), &[SQUARE.parse().unwrap(), sums]).unwrap();
    let (long, short) = (numbers(8), numbers(5));
    let (first, second) = (Guarded::of(&long), Guarded::of(&short));
    let refused = |operands: &[_]| module.launch(0, operands, None, stream()).err().unwrap().message;
    assert!(refused(&[first.memory(&long), second.memory(&short)]).contains("a1 has not the 6 elements"));
    let all = numbers(64);
    let whole = Guarded::of(&all);
    let of = |element, count| match element {
        "bf16" => Owned::Bf16(vec![Cell::new(0); count]),
        "f16" => Owned::F16(vec![Cell::new(0); count]),
        _ => numbers(count),
    };
    let others = [of("bf16", 64), of("f32", 8), of("f32", 8), of("f16", 1)];
    let there: Vec<Guarded> = others.iter().map(Guarded::of).collect();
    let mut operands: Vec<_> = there.iter().zip(&others).map(|(there, owned)| there.memory(owned)).collect();
    operands.insert(0, whole.memory(&all));
    assert!(module.launch(1, &operands, None, stream()).err().unwrap().message.contains("keep numbers in"));
    let (room, owned) = kept(&module, 1);
    module.launch(1, &operands, Some(room.memory(&owned)), stream()).unwrap();
}
