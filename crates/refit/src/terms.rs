//! Which coefficients are wrong: the fewest that have to change for the cost model to tell what was seen.
//!
//! Again and again the one coefficient is changed with which, at its best value, the errors of all calls fall the most, until none is
//! worth it. Errors are logarithms of ratios, so that twice and half as long are equally wrong, and they are summed up as they are, not
//! squared, so that few calls that nothing explains pull no coefficient towards them.

use cluster::{Cluster, Says};
use serde::Serialize;

use crate::Seen;

/// How far a coefficient must be off to be wrong, as a ratio.
const OFF: f64 = 1.1;
/// Which part of the errors of the calls that a coefficient tells must go with it: less is noise.
const WORTH: f64 = 0.2;
/// How many times as long as it says a coefficient may at most be tried.
const MOST: f64 = 256.0;
/// How many values are tried before the best is refined, and how often it is.
const GRID: i32 = 32;
const REFINED: usize = 24;
/// How often a coefficient is changed at most, for each there is.
const ROUNDS: usize = 4;
/// By how much predictions must move with a coefficient for a call to count among those that it tells: as a part of the change.
const TOLD: f64 = 0.3;
const TRIED: f64 = 1.25;
/// Movements of predictions that are rounding.
const NEARLY: f64 = 1e-4;
/// Nanoseconds below which no prediction counts, so that there is a ratio to it.
pub const LEAST: f64 = 1e-3;

/// A coefficient that was wrong.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Term {
    /// Its name in the description.
    pub name: String,
    /// What the description said.
    pub before: f64,
    /// What is right.
    pub after: f64,
    /// How many times as long as it said takes what it tells.
    pub slower: f64,
    /// The calls that it tells.
    pub calls: usize,
    /// For each kind of them, bytes that one moves, and how many times as long as predicted it took; the smallest first.
    pub sizes: Vec<(u64, f64)>,
}

/// Sizes of calls, each with how many times as long as predicted it took.
pub fn sizes(cluster: &Cluster, seen: &[&Seen]) -> Vec<(u64, f64)> {
    let size = |one: &&Seen| (one.what.bytes(), one.nanos / one.predicted(cluster).max(LEAST));
    let mut sizes: Vec<(u64, f64)> = seen.iter().map(size).collect();
    sizes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    sizes
}

/// The coefficients that are wrong, and a cluster in which they are right. What single operations took is in neither.
pub fn mended(cluster: &Cluster, seen: &[&Seen]) -> (Cluster, Vec<Term>) {
    let mut names = Vec::new();
    cluster.clone().coefficients(&mut |name, _, value| {
        if *value > 0.0 {
            names.push(name.to_owned());
        }
    });
    let mut now = cluster.clone();
    for _ in 0..ROUNDS * names.len() {
        let errors = errors(&now, seen);
        let tries = names.iter().map(|name| best(&now, name, seen, &errors));
        let gains = tries.enumerate().filter_map(|(at, tried)| tried.map(|tried| (at, tried)));
        // Of equal gains the smaller change.
        let change = |factor: f64| factor.ln().abs();
        let most = gains.max_by(|(_, a), (_, b)| {
            a.gain.total_cmp(&b.gain).then(change(b.factor).total_cmp(&change(a.factor)))
        });
        let Some((at, Tried { factor, .. })) = most else { break };
        now = now.slower(&names[at], factor);
    }
    let terms = names.iter().map(|name| term(cluster, &now, name, seen));
    let terms = terms.filter(|term| term.slower.ln().abs() >= OFF.ln()).collect();
    (now, terms)
}

/// How many times as long as predicted each call took, as a logarithm.
fn errors(cluster: &Cluster, seen: &[&Seen]) -> Vec<f64> {
    seen.iter().map(|one| (one.nanos / one.predicted(cluster).max(LEAST)).ln()).collect()
}

/// A coefficient at its best value.
struct Tried {
    factor: f64,
    gain: f64,
}

/// The best value of a coefficient, if it is worth to have it.
fn best(cluster: &Cluster, name: &str, seen: &[&Seen], errors: &[f64]) -> Option<Tried> {
    let told = told(cluster, name, seen, errors);
    let moved: Vec<&Seen> = told.iter().map(|(one, ..)| *one).collect();
    let before: f64 = told.iter().map(|(_, error, _)| error.abs()).sum();
    let own: f64 = told.iter().filter(|(.., is_own)| *is_own).map(|(_, error, _)| error.abs()).sum();
    if own <= 0.0 {
        return None;
    }
    let left = |log: f64| -> f64 {
        self::errors(&cluster.slower(name, log.exp()), &moved).iter().map(|error| error.abs()).sum()
    };
    let step = MOST.ln() / f64::from(GRID);
    let (mut at, mut least) = (0.0, before);
    for number in -GRID..=GRID {
        let log = f64::from(number) * step;
        let left = left(log);
        if left < least {
            (at, least) = (log, left);
        }
    }
    let mut width = step;
    for _ in 0..REFINED {
        width /= 2.0;
        for log in [at - width, at + width] {
            let left = left(log);
            if left < least {
                (at, least) = (log, left);
            }
        }
    }
    let gain = before - least;
    (gain >= WORTH * own && gain > OFF.ln() / 2.0 && at.abs() > 1e-3)
        .then_some(Tried { factor: at.exp(), gain })
}

/// The calls whose predictions move with a coefficient, their errors, and whether they move nearly as it does.
fn told<'s>(cluster: &Cluster, name: &str, seen: &[&'s Seen], errors: &[f64]) -> Vec<(&'s Seen, f64, bool)> {
    let (slower, faster) = (cluster.slower(name, TRIED), cluster.slower(name, 1.0 / TRIED));
    let moves =
        |one: &Seen, with: &Cluster| (one.predicted(with) / one.predicted(cluster).max(LEAST)).ln().abs();
    let found = seen.iter().zip(errors).filter_map(|(one, error)| {
        let moved = moves(one, &slower).max(moves(one, &faster));
        (moved > NEARLY).then_some((*one, *error, moved >= TOLD * TRIED.ln()))
    });
    found.collect()
}

fn term(before: &Cluster, after: &Cluster, name: &str, seen: &[&Seen]) -> Term {
    let value = |cluster: &Cluster| {
        let mut found = (Says::Time, 0.0);
        cluster.clone().coefficients(&mut |known, says, value| {
            if known == name {
                found = (says, *value);
            }
        });
        found
    };
    let ((says, old), (_, new)) = (value(before), value(after));
    // What it tells with the old value need not be what it tells with the new one.
    let told = |cluster: &Cluster| told(cluster, name, seen, &errors(cluster, seen));
    let with = [told(before), told(after)];
    let is_own =
        |one: &&&Seen| with.iter().flatten().any(|(known, _, own)| *own && std::ptr::eq(*known, **one));
    let own: Vec<&Seen> = seen.iter().filter(is_own).copied().collect();
    Term {
        name: name.to_owned(),
        before: old,
        after: new,
        slower: if says == Says::Rate { old / new } else { new / old },
        calls: own.iter().map(|one| one.calls).sum(),
        sizes: sizes(before, &own),
    }
}
