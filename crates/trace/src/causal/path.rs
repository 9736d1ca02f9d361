//! The critical path across ranks, and what changes would do to it.

use std::collections::BTreeMap;

use base::{Code, Diagnostic, Result};
use rustc_hash::FxHashMap;
use serde::Serialize;
use timeline::{Class, NameId};

use super::{Causal, Edge, Why};
use crate::{
    Frames, Kind,
    source::{Origin, Sources},
    stack::NOTHING,
    stats::{micros, percent},
};

/// A part of the path: events of one name, rank and reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathRow {
    /// The rank.
    pub rank: u32,
    /// What took the time.
    pub name: String,
    /// Why it is on the path: computation, communication, processor, launch, ...
    pub class: &'static str,
    /// Microseconds on the path.
    pub time: f64,
    /// Per cent of the path.
    pub percent: f64,
    /// How many pieces.
    pub count: usize,
    /// Where the first of them comes from.
    #[serde(flatten)]
    pub origin: Origin,
}

/// The longest chain of waits of one step, across ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CriticalPath {
    /// The annotation that was asked for.
    pub annotation: String,
    /// Which instance of it.
    pub instance: usize,
    /// From the first begin to the last end on any rank, in microseconds.
    pub wall: f64,
    /// Length of the path in microseconds.
    pub total_duration: f64,
    /// Greatest distance between the model's times and the measured ones, in microseconds.
    pub model_error: f64,
    /// Nodes of the graph.
    pub nodes: usize,
    /// Edges of the graph.
    pub edges: usize,
    /// Nodes on the path.
    pub cp_nodes: usize,
    /// Microseconds by class.
    pub bound_by_us: BTreeMap<&'static str, f64>,
    /// Microseconds by rank.
    pub by_rank_us: BTreeMap<u32, f64>,
    /// How often the path goes from one rank to another.
    pub hops: usize,
    /// The greatest parts.
    pub top: Vec<PathRow>,
}

/// What an edge of the path is, as results call it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum What {
    Cpu,
    Between,
    Launch,
    Compute,
    Copy,
    Kernels,
    Communication,
    Wait,
}

impl What {
    const fn text(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Between => "cpu_between_calls",
            Self::Launch => "launch",
            Self::Compute => "gpu_compute",
            Self::Copy => "gpu_copy",
            Self::Kernels => "gpu_between_kernels",
            Self::Communication => "communication",
            Self::Wait => "synchronisation",
        }
    }

    fn of(frames: &Frames<'_>, causal: &Causal, to: u32, edge: &Edge) -> Self {
        let frame = &frames.ranks[causal.nodes[to as usize].frame as usize];
        let owner = edge.owner as usize;
        match edge.why {
            Why::Gap => Self::Between,
            Why::Launch => Self::Launch,
            Why::Stream => Self::Kernels,
            Why::Rendezvous => Self::Communication,
            Why::Sync => Self::Wait,
            Why::Run if frame.communicates(owner) => Self::Communication,
            Why::Run => match (frame.class(owner), frame.kind(owner)) {
                (Class::Copy, _) => Self::Copy,
                (Class::Kernel, Kind::Communication) => Self::Communication,
                (Class::Kernel, _) => Self::Compute,
                _ => Self::Cpu,
            },
        }
    }
}

/// Time, pieces and first row of the edges of one frame, name and kind.
type Groups = FxHashMap<(u16, NameId, What), (i64, usize, u32)>;

