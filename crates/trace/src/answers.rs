//! Results that several analyses need, with the parameters of all.

use std::cell::OnceCell;

use serde::{Deserialize, Serialize};

use crate::{
    Frame, Frames, breakdown,
    causal::{self, CriticalPath},
    exposed::{self, Exposed},
    launch,
    memory::{self, DeviceMemory},
    stack::CallGraph,
    waiting::{self, Waiting},
};

/// The parameters of all analyses. Defaults are those of HTA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// The rank of analyses that look at one; the first if none is named.
    pub rank: Option<u32>,
    /// The annotation whose instance the critical path covers; "" is the whole trace.
    pub annotation: String,
    /// Which instance of the annotation.
    pub instance: usize,
    /// How much of the time named rows of tables cover.
    pub duration_ratio: f64,
    /// How many rows of tables have names.
    pub num_kernels: usize,
    /// Whether copies and fills are tabled as kernels.
    pub include_memory_kernels: bool,
    /// Gaps up to this many nanoseconds are the device's own.
    pub consecutive_kernel_delay: i64,
    /// From how many waiting launches on a queue is full.
    pub max_queue_length: i64,
    /// The operator whose kernel sequences are counted.
    pub op: String,
    /// The shortest sequence that counts.
    pub min_pattern_len: usize,
    /// How many sequences are listed.
    pub top_k: usize,
    /// How many stragglers are named.
    pub num_stragglers: usize,
    /// What is an outlier among launches.
    pub cutoffs: launch::Cutoffs,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rank: None,
            annotation: "ProfilerStep".to_owned(),
            instance: 0,
            duration_ratio: 0.8,
            num_kernels: 10,
            include_memory_kernels: false,
            consecutive_kernel_delay: 30_000,
            max_queue_length: 1024,
            op: String::new(),
            min_pattern_len: 3,
            top_k: 5,
            num_stragglers: 2,
            cutoffs: launch::Cutoffs { runtime: 50_000, launch_delay: 100_000 },
        }
    }
}

impl Options {
    /// The frame of the rank to look at.
    pub fn frame<'f, 't>(&self, frames: &'f Frames<'t>) -> Option<&'f Frame<'t>> {
        match self.rank {
            Some(rank) => frames.rank(rank),
            None => frames.ranks.first(),
        }
    }

    /// The limits of tables of kernels.
    pub const fn limits(&self) -> breakdown::Limits {
        breakdown::Limits { duration_ratio: self.duration_ratio, num_kernels: self.num_kernels }
    }
}

/// Results that several analyses need, each computed when it is first asked for.
pub struct Answers<'f, 't> {
    /// The ranks.
    pub frames: &'f Frames<'t>,
    /// The parameters.
    pub options: &'f Options,
    waiting: OnceCell<Waiting>,
    exposed: OnceCell<Vec<Exposed>>,
    memory: OnceCell<Vec<DeviceMemory>>,
    graphs: OnceCell<Vec<CallGraph<'f>>>,
    path: OnceCell<Option<CriticalPath>>,
}

impl<'f, 't> Answers<'f, 't> {
    /// Nothing is computed yet.
    pub fn new(frames: &'f Frames<'t>, options: &'f Options) -> Self {
        let (waiting, exposed) = (OnceCell::new(), OnceCell::new());
        let (memory, graphs, path) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self { frames, options, waiting, exposed, memory, graphs, path }
    }

    /// Collectives and who waited for whom.
    pub fn waiting(&self) -> &Waiting {
        self.waiting.get_or_init(|| waiting::waiting(self.frames))
    }

    /// Communication that nothing hides.
    pub fn exposed(&self) -> &[Exposed] {
        self.exposed.get_or_init(|| exposed::exposed(self.frames))
    }

    /// Memory of every device.
    pub fn memory(&self) -> &[DeviceMemory] {
        self.memory.get_or_init(|| memory::memory(self.frames))
    }

    /// The call graph of every rank.
    pub fn graphs(&self) -> &[CallGraph<'f>] {
        self.graphs.get_or_init(|| self.frames.ranks.iter().map(CallGraph::of).collect())
    }

    /// The critical path of the annotation's instance; of everything if there is no such.
    pub fn path(&self) -> Option<&CriticalPath> {
        let (annotation, instance) = (&self.options.annotation, self.options.instance);
        let compute = || {
            let graph = causal::build(self.frames, annotation, instance)
                .or_else(|| causal::build(self.frames, "", 0))?;
            Some(causal::critical_path(self.frames, &graph, annotation, instance))
        };
        self.path.get_or_init(compute).as_ref()
    }
}
