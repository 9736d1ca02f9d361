//! What ran beside what a cluster description says of it: which coefficients are wrong, by how much, and a description that is right.
//!
//! [`observe`] takes calls, collectives and copies out of timelines, each with what it does; [`refit`] finds the fewest coefficients with
//! which the cost model tells what they took, and puts what single operations took into the description.

mod calls;
mod observed;
mod refitted;
mod said;
mod seen;
mod terms;

pub use calls::Calls;
pub use observed::{LeftOut, Observed, observe};
pub use refitted::{Refit, refit};
pub use said::said;
pub use seen::{Beside, Seen, What};
pub use terms::Term;

use base::{Code, Diagnostic, Result};
use cluster::Cluster;
use timeline::{Timeline, step::is_simulated};
use trace::{Frames, Mode, Selection};

/// What the measured timelines of several runs say of a description, `calls` being those of the step that traces of a profiler show.
pub fn of_timelines(cluster: &Cluster, runs: &[Timeline], calls: &Calls) -> Result<(Observed, Refit)> {
    if runs.iter().flat_map(|run| &run.ranks).any(is_simulated) {
        return Err(Diagnostic::new(
            Code::TRACE_LACKS,
            "this timeline was predicted, and says nothing of what ran",
        )
        .hint("`step.write_timelines(FOLDER, ..)` writes what ran into `FOLDER/measured`"));
    }
    if !cluster.kinds.is_empty() {
        let message = "timelines do not say which of several kinds of devices ran what";
        return Err(Diagnostic::new(Code::BAD_CLUSTER, message).hint(
            "mend a description of each kind alone, with the timelines of its ranks, and put them together as `[[devices]]`",
        ));
    }
    let frames = |run| Frames::new(run, Mode::Exact, Selection::default());
    let observed = observe(&runs.iter().map(frames).collect::<Vec<_>>(), calls);
    if observed.seen.is_empty() {
        let message = "the timelines have no operation and no collective that the step is known to have";
        let hint = if calls.is_empty() {
            "traces of a profiler need the captured step beside them, as `unisono capture` writes it; timelines that \
             `step.write_timelines` has written do not"
        } else {
            "operations are found by their names and shapes: record with `record_shapes=True`, and capture the step with a batch as large"
        };
        return Err(Diagnostic::new(Code::TRACE_LACKS, message).hint(hint));
    }
    let refit = refit(cluster, &observed.seen);
    Ok((observed, refit))
}
