//! Why a stream idles between two kernels: the host was late, the next kernel was just about to start, or something else.

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use serde::Serialize;
use timeline::Category;

use crate::{
    Frame, Frames, Link, Mode,
    stats::{Describe, micros, round},
};

/// Why a stream idles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The kernel was launched only after the one before had ended.
    HostWait,
    /// The kernel was waiting, and started within the usual delay.
    KernelWait,
    /// The kernel was waiting for longer: for another stream, for example.
    Other,
}

/// Idle time of one stream for one cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleTime {
    /// The rank.
    pub rank: u32,
    /// The stream.
    pub stream: i64,
    /// Why.
    pub idle_category: Cause,
    /// Microseconds.
    pub idle_time: f64,
    /// Share of the stream's idle time, 0 to 1.
    pub idle_time_ratio: f64,
}

/// The gaps of one stream for one cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleGaps {
    /// Why.
    pub idle_category: Cause,
    /// The rank.
    pub rank: u32,
    /// The stream.
    pub stream: i64,
    /// In microseconds.
    #[serde(flatten)]
    pub gaps: Describe,
}

/// Gaps by cause, in the order in which causes are tabled.
type Gaps = [Option<Vec<i64>>; 3];

/// Idle time by rank, stream and cause. A gap below `usual_delay` nanoseconds is the device's own.
pub fn idle(frames: &Frames<'_>, usual_delay: i64) -> (Vec<IdleTime>, Vec<IdleGaps>) {
    let (mut times, mut table) = (Vec::new(), Vec::new());
    for frame in &frames.ranks {
        for (stream, gaps) in gaps_of(frame, usual_delay) {
            let total: i64 = gaps.iter().flatten().flatten().sum();
            for (cause, gaps) in [Cause::HostWait, Cause::KernelWait, Cause::Other].into_iter().zip(gaps) {
                let Some(gaps) = gaps else { continue };
                let (rank, sum) = (frame.rank.rank, gaps.iter().sum::<i64>());
                times.push(IdleTime {
                    rank,
                    stream,
                    idle_category: cause,
                    idle_time: micros(sum),
                    idle_time_ratio: round(sum as f64 / total as f64, 2),
                });
                let mut gaps: Vec<f64> = gaps.into_iter().map(micros).collect();
                let gaps = Describe::of(&mut gaps).rounded(2);
                table.push(IdleGaps { idle_category: cause, rank, stream, gaps });
            }
        }
    }
    (times, table)
}

/// The gaps of each stream, in the order in which streams occur.
fn gaps_of(frame: &Frame<'_>, usual_delay: i64) -> IndexMap<i64, Gaps, FxBuildHasher> {
    let mut streams: IndexMap<i64, Vec<usize>, FxBuildHasher> = IndexMap::default();
    for row in frame.rows().filter(|&row| is_work(frame, row)) {
        streams.entry(frame.stream(row)).or_default().push(row);
    }
    let gaps = |(stream, mut rows): (i64, Vec<usize>)| {
        rows.sort_by_key(|&row| frame.begin[row]);
        (stream, gaps_between(frame, &rows, usual_delay))
    };
    streams.into_iter().map(gaps).collect()
}

fn is_work(frame: &Frame<'_>, row: usize) -> bool {
    match frame.mode {
        Mode::Exact => frame.on_device(row),
        Mode::Hta => {
            frame.on_device(row)
                && matches!(
                    frame.rank.events.category[row],
                    Category::Kernel
                        | Category::OldKernel
                        | Category::GpuMemset
                        | Category::OldMemset
                        | Category::GpuMemcpy
                        | Category::OldMemcpy
                        | Category::MtiaCcp
                )
        }
    }
}

fn gaps_between(frame: &Frame<'_>, rows: &[usize], usual_delay: i64) -> Gaps {
    // the first event of a stream counts as other, without a gap
    let mut gaps: Gaps = [None, None, Some(Vec::new())];
    let mut last_end = i64::MIN;
    for (position, &row) in rows.iter().enumerate() {
        // exact mode looks at the end of all that ran before; HTA at that of the event before, even if it ended early
        let before = match frame.mode {
            Mode::Exact => last_end,
            Mode::Hta => position.checked_sub(1).map_or(i64::MIN, |before| frame.end(rows[before])),
        };
        last_end = last_end.max(frame.end(row));
        if position == 0 {
            continue;
        }
        let gap = frame.begin[row] - before;
        if frame.mode == Mode::Exact && gap < 0 {
            continue;
        }
        let launch = launch_row(frame, row).filter(|&launch| frame.kept[launch]);
        let cause = match launch {
            Some(launch) if frame.begin[launch] > before => Cause::HostWait,
            _ if gap < usual_delay => Cause::KernelWait,
            _ => Cause::Other,
        };
        gaps[cause as usize].get_or_insert_default().push(gap);
    }
    gaps
}

/// The call that launched `row`. Where it is missing, HTA takes the first event of the source for it.
fn launch_row(frame: &Frame<'_>, row: usize) -> Option<usize> {
    match (frame.mode, frame.link[row]) {
        (Mode::Hta, Link::Lost) => (frame.rank.events.index[0] == 0).then_some(0),
        (_, link) => link.row(),
    }
}
