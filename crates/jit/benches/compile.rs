//! What it takes to make kernels of their text ready to run: CPU time of each, the least of many rounds.
//!
//! `cargo bench -p unisono-jit --bench compile -- FILE [ROUNDS]`, where FILE has kernels in their text form, a blank line between two, such as
//! `llama_step.txt` beside this.
#![allow(unsafe_code, reason = "the clock of this thread's CPU time")]
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and ends where it cannot run"
)]

use loops::{Interpreter, Kernel};
use unisono_jit::{Module, Tier};

/// CPU time of this thread, in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the time where it is told to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The least nanoseconds of a call.
fn least<T>(rounds: usize, mut call: impl FnMut() -> T) -> u64 {
    let timed = |_| {
        let start = now();
        std::hint::black_box(call());
        now() - start
    };
    (0..rounds).map(timed).min().unwrap_or(0)
}

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let file =
        args.next().unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/benches/llama_step.txt").into());
    let rounds = args.next().map_or(200, |count| count.parse().expect("a number of rounds"));
    let text = std::fs::read_to_string(&file).expect("a file of kernels");
    let kernels: Vec<Kernel> = text.split("\n\n").map(|one| one.parse().expect("a kernel")).collect();
    let each = |nanos: u64| nanos as f64 / 1e3 / kernels.len() as f64;
    println!("{} kernels of {file}, least of {rounds} rounds, us of CPU each", kernels.len());
    let checked = least(rounds, || kernels.iter().map(Interpreter::new).collect::<Vec<_>>());
    println!("checked and ready to be interpreted: {:.2}", each(checked));
    for tier in Tier::all() {
        let made = least(rounds, || Module::with_tier(&kernels, tier));
        println!("{tier:?}: {:.2}", each(made));
    }
}
