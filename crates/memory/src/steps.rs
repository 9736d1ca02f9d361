//! A program as far as memory goes.

use smallvec::SmallVec;

/// A program as far as memory goes. Values are numbered from 0.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// What is known of each value.
    pub values: Vec<Info>,
    /// Values that are bound once and kept from run to run.
    pub state: Vec<u32>,
    /// Values that are given to each run.
    pub inputs: Vec<u32>,
    /// The steps in order.
    pub steps: Vec<Step>,
    /// New values of state, `(state, value)`, written after the last step.
    pub updates: Vec<(u32, u32)>,
    /// Values that the run returns.
    pub returns: Vec<u32>,
}

/// What is known of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Info {
    /// Its memory where it has its own.
    pub bytes: u64,
    /// Its elements.
    pub elements: u64,
    /// Equal for values of equal element type, sizes and strides; none where one of these is unknown.
    pub alike: Option<u32>,
    /// Whether its elements lie side by side in the order of its dimensions, as many as are known of: not where that is said at run time.
    pub dense: bool,
    /// Whether it is in memory of the host, beside that of the device.
    pub on_host: bool,
}

/// One operation.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub struct Step {
    /// What it reads, in argument order.
    pub reads: SmallVec<[u32; 4]>,
    /// What it makes, in return order.
    pub makes: SmallVec<[u32; 2]>,
    /// What it is to memory.
    pub effect: Effect,
    /// The value whose memory its results share.
    pub shares: Option<u32>,
    /// What its form in place writes: each operand with the result that would be there. Empty where there is no such form.
    pub overwrites: Vec<(u32, Option<u32>)>,
    /// What it writes into as it is.
    pub writes: SmallVec<[u32; 1]>,
    /// Whether it has a form that writes its one result into a given tensor.
    pub into: bool,
    /// Whether it belongs to the end of the run, where state may be written.
    pub writes_state: bool,
    /// Whether it gives the same for the same operands, and does nothing else.
    pub pure: bool,
    /// Whether it may keep, or return, the memory of an operand without saying so.
    pub holds: bool,
    /// Bytes that its kernel allocates for itself: while it runs, or for a collective until it is waited for.
    pub workspace: u64,
}

/// What a step is to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It makes its results or writes into operands.
    Compute,
    /// Its results are a look at an operand's memory, each element at most once.
    View,
    /// The same, elements perhaps more than once.
    Repeating,
    /// Its result is its operand.
    Alias,
    /// It starts a collective operation, or a copy between device and host, which reads until it is waited for.
    Collective,
    /// It waits for one.
    Wait,
}

impl Effect {
    /// Whether it may write its results where operands are. A copy that is started may, as far as its row says so: nobody reads what it writes before it
    /// has been waited for.
    pub const fn may_overwrite(self) -> bool {
        matches!(self, Self::Compute | Self::Collective)
    }

    /// Whether results share memory with the first operand.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::View | Self::Repeating | Self::Alias | Self::Wait)
    }
}
