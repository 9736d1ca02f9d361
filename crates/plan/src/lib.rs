//! The planner: from a graph and a cluster to a [`Plan`] along one mesh axis, exact in its model.
//!
//! [`tables`] and [`links`] lay out the search space as variables and cost tables, crate `solve` finds the choices of least cost, and
//! [`search`](mod@search) wraps both in the memory limit and the runners-up. Nothing here knows the name of a model, a module or a parameter; names serve
//! only to match the user's pins and to print.

mod copies;
mod explain;
mod links;
mod pins;
mod plan;
mod search;
mod tables;

pub use explain::explain;
pub use pins::{Pins, glob};
pub use plan::{Plan, Prediction, RunnerUp};
pub use search::{Request, Searched, direct, search};
