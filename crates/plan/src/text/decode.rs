//! From the lines of a plan to what it decides along one axis.

use base::Id;
use ir::{Graph, InputId, NodeId, PartId, Placement, ValueId};
use rustc_hash::FxHashMap;
use shard::{Assignment, Space};

use super::{
    encode::{Decisions, check},
    follow::Follower,
    names::{INPUTS, Name, Names, RESULT, parts, result_of},
    patterns::expanded,
    strategies::text_of,
};

/// The assignment that lines stand for, with inputs as they are stored; what does not suit the graph in a few words.
pub fn decoded(
    decisions: &Decisions,
    graph: &Graph,
    space: &Space,
    inputs: FxHashMap<InputId, Placement>,
) -> Result<Assignment, String> {
    let reader = Reader { graph, names: Names::new(graph), parts: parts(graph) };
    let operations = reader.operations(decisions)?;
    let stored = |id: InputId| inputs.get(&id).copied().unwrap_or(Placement::Replicate);
    let mut follower = Follower::new(graph, space, stored);
    let mut assignment = Assignment::default();
    for (value, part, placement) in reader.entering(decisions)? {
        follower.enter(value, part, placement);
        assignment.kept.insert((value, part), placement);
    }
    for id in &graph.order {
        let name = reader.names.of(*id);
        let strategy = match operations.of(&name, name.operator) {
            None => follower.expected(*id),
            Some(wanted) => {
                let found = space.strategies(*id).iter().find(|strategy| text_of(strategy) == *wanted);
                found.ok_or_else(|| format!("`{} {}` cannot run as `{wanted}`", name.path, name.operator))?
            }
        };
        follower.run(*id, strategy);
        if *strategy != space.strategies(*id)[0] {
            assignment.nodes.insert(*id, strategy.clone());
        }
    }
    if decisions.check.is_some_and(|written| written != check(graph, space, &assignment)) {
        return Err(
            "its lines give other decisions than it was written with: take `check` out if you edited it"
                .into(),
        );
    }
    assignment.inputs = inputs;
    assignment.gathers = decisions.gathers;
    assignment.without.clone_from(&decisions.without);
    Ok(assignment)
}

/// Finds what lines name.
struct Reader<'a> {
    graph: &'a Graph,
    names: Names<'a>,
    parts: Vec<String>,
}

impl Reader<'_> {
    /// How operations run.
    fn operations<'a>(&self, decisions: &'a Decisions) -> Result<Said<&'a str>, String> {
        let mut said = Said::default();
        for (part, lines) in &decisions.operations {
            for (key, text) in lines {
                said.note(self, (self.part(part)?, key, text.as_str()))?;
            }
        }
        Ok(said)
    }

    /// In which placement values enter parts.
    fn entering(&self, decisions: &Decisions) -> Result<Vec<(ValueId, PartId, Placement)>, String> {
        let mut found = Vec::new();
        for (into, origins) in &decisions.entering {
            let into = self.part(into)?;
            for (from, lines) in origins {
                let values = match from.as_str() {
                    INPUTS => self.inputs(lines)?,
                    part => self.results(self.part(part)?, lines)?,
                };
                found.extend(values.into_iter().map(|(value, placement)| (value, into, placement)));
            }
        }
        Ok(found)
    }

    fn inputs<'a>(
        &self,
        lines: impl IntoIterator<Item = (&'a String, &'a Placement)>,
    ) -> Result<Vec<(ValueId, Placement)>, String> {
        let inputs = self.graph.inputs.values();
        let by_name: FxHashMap<&str, ValueId> =
            inputs.map(|input| (input.name.as_str(), input.value)).collect();
        let mut found = Vec::new();
        for (key, placement) in lines {
            for name in expanded(key, by_name.len())? {
                let value = by_name.get(name.as_str());
                found.push((*value.ok_or_else(|| format!("`{name}` is no input of this step"))?, *placement));
            }
        }
        Ok(found)
    }

    fn results<'a>(
        &self,
        part: PartId,
        lines: impl IntoIterator<Item = (&'a String, &'a Placement)>,
    ) -> Result<Vec<(ValueId, Placement)>, String> {
        let mut said = Said::default();
        for (key, placement) in lines {
            said.note(self, (part, key, *placement))?;
        }
        let of_part = self.graph.order.iter().filter(|id| self.graph.nodes[**id].part == part);
        let results = of_part.flat_map(|id| self.results_of(*id));
        let found = results.filter_map(|(name, operator, value)| Some((value, said.of(&name, &operator)?)));
        Ok(found.collect())
    }

    /// The results of an operation, with the operator as lines call it.
    fn results_of(&self, id: NodeId) -> impl Iterator<Item = (Name<'_>, String, ValueId)> {
        let name = self.names.of(id);
        let results = self.graph.nodes[id].results().enumerate();
        results.map(move |(result, value)| (name, result_of(name.operator, result as u32), value))
    }

    /// The part of that name.
    fn part(&self, name: &str) -> Result<PartId, String> {
        let at = self.parts.iter().position(|part| part == name);
        at.map(PartId::from_index).ok_or_else(|| format!("the program has no part `{name}`"))
    }
}

/// What lines say of operations or values: by part, path, operator, and number unless it is all of them.
struct Said<V> {
    said: FxHashMap<(PartId, String, String, Option<u32>), V>,
}

impl<V> Default for Said<V> {
    fn default() -> Self {
        Self { said: FxHashMap::default() }
    }
}

impl<V: Copy> Said<V> {
    /// Notes what a line says; every operation that it names must be there.
    fn note(&mut self, reader: &Reader<'_>, (part, key, value): (PartId, &str, V)) -> Result<(), String> {
        for (path, operator, number) in named(key, reader.graph.order.len())? {
            let bare = operator.split_once(RESULT).map_or(operator, |(operator, _)| operator);
            let name = Name { part, path: &path, operator: bare, number: number.unwrap_or(0) };
            if reader.names.alike(&name) <= name.number {
                return Err(format!("`{key}` names what is not there: no such `{bare}` in `{path}`"));
            }
            if self.said.insert((part, path, operator.to_owned(), number), value).is_some() {
                return Err(format!("`{key}` names what another line names too"));
            }
        }
        Ok(())
    }

    fn of(&self, name: &Name<'_>, operator: &str) -> Option<V> {
        let key = |number| (name.part, name.path.to_owned(), operator.to_owned(), number);
        self.said.get(&key(Some(name.number))).or_else(|| self.said.get(&key(None))).copied()
    }
}

/// A path, an operator, and a number unless it is all of them.
type Named<'a> = (String, &'a str, Option<u32>);

/// The operations that a line names.
fn named(key: &str, most: usize) -> Result<Vec<Named<'_>>, String> {
    let (path, operator) = key.rsplit_once(' ').unwrap_or(("", key));
    let (operator, numbers) = match operator.split_once('#') {
        Some((operator, numbers)) => (operator, expanded(numbers, most)?),
        None => (operator, vec![String::new()]),
    };
    let paths = expanded(path, most)?;
    let mut named = Vec::new();
    for path in &paths {
        for number in &numbers {
            let read = || number.parse().map_err(|_| format!("`{key}` has `{number}` for a number"));
            let number = if number.is_empty() { None } else { Some(read()?) };
            named.push((path.clone(), operator, number));
        }
    }
    Ok(named)
}
