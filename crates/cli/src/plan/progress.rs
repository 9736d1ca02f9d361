//! What a search is at, said while it runs.

use std::{
    io::Write,
    sync::Mutex,
    time::{Duration, Instant},
};

use ir::Mesh;
use plan::Effort;

use super::axes;

/// A search says what it is at no more often than this, and not before it has taken that long.
const EVERY: Duration = Duration::from_secs(3);

/// Says on stderr what a search is at.
pub struct Progress {
    start: Instant,
    /// When the next line is due, from the start on.
    due: Mutex<Duration>,
}

impl Progress {
    /// Of a search that begins now.
    pub fn new() -> Self {
        Self { start: Instant::now(), due: Mutex::new(EVERY) }
    }

    /// The search turns to a mesh.
    pub fn tell(&self, mesh: &Mesh, effort: Effort) {
        if let Some(line) = self.line(self.start.elapsed(), mesh, effort) {
            drop(writeln!(std::io::stderr(), "{line}"));
        }
    }

    /// What is said after so long; nothing where too little time has passed.
    fn line(&self, after: Duration, mesh: &Mesh, effort: Effort) -> Option<String> {
        let mut due = self.due.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if after < *due {
            return None;
        }
        *due = after + EVERY;
        let search = match effort {
            Effort::Quick => "a quick search",
            Effort::Full => "a search with all effort",
        };
        Some(format!("{:4} s: {search} on {}", after.as_secs(), axes(mesh)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use ir::MeshAxis;

    use super::*;

    #[test]
    fn a_long_search_says_now_and_then_what_it_is_at() {
        let mesh = Mesh { axes: vec![MeshAxis::ranks("data", 2), MeshAxis::micro_batches(4)] };
        let progress = Progress::new();
        let said: Vec<String> = [1, 2, 3, 4, 5, 6, 20, 22, 23]
            .into_iter()
            .filter_map(|seconds| progress.line(Duration::from_secs(seconds), &mesh, Effort::Quick))
            .collect();
        let on = "s: a quick search on data=2,micro_batches=4";
        assert_eq!(said, [3, 6, 20, 23].map(|seconds| format!("{seconds:4} {on}")));
    }
}
