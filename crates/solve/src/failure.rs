//! Why there is no solution.

use std::fmt;

use crate::VariableId;

/// Why there is no solution. The caller knows what the variables stand for, and makes the diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The tables on these variables forbid every combination of their states.
    Infeasible {
        /// The variables at fault, in increasing order.
        variables: Vec<VariableId>,
    },
    /// Whatever is chosen weighs more than the budget.
    OverBudget {
        /// What the lightest choices weigh, or a weight that none falls below.
        least: u64,
    },
    /// Finite costs beyond [`Cost::LIMIT`](crate::Cost::LIMIT) even in the coarsest units.
    CostOverflow,
    /// A table over the limit, or all that one elimination computes.
    TooLarge {
        /// Its cells.
        cells: u64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infeasible { variables } => {
                write!(f, "no choice satisfies the constraints among {variables:?}")
            }
            Self::OverBudget { least } => write!(f, "all choices weigh at least {least}, over the budget"),
            Self::CostOverflow => f.write_str("costs are too large to be added exactly"),
            Self::TooLarge { cells } => write!(f, "a table of {cells} cells is over the limit"),
        }
    }
}

impl std::error::Error for Failure {}

/// What is found within limits; nothing where it would take more.
pub(crate) fn within_limits<T>(found: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match found {
        Err(Failure::TooLarge { .. }) => Ok(None),
        found => found.map(Some),
    }
}
