//! Gather rematerialisation: a parameter that is gathered for forward and used again in backward is gathered a second time there,
//! so that the gathered copy need not be kept in between.
//!
//! The search may have decided so already by making two copies of the parameter; then there is nothing to do.

use base::{Bytes, Id, Result};
use fixedbitset::FixedBitSet;
use ir::{Arg, Graph, NodeId, Patch, Phase, Return, ReturnType, ValueId};
use rustc_hash::FxHashMap;

use crate::{
    Pass,
    facts::{Facts, Users, end_values, of_state_alone, positions, users},
};

/// Gathers what backward needs again.
pub struct Regather {
    /// The smallest gathered tensor for which it is done.
    pub threshold: Bytes,
}

const GATHER: &str = "_c10d_functional::all_gather_into_tensor";

impl Pass for Regather {
    fn name(&self) -> &'static str {
        "regather"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let facts = Facts::new(graph);
        let context = Context {
            graph,
            users: users(graph),
            ends: end_values(graph),
            alone: of_state_alone(graph, &facts),
            positions: positions(graph),
            facts,
        };
        let mut patch = Patch::new(graph);
        for id in &graph.order {
            if let Some(size) = context.size(*id).filter(|size| *size >= self.threshold) {
                let family = context.family(*id);
                if !family.later.is_empty() && family.used_in_forward {
                    let label = graph.nodes[*id].label.map_or("a gather", |label| &graph.labels[label]);
                    patch.label(format!("regather: {size} for backward; {label}"));
                    context.gather_again(&mut patch, &family);
                }
            }
        }
        Ok(patch)
    }
}

struct Context<'g> {
    graph: &'g Graph,
    facts: Facts,
    users: Users,
    ends: FixedBitSet,
    /// What depends on nothing but state.
    alone: FixedBitSet,
    positions: base::SecondaryMap<NodeId, usize>,
}

/// A gather and the forward nodes that only wait for it, view it or cast it.
#[derive(Default)]
struct Family {
    /// The value that each member makes, with the member, in program order.
    makers: FxHashMap<ValueId, NodeId>,
    /// Whether a forward node other than the members reads one of them.
    used_in_forward: bool,
    /// Nodes after forward that read a member, in program order, with what they read.
    later: Vec<(NodeId, ValueId)>,
}

impl Context<'_> {
    /// The size of what a node gathers, if it gathers state in forward.
    fn size(&self, id: NodeId) -> Option<Bytes> {
        let node = &self.graph.nodes[id];
        let gathers = self.graph.ops[node.op].name == GATHER && node.phase == Phase::Forward;
        let of_state = gathers && node.operands().all(|operand| self.alone.contains(operand.index()));
        of_state.then(|| node.results().map(|result| self.graph.ty(result).bytes()).sum())
    }

    fn family(&self, gather: NodeId) -> Family {
        let mut family = Family::default();
        let mut members = vec![gather];
        while let Some(member) = members.pop() {
            let Some(value) = self.graph.nodes[member].results().next() else { continue };
            family.makers.insert(value, member);
            family.used_in_forward |= self.ends.contains(value.index());
            for user in &self.users[value] {
                let node = &self.graph.nodes[*user];
                if node.phase != Phase::Forward {
                    family.later.push((*user, value));
                } else if self.facts.carries(node) && matches!(node.returns.as_slice(), [Return::Value(_)]) {
                    members.push(*user);
                } else {
                    family.used_in_forward = true;
                }
            }
        }
        family.later.sort_by_key(|(user, value)| (self.positions[*user], *value));
        family.later.dedup();
        family
    }

    /// Makes the members that later nodes read once more, where the first of those is.
    fn gather_again(&self, patch: &mut Patch<'_>, family: &Family) {
        let source = family.later[0].0;
        let mut again = FxHashMap::default();
        for (user, value) in &family.later {
            let new = self.made_again(patch, family, source, *value, &mut again);
            patch.replace_in(*user, *value, new);
        }
    }

    fn made_again(
        &self,
        patch: &mut Patch<'_>,
        family: &Family,
        source: NodeId,
        value: ValueId,
        again: &mut FxHashMap<ValueId, ValueId>,
    ) -> ValueId {
        if let Some(new) = again.get(&value) {
            return *new;
        }
        let Some(maker) = family.makers.get(&value) else { return value };
        let node = &self.graph.nodes[*maker];
        let mut args: Vec<Arg> = node.args.clone();
        for arg in &mut args {
            arg.map_values(|operand| self.made_again(patch, family, source, operand, again));
        }
        let ty: ReturnType = self.graph.ty(value).clone().into();
        let copy = patch.push(source, &self.graph.ops[node.op].to_string(), args, vec![ty]);
        let new = patch.node(copy).results().next().expect("it was given one return");
        again.insert(value, new);
        new
    }
}