/// The path of `causal`.
pub fn critical_path(
    frames: &Frames<'_>,
    causal: &Causal,
    annotation: &str,
    instance: usize,
) -> CriticalPath {
    let times = causal.times(|edge, _| edge.lag);
    let path = trace_back(causal, &times);
    let total = path
        .first()
        .map_or(0, |&(last, _)| times[last as usize] - times[path[path.len() - 1].1.from as usize]);
    let mut groups = Groups::default();
    let mut hops = 0;
    for (to, edge) in &path {
        let (frame, what) = (causal.nodes[*to as usize].frame, What::of(frames, causal, *to, edge));
        let name = match edge.owner {
            NOTHING => NameId::NONE,
            row => frames.ranks[frame as usize].name(row as usize),
        };
        let group = groups.entry((frame, name, what)).or_insert((0, 0, edge.owner));
        *group = (group.0 + edge.lag, group.1 + 1, group.2);
        hops += usize::from(edge.from != 0 && causal.nodes[edge.from as usize].frame != frame);
    }
    let (mut kinds, mut ranks) = (BTreeMap::new(), BTreeMap::new());
    for (&(frame, _, what), &(time, ..)) in &groups {
        *kinds.entry(what.text()).or_insert(0) += time;
        *ranks.entry(frames.ranks[frame as usize].rank.rank).or_insert(0) += time;
    }
    CriticalPath {
        annotation: annotation.to_owned(),
        instance,
        wall: micros(causal.end - causal.nodes[0].time),
        total_duration: micros(total),
        model_error: micros(causal.error(&times)),
        nodes: causal.nodes.len(),
        edges: causal.edge_count(),
        cp_nodes: path.len() + 1,
        bound_by_us: kinds.into_iter().map(|(kind, time)| (kind, micros(time))).collect(),
        by_rank_us: ranks.into_iter().map(|(rank, time)| (rank, micros(time))).collect(),
        hops,
        top: rows(frames, groups, total),
    }
}

fn rows(frames: &Frames<'_>, groups: Groups, total: i64) -> Vec<PathRow> {
    let text = |name: NameId| match name {
        NameId::NONE => "(between calls)",
        name => frames.timeline.names.text(name),
    };
    let mut groups: Vec<_> = groups.into_iter().collect();
    let key = |(frame, name, what): (u16, NameId, What)| (frame, text(name), what.text());
    groups.sort_by(|(a, x), (b, y)| y.0.cmp(&x.0).then_with(|| key(*a).cmp(&key(*b))));
    groups.truncate(20);
    let row = |((frame, name, what), (time, count, owner)): ((u16, NameId, What), (i64, usize, u32))| {
        let frame = &frames.ranks[frame as usize];
        PathRow {
            rank: frame.rank.rank,
            name: text(name).to_owned(),
            class: what.text(),
            time: micros(time),
            percent: percent(time as f64, total.max(1) as f64, 2),
            count,
            origin: match owner {
                NOTHING => Origin::default(),
                owner => Sources::of(frame).origin(owner as usize),
            },
        }
    };
    groups.into_iter().map(row).collect()
}

/// The binding edges from the last node back to the first, each with the node it goes to. `times` are those of
/// [`Causal::times`] with the lags as they are.
pub fn trace_back(causal: &Causal, times: &[i64]) -> Vec<(u32, Edge)> {
    let last = (0..times.len() as u32).max_by_key(|&node| (times[node as usize], std::cmp::Reverse(node)));
    let Some(mut node) = last else { return Vec::new() };
    let mut path = Vec::new();
    loop {
        let binding = causal
            .into_node(node)
            .iter()
            .filter(|edge| times[edge.from as usize] + edge.lag == times[node as usize])
            .min_by_key(|edge| (edge.lag, edge.why, edge.from));
        let Some(edge) = binding else { return path };
        path.push((node, *edge));
        node = edge.from;
    }
}

/// What to make faster or slower.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Target {
    /// Kernels whose name contains the text.
    Kernel(String),
    /// Collectives whose name contains the text.
    Collective(String),
    /// Operators and other calls whose name contains the text.
    Call(String),
    /// The way from launches to kernels.
    Launch,
    /// Everything on one rank.
    Rank(u32),
}

/// A change: a class and the factor for its times, in millionths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    what: Target,
    millionths: i64,
}

impl std::str::FromStr for Change {
    type Err = Box<Diagnostic>;

