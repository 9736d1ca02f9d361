//! Reads a trace on one thread and on two, and takes it from the cache; prints the best of some rounds, all in one run.
//!
//!     cargo bench -p unisono-timeline --bench reading -- TRACE.json
#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use unisono_timeline::{Names, Rank, Sparse, cache::Cache, files};

const ROUNDS: usize = 5;

fn read(file: &Path, threads: usize) -> (Names, Rank) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    pool.install(|| files::read_file(threads, file, &|_, _| {})).expect("a trace")
}

/// Processor seconds of the busiest of the threads that read: what a machine that has nothing else to do needs at least.
fn busiest(file: &Path, threads: usize) -> f64 {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    drop(pool.install(|| files::read_file(threads, file, &|_, _| {})).expect("a trace"));
    let spent = |_: rayon::BroadcastContext<'_>| -> Option<f64> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Some(text.split(' ').next()?.parse::<f64>().ok()? / 1e9)
    };
    pool.broadcast(spent).into_iter().flatten().fold(0.0, f64::max)
}

/// The least time of `work` in some rounds.
fn best<T>(mut work: impl FnMut() -> T) -> Duration {
    let time = |_| {
        let start = Instant::now();
        drop(work());
        start.elapsed()
    };
    (0..ROUNDS).map(time).min().expect("some rounds")
}

const fn column<T>(values: &Vec<T>) -> usize {
    values.capacity() * size_of::<T>()
}

fn side<T>(values: &Sparse<T>) -> usize {
    column(&values.rows) + column(&values.values)
}

/// Bytes of the table of events with its side tables, and of the names.
fn bytes(names: &Names, rank: &Rank) -> (usize, usize) {
    let e = &rank.events;
    let wide = [&e.start, &e.duration, &e.stream, &e.correlation, &e.external];
    let s = &rank.sides;
    let events = wide.map(column).iter().sum::<usize>()
        + column(&e.name)
        + column(&e.category)
        + column(&e.track)
        + column(&e.index);
    let sides = side(&s.device) + side(&s.inputs) + side(&s.sequence) + side(&s.python) + side(&s.collective);
    let others = side(&s.counters) + side(&s.node) + column(&rank.memory) + column(&rank.flows);
    // a text, its box in the table, its hash, and its place in the index
    let texts = names.iter().map(|text| text.len() + 16 + 8 + 9).sum();
    (events + sides + others, texts)
}

fn main() {
    let Some(file) = std::env::args().skip(1).find(|argument| !argument.starts_with("--")).map(PathBuf::from)
    else {
        println!("usage: cargo bench -p unisono-timeline --bench reading -- TRACE.json");
        return;
    };
    let (names, rank) = read(&file, 1);
    let megabytes = rank.meta.bytes as f64 / 1e6;
    let (table, texts) = bytes(&names, &rank);
    let count = rank.events.len();
    println!("{megabytes:.1} MB of JSON, {count} events, {} names", names.len());
    println!(
        "bytes per event: {:.1} in tables, {:.1} with names",
        table as f64 / count as f64,
        (table + texts) as f64 / count as f64
    );
    let folder = std::env::temp_dir().join(format!("unisono-reading-{}", std::process::id()));
    let cache = Cache::of(&folder, &file).expect("a file that is worth keeping");
    cache.put(&names, &rank);
    // in turns, so that what else the machine does falls on both
    let rounds = (0..ROUNDS)
        .map(|_| (best(|| read(&file, 1)), best(|| read(&file, 2)), best(|| cache.get().0.expect("kept"))));
    let (one, two, again) =
        rounds.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1), a.2.min(b.2))).expect("some rounds");
    let keeping = best(|| cache.put(&names, &rank));
    drop(std::fs::remove_dir_all(folder));
    let row = |what: &str, time: Duration| {
        let seconds = time.as_secs_f64();
        println!(
            "{what:<24} {seconds:>8.4} s {:>8.0} MB/s  {:.3} of one thread",
            megabytes / seconds,
            seconds / one.as_secs_f64()
        );
    };
    let least = |threads| (0..3 * ROUNDS).map(|_| busiest(&file, threads)).fold(f64::MAX, f64::min);
    let (alone, shared) = (least(1), least(2));
    println!(
        "processor time of the busiest thread: {alone:.4} s of one, {shared:.4} s of two: {:.2} times",
        alone / shared
    );
    row("parsed, one thread", one);
    row("parsed, two threads", two);
    row("from the cache", again);
    row("kept (written)", keeping);
}
