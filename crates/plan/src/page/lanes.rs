//! Lanes of a step: what each of its events is, for people.

use base::Nanos;
use indexmap::IndexMap;
use ir::{HostCopy, NodeId, Part, PartId, PartKind, RankGraph};
use report::{Activity, Paint, Strip};
use timeline::{Category, Names, Rank, Timeline, TrackId};

use crate::simulate::Pipeline;

/// The lanes of the first rank of a timeline, whose step `graph` is.
pub fn strips(timeline: &Timeline, graph: &RankGraph) -> Vec<Strip> {
    let Some(rank) = timeline.ranks.first() else { return Vec::new() };
    let step = Step { names: &timeline.names, rank, graph };
    let mut strips: IndexMap<TrackId, Strip> = IndexMap::new();
    for (row, activity) in (0..rank.events.len()).filter_map(|row| Some((row, step.activity(row)?))) {
        let track = rank.events.track[row];
        let empty = || Strip { name: step.lane(track), activities: Vec::new() };
        strips.entry(track).or_insert_with(empty).activities.push(activity);
    }
    strips.into_values().collect()
}

/// A lane for each stage of a pipeline: what of forward, backward and update of which micro-batch runs when, and waiting.
pub fn stages(pipeline: &Pipeline) -> Vec<Strip> {
    let Pipeline { programs, timeline } = pipeline;
    let stages = timeline.ranks.iter().zip(programs).enumerate();
    stages.map(|(number, (rank, graph))| stage(number, &timeline.names, rank, graph)).collect()
}

fn stage(number: usize, names: &Names, rank: &Rank, graph: &RankGraph) -> Strip {
    let step = Step { names, rank, graph };
    let mut found: Vec<(Option<PartId>, Activity)> = Vec::new();
    for row in 0..rank.events.len() {
        let args = rank.sides.node.get(row as u32);
        let Some(node) = args.and_then(|args| graph.order.get(args.node as usize)) else { continue };
        let Some(one) = step.activity(row).filter(|one| one.end > one.begin) else { continue };
        if one.paint == Paint::Collective {
            continue;
        }
        let part = (one.paint != Paint::Wait).then(|| graph.nodes[*node].part);
        match found.last_mut() {
            Some((last, before)) if *last == part && part.is_some() => before.end = one.end,
            _ => {
                let chunk = graph.nodes[*node].stage;
                let chunk = chunk.map_or_else(String::new, |chunk| format!(" in chunk {chunk}"));
                let text = match part.map(|part| graph.parts[part]) {
                    Some(Part { kind, micro_batch: Some(batch) }) => {
                        format!("{} of micro-batch {batch}{chunk}", kind.text())
                    }
                    Some(Part { kind, micro_batch: None }) => kind.text().to_owned(),
                    None => format!("waits: {}", one.text),
                };
                found.push((part, Activity { text, ..one }));
            }
        }
    }
    Strip { name: format!("stage {number}"), activities: found.into_iter().map(|(_, one)| one).collect() }
}

/// The colour of a part of the program.
pub fn paint(part: PartKind) -> Paint {
    match part {
        PartKind::Forward => Paint::Forward,
        PartKind::Backward => Paint::Backward,
        PartKind::Update => Paint::Update,
    }
}

struct Step<'a> {
    names: &'a Names,
    rank: &'a Rank,
    graph: &'a RankGraph,
}

impl Step<'_> {
    /// What the event of a row is; none where it is around others.
    fn activity(&self, row: usize) -> Option<Activity> {
        let events = &self.rank.events;
        let node =
            self.rank.sides.node.get(row as u32).and_then(|args| self.graph.order.get(args.node as usize));
        let name = self.names.text(events.name[row]);
        let paint = match (events.category[row], node) {
            (Category::UserAnnotation, None) => return None,
            (Category::UserAnnotation, Some(_)) => Paint::Collective,
            _ if ir::is_wait(name) => Paint::Wait,
            _ if ir::is_communication(name) => Paint::Collective,
            _ if HostCopy::of_operator(name) == Some(HostCopy::Wait) => Paint::Wait,
            _ if HostCopy::of_operator(name).is_some() => Paint::Collective,
            (_, Some(node)) => paint(self.graph.part_kind(*node)),
            (_, None) => Paint::Other,
        };
        let (begin, took) = (Nanos(events.start[row]), Nanos(events.duration[row]));
        let text = self.text(name, row, node.copied());
        Some(Activity { begin, end: begin + took, paint, text })
    }

    /// Module, operation, the line of the user's code, and what put it there, as far as they are known.
    fn text(&self, name: &str, row: usize, node: Option<NodeId>) -> String {
        let module =
            node.and_then(|node| self.graph.nodes[node].module).map(|module| &*self.graph.modules[module]);
        let args = self.rank.sides.node.get(row as u32);
        let place = args.map_or("", |args| self.names.text(args.place)).rsplit('/').next();
        let cause = args.map(|args| self.names.text(args.cause));
        let known = [module, Some(name), place, cause].into_iter().flatten().filter(|text| !text.is_empty());
        known.collect::<Vec<_>>().join(", ")
    }

    fn lane(&self, track: TrackId) -> String {
        let name = self.names.text(self.rank.tracks[track].name);
        // Of several groups along an axis the name says which.
        let group = name.split(" of rank ").next().unwrap_or(name);
        match (ir::transfer_stages(group), name.strip_prefix("axis:")) {
            (Some((from, to)), _) => format!("stage {from} to {to}"),
            (None, Some(axis)) => format!("collectives on {axis}"),
            (None, None) => name.to_owned(),
        }
    }
}
