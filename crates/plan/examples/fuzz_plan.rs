//! Plans as many mutated graphs as the argument says, from the seed in the second one on, and prints how they ended, with the seeds of
//! those that ended in a panic: `cargo run --release --example fuzz_plan -- 1000000`.
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

#[path = "../fuzz/mod.rs"]
mod fuzz;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().unwrap_or(0));
    let (count, seed) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(0));
    let outcomes = fuzz::run(seed, count as usize);
    println!("{outcomes:?}");
    std::process::exit(i32::from(!outcomes.panicked.is_empty()));
}
