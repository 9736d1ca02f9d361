//! Products in 16 bits become products in `f32`, between casts that kernels have for nothing: a processor without instructions for products in
//! 16 bits takes ten times as long for them. Numbers of 16 bits are numbers of `f32` too, and sums are gathered in it either way, so that results
//! differ in the order of sums alone.

use aten::{Call, Work};
use base::Result;
use ir::{Arg, Dtype, Graph, NodeId, PartId, Patch, Return, ReturnType, TensorType, ValueDef, ValueId};
use rustc_hash::FxHashMap;

use crate::{Pass, facts::Facts, layout::Layout};

/// The fewest floating-point operations of a product that is worth calls of casts.
const LEAST: u64 = 1 << 14;
/// The fewest floating-point operations for each element that it reads or makes: below, reading them is what takes long.
const OF_EACH: u64 = 6;

/// The name of the pass, which what it makes has as its label.
const NAME: &str = "wide_products";

/// Computes products on the host in `f32`.
pub struct WideProducts {
    /// The element types that the host has no instructions for.
    pub narrow: Vec<Dtype>,
}

impl Pass for WideProducts {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        let mut wide = Wide { graph, facts: Facts::new(graph), known: FxHashMap::default() };
        for id in graph.order.iter().filter(|id| self.is_worth_it(graph, **id)) {
            self.widen(&mut patch, *id, &mut wide);
        }
        Ok(patch)
    }
}

/// How many products the pass has had computed in `f32`.
pub fn widened(graph: &Graph) -> usize {
    let is_ours = |id: &&NodeId| graph.nodes[**id].label.is_some_and(|label| graph.labels[label] == NAME);
    let multiplies = |id: &NodeId| aten::row(graph.op_name(*id)).is_some_and(|row| row.multiplies);
    graph.order.iter().filter(is_ours).filter(|id| multiplies(id)).count()
}

impl WideProducts {
    /// How many products it would have computed in `f32`.
    pub fn count(&self, graph: &Graph) -> usize {
        graph.order.iter().filter(|id| self.is_worth_it(graph, **id)).count()
    }

    fn is_narrow(&self, ty: &TensorType) -> bool {
        self.narrow.contains(&ty.dtype) && ty.device.kind.is_cpu()
    }

    fn is_worth_it(&self, graph: &Graph, id: NodeId) -> bool {
        let Some(row) = aten::row(graph.op_name(id)).filter(|row| row.multiplies) else { return false };
        let call = Call::new(graph, id);
        let Work::Flops(flops) = row.work else { return false };
        let types = || call.operands.iter().chain(&call.results).map(|value| graph.ty(*value));
        let elements: u64 = types().map(TensorType::elements).sum();
        let is_large = || flops(&call).0 >= LEAST.max(OF_EACH * elements);
        types().any(|ty| self.is_narrow(ty)) && is_large()
    }

    /// Does an operation in `f32`, and casts what was in 16 bits back.
    fn widen(&self, patch: &mut Patch<'_>, id: NodeId, wide: &mut Wide<'_>) {
        let graph = wide.graph;
        let node = &graph.nodes[id];
        let mut args = node.args.clone();
        for arg in &mut args {
            arg.map_values(
                |value| if self.is_narrow(graph.ty(value)) { wide.of(value, patch, id) } else { value },
            );
        }
        let type_of = |value: &ValueId| {
            let ty = graph.ty(*value).clone();
            if self.is_narrow(&ty) { TensorType { dtype: Dtype::F32, ..ty } } else { ty }
        };
        let returns = node.returns.iter().map(|returned| match returned {
            Return::None => ReturnType::None,
            Return::Value(value) => ReturnType::Tensor(type_of(value)),
            Return::Values(values) => ReturnType::Tensors(values.iter().map(type_of).collect()),
        });
        let made = patch.copy_with(id, id, args, returns.collect());
        let results: Vec<ValueId> = patch.node(made).results().collect();
        for (old, new) in node.results().zip(results) {
            let dtype = graph.ty(old).dtype;
            let is_same = patch.ty(new).dtype == dtype;
            let result = if is_same { new } else { Layout { patch, source: id }.cast(new, dtype) };
            patch.replace(old, result);
        }
        patch.remove(id);
    }
}

/// Values in `f32`. Each part of the program has casts of its own, so that none is held from one to the next.
struct Wide<'g> {
    graph: &'g Graph,
    facts: Facts,
    known: FxHashMap<(ValueId, PartId), ValueId>,
}

impl Wide<'_> {
    /// A value in `f32`, which is made where `source` stands: of a view of a whole tensor, the view of that in `f32`, which others may read too.
    fn of(&mut self, value: ValueId, patch: &mut Patch<'_>, source: NodeId) -> ValueId {
        let key = (value, self.graph.nodes[source].part);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let made = match self.seen_as(value) {
            Some((view, before)) => {
                let before = self.of(before, patch, source);
                let mut args = self.graph.nodes[view].args.clone();
                args[0] = Arg::Value(before);
                let ty = TensorType { dtype: Dtype::F32, ..self.graph.ty(value).clone() };
                let again = patch.copy_with(view, source, args, vec![ty.into()]);
                patch.node(again).results().next().expect("a view has a result")
            }
            None => Layout { patch, source }.cast(value, Dtype::F32),
        };
        self.known.insert(key, made);
        made
    }

    /// The view that a value is of all elements of another that lie side by side, and that.
    fn seen_as(&self, value: ValueId) -> Option<(NodeId, ValueId)> {
        let graph = self.graph;
        let ValueDef::Result(view, 0) = graph.values[value].def else { return None };
        let node = &graph.nodes[view];
        let is_one = matches!(node.returns[..], [Return::Value(_)]);
        let before = node.operands().next().filter(|_| is_one && self.facts.is_view(node))?;
        let (ty, of) = (graph.ty(value), graph.ty(before));
        (of.is_dense() && of.elements() == ty.elements() && of.dtype == ty.dtype).then_some((view, before))
    }
}
