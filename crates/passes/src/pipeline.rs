//! The passes in their order, with their settings.

use base::Bytes;
use ir::Dtype;
use serde::{Deserialize, Serialize};

use crate::{
    BucketCollectives, CommonSubexpressions, CrossEntropy, DeadCode, DirectAxes, DirectCollectives,
    DrawByCounter, DropAliases, EmptyParts, GroupLists, HostState, JoinSlices, LateCasts, MergeViews,
    Offload, OrderCollectives, OrderStacks, Pieces, Positions, Recompute, ReduceDtype, SplitDropout,
    StartCollectives, Stays, TurnShards, WaitAtOnce, WideProducts, WithoutCollectives, driver::Pass,
};
/// The settings of the passes that have any; what is left out is as by default.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Maximum bytes per bucket of collectives.
    pub bucket_limit: Bytes,
    /// Maximum bytes that are gathered ahead of their first use.
    pub prefetch_limit: Bytes,
    /// Which collectives are direct, by the name of the mesh axis; along an axis that is not here none are.
    #[serde(skip_serializing_if = "DirectAxes::is_empty")]
    pub direct: DirectAxes,
    /// Which operations of forward run again in backward, by their positions in the [settled](settled) program.
    #[serde(skip_serializing_if = "Positions::is_empty")]
    pub recompute: Positions,
    /// Which results of forward are on the host until backward, by positions in the same program.
    #[serde(skip_serializing_if = "Stays::is_empty")]
    pub offload: Stays,
    /// What of the state that only the update reads is on the host between steps.
    #[serde(skip_serializing_if = "Pieces::is_empty")]
    pub host_state: Pieces,
    /// Whether what the step's own code computes again in backward is held from forward on instead.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_checkpoints: bool,
    /// The element type in which gradients are summed between ranks; their own unless it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduce_dtype: Option<Dtype>,
}

impl Default for Settings {
    /// Buckets of 25 MiB as PyTorch's DistributedDataParallel has them, and twice that gathered ahead.
    fn default() -> Self {
        Self {
            bucket_limit: Bytes(25 << 20),
            prefetch_limit: Bytes(50 << 20),
            direct: DirectAxes::new(),
            recompute: Positions::default(),
            offload: Stays::default(),
            host_state: Pieces::default(),
            without_checkpoints: false,
            reduce_dtype: None,
        }
    }
}

impl Settings {
    /// From the default to settings of less memory and more collectives; the last has buckets of 256 KiB and gathers nothing ahead.
    pub fn ladder() -> impl Iterator<Item = Self> {
        let default = Self::default();
        let rungs = [(25 << 20, 50 << 20), (8 << 20, 8 << 20), (2 << 20, 2 << 20), (256 << 10, 0)];
        rungs.into_iter().map(move |(bucket, ahead)| Self {
            bucket_limit: Bytes(bucket),
            prefetch_limit: Bytes(ahead),
            ..default.clone()
        })
    }
}

/// The passes that a graph goes through before it runs, in their order.
pub fn pipeline(settings: &Settings) -> Vec<Box<dyn Pass>> {
    settled(settings.without_checkpoints).into_iter().chain(scheduled(settings)).collect()
}

/// The passes that take out what nothing needs: aliases, copies of what is written slice by slice or put into another order, chains of views, values
/// computed twice, dead code.
pub fn cleaned(without_checkpoints: bool) -> Vec<Box<dyn Pass>> {
    vec![
        Box::new(DropAliases),
        Box::new(JoinSlices),
        Box::new(OrderStacks),
        Box::new(MergeViews),
        Box::new(CommonSubexpressions { without_checkpoints }),
        Box::new(DeadCode),
    ]
}

/// The first passes: what they leave does no work twice, and copies no matrix to put it in order. Positions of operations that run again count in it.
pub fn settled(without_checkpoints: bool) -> Vec<Box<dyn Pass>> {
    let further: [Box<dyn Pass>; 2] = [Box::new(TurnShards), Box::new(GroupLists)];
    cleaned(without_checkpoints).into_iter().chain(further).collect()
}

/// The passes after them. Views are merged again after bucketing, which adds views that flatten; ordering comes after that, since every
/// patch may move nodes. Direct collectives are last: the exchange starts where the collective started, and its reduction takes the place
/// of the wait.
pub fn scheduled(settings: &Settings) -> Vec<Box<dyn Pass>> {
    let mut passes: Vec<Box<dyn Pass>> = vec![
        Box::new(Recompute { again: settings.recompute.clone() }),
        Box::new(Offload { stays: settings.offload.clone() }),
        Box::new(HostState { pieces: settings.host_state.clone() }),
        Box::new(StartCollectives),
    ];
    if settings.reduce_dtype.is_some() {
        passes.push(Box::new(ReduceDtype { dtype: settings.reduce_dtype }));
    }
    let joined: [Box<dyn Pass>; 5] = [
        Box::new(BucketCollectives { limit: settings.bucket_limit }),
        Box::new(MergeViews),
        Box::new(CommonSubexpressions { without_checkpoints: settings.without_checkpoints }),
        Box::new(DeadCode),
        Box::new(OrderCollectives { prefetch_limit: settings.prefetch_limit }),
    ];
    passes.extend(joined);
    if !settings.direct.is_empty() {
        let limited = settings
            .direct
            .iter()
            .map(|(axis, direct)| (axis.clone(), direct.at_most(settings.bucket_limit)));
        passes.push(Box::new(DirectCollectives { direct: limited.collect() }));
    }
    passes
}

/// The pass called `name`.
pub fn by_name(name: &str, settings: &Settings) -> Option<Box<dyn Pass>> {
    let all: [Box<dyn Pass>; 24] = [
        Box::new(DropAliases),
        Box::new(JoinSlices),
        Box::new(OrderStacks),
        Box::new(MergeViews),
        Box::new(CommonSubexpressions { without_checkpoints: settings.without_checkpoints }),
        Box::new(DeadCode),
        Box::new(TurnShards),
        Box::new(GroupLists),
        Box::new(Recompute { again: settings.recompute.clone() }),
        Box::new(Offload { stays: settings.offload.clone() }),
        Box::new(HostState { pieces: settings.host_state.clone() }),
        Box::new(StartCollectives),
        Box::new(ReduceDtype { dtype: settings.reduce_dtype }),
        Box::new(BucketCollectives { limit: settings.bucket_limit }),
        Box::new(OrderCollectives { prefetch_limit: settings.prefetch_limit }),
        Box::new(DirectCollectives { direct: settings.direct.clone() }),
        Box::new(EmptyParts::default()),
        Box::new(WithoutCollectives),
        Box::new(WaitAtOnce),
        Box::new(DrawByCounter),
        Box::new(SplitDropout),
        Box::new(CrossEntropy),
        Box::new(LateCasts),
        Box::new(WideProducts { narrow: vec![Dtype::Bf16, Dtype::F16] }),
    ];
    all.into_iter().find(|pass| pass.name() == name)
}
