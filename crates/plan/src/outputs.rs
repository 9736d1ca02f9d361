//! Pins of what modules give: the placement in which operations outside of a module read it.

use std::collections::BTreeSet;

use ir::{Dims, Graph, NodeId, PartKind, Placement, ValueId};
use rustc_hash::FxHashMap;
use shard::Space;

use crate::pattern::glob;

/// What names of such pins begin with; the module's path follows.
pub const OUTPUTS: &str = "outputs.";

/// What pinned modules give, with the paths of the modules and the placements that are demanded, in the order of the pins.
#[derive(Clone, Default, Debug)]
pub struct Outputs(FxHashMap<ValueId, Vec<(String, Placement)>>);

impl Outputs {
    /// Whether nothing is demanded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The placement in which `node` is to read `value`: that of the last pin, if `node` is outside of the module.
    pub fn demanded(&self, graph: &Graph, node: NodeId, value: ValueId) -> Option<Placement> {
        let pins = self.0.get(&value)?.iter().rev();
        let module = path_of(graph, node).unwrap_or("");
        pins.clone().find(|(path, _)| !is_within(module, path)).map(|(_, placement)| *placement)
    }

    /// Demands a placement of what the modules give whose path `pattern` matches; says of how many operations that read it some strategy
    /// reads it so.
    pub fn pin(&mut self, graph: &Graph, space: &Space, pattern: &str, placement: Placement) -> usize {
        let mut bound = 0;
        for node in &graph.order {
            let module = path_of(graph, *node).unwrap_or("");
            for (slot, value) in graph.nodes[*node].operands().enumerate() {
                let reads_so = || space.strategies(*node).iter().any(|one| one.operands[slot] == placement);
                for path in left(graph, value, module).filter(|path| matches(pattern, path)) {
                    let pins = self.0.entry(value).or_default();
                    if pins.last().is_none_or(|last| (last.0.as_str(), last.1) != (path, placement)) {
                        pins.push((path.to_owned(), placement));
                    }
                    bound += usize::from(reads_so());
                }
            }
        }
        bound
    }
}

/// The shapes in which operations outside of the modules that `pattern` matches read what these give, each once.
pub fn shapes(graph: &Graph, pattern: &str) -> BTreeSet<Dims> {
    let read = |node: &NodeId| {
        let module = path_of(graph, *node).unwrap_or("");
        let operands = graph.nodes[*node].operands();
        operands.filter(move |value| left(graph, *value, module).any(|path| matches(pattern, path)))
    };
    graph.order.iter().flat_map(read).map(|value| graph.ty(value).shape.clone()).collect()
}

/// The paths of all modules of a graph that operations stand in, those of modules around them included; some of them several times.
pub fn paths(graph: &Graph) -> impl Iterator<Item = &str> {
    graph.modules.values().flat_map(|module| around(module.as_str()))
}

/// The paths of the modules that an operation in `module` reads `value` from: those around what made it, but for those around itself.
fn left<'a>(graph: &'a Graph, value: ValueId, module: &'a str) -> impl Iterator<Item = &'a str> {
    let maker = maker(graph, value).filter(|node| graph.part_kind(*node) == PartKind::Forward);
    let path = maker.and_then(|node| path_of(graph, node)).unwrap_or("");
    around(path).filter(move |path| !is_within(module, path))
}

/// What made a value, apart from collectives along other axes.
fn maker(graph: &Graph, value: ValueId) -> Option<NodeId> {
    let mut node = graph.maker(value)?;
    while graph.is_communication(node) {
        node = graph.maker(graph.nodes[node].operands().next()?)?;
    }
    Some(node)
}

/// The path of a module and of those around it.
fn around(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('.').map(|(at, _)| at).chain((!path.is_empty()).then_some(path.len()));
    ends.map(|end| &path[..end])
}

fn path_of(graph: &Graph, node: NodeId) -> Option<&str> {
    graph.nodes[node].module.map(|module| graph.modules[module].as_str())
}

fn is_within(module: &str, path: &str) -> bool {
    module.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a path matches a pattern, in which `*` stands for any text between two dots.
pub fn matches(pattern: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (pattern.split('.'), path.split('.'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(pattern), Some(name)) if glob(pattern, name) => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_text_between_dots() {
        assert!(matches("blocks.*.mlp", "blocks.0.mlp"));
        assert!(matches("blocks.*", "blocks.10"));
        assert!(!matches("blocks.*", "blocks.0.mlp"));
        assert!(!matches("*", "blocks.0"));
    }

    #[test]
    fn a_module_is_within_itself_and_those_around_it() {
        assert!(is_within("blocks.1.mlp", "blocks.1") && is_within("blocks.1", "blocks.1"));
        assert!(!is_within("blocks.10", "blocks.1") && !is_within("blocks", "blocks.1"));
        assert_eq!(around("a.b.c").collect::<Vec<_>>(), ["a", "a.b", "a.b.c"]);
        assert_eq!(around("").count(), 0);
    }
}
