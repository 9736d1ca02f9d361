//! What a plan decides along one axis, as lines: only what does not follow from the rest, and alike modules as one.

use base::{Fingerprint, Fingerprinter};
use indexmap::IndexMap;
use ir::{CollectiveKind, Graph, InputId, PartId, Placement, ValueId};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use shard::{Assignment, Gathers, Space};

use super::{
    follow::Follower,
    names::{INPUTS, Name, Names, Origin, parts, result_of},
    patterns::{Component, Set, components, fold, folded, pattern, set_text},
    strategies::{Texts, text_of},
};

/// Lines by pattern.
type Lines<V> = IndexMap<String, V>;

/// What a plan decides along one axis, on the graph that the axes outside it leave.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decisions {
    /// A number of all that is decided, written or not; a plan that was edited goes without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<Fingerprint>,
    /// Along micro-batches, when what outer axes shard is gathered.
    #[serde(default, skip_serializing_if = "Gathers::is_once")]
    pub gathers: Gathers,
    /// Kinds of collectives that it does without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<CollectiveKind>,
    /// How operations run, by the part of the program that they stand in: `"path operator" = "operands -> results"`.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub operations: IndexMap<String, Lines<String>>,
    /// In which placement values enter a part, by the part, and by the part that made them.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub entering: IndexMap<String, IndexMap<String, Lines<Placement>>>,
}

/// The lines of an assignment.
pub fn encoded(graph: &Graph, space: &Space, assignment: &Assignment) -> Decisions {
    let stored = |id: InputId| assignment.inputs.get(&id).copied().unwrap_or(Placement::Replicate);
    let mut follower = Follower::new(graph, space, stored);
    let (names, part_names, mut texts) = (Names::new(graph), parts(graph), Texts::default());
    let mut entering: Vec<(&(ValueId, PartId), &Placement)> = assignment.kept.iter().collect();
    entering.sort_unstable_by_key(|((value, part), _)| (*part, *value));
    let mut entering = entering.into_iter().peekable();
    let (mut told, mut entered) = (Vec::new(), Vec::new());
    for id in &graph.order {
        let part = graph.nodes[*id].part;
        while let Some(((value, into), placement)) = entering.next_if(|((_, into), _)| *into <= part) {
            if follower.matters(*value, *into, *placement) {
                follower.enter(*value, *into, *placement);
                entered.push((*value, *into, *placement));
            }
        }
        let strategies = space.strategies(*id);
        let strategy = assignment.nodes.get(id).unwrap_or(&strategies[0]);
        let follows = follower.expected(*id) == strategy;
        let text = texts.number(space.class(*id), strategies, strategy);
        told.push(Told { name: names.of(*id), text, follows });
        follower.run(*id, strategy);
    }
    Decisions {
        check: Some(check(graph, space, assignment)),
        gathers: assignment.gathers,
        without: assignment.without.clone(),
        operations: operation_lines(&told, &names, &part_names, &texts),
        entering: entering_lines(&entered, &names, &part_names),
    }
}

/// What identifies an assignment.
pub fn check(graph: &Graph, space: &Space, assignment: &Assignment) -> Fingerprint {
    let mut print = Fingerprinter::new();
    for (position, id) in graph.order.iter().enumerate() {
        let strategies = space.strategies(*id);
        let Some(strategy) = assignment.nodes.get(id).filter(|strategy| **strategy != strategies[0]) else {
            continue;
        };
        print.number(position as u64).part(text_of(strategy).as_bytes());
    }
    print.finish()
}

/// How an operation runs.
struct Told<'a> {
    name: Name<'a>,
    /// The number of the strategy's text.
    text: u32,
    /// Whether it is what follows from its operands.
    follows: bool,
}

