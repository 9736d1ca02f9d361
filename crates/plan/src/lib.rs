//! The planner: from a graph and a cluster to a [`Plan`] along the axes of a mesh, the outer one first.
//!
//! [`tables`] and [`links`] lay out the search space as variables and cost tables, crate `solve` finds the choices of least cost, and
//! [`search`](mod@search) tries several prices, simulates what each
//! solution becomes, and keeps the best within the memory limit. Nothing here knows the name of a model, a module or a parameter; names serve
//! only to match the user's pins and to print.

pub use schedule::{Kind, Name};

mod account;
mod along;
mod asked;
mod axis;
mod beyond;
mod candidates;
mod certified;
mod choice_tables;
mod choices;
mod chosen;
mod copies;
mod cut_programs;
mod cuts;
mod divides;
mod effort;
mod explain;
mod fewer;
mod folded;
mod forbidden;
mod forward;
mod from_shorter;
mod glance;
mod host_state;
mod hosting;
mod in_part;
mod intents;
mod jointly;
mod kernels;
mod labels;
mod layers;
mod limits;
mod links;
mod meshes;
mod micro_batches;
mod moments;
mod on_axes;
mod outputs;
mod page;
mod pattern;
mod pins;
mod pipelines;
mod plan;
mod prediction;
mod priced_copies;
mod prices;
mod progress;
mod readings;
mod recompute;
mod repeats;
mod roles;
mod run;
mod runners_up;
mod search;
mod segments;
mod sensitivity;
mod setting;
mod settings;
mod shorter;
mod simulate;
mod stage_costs;
mod stage_counts;
mod stages;
mod stays;
mod step;
mod suits;
mod summary;
mod tables;
mod taken_apart;
mod taken_over;
mod text;
mod tried;
mod why_not;
mod wish;

pub use account::{Account, CauseTime, CollectiveTime, HeldByModule, ModuleTime};
pub use effort::Effort;
pub use explain::explain_plan;
pub use forbidden::Forbid;
pub use meshes::Candidate;
pub use page::page;
pub use pattern::glob;
pub use pins::Pins;
pub use plan::{Plan, RunnerUp};
pub use prediction::Prediction;
pub use prices::Prices;
pub use progress::Progress;
pub use run::{Offloading, Recomputation, Request, Telling, direct};
pub use search::{Searched, search};
pub use sensitivity::{Sensitivity, sensitivities};
pub use settings::PlanSettings;
pub use simulate::{Pipeline, Ranks, pipeline, simulate_one, simulate_plan, simulate_rank, simulated_step};
pub use stages::{Cut, StagePrediction, Stages};
pub use step::{plan_graph, plan_telling, program, rank_graph, without_empty_parts};
pub use summary::{OtherPlan, StatePattern, Summary, summary};
pub use text::Decisions;
pub use why_not::{
    Alternative, Difference, FirstDifference, PlacedOtherwise, Priced as PricedAlternative, Refused, WhyNot,
    why_not,
};
pub use wish::ScheduleWish;
