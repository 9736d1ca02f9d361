//! Pipeline schedules as data: what each stage computes of which micro-batch, in which order.
//!
//! A program is cut into *chunks*, numbered in the order of forward; each is on a *stage*, which may have several. A [`Schedule`] is a row of
//! [`Action`]s for each stage. Rows come from a [`Name`], from a file as torch writes it, or from a search ([`searched`]) for given [`Costs`];
//! [`Costs::run`] says how long they take, and what each stage holds.

mod action;
mod check;
mod costs;
mod csv;
mod exact;
mod greedy;
mod improve;
mod name;
mod named;
mod progress;
mod rows;
mod search;
mod vshape;

pub use action::{Action, Pass};
pub use costs::{Costs, Run, Stuck};
pub use name::{Kind, Name};
pub use rows::{Placement, Schedule};
pub use search::{named, searched};
