//! Collectives in groups whose times were measured: by the curve of a group of the same shape, or else by that of the group that is most
//! like it, times what the links or levels have between the two.

use cluster::{Cluster, GroupTimes, InSteps, Interconnect};
use ir::CollectiveKind;

use crate::{
    links::modelled_time,
    network::{Group, NANO, sent},
};

/// Seconds of a collective; `None` where no group was measured that crosses the same levels.
pub fn measured_time(cluster: &Cluster, group: Group, kind: CollectiveKind, bytes: f64) -> Option<f64> {
    if cluster.groups.is_empty() || group.ranks < 2 {
        return None;
    }
    let shape = shape_of(cluster, group)?;
    let shape = if kind == CollectiveKind::Broadcast { of_transfer(shape) } else { shape };
    let candidates = cluster.groups.iter().filter_map(|known| Some((known, known.curve(kind)?)));
    let candidates = candidates.filter(|(known, _)| crosses_alike(&known.shape, &shape));
    let apart = |(known, _): &(&GroupTimes, _)| apart(&known.shape, &shape);
    let (known, curve) = candidates.min_by(|one, other| apart(one).total_cmp(&apart(other)))?;
    let measured = representative(cluster, known);
    let seconds = curve.nanos(bytes, sent(kind, measured.ranks)) * NANO;
    if known.shape == shape {
        return Some(seconds);
    }
    let modelled = |group| modelled_time(cluster, group, kind, bytes);
    let (this, that) = (modelled(group), modelled(measured));
    Some(if that > 0.0 { seconds * this / that } else { seconds })
}

/// How many times as long as alone a collective takes in a step.
pub fn times_in_steps(cluster: &Cluster, group: Group, kind: CollectiveKind, bytes: f64) -> f64 {
    in_steps(cluster, group).map_or(1.0, |seen| seen.times(kind, bytes))
}

/// How much later than a rank the last one of a group comes to a collective.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Late {
    /// Picoseconds that there always are.
    pub always: i64,
    /// And thousandths of the time since they last met.
    pub thousandths: i64,
}

impl Late {
    /// That of a group of ranks.
    pub fn of(cluster: &Cluster, group: Group) -> Self {
        let seen = |seen: &InSteps| Self {
            always: (seen.late_ns * 1e3).round() as i64,
            thousandths: (seen.late * 1e3).round() as i64,
        };
        in_steps(cluster, group).map_or_else(Self::default, seen)
    }

    /// How many picoseconds later, so many after ranks have met.
    pub const fn after(self, time: i64) -> i64 {
        self.always + time.saturating_mul(self.thousandths) / 1000
    }
}

/// What was seen of groups of the shape, or of the shape that is most like it, so that axes that were not seen look no better.
fn in_steps(cluster: &Cluster, group: Group) -> Option<&InSteps> {
    if cluster.in_steps.is_empty() || group.ranks < 2 {
        return None;
    }
    let Some(shape) = shape_of(cluster, group) else { return cluster.in_steps.first() };
    let unlike = |seen: &InSteps| (!crosses_alike(&seen.shape, &shape), apart(&seen.shape, &shape));
    cluster.in_steps.iter().min_by(|one, other| {
        let ((crosses, apart), (other_crosses, other_apart)) = (unlike(one), unlike(other));
        crosses.cmp(&other_crosses).then(apart.total_cmp(&other_apart))
    })
}

/// Whether a kind of collective was measured in a group of just this shape.
pub fn is_measured(cluster: &Cluster, group: Group, kind: CollectiveKind) -> bool {
    let Some(shape) = shape_of(cluster, group) else { return false };
    cluster.groups.iter().any(|known| known.shape == shape && known.curve(kind).is_some())
}

fn shape_of(cluster: &Cluster, group: Group) -> Option<Vec<u32>> {
    match &cluster.interconnect {
        Interconnect::Measured(_) => Some(vec![group.ranks]),
        Interconnect::Levels(network) => network.shape(group.ranks, group.stride),
    }
}

/// The two ranks of a group that are furthest apart of all that follow each other in it.
fn of_transfer(mut shape: Vec<u32>) -> Vec<u32> {
    let outermost = shape.iter().rposition(|count| *count > 1);
    shape
        .iter_mut()
        .enumerate()
        .for_each(|(level, count)| *count = if Some(level) == outermost { 2 } else { 1 });
    shape
}

/// A group of the shape that was measured.
fn representative(cluster: &Cluster, known: &GroupTimes) -> Group {
    let stride = match &cluster.interconnect {
        Interconnect::Measured(_) => 1,
        Interconnect::Levels(network) => network.stride(&known.shape),
    };
    Group { ranks: known.shape.iter().product(), stride }
}

fn crosses_alike(one: &[u32], other: &[u32]) -> bool {
    one.iter().map(|count| *count > 1).eq(other.iter().map(|count| *count > 1))
}

/// By which factor two shapes differ, over all levels.
fn apart(one: &[u32], other: &[u32]) -> f64 {
    let factor = |(a, b): (&u32, &u32)| f64::from((*a).max(*b)) / f64::from((*a).min(*b));
    one.iter().zip(other).map(factor).product()
}
