//! From launch to kernel: short kernels, slow launches, long delays.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use timeline::Class;

use crate::{Frame, Frames, Mode, queue::pairs, stats::micros};

/// A launch and its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Row of the call.
    pub call: usize,
    /// Row of the device event.
    pub kernel: usize,
    /// Duration of the call in nanoseconds.
    pub call_time: i64,
    /// Duration of the device event in nanoseconds.
    pub kernel_time: i64,
    /// From the end of the call to the begin of the device event in nanoseconds, 0 if it began earlier.
    pub delay: i64,
}

/// All launches of a rank.
pub fn launches(frame: &Frame<'_>) -> Vec<Launch> {
    let pairs = match frame.mode {
        Mode::Exact => pairs(frame, |row| frame.class(row) == Class::Runtime),
        Mode::Hta => hta_pairs(frame),
    };
    let launch = |(call, kernel): (usize, usize)| Launch {
        call,
        kernel,
        call_time: frame.duration[call],
        kernel_time: frame.duration[kernel],
        delay: (frame.begin[kernel] - frame.end(call)).max(0),
    };
    pairs.into_iter().map(launch).collect()
}

/// Any two rows whose correlation is that of a call that HTA knows.
fn hta_pairs(frame: &Frame<'_>) -> Vec<(usize, usize)> {
    const CALLS: &[&str] = &[
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "runFunction - job_prep_and_submit_for_execution",
        "cudaMemsetAsync",
        "cudaMemcpyAsync",
    ];
    let known = frame.timeline.names.map(|name| CALLS.contains(&name));
    let correlations = &frame.rank.events.correlation;
    let mut wanted: Vec<i64> =
        frame.rows().filter(|&row| known[frame.name(row).0 as usize]).map(|row| correlations[row]).collect();
    wanted.sort_unstable();
    pairs(frame, |row| wanted.binary_search(&correlations[row]).is_ok())
}

/// Counts and sums of one rank's launches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchStats {
    /// Launches.
    pub n: usize,
    /// Time in calls, in microseconds.
    pub cpu_sum: f64,
    /// Time in device events, in microseconds.
    pub gpu_sum: f64,
    /// Delays, in microseconds.
    pub delay_sum: f64,
    /// Device events shorter than their call, where the call is no outlier.
    pub short_kernels: usize,
    /// Calls longer than the cutoff.
    pub runtime_outliers: usize,
    /// Delays longer than the cutoff.
    pub launch_delay_outliers: usize,
}

/// What is an outlier, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cutoffs {
    /// Of calls.
    pub runtime: i64,
    /// Of delays.
    pub launch_delay: i64,
}

/// Counts and sums of every rank's launches.
pub fn stats(frames: &Frames<'_>, cutoffs: Cutoffs) -> BTreeMap<u32, LaunchStats> {
    frames.ranks.iter().map(|frame| (frame.rank.rank, stats_of(frame, cutoffs))).collect()
}

fn stats_of(frame: &Frame<'_>, cutoffs: Cutoffs) -> LaunchStats {
    let launches = launches(frame);
    let sum = |part: fn(&Launch) -> i64| micros(launches.iter().map(part).sum());
    let count = |test: &dyn Fn(&Launch) -> bool| launches.iter().filter(|launch| test(launch)).count();
    LaunchStats {
        n: launches.len(),
        cpu_sum: sum(|launch| launch.call_time),
        gpu_sum: sum(|launch| launch.kernel_time),
        delay_sum: sum(|launch| launch.delay),
        short_kernels: count(&|l| l.call_time <= cutoffs.runtime && l.kernel_time < l.call_time),
        runtime_outliers: count(&|l| l.call_time > cutoffs.runtime),
        launch_delay_outliers: count(&|l| l.delay > cutoffs.launch_delay),
    }
}
