//! Every diagnostic code, in one table: the number is stable and never used again for something else.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A stable diagnostic code, printed as `U0123`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Code(pub u16);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "U{:04}", self.0)
    }
}

/// Whose it is to act on a diagnostic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audience {
    /// The user's training step or data.
    Step,
    /// A setting, an argument or a file of the user's.
    Configuration,
    /// The machine, its devices or its PyTorch.
    Hardware,
    /// Memory, disk or time ran out.
    Resources,
    /// Legal, but not supported yet.
    Unsupported,
    /// A bug of Unisono's.
    Bug,
}

/// One row of the table of codes.
#[derive(Clone, Copy, Debug)]
pub struct CodeInfo {
    /// The code.
    pub code: Code,
    /// Whose it is to act.
    pub audience: Audience,
    /// What it is about, in a few words.
    pub title: &'static str,
}

macro_rules! codes {
    ($($name:ident = $number:literal, $audience:ident, $title:literal;)*) => {
        impl Code {
            $(
                #[doc = $title]
                pub const $name: Self = Self($number);
            )*
        }

        /// All codes in numeric order.
        pub const CODES: &[CodeInfo] = &[
            $(CodeInfo { code: Code::$name, audience: Audience::$audience, title: $title },)*
        ];
    };
}

codes! {
    // 00xx: Unisono itself and files that it reads
    INTERNAL = 1, Bug, "a broken invariant of Unisono";
    UNREADABLE_FILE = 10, Configuration, "a file cannot be read or written";
    BAD_TEXT = 11, Configuration, "a text form that cannot be parsed";
    UNKNOWN_KEY = 12, Configuration, "an unknown key or name";
    BAD_MESSAGE = 13, Bug, "a message between Python and Rust that cannot be decoded";
    BAD_GRAPH = 14, Bug, "a graph that breaks one of its invariants";
    OTHER_VERSION = 15, Configuration, "a file or message written by another version";
    TOO_LARGE = 16, Resources, "a file or message beyond the size limit";
    BAD_CALL = 17, Bug, "a call that does not fit what is known of its operation";

    // 01xx: capture of the training step (raised in Python)
    DATA_DEPENDENT = 101, Step, "the step depends on the data of tensors";
    STATE_REPLACED = 102, Step, "the step replaces state by something of another kind or shape";
    SETTING_CHANGED = 103, Step, "the step changes the optimizer's settings";
    UNTRACEABLE = 104, Unsupported, "an operation that cannot be traced";
    UNSUPPORTED_CALL = 105, Unsupported, "a call that is no operation on tensors";
    NOT_FUNCTIONAL = 106, Step, "a change of a tensor that cannot be made functional";
    ARGUMENT_CHANGED = 107, Step, "the step changes an argument in place";
    UNSUPPORTED_ARGUMENT = 108, Unsupported, "an argument of an operation of an unknown kind";
    STALE_GRADIENTS = 109, Step, "the step adds to gradients of an earlier step";
    FIRST_STEP_DIFFERS = 110, Unsupported, "an optimizer whose first step is unlike the others";
    NEEDS_CLOSURE = 111, Step, "an optimizer that cannot step by itself";
    FOREIGN_TENSOR_CHANGED = 112, Step, "the step changes a tensor that is nobody's state";
    SPARSE_TENSOR = 113, Unsupported, "a sparse tensor in the step";
    RANDOM_STATE = 114, Step, "the step seeds PyTorch's random number generator, or sets its state";
    KEPT_TENSOR = 115, Step, "a tensor that the step keeps where it cannot be renewed at every step";
    HOOK = 116, Unsupported, "a hook that cannot be captured";
    ITERATOR = 117, Step, "the step goes on with an iterator that it keeps from step to step";
    NOT_BY_COUNTER = 118, Unsupported, "a random operation that cannot draw by a counter";
    COMPUTES_WITH_COUNTS = 119, Step, "a step that computes with what it changes at each call";
    EXAMPLE_MISFIT = 120, Configuration, "an example that does not fit the step";
    BAD_ARGUMENT = 121, Step, "an argument of the step that is no tensor, number or string";
    BATCH_CHANGED = 122, Step, "a batch that is not like the captured one";
    RANKS_DISAGREE = 123, Step, "ranks that are given different batches, settings or random numbers";
    VALUES_SHARDED = 124, Step, "values are read or written that a step keeps sharded";
    SHARED_PARAMETER = 125, Step, "a parameter that belongs to two optimizers";
    FOREIGN_OPTIMIZER = 126, Step, "the step calls an optimizer that it was made without";
    DISTRIBUTED_ALREADY = 127, Step, "a model that is distributed already";
    CASTS_ELSEWHERE = 128, Unsupported, "automatic casts for a device that is not there";
    TWO_DEVICES = 129, Step, "state on two devices";
    NO_DATA = 130, Step, "state that has no values";
    HAS_ENDED = 131, Step, "the step before this one has ended with an exception";

    // 02xx: plans and configuration
    BAD_CLUSTER = 201, Configuration, "a cluster description that cannot be used";
    BAD_PIN = 202, Configuration, "a pin that cannot be kept";
    FOREIGN_PLAN = 203, Configuration, "a plan for another graph, mesh or version";
    NO_PLAN = 204, Resources, "no plan fits the memory limit";
    BAD_MESH = 205, Configuration, "a mesh that does not fit the ranks";
    BAD_CHECKPOINT = 206, Configuration, "a checkpoint that is damaged, or of another model, optimizer or step";
    BAD_RULE = 207, Configuration, "a rule for an operation that cannot be read, or is wrong";
    BAD_SCHEDULE = 208, Configuration, "a pipeline schedule that cannot be run";
    UNSUPPORTED_PLAN = 209, Unsupported, "a combination of plan settings that is not supported yet";

    // 03xx: the executor and PyTorch
    TORCH_NOT_LOADED = 300, Hardware, "PyTorch's library is not loaded";
    TORCH_SYMBOL = 301, Hardware, "this PyTorch lacks a function that is needed";
    TORCH_SELF_TEST = 302, Hardware, "this PyTorch fails the executor's self-test";
    OPERATION_FAILED = 310, Step, "an operation of the step failed";
    BAD_BINDING = 311, Step, "a tensor is not what the program was made for";
    BAD_PROGRAM = 312, Bug, "a program that cannot be run";
    UNKNOWN_OPERATION = 313, Hardware, "an operation that this PyTorch does not have";
    BAD_KERNEL = 314, Bug, "a kernel that breaks one of its invariants, or memory that does not fit it";
    OUT_OF_MEMORY = 315, Resources, "an operation of the step found no memory";
    RANK_GONE = 320, Resources, "another rank is gone";
    MEASUREMENT_FAILED = 321, Hardware, "a measurement of the machine that failed";
    TOO_FEW_DEVICES = 322, Hardware, "fewer devices than ranks";
    NO_NETWORK = 323, Hardware, "a process group without a network for a kind of device";
    UNLIKE_DEVICES = 324, Hardware, "ranks whose devices draw other random numbers";
    RANK_STANDS = 325, Resources, "a rank that stands still while others wait for it";
    NO_ELEMENT_TYPE = 326, Hardware, "a device without an element type";
    NO_CUDA_LIBRARY = 330, Hardware, "a library of CUDA that kernels need is not there";
    CUDA_FAILED = 331, Hardware, "CUDA refused to compile, load or launch a kernel";

    // 04xx: balance
    BAD_PROBLEM = 401, Configuration, "a balancing problem that makes no sense";
    COST_OVERFLOW = 402, Configuration, "costs whose sum exceeds 64-bit integers";
    GIANT_SAMPLE = 403, Step, "a sample that fits no rank or group of ranks";
    FOREIGN_STATE = 404, Configuration, "a resume state of another dataset, setting or version";
    PLAN_MISMATCH = 405, Configuration, "ranks that computed different plans";
    UNSUPPORTED_PROBLEM = 406, Unsupported, "a combination of balancing settings that is not supported yet";

    // 05xx: traces
    NOT_A_TRACE = 501, Configuration, "a file that is no profiler trace";
    TRACE_TRUNCATED = 502, Configuration, "a trace that ends early";
    TRACE_DAMAGED = 503, Configuration, "parts of a trace that cannot be read";
    TRACE_RANKS = 504, Configuration, "ranks that are missing, double or unknown";
    TRACE_LACKS = 505, Configuration, "a trace without what an analysis needs";
    TRACE_ODD = 506, Configuration, "events that contradict each other";
    TRACE_LIMIT = 507, Resources, "a trace beyond what can be read";
    BAD_DUMP = 508, Configuration, "a flight recorder dump that cannot be read";
    TRACE_CACHE = 509, Resources, "kept columns of a trace that are damaged";
}

impl Code {
    /// The row of this code.
    pub fn info(self) -> Option<&'static CodeInfo> {
        CODES.iter().find(|info| info.code == self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_in_order() {
        assert!(CODES.windows(2).all(|pair| pair[0].code < pair[1].code));
    }
}
