//! Micro-batches: what of a rank's graph is computed for a slice of the batch at a time.

use base::{Code, Diagnostic, Result};
use ir::{CollectiveKind, InputClass, Placement};
use shard::Gathers;
use solve::Solver;

use crate::{
    axis::{Along, Model},
    moments::Charges,
    prices::Prices,
    run::Found,
    setting::Setting,
    tables::Tables,
};

impl Along<'_> {
    /// The candidates along an axis of micro-batches: the one solution under prices of memory, which slices all that it can. Where it does not keep the
    /// memory limit, also the one that gathers in each micro-batch what outer axes shard, and adds sums up where they are sharded.
    ///
    /// None where a rank's share of the batch has no such slices.
    pub fn sliced(&self) -> Result<Vec<Found>> {
        let mut batch = self.graph.inputs.values().filter(|input| input.class == InputClass::Batch);
        let is_slice = |placement: &Placement| matches!(placement, Placement::Shard { dim: 0, .. });
        if !batch.any(|input| self.space.offers[input.value].iter().any(is_slice)) {
            return Ok(Vec::new());
        }
        let mut found = self.sliced_with(Gathers::Once)?;
        let gathers = |id| self.graph.collective(id).is_some_and(|one| one.kind == CollectiveKind::AllGather);
        // To gather in each of them is no faster.
        let may_be_better = !self.is_kept(&found) && !self.run.is_slower(&found);
        if may_be_better && self.graph.order.iter().any(|id| gathers(*id)) {
            found.extend(self.sliced_with(Gathers::Each)?);
        }
        Ok(found)
    }

    fn sliced_with(&self, gathers: Gathers) -> Result<Vec<Found>> {
        let charges = Charges::default();
        let setting = Setting { gathers, ..self.setting(true, &charges) };
        let tables = Tables::new(&setting)?;
        let solution = Solver::new(&tables.problem, self.options(true, Prices::PLAIN)).solve();
        let solution = solution.map_err(|failure| {
            Diagnostic::new(Code::NO_PLAN, "the search for micro-batches failed").because(failure.to_string())
        })?;
        self.continued(&tables.assignment(&solution.choices), Model::default())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::testing::{link, uniform};
    use ir::{Mesh, MeshAxis};

    use crate::{
        jointly::tests::asked,
        layers::tests::{Tower, tower},
        search::search,
    };

    #[test]
    fn weights_whose_gradients_are_added_up_in_many_slices_are_sharded() {
        let cluster = uniform(1e14, 1e11, link(100.0, 1e10));
        let graph = tower(Tower { layers: 2, rows: 2048, width: 512, reach: 1, odd: None });
        let label = |slices: u32| {
            let axes = [MeshAxis::ranks("ranks", 4), MeshAxis::micro_batches(slices)];
            let mesh = Mesh { axes: axes.into_iter().filter(|axis| axis.size > 1).collect() };
            asked(&graph, &cluster, &mesh, None, |request| search(request).unwrap().plan().unwrap().label)
        };
        // At once it takes less to sum gradients between ranks than to gather rows. Each slice adds a whole gradient, or its shard.
        let (once, sliced) = (label(1), label(64));
        assert!(once.starts_with("data parallel 4"), "{once}");
        assert!(sliced.starts_with("tensor parallel 4"), "{sliced}");
    }
}
