//! The strategies of an operation, from its row.

use ir::{Graph, NodeId, Placement, Reduce, TensorType, ValueDef, ValueId};
use smallvec::SmallVec;

use crate::{
    Call, Linear, Row, Rule, Work,
    strategy::{Realise, Seed, Strategy},
};

/// The strategy that every operation has.
pub fn replicated(call: &Call<'_>) -> Strategy {
    Strategy {
        operands: SmallVec::from_elem(Placement::Replicate, call.operands.len()),
        results: SmallVec::from_elem(Placement::Replicate, call.results.len()),
        realise: Realise::Plain,
    }
}

/// The strategy that follows from `seed` on an axis of `ranks`, if the operation's rule has one.
pub fn seeded(row: &Row, call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    let found = match row.rule {
        Rule::Unknown | Rule::Fixed => None,
        Rule::Each => crate::rules::pointwise::broadcast(call)?.seeded(call, seed, ranks),
        Rule::Einsum(text) => crate::einsum::factors(text, call)?.seeded(call, seed, ranks),
        Rule::Registered => crate::einsum::registered(call)?.seeded(call, seed, ranks),
        Rule::Factors(factors) => factors(call)?.seeded(call, seed, ranks),
        Rule::Either(_) => return either(row, call, seed, ranks).next(),
        Rule::Seeded(strategy) => strategy(call, seed, ranks),
    };
    found.filter(|strategy| suits(row, call, strategy, ranks))
}

/// The strategies that follow from `seed` in one of several iteration spaces each.
fn either<'a>(
    row: &'a Row,
    call: &'a Call<'_>,
    seed: Seed,
    ranks: u32,
) -> impl Iterator<Item = Strategy> + 'a {
    let spaces = if let Rule::Either(spaces) = row.rule { spaces } else { &[] };
    let found = spaces.iter().filter_map(move |space| space(call)?.seeded(call, seed, ranks));
    found.filter(move |strategy| suits(row, call, strategy, ranks))
}

/// All strategies of an operation along an axis of `ranks`: replicated, those that follow from `seeds`, and those in which a partial
/// value passes through. No strategy comes twice.
pub fn strategies(row: &Row, call: &Call<'_>, seeds: &[Seed], ranks: u32) -> Vec<Strategy> {
    let mut all = vec![replicated(call)];
    let from_seed = |seed: &Seed| -> SmallVec<[Strategy; 2]> {
        match row.rule {
            Rule::Either(_) => either(row, call, *seed, ranks).collect(),
            _ => seeded(row, call, *seed, ranks).into_iter().collect(),
        }
    };
    for strategy in seeds.iter().flat_map(from_seed).chain(passing(row, call)) {
        if !all.contains(&strategy) {
            all.push(strategy);
        }
    }
    all
}

/// Whether every sharded dimension is there and can be sharded, and no rank is left without an element where that is wrong: a rule takes the
/// shapes of a call for those that the operation makes, which a graph need not have that was not captured.
pub fn suits(row: &Row, call: &Call<'_>, strategy: &Strategy, ranks: u32) -> bool {
    let (may_be_uneven, fits) = (!strategy.realise.permutes(), strategy.realise.fits(ranks));
    let may_be_empty =
        strategy.realise.may_be_empty() && (row.may_be_empty || is_nothing_of_nothing(call, strategy));
    let suits = |(placement, ty): (Placement, &TensorType)| match placement {
        Placement::Shard { .. } => placement.chunks(&ty.shape, ranks).is_some_and(|(_, chunks)| {
            (may_be_empty || !chunks.leaves_empty()) && (may_be_uneven || chunks.is_even())
        }),
        Placement::Replicate | Placement::Partial(_) | Placement::Groups { .. } => true,
    };
    fits && strategy.placed(call).all(suits)
}

/// Whether a rank without a part has nothing of each result, or 0 of a sum, so that it need not run the operation. What is whole on all ranks beside
/// results that are divided says how random numbers were drawn, which nothing asks for in an operation that is divided.
fn is_nothing_of_nothing(call: &Call<'_>, strategy: &Strategy) -> bool {
    let is_empty = |value: &ValueId| call.graph.ty(*value).elements() == 0;
    let is_divided = |placement: &Placement| {
        matches!(placement, Placement::Shard { .. } | Placement::Partial(Reduce::Sum))
    };
    let suits = |placement: &Placement| is_divided(placement) || *placement == Placement::Replicate;
    strategy.realise == Realise::Plain
        && !call.operands.iter().any(is_empty)
        && strategy.results.first().is_some_and(is_divided)
        && strategy.results.iter().all(suits)
}

/// The strategies in which a partial value passes through the operation.
fn passing(row: &Row, call: &Call<'_>) -> Vec<Strategy> {
    let partial = |reduce, members: &dyn Fn(usize) -> bool| Strategy {
        operands: (0..call.operands.len())
            .map(|operand| if members(operand) { Placement::Partial(reduce) } else { Placement::Replicate })
            .collect(),
        results: SmallVec::from_elem(Placement::Partial(reduce), call.results.len()),
        realise: Realise::Plain,
    };
    let floating = call.results.iter().all(|value| call.graph.ty(*value).dtype.is_floating());
    let floating = floating && call.operands.iter().all(|value| call.graph.ty(*value).dtype.is_floating());
    let norms = call.operands.iter().all(|value| is_norm(call.graph, *value));
    match row.linear {
        Linear::Jointly if floating => vec![partial(Reduce::Sum, &|_| true)],
        Linear::Sums if floating && crate::rules::collective::adds(call) => {
            vec![partial(Reduce::Sum, &|_| true)]
        }
        Linear::Stacked if floating && norms => {
            vec![partial(Reduce::Sum, &|_| true), partial(Reduce::Norm, &|_| true)]
        }
        Linear::Stacked if floating => vec![partial(Reduce::Sum, &|_| true)],
        Linear::InEach(args) => args
            .iter()
            .filter_map(|arg| call.operand_of_arg(*arg))
            .filter(|operand| {
                call.operand(*operand).dtype.is_floating()
                    && call.result(0).dtype == call.operand(*operand).dtype
            })
            .map(|member| partial(Reduce::Sum, &|operand| operand == member))
            .collect(),
        Linear::Norms if norms && call.number(1) == Some(2.0) => vec![partial(Reduce::Norm, &|_| true)],
        Linear::Together(args) if args.iter().all(|arg| call.operand_of_arg(*arg).is_some()) => {
            let member = |operand: usize| args.contains(&call.operand_args[operand]);
            vec![partial(Reduce::Sum, &member)]
        }
        _ => Vec::new(),
    }
}

/// Whether a node gives its operand in another shape, and computes nothing.
pub fn is_view(graph: &Graph, node: NodeId) -> bool {
    crate::row(graph.op_name(node)).is_some_and(|row| matches!(row.work, Work::View))
}

/// Whether a value is a 2-norm or computed from 2-norms. Reducing partial norms loses the sign, so no other value may be one.
pub fn is_norm(graph: &Graph, value: ValueId) -> bool {
    let ValueDef::Result(node, _) = graph.values[value].def else { return false };
    match crate::row(graph.op_name(node)).map(|row| row.linear) {
        Some(Linear::Norms) => Call::new(graph, node).number(1) == Some(2.0),
        Some(Linear::Stacked) => graph.nodes[node].operands().all(|operand| is_norm(graph, operand)),
        _ => false,
    }
}