    /// `kernel:TEXT=FACTOR`, `collective:TEXT=FACTOR`, `call:TEXT=FACTOR`, `launch=FACTOR` or `rank:N=FACTOR`.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Diagnostic::new(Code::BAD_TEXT, format!("`{text}` is no change"))
                .because(why)
                .hint("write kernel:TEXT=FACTOR, collective:TEXT=FACTOR, call:TEXT=FACTOR, launch=FACTOR or rank:N=FACTOR")
        };
        let (what, factor) = text.rsplit_once('=').ok_or_else(|| bad("it has no `=`"))?;
        let factor: f64 = factor.trim().parse().map_err(|_| bad("its factor is no number"))?;
        if !(0.0..=1e6).contains(&factor) {
            return Err(bad("its factor is negative or beyond a million"));
        }
        let (class, name) = what.split_once(':').unwrap_or((what, ""));
        let what = match class.trim() {
            "kernel" => Target::Kernel(name.to_owned()),
            "collective" => Target::Collective(name.to_owned()),
            "call" => Target::Call(name.to_owned()),
            "launch" => Target::Launch,
            "rank" => Target::Rank(name.trim().parse().map_err(|_| bad("its rank is no number"))?),
            other => return Err(bad(&format!("`{other}` is no class"))),
        };
        Ok(Self { what, millionths: (factor * 1e6).round() as i64 })
    }
}

/// What changes would do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// The changes as they were written.
    pub changes: Vec<String>,
    /// The step as it was, in microseconds.
    pub before: f64,
    /// The step with the changes, in microseconds.
    pub after: f64,
    /// `before` by `after`.
    pub speedup: f64,
    /// How many edges changed.
    pub changed: usize,
    /// How far the model's times are from the measured ones at most, in microseconds.
    pub model_error: f64,
}

/// Computes the step again with `changes`.
pub fn what_if(frames: &Frames<'_>, causal: &Causal, changes: &[String]) -> Result<WhatIf> {
    let parsed = changes.iter().map(|change| change.parse()).collect::<Result<Vec<Change>>>()?;
    let named: Vec<Vec<bool>> = parsed.iter().map(|change| change.named(frames)).collect();
    let factor = |edge: &Edge, to: u32| {
        parsed
            .iter()
            .zip(&named)
            .filter(|(change, named)| applies(frames, causal, change, named, edge, to))
            .fold(1_000_000_i128, |factor, (change, _)| factor * i128::from(change.millionths) / 1_000_000)
    };
    let length = |times: &[i64]| times.iter().max().map_or(0, |end| end - times[0]);
    let measured = causal.times(|edge, _| edge.lag);
    let before = length(&measured);
    let after =
        length(&causal.times(|edge, to| (i128::from(edge.lag) * factor(edge, to) / 1_000_000) as i64));
    Ok(WhatIf {
        changes: changes.to_vec(),
        before: micros(before),
        after: micros(after),
        speedup: before as f64 / after.max(1) as f64,
        changed: causal.edges().filter(|(to, edge)| factor(edge, *to) != 1_000_000).count(),
        model_error: micros(causal.error(&measured)),
    })
}

impl Change {
    /// For every name, whether the change is of what is called so.
    fn named(&self, frames: &Frames<'_>) -> Vec<bool> {
        match &self.what {
            Target::Kernel(part) | Target::Collective(part) | Target::Call(part) => {
                frames.timeline.names.map(|name| name.contains(part.as_str()))
            }
            Target::Launch | Target::Rank(_) => Vec::new(),
        }
    }
}

fn applies(
    frames: &Frames<'_>,
    causal: &Causal,
    change: &Change,
    named: &[bool],
    edge: &Edge,
    to: u32,
) -> bool {
    let frame = &frames.ranks[causal.nodes[to as usize].frame as usize];
    let what = What::of(frames, causal, to, edge);
    let named = || edge.owner != NOTHING && named[frame.name(edge.owner as usize).0 as usize];
    match &change.what {
        Target::Kernel(_) => matches!(what, What::Compute | What::Copy) && named(),
        Target::Collective(_) => what == What::Communication && named(),
        Target::Call(_) => what == What::Cpu && named(),
        Target::Launch => edge.why == Why::Launch,
        Target::Rank(rank) => frame.rank.rank == *rank && what != What::Communication,
    }
}
