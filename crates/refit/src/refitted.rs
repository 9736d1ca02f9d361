//! A description that tells what was seen.

use std::collections::BTreeMap;

use cluster::{Cluster, Fit, median};
use ir::Dtype;

use crate::{
    Seen, Term, What,
    terms::{LEAST, mended, sizes},
};

/// How far what was measured of an operator must be off to be wrong, as a ratio.
const OFF: f64 = 1.1;

/// A description that tells what was seen, and what was wrong in the one before.
#[derive(Clone, PartialEq, Debug)]
pub struct Refit {
    /// The description.
    pub cluster: Cluster,
    /// What was wrong, that with the most time behind it first.
    pub terms: Vec<Term>,
    /// Nanoseconds of all that was seen: as it ran, as it was predicted, as it is predicted now.
    pub nanos: [f64; 3],
    /// The median error of a kind of call, as a part of what one takes: before, and now.
    pub error: [f64; 2],
}

/// Finds what is wrong in a description, and puts what is right into it.
pub fn refit(cluster: &Cluster, seen: &[Seen]) -> Refit {
    let (measured, by_rates): (Vec<&Seen>, Vec<&Seen>) =
        seen.iter().partition(|one| one.what.is_measured(cluster));
    let (mut now, mut terms) = mended(cluster, &by_rates);
    terms.extend(families(cluster, &measured));
    put_in(&mut now, cluster, seen);
    let total = |of: &dyn Fn(&Seen) -> f64| seen.iter().map(|one| of(one) * one.calls as f64).sum::<f64>();
    let error = |with: &Cluster| {
        let wrong = seen.iter().map(|one| (one.predicted(with) / one.nanos - 1.0).abs());
        median(wrong.collect())
    };
    let behind = |term: &Term| (term.slower.ln().abs() * term.calls as f64, term.name.clone());
    terms.sort_by(|a, b| behind(b).0.total_cmp(&behind(a).0).then_with(|| a.name.cmp(&b.name)));
    Refit {
        nanos: [
            total(&|one| one.nanos),
            total(&|one| one.predicted(cluster)),
            total(&|one| one.predicted(&now)),
        ],
        error: [error(cluster), error(&now)],
        cluster: now,
        terms,
    }
}

/// An operator, and the element type that it computes in.
type Kind = (String, Dtype);

fn kinds<'s>(
    seen: impl IntoIterator<Item = &'s Seen>,
) -> BTreeMap<(String, &'static str), (Kind, Vec<&'s Seen>)> {
    let mut kinds = BTreeMap::new();
    for one in seen {
        if let What::Operation { name, dtype, .. } = &one.what {
            let entry = kinds.entry((name.clone(), dtype.text()));
            entry.or_insert_with(|| ((name.clone(), *dtype), Vec::new())).1.push(one);
        }
    }
    kinds
}

/// Operators of which something else was measured before.
fn families(cluster: &Cluster, measured: &[&Seen]) -> Vec<Term> {
    let mut terms = Vec::new();
    for ((name, dtype), seen) in kinds(measured.iter().copied()).into_values() {
        let slower = ratio(cluster, &seen);
        if slower.ln().abs() < OFF.ln() {
            continue;
        }
        let told =
            |with: &dyn Fn(&Seen) -> f64| seen.iter().map(|one| with(one)).sum::<f64>() / seen.len() as f64;
        terms.push(Term {
            name: format!("device.operations.{name}.{dtype}", dtype = dtype.text()),
            before: told(&|one| one.predicted(cluster)),
            after: told(&|one| one.nanos),
            slower,
            calls: seen.iter().map(|one| one.calls).sum(),
            sizes: sizes(cluster, &seen),
        });
    }
    terms
}

/// How many times as long as predicted calls take, in the middle: those that ran alone, if some did.
fn ratio(cluster: &Cluster, seen: &[&Seen]) -> f64 {
    let alone: Vec<&Seen> = seen.iter().filter(|one| one.beside.is_alone()).copied().collect();
    let seen = if alone.is_empty() { seen } else { &alone };
    median(seen.iter().map(|one| one.nanos / one.predicted(cluster).max(LEAST)).collect())
}

/// Puts what operations took into a description: rows of calls that do as much are replaced, those of the same operator that were not seen
/// take as many times as long as those that were.
fn put_in(now: &mut Cluster, before: &Cluster, seen: &[Seen]) {
    for ((name, dtype), seen) in kinds(seen).into_values() {
        if aten::row(&name).is_none() {
            continue;
        }
        let known = before.device.fit(&name, dtype).map_or_else(Vec::new, |fit| fit.measured.clone());
        let slower = if known.is_empty() { 1.0 } else { ratio(before, &seen) };
        let slower = if slower.ln().abs() < OFF.ln() { 1.0 } else { slower };
        let mut rows: BTreeMap<(u64, usize, u64), f64> = BTreeMap::new();
        for (flops, bytes, tensors, nanos) in known {
            rows.insert((bytes, tensors, flops.to_bits()), nanos * slower);
        }
        // What ran alone says more than what is left of a call when what ran beside it is taken off.
        let (alone, beside): (Vec<&Seen>, Vec<&Seen>) = seen.iter().partition(|one| one.beside.is_alone());
        for one in beside.into_iter().chain(alone) {
            if let What::Operation { amounts, .. } = &one.what {
                rows.insert((amounts.bytes, amounts.tensors, amounts.flops.to_bits()), one.alone(now));
            }
        }
        let rows = rows.into_iter().map(|((bytes, tensors, flops), nanos)| {
            (f64::from_bits(flops), bytes, tensors, (nanos * 10.0).round() / 10.0)
        });
        let mut rows: Vec<(f64, u64, usize, f64)> = rows.collect();
        rows.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let fit = Fit::of(rows, now.device.rates(dtype.text()));
        now.device.operations.entry(name).or_default().insert(dtype.text().to_owned(), fit);
    }
}
