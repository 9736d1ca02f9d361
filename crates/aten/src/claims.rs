//! What a row claims about one call, so that a test can tell whether every claim has been tested.

use crate::{Call, FactorKind, Factors, Row, Rule, strategy::divides};

/// A claim about a call: a factor that may be sharded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// What the factor is to operands and results, whichever dimension it is there: equal for equal claims of an operation.
    pub what: String,
    /// Whether the size divides by the number of ranks, so that the claim is tested.
    pub asked: bool,
}

/// The claims of a row about a call on an axis of `ranks`. A rule that is a function of a sharding makes one.
pub fn claims(row: &Row, call: &Call<'_>, ranks: u32) -> Vec<Claim> {
    let space = match row.rule {
        Rule::Unknown | Rule::Fixed => return Vec::new(),
        Rule::Seeded(_) => return vec![Claim { what: "a sharding".to_owned(), asked: true }],
        Rule::Each => crate::rules::pointwise::broadcast(call),
        Rule::Einsum(text) => crate::einsum::factors(text, call),
        Rule::Factors(factors) => factors(call),
    };
    space
        .iter()
        .flat_map(|space| (0..space.factors.len()).map(|number| claim(space, number, ranks)))
        .collect()
}

fn claim(space: &Factors, number: usize, ranks: u32) -> Claim {
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
    Claim { what, asked: divides(factor.size, 1, ranks) }
}
