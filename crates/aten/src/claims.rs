//! What a row claims about one call, so that a test can tell whether every claim has been tested.

use ir::Chunks;

use crate::{
    Call, FactorKind, Factors, Row, Rule, Seed,
    strategy::{Slot, Strategy},
};

/// A claim about a call: a factor that may be sharded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// What the factor is to operands and results, whichever dimension it is there: equal for equal claims of an operation.
    pub what: String,
    /// Whether the size is one at which the claim is tested.
    pub asked: bool,
}

/// The claims of a row about a call on an axis of `ranks`. A rule that is a function of a sharding makes one.
pub fn claims(row: &Row, call: &Call<'_>, ranks: u32) -> Vec<Claim> {
    let spaces = match row.rule {
        Rule::Unknown | Rule::Fixed => return Vec::new(),
        Rule::Seeded(_) => return of_sharding(row, call, ranks),
        Rule::Each => vec![crate::rules::pointwise::broadcast(call)],
        Rule::Einsum(text) => vec![crate::einsum::factors(text, call)],
        Rule::Registered => vec![crate::einsum::registered(call)],
        Rule::Factors(factors) => vec![factors(call)],
        Rule::Either(spaces) => spaces.iter().map(|space| space(call)).collect(),
    };
    spaces
        .iter()
        .flatten()
        .flat_map(|space| (0..space.factors.len()).flat_map(|number| of_factor(row, space, number, ranks)))
        .collect()
}

/// That a sharding leads to another one, whatever sizes shards have.
fn of_sharding(row: &Row, call: &Call<'_>, ranks: u32) -> Vec<Claim> {
    let operands = (0..call.operands.len()).map(|i| (Slot::Operand(i), call.operand(i)));
    let results = (0..call.results.len()).map(|i| (Slot::Result(i), call.result(i)));
    let seeds = operands
        .chain(results)
        .flat_map(|(slot, ty)| (0..ty.rank()).map(move |dim| (Seed { slot, dim, blocks: 1, chunk: 0 }, ty)));
    let leads = seeds.filter_map(|(seed, ty)| {
        crate::seeded(row, call, seed, ranks).and_then(|_: Strategy| seed.chunks(&ty.shape, ranks))
    });
    let leads: Vec<Chunks> = leads.collect();
    claimed(row, "a sharding", |suits| leads.iter().any(suits))
}

/// A claim for shards of one size, one for shards of several sizes, and one for empty shards where these are right too.
fn claimed(row: &Row, what: &str, asked: impl Fn(&dyn Fn(&Chunks) -> bool) -> bool) -> Vec<Claim> {
    let uneven = |chunks: &Chunks| !chunks.is_even() && !chunks.leaves_empty();
    let mut claims = vec![
        Claim { what: what.to_owned(), asked: asked(&Chunks::is_even) },
        Claim { what: format!("{what}, uneven"), asked: asked(&uneven) },
    ];
    if row.may_be_empty {
        claims.push(Claim { what: format!("{what}, some empty"), asked: asked(&Chunks::leaves_empty) });
    }
    claims
}

fn of_factor(row: &Row, space: &Factors, number: usize, ranks: u32) -> Vec<Claim> {
    let factor = space.factors[number];
    let members = |maps: &[crate::factors::DimMap]| -> Vec<usize> {
        maps.iter().enumerate().filter(|(_, map)| map.contains(&Some(number))).map(|(i, _)| i).collect()
    };
    let kind = match factor.kind {
        FactorKind::Parallel => "parallel".to_owned(),
        FactorKind::Reduce(reduce) => format!("{reduce:?}"),
    };
    let what = format!(
        "{kind} {:?}: {:?} -> {:?}",
        factor.realise,
        members(&space.operands),
        members(&space.results)
    );
    let chunks = Chunks::new(factor.size, 1, 0, ranks);
    let mut claims = claimed(row, &what, |suits| chunks.as_ref().is_some_and(suits));
    claims.truncate(match factor.realise {
        realise if !realise.fits(ranks) => 0,
        realise if realise.permutes() => 1,
        realise if realise.may_be_empty() => 3,
        _ => 2,
    });
    claims
}
