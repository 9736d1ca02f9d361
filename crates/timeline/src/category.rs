//! What kind of thing an event is, as its producer said.

use serde::{Deserialize, Serialize};

macro_rules! categories {
    ($($(#[$meta:meta])* $variant:ident = $text:literal, $class:ident;)*) => {
        /// The category of an event (`cat` in Kineto's JSON). Old spellings are categories of their own, of the same class.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum Category {
            $($(#[$meta])* #[doc = concat!("`", $text, "`")] $variant,)*
        }

        impl Category {
            /// All categories; the position of each is its number.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// How traces spell it.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// What class of things it belongs to.
            pub const fn class(self) -> Class {
                match self { $(Self::$variant => Class::$class),* }
            }

            /// The category that is spelt `text`; [`Category::Other`] where it is not known.
            pub fn of(text: &[u8]) -> Self {
                $(if text == $text.as_bytes() { return Self::$variant; })*
                Self::Other
            }
        }
    };
}

categories! {
    CpuOp = "cpu_op", Operator;
    PythonFunction = "python_function", Python;
    CudaRuntime = "cuda_runtime", Runtime;
    Kernel = "kernel", Kernel;
    CudaDriver = "cuda_driver", Runtime;
    UserAnnotation = "user_annotation", Annotation;
    GpuMemcpy = "gpu_memcpy", Copy;
    GpuMemset = "gpu_memset", Copy;
    GpuUserAnnotation = "gpu_user_annotation", GpuAnnotation;
    CudaSync = "cuda_sync", Sync;
    CudaProfilerRange = "cuda_profiler_range", Counters;
    Overhead = "overhead", Other;
    OldOperator = "Operator", Operator;
    OldRuntime = "Runtime", Runtime;
    OldKernel = "Kernel", Kernel;
    OldMemcpy = "Memcpy", Copy;
    OldMemset = "Memset", Copy;
    MtiaRuntime = "mtia_runtime", Runtime;
    MtiaCcp = "mtia_ccp_events", Kernel;
    XpuRuntime = "xpu_runtime", Runtime;
    PrivateRuntime = "privateuse1_runtime", Runtime;
    PrivateDriver = "privateuse1_driver", Runtime;
    /// A whole trace, not an event of it.
    Trace = "Trace", Other;
    /// An event that has a duration and no category.
    Missing = "", Other;
    Other = "other", Other;
}

/// Categories of one kind, across devices and versions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// An operator on a processor thread.
    Operator,
    /// A Python function on a processor thread.
    Python,
    /// A call of a device runtime or driver on a processor thread.
    Runtime,
    /// A user's range on a processor thread.
    Annotation,
    /// A kernel on a device.
    Kernel,
    /// A copy or fill on a device.
    Copy,
    /// A user's range as seen on a device: it spans kernels and does no work.
    GpuAnnotation,
    /// A wait of a stream, an event or a device.
    Sync,
    /// A range for which hardware counters were read.
    Counters,
    /// Everything else.
    Other,
}

impl Class {
    /// Whether a device works during such an event.
    pub const fn is_device_work(self) -> bool {
        matches!(self, Self::Kernel | Self::Copy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_category_is_found_by_its_spelling() {
        for (number, &category) in Category::ALL.iter().enumerate() {
            assert_eq!(Category::of(category.text().as_bytes()), category);
            assert_eq!(category as usize, number);
        }
        assert_eq!(Category::of(b"something new"), Category::Other);
    }
}
