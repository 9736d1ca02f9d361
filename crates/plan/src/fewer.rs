//! A program with fewer of its layers, and which of its operations stands for which of the whole one.

use base::PrimaryMap;
use ir::{Graph, InputId, NodeId, ValueDef, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::layers::Layers;

/// A program with fewer layers.
pub struct Fewer {
    /// The program.
    pub graph: Graph,
    /// For each of its operations, in its order, the position of the same one in the whole program.
    pub nodes: Vec<usize>,
    /// For each of its inputs the same one of the whole program.
    pub inputs: Vec<InputId>,
    /// What is alike in its layers.
    pub alike: Alike,
    /// What stands in it for what is in the whole program; nothing where not all has something.
    pub of_whole: Option<Places>,
}

/// What is alike in the layers of a program: for each operation, in its order, and for each input the first that it is like.
#[derive(Clone)]
pub struct Alike {
    /// Of operations.
    pub nodes: Vec<usize>,
    /// Of inputs.
    pub inputs: Vec<InputId>,
}

/// What of one program stands for what is in another one.
#[derive(Clone)]
pub struct Places {
    /// For each operation of the other one, in its order, a position in the order of this one.
    pub nodes: Vec<usize>,
    /// For each input of the other one an input of this one.
    inputs: Vec<InputId>,
}

impl Places {
    /// The same inputs, and other operations.
    pub fn with_nodes(&self, nodes: Vec<usize>) -> Self {
        Self { nodes, inputs: self.inputs.clone() }
    }

    /// What stands for an input.
    pub fn input(&self, id: InputId) -> InputId {
        self.inputs[id.0 as usize]
    }

    /// What stands for what is in a program with fewer layers.
    pub fn of_fewer(&self, fewer: &Fewer) -> Self {
        Self {
            nodes: fewer.nodes.iter().map(|at| self.nodes[*at]).collect(),
            inputs: fewer.inputs.iter().map(|id| self.input(*id)).collect(),
        }
    }
}

/// The program with `kept` of the layers that are alike; none where it has no more, or where what reads from one layer to another reaches over
/// those that are left out, or over those that are kept before or behind.
pub fn fewer(layers: &Layers<'_>, kept: usize) -> Option<Fewer> {
    let at_each_end = layers.reach.max(1);
    let ahead = kept.div_ceil(2) as i64;
    let left_out = layers.count() as i64 - kept as i64;
    if left_out < at_each_end || kept as i64 - ahead < at_each_end {
        return None;
    }
    let begin = layers.alike.0 + ahead;
    Some(LeavingOut { layers, begin, end: begin + left_out }.made())
}

/// A program without the layers from `begin` on and before `end`.
struct LeavingOut<'a, 'g> {
    layers: &'a Layers<'g>,
    begin: i64,
    end: i64,
}

impl LeavingOut<'_, '_> {
    const fn is_out(&self, layer: i64) -> bool {
        self.begin <= layer && layer < self.end
    }

    fn made(&self) -> Fewer {
        let mut graph = self.layers.graph.clone();
        graph.order.retain(|id| self.layers.layer_of(*id).is_none_or(|layer| !self.is_out(layer)));
        for id in &graph.order {
            let reader = self.layers.layer_of(*id);
            let args = &mut graph.nodes[*id].args;
            for arg in args {
                arg.map_values(|value| self.seen(value, reader));
            }
        }
        graph.returns.iter_mut().for_each(|value| *value = self.seen(*value, None));
        let inputs = self.keep_inputs(&mut graph);
        keep_needed(&mut graph);
        let positions = self.layers.graph.positions();
        let nodes = graph.order.iter().map(|id| positions[*id]).collect();
        let of_whole = self.places(&graph.order, &inputs);
        let alike = self.alike(&graph.order, &inputs);
        Fewer { graph: graph.into_renumbered(), nodes, inputs, alike, of_whole }
    }

    /// What a layer reads instead of a value that is left out: layers before see the first ones behind, all else sees the last ones before.
    fn seen(&self, value: ValueId, reader: Option<i64>) -> ValueId {
        let Some(layer) = self.layers.layer_of_value(value).filter(|layer| self.is_out(*layer)) else {
            return value;
        };
        let left_out = self.end - self.begin;
        let (first, last) = self.layers.alike;
        let alike = |layer: i64| first <= layer && layer <= last;
        let to = match reader {
            Some(reader) if alike(reader) && reader < self.begin => layer + left_out,
            Some(reader) if alike(reader) => layer - left_out,
            _ => self.begin - 1,
        };
        self.layers.value_in(value, to).unwrap_or(value)
    }

    /// Leaves out the inputs of the layers that are left out, and their updates; the inputs that are left.
    fn keep_inputs(&self, graph: &mut Graph) -> Vec<InputId> {
        let is_out = |(_, layer): &(InputId, i64)| self.is_out(*layer);
        let out: FxHashSet<InputId> = self.layers.inputs().filter(is_out).map(|(input, _)| input).collect();
        let mut new: FxHashMap<InputId, InputId> = FxHashMap::default();
        let (mut inputs, mut kept) = (PrimaryMap::new(), Vec::new());
        for (id, input) in graph.inputs.iter().filter(|(id, _)| !out.contains(id)) {
            new.insert(id, inputs.push(input.clone()));
            kept.push(id);
        }
        for (id, input) in inputs.iter() {
            graph.values[input.value].def = ValueDef::Input(id);
        }
        graph.inputs = inputs;
        let updates = std::mem::take(&mut graph.updates).into_iter();
        graph.updates =
            updates.filter_map(|(input, value)| Some((*new.get(&input)?, self.seen(value, None)))).collect();
        kept
    }

    /// What is alike of these operations and inputs.
    fn alike(&self, nodes: &[NodeId], inputs: &[InputId]) -> Alike {
        let (first, last) = self.layers.alike;
        let is_alike = |layer: &i64| first <= *layer && *layer <= last;
        let mut known: FxHashMap<NodeId, usize> = FxHashMap::default();
        let node = |(at, id): (usize, &NodeId)| {
            let layer = self.layers.layer_of(*id).filter(is_alike);
            let own = layer.and_then(|_| self.layers.node_in(*id, self.begin - 1));
            own.map_or(at, |own| *known.entry(own).or_insert(at))
        };
        let nodes = nodes.iter().enumerate().map(node).collect();
        let mut known: FxHashMap<InputId, InputId> = FxHashMap::default();
        let input = |(at, id): (usize, &InputId)| {
            let at = InputId(at as u32);
            self.layers.input_in(*id, self.begin - 1).map_or(at, |own| *known.entry(own).or_insert(at))
        };
        Alike { nodes, inputs: inputs.iter().enumerate().map(input).collect() }
    }

    /// What is left stands for itself, and the last of the layers before for those that are left out.
    fn places(&self, nodes: &[NodeId], inputs: &[InputId]) -> Option<Places> {
        let own: FxHashMap<NodeId, usize> = nodes.iter().enumerate().map(|(at, id)| (*id, at)).collect();
        let own_inputs: FxHashMap<InputId, InputId> =
            inputs.iter().enumerate().map(|(at, id)| (*id, InputId(at as u32))).collect();
        let node = |id: &NodeId| match self.layers.layer_of(*id).filter(|layer| self.is_out(*layer)) {
            Some(_) => own.get(&self.layers.node_in(*id, self.begin - 1)?).copied(),
            None => own.get(id).copied(),
        };
        let input = |id: InputId| match own_inputs.get(&id) {
            Some(own) => Some(*own),
            None => own_inputs.get(&self.layers.input_in(id, self.begin - 1)?).copied(),
        };
        let graph = self.layers.graph;
        Some(Places {
            nodes: graph.order.iter().map(node).collect::<Option<_>>()?,
            inputs: graph.inputs.ids().map(input).collect::<Option<_>>()?,
        })
    }
}

/// Leaves out what no return and no update needs.
fn keep_needed(graph: &mut Graph) {
    let ends = graph.returns.iter().chain(graph.updates.iter().map(|(_, value)| value));
    let mut needed: FxHashSet<NodeId> = ends.filter_map(|value| graph.maker(*value)).collect();
    for id in graph.order.iter().rev() {
        if needed.contains(id) {
            needed.extend(graph.nodes[*id].operands().filter_map(|value| graph.maker(value)));
        }
    }
    graph.order.retain(|id| needed.contains(id));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use ir::{testing::Random, verify};

    use super::*;
    use crate::layers::tests::{Tower, tower};

    /// The text form without names of inputs.
    fn text(graph: &Graph) -> String {
        let mut graph = graph.renumbered();
        for (id, input) in graph.inputs.iter_mut() {
            input.name = id.to_string();
        }
        graph.to_string()
    }

    /// The lines of one text form that are not those of the other.
    fn unlike(one: &Graph, other: &Graph) -> Vec<String> {
        let (one, other) = (text(one), text(other));
        let pairs = one.lines().zip(other.lines()).filter(|(one, other)| one != other);
        let mut unlike: Vec<String> = pairs.map(|(one, other)| format!("{one} | {other}")).collect();
        if one.lines().count() != other.lines().count() {
            unlike.push(format!("{} and {} lines", one.lines().count(), other.lines().count()));
        }
        unlike
    }

    #[test]
    fn fewer_layers_are_the_step_of_a_model_with_fewer_layers() {
        for (layers, reach) in [(8, 1), (12, 2), (17, 3)] {
            let of = Tower { layers, rows: 8, width: 4, reach, odd: None };
            let graph = tower(of);
            let found = Layers::of(&graph).unwrap();
            // The first ones read the first one, whose gradient goes nowhere, and the last one's is not a sum.
            assert!(found.count() + 2 * reach + 1 >= layers, "{} of {layers} are alike", found.count());
            for kept in 2 * reach..=found.count() - reach {
                let fewer = fewer(&found, kept).unwrap().graph;
                verify(&fewer).unwrap();
                let expected = tower(Tower { layers: layers - found.count() + kept, ..of });
                assert_eq!(unlike(&fewer, &expected), Vec::<String>::new(), "{kept} of {layers}");
            }
            assert!(fewer(&found, found.count()).is_none());
            assert!(fewer(&found, reach - 1).is_none(), "too few for what reaches {reach} back");
        }
    }

    #[test]
    fn a_layer_that_is_unlike_ends_those_that_are_alike() {
        let of = Tower { layers: 20, rows: 8, width: 4, reach: 1, odd: Some(6) };
        let graph = tower(of);
        let found = Layers::of(&graph).unwrap();
        assert!((10..=13).contains(&found.count()), "{} of 13", found.count());
        let fewer = fewer(&found, 4).unwrap().graph;
        verify(&fewer).unwrap();
        let expected = tower(Tower { layers: 20 - found.count() + 4, ..of });
        assert_eq!(unlike(&fewer, &expected), Vec::<String>::new());
    }

    #[test]
    fn what_little_a_random_program_repeats_is_left_out_rightly() {
        let mut random = Random::new(3);
        for seed in 0..20 {
            let graph = ir::testing::random_graph(seed, 20 + random.below(60));
            if let Some(fewer) = Layers::of(&graph).and_then(|layers| fewer(&layers, 2)) {
                verify(&fewer.graph).unwrap();
            }
        }
    }
}
