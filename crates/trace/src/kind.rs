//! What a kernel does, told from its name.

use serde::Serialize;
use timeline::{NameId, Names};

use crate::Mode;

/// What a device event does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Kind {
    /// Computes.
    Computation,
    /// Exchanges with other ranks.
    Communication,
    /// Copies or fills.
    Memory,
    /// Waits.
    Other,
}

impl Kind {
    /// The kinds that tables list, in their order.
    pub const TABLED: [Self; 3] = [Self::Computation, Self::Communication, Self::Memory];

    /// How tables call it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Computation => "COMPUTATION",
            Self::Communication => "COMMUNICATION",
            Self::Memory => "MEMORY",
            Self::Other => "OTHER",
        }
    }

    /// The kind of a device event called `name`.
    pub fn of(name: &str, mode: Mode) -> Self {
        match mode {
            Mode::Exact => Self::exact(name),
            Mode::Hta => Self::hta(name),
        }
    }

    /// As HTA 0.5.0: only `nccl...Kernel` communicates.
    fn hta(name: &str) -> Self {
        if name.strip_prefix("nccl").is_some_and(|rest| rest.lines().next().unwrap_or("").contains("Kernel"))
        {
            Self::Communication
        } else if is_copy(name) {
            Self::Memory
        } else if name.contains("Memcpy") || name.contains("Sync") {
            Self::Other
        } else {
            Self::Computation
        }
    }

    /// All spellings of NCCL and RCCL, gloo, custom all-reduce kernels and symmetric-memory kernels.
    fn exact(name: &str) -> Self {
        if is_communication(name) {
            Self::Communication
        } else if is_copy(name) {
            Self::Memory
        } else if matches!(
            name,
            "Event Sync" | "Stream Sync" | "Context Sync" | "Stream Wait Event" | "Stream Synchronize"
        ) {
            Self::Other
        } else {
            Self::Computation
        }
    }

    /// The kind of every name.
    pub fn of_all(names: &Names, mode: Mode) -> Kinds {
        Kinds {
            of: names.map(|name| Self::of(name, mode)),
            communicates: names.map(is_communication),
            backward: names.map(|name| name.contains("Backward")),
        }
    }
}

/// What is told from every name of a table, once for each.
#[derive(Clone, Debug)]
pub struct Kinds {
    of: Vec<Kind>,
    communicates: Vec<bool>,
    backward: Vec<bool>,
}

impl Kinds {
    /// The kind of a device event called `name`.
    pub fn of(&self, name: NameId) -> Kind {
        self.of.get(name.0 as usize).copied().unwrap_or(Kind::Other)
    }

    /// Whether what is called `name` communicates, in any library.
    pub fn communicates(&self, name: NameId) -> bool {
        self.communicates.get(name.0 as usize).copied().unwrap_or(false)
    }

    /// Whether `name` is that of a backward operator.
    pub fn is_backward(&self, name: NameId) -> bool {
        self.backward.get(name.0 as usize).copied().unwrap_or(false)
    }
}

fn is_copy(name: &str) -> bool {
    ["Memcpy", "Memset", "dma"].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a kernel or annotation called `name` communicates.
pub fn is_communication(name: &str) -> bool {
    const PREFIXES: &[&str] = &["nccl", "rccl", "gloo:", "unisono:", "mscclKernel", "c10d::symm_mem"];
    const PARTS: &[&str] = &[
        "ncclDevKernel",
        "ncclKernel",
        "cross_device_reduce",
        "custom_all_reduce",
        "customAllReduce",
        "one_shot_all_reduce",
        "two_shot_all_reduce",
        "multimem_all_reduce",
        "quick_all_reduce",
        "quickreduce::",
        "nvshmem",
        "deep_ep::",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || PARTS.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modern_names_communicate_exactly_and_not_in_compatible_mode() {
        use Kind::{Communication, Computation, Memory, Other};
        let both = |name| (Kind::of(name, Mode::Exact), Kind::of(name, Mode::Hta));
        assert_eq!(both("ncclKernel_AllReduce_RING_LL_Sum_float(x)"), (Communication, Communication));
        assert_eq!(both("ncclDevKernel_AllReduce_Sum_f32"), (Communication, Communication));
        assert_eq!(both("nccl:all_reduce"), (Communication, Computation));
        assert_eq!(both("void vllm::cross_device_reduce_1stage<float, 8>()"), (Communication, Computation));
        assert_eq!(both("Memcpy DtoH (Device -> Pinned)"), (Memory, Memory));
        assert_eq!(both("Event Sync"), (Other, Other));
        assert_eq!(both("Stream Wait Event"), (Other, Computation));
        assert_eq!(both("ampere_sgemm_32x32"), (Computation, Computation));
    }
}
