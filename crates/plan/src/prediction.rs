//! What a plan is expected to cost.

use base::Bytes;
use cluster::Cluster;
use memory::{ByCategory, Category};
use serde::{Deserialize, Serialize};

use crate::beyond::{Beyond, bytes_beyond, time_beyond};

/// What a plan is expected to cost.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Prediction {
    /// Time of a step of the program that runs, simulated, in nanoseconds.
    pub step_ns: i64,
    /// What of it the host takes around the program, in which nothing else happens.
    #[serde(default, skip_serializing_if = "is_zero_ns")]
    pub call_ns: i64,
    /// Operations alone.
    pub compute_ns: i64,
    /// What they take longer because operations of forward run again in backward.
    #[serde(default)]
    pub recomputed_ns: i64,
    /// Collectives alone, hidden or not.
    pub communication_ns: i64,
    /// Waiting for collectives: communication that no operation hides.
    pub exposed_ns: i64,
    /// Waiting for copies between device and host. This and the next three are of the pipeline stage that has most on its host.
    #[serde(default, skip_serializing_if = "is_zero_ns")]
    pub exposed_copies_ns: i64,
    /// What is copied to the host in a step, and back, in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offloaded_bytes: u64,
    /// State that is on the host between steps, in bytes; its new values are among what is copied there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub host_state_bytes: u64,
    /// The most that is on the host at once, that state included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub host_bytes: u64,
    /// Most memory of one rank, in bytes: the sum of the seven that follow. On a processor what is on the host counts with what forward leaves.
    pub peak_bytes: u64,
    /// State of one rank: parameters, buffers, optimizer state.
    pub state_bytes: u64,
    /// What is passed to the step.
    pub batch_bytes: u64,
    /// Small results and constants that stay from step to step.
    pub kept_bytes: u64,
    /// Made in the forward part, alive at the peak, read in the backward part.
    pub activation_bytes: u64,
    /// Gradients, and what else the backward part makes for the update.
    pub gradient_bytes: u64,
    /// Results of collectives.
    pub collective_bytes: u64,
    /// Everything else at the peak: results that are read soon, and what kernels take for themselves.
    pub temporary_bytes: u64,
    /// What of `kept_bytes` is for small results; the executor takes no more.
    pub buffer_bytes: u64,
    /// Collectives in a step.
    pub collectives: u32,
    /// What the search's own model says of this plan along the innermost axis, in nanoseconds: operations and collectives one after the
    /// other, as they are before the passes.
    pub model_ns: i64,
    /// No choice along that axis takes less in the same model, in nanoseconds.
    pub bound_ns: i64,
}

/// Whether there are none.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Whether it takes no time.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub const fn is_zero_ns(nanos: &i64) -> bool {
    *nanos == 0
}

/// A part of what is alive at the peak.
pub struct AtPeak {
    /// What it is called in figures.
    pub name: &'static str,
    /// What it is, for people.
    pub what: &'static str,
    /// How much.
    pub bytes: u64,
}

/// What a category of memory is called in figures.
pub const fn category_name(category: Category) -> &'static str {
    match category {
        Category::State => "state",
        Category::Batch => "batch",
        Category::Kept => "kept",
        Category::Activation => "activations",
        Category::Gradient => "gradients",
        Category::Collective => "collectives",
        Category::Temporary => "temporary",
    }
}

impl Prediction {
    /// The same with what a simulated rank takes under a memory limit.
    #[must_use]
    pub fn of(self, found: &sim::Prediction, limit: Option<Bytes>, cluster: &Cluster) -> Self {
        let sim::Prediction { time, call, memory } = found;
        let (alive, buffers) = memory.within(limit);
        let made = Self {
            step_ns: (time.step + *call).0,
            call_ns: call.0,
            compute_ns: time.compute.0,
            communication_ns: time.communication.0,
            exposed_ns: time.exposed.0,
            collectives: time.collectives,
            exposed_copies_ns: time.exposed_copies.0,
            ..self
        };
        made.holding(&alive, buffers).beside(memory.on_host, cluster)
    }

    /// The same for a program in which so many micro-batches are under way at once, each of which holds what forward leaves for backward.
    #[must_use]
    pub const fn with_under_way(self, micro_batches: u32) -> Self {
        let more = self.activation_bytes * (micro_batches as u64 - 1);
        let (peak_bytes, activation_bytes) = (self.peak_bytes + more, self.activation_bytes + more);
        Self { peak_bytes, activation_bytes, ..self }
    }

    /// Whether parts of forward run again, or are on the host, or state is there, so that less is held.
    pub const fn holds_less(&self) -> bool {
        self.recomputed_ns > 0 || self.offloaded_bytes > 0
    }

    /// What it takes longer because less is held, as far as nothing else hides it.
    pub const fn holding_less_ns(&self) -> i64 {
        self.recomputed_ns + self.exposed_copies_ns
    }

    /// Whether it keeps a memory limit.
    pub fn fits(&self, limit: Option<u64>) -> bool {
        limit.is_none_or(|limit| self.peak_bytes <= limit)
    }