/// Lines for what does not follow from operands, and for the like of it in other layers, so that they are one line.
fn operation_lines(
    told: &[Told<'_>],
    names: &Names<'_>,
    part_names: &[String],
    texts: &Texts,
) -> IndexMap<String, Lines<String>> {
    let listed = listed(told);
    let mut alike: FxHashMap<(PartId, &str, &str, u32), u32> = FxHashMap::default();
    for one in listed.iter().map(|at| &told[*at]) {
        *alike.entry((one.name.part, one.name.path, one.name.operator, one.text)).or_default() += 1;
    }
    let items = listed.iter().filter_map(|at| {
        let Told { name, text, .. } = &told[*at];
        let all = alike[&(name.part, name.path, name.operator, *text)] == names.alike(name);
        if all && name.number > 0 {
            return None;
        }
        let mut item = components(name.path);
        item.extend((!all).then_some(Component::Number(name.number)));
        Some((item, (name.part, name.operator, all, *text)))
    });
    let mut lines: IndexMap<String, Lines<String>> = IndexMap::new();
    for (name, (part, operator, all, text)) in fold(items) {
        let key = key(&name, operator, !all);
        let of_part = lines.entry(part_names[part.0 as usize].clone()).or_default();
        of_part.insert(key, texts.text(text).to_owned());
    }
    lines
}

/// The operations of the same place in all layers.
struct Layers {
    text: u32,
    are_alike: bool,
    follow: bool,
}

/// The operations that have a line, by position: those that do not follow, and where all layers run alike, those of all layers.
fn listed(told: &[Told<'_>]) -> Vec<usize> {
    let templates: Vec<String> = told.iter().map(|one| folded(one.name.path)).collect();
    let key = |at: usize| {
        let Name { part, operator, number, .. } = told[at].name;
        (part, templates[at].as_str(), operator, number)
    };
    let mut layers: FxHashMap<(PartId, &str, &str, u32), Layers> = FxHashMap::default();
    for (at, Told { text, follows, .. }) in told.iter().enumerate() {
        let of = layers.entry(key(at)).or_insert(Layers { text: *text, are_alike: true, follow: true });
        of.are_alike &= of.text == *text;
        of.follow &= follows;
    }
    let is_listed = |at: &usize| {
        let Layers { are_alike, follow, .. } = layers[&key(*at)];
        !told[*at].follows || (are_alike && !follow)
    };
    (0..told.len()).filter(is_listed).collect()
}

/// `path operator`, or `path operator#number`.
fn key(name: &[Set], operator: &str, is_numbered: bool) -> String {
    let (path, number) = name.split_at(name.len() - usize::from(is_numbered));
    let (path, number) = (pattern(path), number.first().map(set_text));
    let space = if path.is_empty() { "" } else { " " };
    let number = number.map_or(String::new(), |number| format!("#{number}"));
    format!("{path}{space}{operator}{number}")
}

fn entering_lines(
    entered: &[(ValueId, PartId, Placement)],
    names: &Names<'_>,
    part_names: &[String],
) -> IndexMap<String, IndexMap<String, Lines<Placement>>> {
    let name_of = |part: PartId| part_names[part.0 as usize].as_str();
    let items = entered.iter().map(|(value, into, placement)| match names.origin(*value) {
        Origin::Input(input) => (components(input), (*into, INPUTS, None, false, *placement)),
        Origin::Result(name, result) => {
            let mut item = components(name.path);
            let is_numbered = names.alike(&name) > 1;
            item.extend(is_numbered.then_some(Component::Number(name.number)));
            let operator = Some((name.operator, result));
            (item, (*into, name_of(name.part), operator, is_numbered, *placement))
        }
    });
    let mut lines: IndexMap<String, IndexMap<String, Lines<Placement>>> = IndexMap::new();
    for (name, (into, from, operator, is_numbered, placement)) in fold(items) {
        let key = match operator {
            None => pattern(&name),
            Some((operator, result)) => key(&name, &result_of(operator, result), is_numbered),
        };
        let of_part = lines.entry(name_of(into).to_owned()).or_default();
        of_part.entry(from.to_owned()).or_default().insert(key, placement);
    }
    lines
}
