//! What the tables of the search along one axis are made from.

use cost::Machine;
use ir::{Graph, Placement};
use shard::Space;

use crate::{forbidden::Forbidden, moments::Charges, pins::Demands};

/// What the tables are made from.
pub struct Setting<'a> {
    /// The graph, in canonical form.
    pub graph: &'a Graph,
    /// Its strategies.
    pub space: &'a Space,
    /// Costs.
    pub machine: Machine<'a>,
    /// What of memory is weighed.
    pub charges: &'a Charges,
    /// What is demanded of inputs and of what modules give.
    pub pins: &'a Demands,
    /// The placement that is demanded of the batch, if one is.
    pub batch: Option<Placement>,
    /// Whether changes of placement against that demand are forbidden or penalised.
    pub strict: bool,
    /// The collectives that no solution has.
    pub forbidden: Forbidden,
}
