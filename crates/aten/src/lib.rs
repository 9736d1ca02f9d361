//! The operation table: everything that is known of an ATen operation stands in its one [`Row`].
//!
//! A row says how the operation may be sharded (its rule), through which operands a partial value may pass, which argument repeats a
//! shape, and how much work it is. From a row follow the [`Strategy`]s that an operation has along one mesh axis. An operation
//! without a row runs replicated.

mod call;
mod check;
mod claims;
mod effects;
mod einsum;
mod factors;
mod formula;
mod groups;
mod moves;
mod on_lists;
mod row;
mod rules;
mod strategies;
mod strategy;
mod table;

pub use call::Call;
pub use check::check;
pub use claims::{Claim, claims};
pub use effects::{memory, random};
pub use factors::{Factor, FactorKind, Factors};
pub use formula::{Eager, Formula};
pub use groups::{RunTimeSizes, by_groups, of_groups, offsets};
pub use moves::Moves;
pub use on_lists::OnLists;
pub use row::{
    Draw, Fill, Groups, Linear, ListForm, Memory, Parameter, Random, Rewrite, Role, Row, Rule, Sizes,
    Strides, Work,
};
pub use rules::join::{SLICE, one_piece, piece_of};
pub use strategies::{is_norm, is_view, replicated, seeded, strategies};
pub use strategy::{Realise, Seed, Slot, Strategy};
pub use table::{ROWS, list_forms, row, row_in_place, row_of};
