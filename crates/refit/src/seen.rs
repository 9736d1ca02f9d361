//! What was seen to run, and what a description says of it.

use base::Bytes;
use cluster::{Amounts, Bound, Cluster, Slowdown};
use cost::{Group, Operation};
use ir::{CollectiveKind, Dtype};

/// Nanoseconds of a picosecond.
const NANOS: f64 = 1e-3;

/// What runs.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// An operation.
    Operation {
        /// Its operator, overload included.
        name: String,
        /// The element type that it computes in.
        dtype: Dtype,
        /// The element type that it reads.
        reads: Dtype,
        /// How much it does.
        amounts: Amounts,
        /// Whether all its tensors have one shape and order.
        is_even: bool,
    },
    /// A collective.
    Collective {
        /// What it does.
        kind: CollectiveKind,
        /// How many ranks take part.
        ranks: u32,
        /// How far apart in number they are.
        stride: u32,
        /// Bytes of the whole tensor; of an all-to-all those of one rank.
        bytes: Bytes,
    },
    /// A copy of so many bytes between a device and its host.
    HostCopy(Bytes),
}

impl What {
    /// Whether it is an operation whose time is told by what was measured of its operator.
    pub fn is_measured(&self, cluster: &Cluster) -> bool {
        self.operation().is_some_and(|operation| operation.is_measured(&cluster.device))
    }

    fn operation(&self) -> Option<Operation<'_>> {
        let Self::Operation { name, dtype, reads, amounts, is_even } = self else { return None };
        Some(Operation { name, dtype: *dtype, reads: *reads, amounts: *amounts, is_even: *is_even })
    }

    /// The time of it where nothing runs beside it, in nanoseconds.
    fn alone(&self, cluster: &Cluster) -> f64 {
        let picos = match self {
            Self::Operation { .. } => self.operation().map_or(0, |operation| operation.picos(cluster)),
            Self::Collective { kind, ranks, stride, bytes } => {
                cost::group_time(cluster, *kind, Group { ranks: *ranks, stride: *stride }, *bytes)
            }
            Self::HostCopy(bytes) => cost::host_copy_time(cluster, bytes.0),
        };
        picos as f64 * NANOS
    }

    /// What it is limited by.
    pub fn bound(&self) -> Bound {
        match self {
            Self::Operation { amounts, .. } => Bound::of(amounts.flops),
            Self::Collective { .. } | Self::HostCopy(_) => Bound::Bytes,
        }
    }

    /// Bytes that it moves.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Operation { amounts, .. } => amounts.bytes,
            Self::Collective { bytes, .. } | Self::HostCopy(bytes) => bytes.0,
        }
    }

    /// What calls of its kind have in common, in words.
    pub fn family(&self) -> String {
        match self {
            Self::Operation { name, dtype, .. } => format!("{name} of {}", dtype.text()),
            Self::Collective { kind, ranks, .. } => format!("{} among {ranks}", kind.text()),
            Self::HostCopy(_) => "copies between device and host".to_owned(),
        }
    }
}

/// How long something ran beside what slows it, by what limits the operation of the two: the part of it, or nanoseconds.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Beside<T = f64>(pub [T; 2]);

impl<T: Copy + Default> Beside<T> {
    /// An operation that is limited by this, beside collectives for so long.
    pub fn of(bound: Bound, long: T) -> Self {
        let mut found = Self::default();
        found.0[bound as usize] = long;
        found
    }
}

impl Beside {
    /// Whether it ran alone.
    pub fn is_alone(&self) -> bool {
        self.0.iter().all(|part| *part <= 0.0)
    }
}

/// Calls that do the same, and what one of them took.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// What they do.
    pub what: What,
    /// Nanoseconds of one.
    pub nanos: f64,
    /// For which part of these something ran beside it that slows it.
    pub beside: Beside,
    /// How many there were.
    pub calls: usize,
}

impl Seen {
    /// What a description says that one of them takes, in nanoseconds.
    pub fn predicted(&self, cluster: &Cluster) -> f64 {
        self.what.alone(cluster) / self.kept(cluster)
    }

    /// What one of them would have taken alone, in nanoseconds.
    pub fn alone(&self, cluster: &Cluster) -> f64 {
        self.nanos * self.kept(cluster)
    }

    /// Which part of what one of them takes it would have taken alone.
    fn kept(&self, cluster: &Cluster) -> f64 {
        let lost = Bound::ALL.map(|bound| {
            let Slowdown { operation, collective } = cluster.device.slowdown(bound);
            let factor = if matches!(self.what, What::Operation { .. }) { operation } else { collective };
            self.beside.0[bound as usize] * (1.0 - 1.0 / factor)
        });
        1.0 - lost.iter().sum::<f64>()
    }
}
