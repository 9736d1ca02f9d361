//! Schedules by name.

use std::{fmt, str::FromStr};

use base::{Code, Diagnostic, Result};

/// A schedule that has a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Name {
    /// Forward of all micro-batches, then backward of all (Huang et al. 2019); chunk after chunk where stages have several.
    GPipe,
    /// Backward of a micro-batch as soon as it can begin: stage `s` of `S` has at most `S - s` micro-batches under way (`PipeDream`-flush,
    /// Narayanan et al. 2021).
    OneForwardOneBackward,
    /// The same with several chunks on each stage, dealt out in turn: the pipeline is filled in a fraction of the time, for more sending
    /// (Narayanan et al. 2021).
    Interleaved,
    /// One forward, one backward, with what backward makes for the stage before first, and the gradients of weights later, where the stage
    /// would wait: stage `s` is behind with those of `s` micro-batches, and each has up to `S` under way (ZB-H1, Qi et al. 2024).
    ZeroBubble1,
    /// The same with twice as many under way: no stage waits between its first and its last action (ZB-H2, Qi et al. 2024).
    ZeroBubble2,
    /// Two chunks on each stage, down and up again: no stage waits where all halves take the same, with `S` micro-batches under way
    /// (ZB-V, Qi et al. 2024).
    ZeroBubbleV,
    /// Two chunks on each stage, down and up again, forward of one beside backward of the other (DualPipeV, DeepSeek-AI 2025).
    DualPipeV,
}

impl Name {
    /// All names with their text.
    pub const ALL: [(Self, &str); 7] = [
        (Self::GPipe, "gpipe"),
        (Self::OneForwardOneBackward, "1f1b"),
        (Self::Interleaved, "interleaved"),
        (Self::ZeroBubble1, "zb-h1"),
        (Self::ZeroBubble2, "zb-h2"),
        (Self::ZeroBubbleV, "zb-v"),
        (Self::DualPipeV, "dualpipe-v"),
    ];

    /// How many chunks each stage has: as many as are asked for, if this schedule can have them.
    pub fn chunks(self, asked: Option<u32>) -> Result<u32> {
        let (usual, most) = match self {
            Self::GPipe => (1, u32::MAX),
            Self::Interleaved => (2, u32::MAX),
            Self::OneForwardOneBackward | Self::ZeroBubble1 | Self::ZeroBubble2 => (1, 1),
            Self::ZeroBubbleV | Self::DualPipeV => (2, 2),
        };
        let chunks = asked.unwrap_or(usual);
        if chunks >= 1 && (usual..=most).contains(&chunks) {
            return Ok(chunks);
        }
        let message = format!("the schedule `{self}` with {chunks} chunks on each stage");
        let hint = match (usual, most) {
            (1, 1) => "it has one chunk on each stage; `interleaved` has several".to_owned(),
            (usual, most) if usual == most => format!("it has {usual} chunks on each stage"),
            (usual, _) => format!("give it {usual} or more"),
        };
        Err(Diagnostic::new(Code::BAD_MESH, message).hint(hint))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(one, _)| one == self).map_or("", |(_, name)| name))
    }
}

/// Where the rows of a schedule come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// A name.
    Named(Name),
    /// A search.
    Searched,
    /// A file of the user's.
    Given,
}

impl Kind {
    const SEARCHED: &str = "searched";
    const GIVEN: &str = "given";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => name.fmt(f),
            Self::Searched => f.write_str(Self::SEARCHED),
            Self::Given => f.write_str(Self::GIVEN),
        }
    }
}

impl FromStr for Kind {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let known = Name::ALL.iter().find(|(_, name)| *name == text).map(|(name, _)| Self::Named(*name));
        let other = [(Self::SEARCHED, Self::Searched), (Self::GIVEN, Self::Given)];
        let known = known.or_else(|| other.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind));
        known.ok_or_else(|| {
            let names = Name::ALL.iter().map(|(_, name)| *name).chain([Self::SEARCHED]);
            let names: Vec<&str> = names.collect();
            format!("`{text}` is no schedule: {}", names.join(", "))
        })
    }
}

base::serialized_as_text!(Kind);