    /// Whether it is over a memory limit even without what collectives hold, which is all that smaller buckets make less.
    pub fn is_over_without_collectives(&self, limit: Option<u64>) -> bool {
        limit.is_some_and(|limit| self.peak_bytes - self.collective_bytes > limit)
    }

    /// How well it suits under a memory limit: less is better.
    pub fn fitness(&self, limit: Option<u64>) -> (bool, i64, u64) {
        if self.fits(limit) {
            (false, self.step_ns, self.peak_bytes)
        } else {
            (true, i64::try_from(self.peak_bytes).unwrap_or(i64::MAX), 0)
        }
    }

    /// The same with what is alive at the peak, and what of it is buffers for small results.
    #[must_use]
    pub fn holding(self, alive: &ByCategory, buffers: Bytes) -> Self {
        let of = |category| alive.of(category).0;
        Self {
            peak_bytes: alive.total().0,
            state_bytes: of(Category::State),
            batch_bytes: of(Category::Batch),
            kept_bytes: of(Category::Kept),
            activation_bytes: of(Category::Activation),
            gradient_bytes: of(Category::Gradient),
            collective_bytes: of(Category::Collective),
            temporary_bytes: of(Category::Temporary),
            buffer_bytes: buffers.0,
            ..self
        }
    }

    /// The same with the most that is on the host. Without a link to it the host is the device itself, and its copies are in the same memory: they
    /// count as if they were most when everything else is.
    #[must_use]
    pub fn beside(self, on_host: Bytes, cluster: &Cluster) -> Self {
        let own = if cluster.device.host_bandwidth.is_none() { on_host.0 } else { 0 };
        Self {
            host_bytes: on_host.0,
            peak_bytes: self.peak_bytes + own,
            activation_bytes: self.activation_bytes + own,
            ..self
        }
    }

    /// What so many more layers take, where this one has one layer more than the other.
    #[must_use]
    pub fn of_layers(&self, shorter: &Self, layers: i64) -> Self {
        let time = |of: fn(&Self) -> i64| time_beyond(of(self), of(shorter), layers);
        let bytes = |of: fn(&Self) -> u64| bytes_beyond(of(self), of(shorter), layers);
        let collectives = bytes(|one| u64::from(one.collectives));
        Self {
            step_ns: time(|one| one.step_ns),
            call_ns: time(|one| one.call_ns),
            compute_ns: time(|one| one.compute_ns),
            recomputed_ns: time(|one| one.recomputed_ns),
            communication_ns: time(|one| one.communication_ns),
            exposed_ns: time(|one| one.exposed_ns),
            exposed_copies_ns: time(|one| one.exposed_copies_ns),
            offloaded_bytes: bytes(|one| one.offloaded_bytes),
            host_state_bytes: bytes(|one| one.host_state_bytes),
            host_bytes: bytes(|one| one.host_bytes),
            peak_bytes: bytes(|one| one.peak_bytes),
            state_bytes: bytes(|one| one.state_bytes),
            batch_bytes: bytes(|one| one.batch_bytes),
            kept_bytes: bytes(|one| one.kept_bytes),
            activation_bytes: bytes(|one| one.activation_bytes),
            gradient_bytes: bytes(|one| one.gradient_bytes),
            collective_bytes: bytes(|one| one.collective_bytes),
            temporary_bytes: bytes(|one| one.temporary_bytes),
            buffer_bytes: bytes(|one| one.buffer_bytes),
            collectives: u32::try_from(collectives).unwrap_or(u32::MAX),
            model_ns: time(|one| one.model_ns),
            bound_ns: time(|one| one.bound_ns),
        }
    }

    /// The parts whose sum is the peak.
    pub fn at_peak_by_category(&self) -> [AtPeak; 7] {
        let part = |category, what, bytes| AtPeak { name: category_name(category), what, bytes };
        [
            part(Category::State, "state", self.state_bytes),
            part(Category::Batch, "batch", self.batch_bytes),
            part(Category::Kept, "kept for small results", self.kept_bytes),
            part(Category::Activation, "activations", self.activation_bytes),
            part(Category::Gradient, "gradients", self.gradient_bytes),
            part(Category::Collective, "results of collectives", self.collective_bytes),
            part(Category::Temporary, "temporary", self.temporary_bytes),
        ]
    }

    /// What is alive at the peak, most first.
    pub fn at_peak(&self) -> String {
        let mut parts = self.at_peak_by_category();
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let parts = parts.iter().filter(|part| part.bytes > 0);
        let said: Vec<String> = parts.map(|part| format!("{} {}", Bytes(part.bytes), part.what)).collect();
        said.join(", ")
    }
}

impl Beyond for Prediction {
    fn beyond(self, shorter: &Self, rounds: i64) -> Self {
        let grown = self.of_layers(shorter, rounds);
        Self {
            step_ns: grown.step_ns,
            call_ns: grown.call_ns,
            compute_ns: grown.compute_ns,
            recomputed_ns: grown.recomputed_ns,
            communication_ns: grown.communication_ns,
            exposed_ns: grown.exposed_ns,
            collectives: grown.collectives,
            ..self
        }
    }
}
