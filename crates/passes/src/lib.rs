//! Passes: from a graph to an equal graph that is smaller, faster or better ordered.
//!
//! One file per pass. A pass reads a graph and returns a [`Patch`]; the [driver](run) applies it, verifies the result, brings it
//! into canonical form and tells an observer what was done.

mod bucket_collectives;
mod cleaned_function;
mod collectives;
mod common_subexpressions;
mod cross_entropy;
mod dead_code;
mod direct_collectives;
mod draw_by_counter;
mod driver;
mod drop_aliases;
mod dropout;
mod empty_parts;
mod facts;
mod for_kernels;
mod group_lists;
mod host_state;
mod issue_order;
mod late_casts;
mod layout;
mod merge_views;
mod offload;
mod order_collectives;
mod pipeline;
mod recompute;
mod reduce_dtype;
mod replaced;
mod split_dropout;
mod start_collectives;
mod state_units;
mod terms;
mod turn_shards;
mod wait_at_once;
mod without_collectives;

pub use bucket_collectives::BucketCollectives;
pub use cleaned_function::cleaned_function;
pub use common_subexpressions::CommonSubexpressions;
pub use cross_entropy::CrossEntropy;
pub use dead_code::DeadCode;
pub use direct_collectives::{Direct, DirectAxes, DirectCollectives, direct_form_of};
pub use draw_by_counter::{DrawByCounter, KEY, with_key};
pub use driver::{Outcome, Pass, run, run_unverified};
pub use drop_aliases::DropAliases;
pub use empty_parts::EmptyParts;
pub use for_kernels::{Partitioner, for_kernels};
pub use group_lists::GroupLists;
pub use host_state::{HostState, Piece, Pieces};
pub use ir::Patch;
pub use issue_order::issue_order;
pub use late_casts::LateCasts;
pub use merge_views::MergeViews;
pub use offload::{Offload, Stay, Stays};
pub use order_collectives::OrderCollectives;
pub use pipeline::{Settings, by_name, cleaned, pipeline, scheduled, settled};
pub use recompute::{Positions, RECOMPUTE, Recompute, Repeatable, runs_again};
pub use reduce_dtype::{ReduceDtype, is_summed_in};
pub use replaced::{Replacement, replaced};
pub use split_dropout::SplitDropout;
pub use start_collectives::StartCollectives;
pub use state_units::{Entry, Unit, state_units};
pub use turn_shards::TurnShards;
pub use wait_at_once::WaitAtOnce;
pub use without_collectives::WithoutCollectives;
