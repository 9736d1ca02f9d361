//! What a search is at, said while it runs.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use ir::Mesh;

use crate::effort::Effort;

/// How often a search says what it is at where nothing else is asked for.
const EVERY: Duration = Duration::from_secs(3);

/// The lines that a long search says of what it is at.
pub struct Progress {
    start: Instant,
    /// It says something no more often than this, and not before it has taken that long.
    every: Duration,
    /// When the next line is due, from the start on.
    due: Mutex<Duration>,
}

impl Progress {
    /// Of a search that begins now; every three seconds where it is not said how often.
    pub fn new(every: Option<Duration>) -> Self {
        let every = every.unwrap_or(EVERY);
        Self { start: Instant::now(), every, due: Mutex::new(every) }
    }

    /// What is said when the search turns to a mesh; nothing where too little time has passed.
    pub fn line(&self, mesh: &Mesh, effort: Effort) -> Option<String> {
        self.line_after(self.start.elapsed(), mesh, effort)
    }

    fn line_after(&self, after: Duration, mesh: &Mesh, effort: Effort) -> Option<String> {
        let mut due = self.due.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if after < *due {
            return None;
        }
        *due = after + self.every;
        let search = match effort {
            Effort::Quick => "a quick search",
            Effort::Full => "a search with all effort",
        };
        Some(format!("{:4} s: {search} on {}", after.as_secs(), mesh.text()))
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
        let progress = Progress::new(None);
        let said: Vec<String> = [1, 2, 3, 4, 5, 6, 20, 22, 23]
            .into_iter()
            .filter_map(|seconds| progress.line_after(Duration::from_secs(seconds), &mesh, Effort::Quick))
            .collect();
        let on = "s: a quick search on data=2,micro_batches=4";
        assert_eq!(said, [3, 6, 20, 23].map(|seconds| format!("{seconds:4} {on}")));
    }
}
