//! The solver: prune, order, eliminate, read the choices off, check.

use crate::{
    Choices, Cost, Failure, Options, Problem, Solution, Statistics, Stop, VariableId,
    approximate::{Bracket, Means, bracket},
    array::Store,
    conflict::Conflict,
    eliminate::{Cache, Resources, eliminate},
    evaluate,
    failure::within_limits,
    network::{Network, Objective, build, ids},
    orders::Orders,
    prune::Pruner,
};

/// The bits of the units that costs are added in, one after the other where they are too large: what is rounded off is in the gap.
const UNITS: [u32; 4] = [0, 8, 16, 24];

/// A problem with everything that was learnt about it: later solves of its variants are mostly look-ups.
pub struct Solver<'a> {
    pub(crate) problem: &'a Problem,
    options: Options,
    store: Store,
    cache: Cache,
    pruner: Pruner,
    orders: Orders,
    /// The number of the units in which no costs were too large so far.
    unit: usize,
    /// Budgets ask for the same again and again.
    known: Minima,
    /// The cells that were computed so far.
    computed: u64,
}

/// What minimises the objectives that were asked for of a problem.
#[derive(Clone, Default)]
pub struct Minima(Vec<(Objective, Minimum)>);

impl<'a> Solver<'a> {
    /// A solver that has done nothing yet.
    pub fn new(problem: &'a Problem, options: Options) -> Self {
        let (store, cache, pruner, orders) = <(Store, Cache, Pruner, Orders)>::default();
        Self {
            problem,
            options,
            store,
            cache,
            pruner,
            orders,
            unit: 0,
            known: Minima::default(),
            computed: 0,
        }
    }

    /// The same, where another one found all this of an equal problem with equal options.
    #[must_use]
    pub fn knowing(self, known: Minima) -> Self {
        Self { known, ..self }
    }

    /// What was found, for a solver of an equal problem.
    pub fn into_known(self) -> Minima {
        self.known
    }

    /// A solver for another problem that knows what this one learnt: what is equal in both is not computed again.
    pub fn turn_to(self, problem: &Problem) -> Solver<'_> {
        Solver { problem, known: Minima::default(), ..self }
    }

    /// Searches on with other options: a precise solve of what was best among cheap ones, for one.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
        self.known = Minima::default();
    }

    /// The choices of least cost.
    pub fn solve(&mut self) -> Result<Solution, Failure> {
        self.solve_fixed(&[])
    }

    /// The choices of least cost among those in which the given variables, each named once, have the given states: a
    /// runner-up, for one.
    pub fn solve_fixed(&mut self, fixed: &[(VariableId, u32)]) -> Result<Solution, Failure> {
        let kept: Vec<(u32, Vec<u32>)> =
            fixed.iter().map(|&(variable, state)| (variable.0, vec![state])).collect();
        let mut statistics = self.statistics();
        let minimum = self.minimise(Objective::COSTS, &kept, &mut statistics)?;
        let cost = evaluate(self.problem, &minimum.choices);
        let bound = Cost::bound(minimum.bound);
        assert!(bound <= cost, "the bound of {bound} holds for choices that cost {cost}");
        let stop = if cost == bound { Stop::Optimal } else { Stop::TableLimit };
        Ok(Solution { choices: minimum.choices, cost, bound, stop, statistics })
    }

    /// The cells of tables that were computed so far, whatever came of it: what solving took, the same on every machine.
    pub const fn cells_computed(&self) -> u64 {
        self.computed
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics { variables: self.problem.sizes().len() as u32, ..Statistics::default() }
    }

    pub(crate) fn minimise(
        &mut self,
        objective: Objective,
        kept: &[(u32, Vec<u32>)],
        statistics: &mut Statistics,
    ) -> Result<Minimum, Failure> {
        if kept.is_empty()
            && let Some((_, known)) = self.known.0.iter().find(|(known, _)| *known == objective)
        {
            return Ok(known.clone());
        }
        statistics.solves += 1;
        let mut number = if objective == Objective::Weights { 0 } else { self.unit };
        let found = loop {
            let unit = *UNITS.get(number).ok_or(Failure::CostOverflow)?;
            let (network, constant) = build(self.problem, &mut self.store, objective, unit);
            let before = statistics.cells_computed;
            let found = self.minimise_network(network.clone(), kept, statistics);
            self.computed += statistics.cells_computed - before;
            match found {
                Ok((choices, minimum)) => {
                    let bound = constant + (minimum << unit);
                    break Minimum { choices: choices.into_iter().collect(), bound };
                }
                Err(Failure::CostOverflow) => number += 1,
                Err(failure) => return Err(self.blame(failure, &network, kept)),
            }
        };
        if objective != Objective::Weights {
            self.unit = number;
        }
        if kept.is_empty() {
            self.known.0.push((objective, found.clone()));
        }
        Ok(found)
    }

    /// Narrows an infeasibility down to a set of variables from which none can be left out.
    fn blame(&mut self, failure: Failure, network: &Network, kept: &[(u32, Vec<u32>)]) -> Failure {
        let Failure::Infeasible { variables } = failure else { return failure };
        if !self.options.blame {
            return Failure::Infeasible { variables };
        }
        let noticed: Vec<u32> = variables.iter().map(|x| x.0).collect();
        let fault = Conflict::new(network, kept, &mut self.store, &self.options).narrow(&noticed);
        Failure::Infeasible { variables: ids(&fault) }
    }

    /// Choices and the least sum of the network's tables, or a bound of it.
    fn minimise_network(
        &mut self,
        network: Network,
        kept: &[(u32, Vec<u32>)],
        statistics: &mut Statistics,
    ) -> Result<(Vec<u32>, i128), Failure> {
        let states = total(&network.sizes);
        let mut pruned = self.pruner.prune(network, kept, &mut self.store)?;
        let network = std::mem::take(&mut pruned.network);
        statistics.states_pruned += states - total(&network.sizes);
        let order = self.orders.good(&network, self.options.table_limit);
        let exact = if order.largest <= self.options.table_limit {
            let (store, cache, work) = (&mut self.store, &mut self.cache, self.options.work_limit);
            let with = Resources { store, cache, statistics, limit: u64::MAX, work };
            within_limits(eliminate(network.clone(), order.variables.clone(), with))?
        } else {
            None
        };
        let (choices, minimum) = if let Some(done) = exact {
            (done.choose(&self.store), done.minimum)
        } else {
            let mut means = Means {
                store: &mut self.store,
                cache: &mut self.cache,
                pruner: &mut self.pruner,
                known_orders: &mut self.orders,
                statistics,
                table_limit: self.options.table_limit,
                work_limit: self.options.work_limit,
                orders: self.options.orders,
                dual: self.options.dual,
                enough: self.options.enough,
            };
            let Bracket { choices, bound } = bracket(network, &mut means)?;
            (choices, bound)
        };
        Ok((pruned.original(&choices), pruned.constant + minimum))
    }
}

/// What minimises an objective, and what no choices fall below.
#[derive(Clone)]
pub(crate) struct Minimum {
    pub choices: Choices,
    pub bound: i128,
}

fn total(sizes: &[u32]) -> u64 {
    sizes.iter().map(|&size| u64::from(size)).sum()
}

/// The choices of least cost. See [`Solver`] for many solves of one problem.
pub fn solve(problem: &Problem, options: &Options) -> Result<Solution, Failure> {
    Solver::new(problem, options.clone()).solve()
}
