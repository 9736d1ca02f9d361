//! What the search's own model says of decisions that were not found in it, and the least that it allows.

use ir::{AxisKind, MeshAxis};
use solve::Solver;

use crate::{
    axis::{Along, Model},
    folded::Program,
    intents::Origins,
    moments::Charges,
    on_axes::OnAxis,
    pins::Demands,
    prices::Prices,
    run::Run,
    tables::Tables,
};

impl Run<'_> {
    /// The time of decisions that nothing is demanded of, in the model of the innermost axis of ranks, and the least time along it, with the
    /// decisions along the axes outside it.
    pub fn certified(&self, decided: &[OnAxis<'_>]) -> Option<Model> {
        let is_ranks = |axis: &MeshAxis| axis.kind == AxisKind::Ranks && axis.size > 1;
        let OnAxis { axis, graph, space, decided } = decided.iter().rfind(|one| is_ranks(one.axis))?;
        let number = self.request.mesh.axes.iter().position(|one| one == *axis)?;
        let (demands, charges) = (Demands::default(), Charges::default());
        let within = |_: Program<'_>, _: &Origins| Ok(Vec::new());
        let along = Along {
            run: self,
            program: Program::Whole(graph),
            graph,
            origins: &Origins::default(),
            number,
            axis,
            space,
            demands: &demands,
            within: &within,
        };
        let setting = along.setting(true, &charges);
        let tables = Tables::new(&setting).ok()?;
        let options = along.options(true, Prices::PLAIN);
        let mut solver = Solver::new(&tables.problem, options);
        let least = solver.solve().ok()?;
        let own = solver.solve_fixed(&tables.fixed(decided)?).ok()?;
        Some(Model { time: own.cost.primary(), bound: least.bound.primary() })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::testing::{link, uniform};
    use cost::Machine;
    use ir::Mesh;
    use shard::{Gathers, Offered, Space, canonical};
    use solve::Options;

    use super::*;
    use crate::{
        forbidden::Forbidden,
        layers::{
            Layers,
            tests::{Tower, tower},
        },
        setting::Setting,
        shorter::Shorter,
        taken_over::Pair,
    };

    #[test]
    fn what_is_decided_for_few_layers_costs_what_the_whole_program_costs_under_it() {
        let cluster = uniform(1e12, 1e11, link(1_000.0, 1e10));
        let mesh = Mesh::along("ranks", 4);
        let machine = Machine { cluster: &cluster, mesh: &mesh };
        let (pins, charges, options) = (Demands::default(), Charges::default(), Options::default());
        for (layers, reach, rows) in [(8, 1, 64), (8, 1, 4096), (12, 2, 64), (17, 3, 512)] {
            let of = Tower { layers, rows, width: 64, reach, odd: None };
            let whole = canonical(&tower(of));
            let found = Layers::of(&whole).unwrap();
            let Shorter { folded, places } = Shorter::keeping(&found, 2 * reach).unwrap();
            let setting = |graph, space, folded| Setting {
                graph,
                folded,
                space,
                intent: None,
                machine,
                charges: &charges,
                pins: &pins,
                batch: None,
                strict: true,
                forbidden: Forbidden::default(),
                reduce_dtype: None,
                gathers: Gathers::Once,
            };
            let space = Space::new(folded.graph(), &mesh.axes[0], Offered::Even);
            let of_few = setting(folded.graph(), &space, Some(&folded));
            let tables = Tables::new(&of_few).unwrap();
            let solution = Solver::new(&tables.problem, options.clone()).solve().unwrap();
            let decided = tables.assignment(&solution.choices);

            let Pair { from, alike, .. } = folded.pair.clone();
            let to_whole = Pair { from, to: whole.clone(), places, alike };
            let space = Space::new(&whole, &mesh.axes[0], Offered::Even);
            let of_all = setting(&whole, &space, None);
            let tables = Tables::new(&of_all).unwrap();
            let fixed = tables.fixed(&to_whole.translated(&decided)).unwrap();
            let under_it = Solver::new(&tables.problem, options.clone()).solve_fixed(&fixed).unwrap();
            assert_eq!(under_it.cost.primary(), solution.cost.primary(), "{layers} layers, {rows} rows");
            // Layers that are alike are decided alike in the best plan too, but for the first and the last of them.
            let best = Solver::new(&tables.problem, options.clone()).solve().unwrap();
            assert!(best.cost.primary() <= solution.cost.primary());
            let apart = solution.cost.primary() - best.cost.primary();
            assert!(apart * 50 <= best.cost.primary(), "{layers} layers, {rows} rows: {apart} of {best:?}");
        }
    }
}
