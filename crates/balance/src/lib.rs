//! Balances samples of different length over the ranks of a training job.
//!
//! Pure and deterministic: integer costs, ties broken by sample id, no input or output, no clock. Every answer carries a
//! lower bound.

mod baseline;
mod batches;
mod bins;
mod bound;
mod complete;
mod cost;
mod data;
mod exact;
mod fill;
mod fit;
mod fixed;
mod free;
mod group_bound;
mod groups;
mod layout_bound;
mod loads;
mod lpt;
mod machine;
mod microbatch;
mod multifit;
mod nested;
mod order;
mod partition;
mod phases;
mod pipeline;
mod plan;
mod planner;
mod problem;
mod random;
mod read;
mod redispatch;
mod refine;
mod rooms;
mod sampler;
mod solve;
mod steps;
mod stream;
mod stream_planner;
mod vector;
mod write;

pub use baseline::{Baseline, naive};
pub use bound::{Bound, Limit};
pub use cost::{COST_LIMIT, Cost, Costs, Polynomial, Table};
pub use data::Data;
pub use fit::{Fit, Measurement, fit};
pub use machine::SequenceParallel;
pub use partition::{Counts, Partition, Tier, partition};
pub use plan::{Group, Layout, Plan, Unit};
pub use planner::{MicroBatch, Planner, StepPlan};
pub use problem::{MOST_RANKS, Objective, Problem};
pub use read::{read_problem, read_settings};
pub use sampler::{STATE_VERSION, Sampler, State, Window};
pub use solve::solve;
pub use stream::{Composer, Sample, Stream};
pub use stream_planner::StreamPlanner;
pub use write::plan_json;
