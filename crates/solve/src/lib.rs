//! Minimises sums of small integer cost tables over variables with finitely many states, exactly, and says how it knows.
//!
//! A [`Problem`] is a set of [variables](VariableId) and of [tables](TableId) on small sets of them; [`solve`] is a pure
//! function from it to a [`Solution`]. The method is bucket elimination in an order that keeps tables small. Equal tables
//! are stored once and equal eliminations done once, so that a problem that repeats itself (the layers of a model) costs
//! little more than one period of it. Where a table would exceed [`Options::table_limit`], it is split: choices are good
//! then, and the bound tells how good at least.

mod approximate;
mod array;
mod budget;
mod components;
mod conflict;
mod cost;
mod dual;
mod eliminate;
mod failure;
mod good_order;
mod kernel;
mod knapsack;
mod network;
mod order;
mod orders;
mod price;
mod problem;
mod prune;
mod scatter;
mod solution;
mod solver;
mod split;
mod split_order;
mod variable;

pub use budget::{Budgeted, Point};
pub use cost::Cost;
pub use failure::Failure;
pub use price::Price;
pub use problem::{Cells, Choices, ClassId, Factor, Problem, TableId, evaluate, weigh};
pub use solution::{Options, Solution, Statistics, Stop};
pub use solver::{Minima, Solver, solve};
pub use variable::VariableId;
