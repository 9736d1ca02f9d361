//! Micro-batches: what of a rank's graph is computed for a slice of the batch at a time.

use base::{Code, Diagnostic, Result};
use solve::Solver;

use crate::{
    axis::{Along, Model},
    moments::Charges,
    prices::Prices,
    run::Found,
    tables::Tables,
};

impl Along<'_> {
    /// The candidates along an axis of micro-batches: the one solution under prices of memory, which slices all that it can.
    pub fn sliced(&self) -> Result<Vec<Found>> {
        let charges = Charges::default();
        let setting = self.setting(true, &charges);
        let tables = Tables::new(&setting)?;
        let solution = Solver::new(&tables.problem, self.options(true, Prices::PLAIN)).solve();
        let solution = solution.map_err(|failure| {
            Diagnostic::new(Code::NO_PLAN, "the search for micro-batches failed").because(failure.to_string())
        })?;
        self.continued(&tables.assignment(&solution.choices), Model::default())
    }
}
