//! Orders collectives for overlap: each starts as soon as its operand is computed and is waited for just before its first use.
//!
//! A gather of state could start at the very beginning; how early it may is limited by the memory that gathered tensors take until
//! their first use. What is reduced takes memory until it is waited for: where that is much, it is waited for earlier than its result is
//! used. The order follows from the graph alone, so all ranks start their collectives in the same order.

use std::collections::VecDeque;

use base::{Bytes, Id, Result, SecondaryMap};
use ir::{CollectiveKind, Graph, NodeId, Patch, ValueId};

use crate::{
    Pass,
    facts::{Facts, end_values, of_state_alone, users},
    start_collectives::{Wanted, reorder, start_early},
};

/// Starts collectives early and waits for them late.
pub struct OrderCollectives {
    /// Maximum bytes that are gathered ahead of their first use, and as many ahead of what gathers them on along another axis. A larger
    /// gather starts when the previous one is used. Of the operands of reductions [`PENDING`] times as much is held until they are done.
    pub prefetch_limit: Bytes,
}

/// Reductions that nothing waits for run behind computation for long, so that far more of them may be on their way than of gathers.
const PENDING: u64 = 16;

/// How many reductions are on their way at least: one that runs, and the next.
const FEWEST_PENDING: usize = 2;

impl Pass for OrderCollectives {
    fn name(&self) -> &'static str {
        "order_collectives"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label("order_collectives");
        let facts = Facts::new(graph);
        if graph.order.iter().any(|id| facts.is_communication(&graph.nodes[*id])) {
            let mut wanted = start_early(graph, &facts);
            wait_late(graph, &facts, &mut wanted);
            if stagger(graph, &facts, &mut wanted) {
                wait_late(graph, &facts, &mut wanted);
            }
            self.free_reduced(graph, &mut wanted);
            self.hoist_gathers(graph, &facts, &mut wanted);
            reorder(graph, &mut patch, &wanted);
        }
        Ok(patch)
    }
}

impl OrderCollectives {
    /// Moves waits for reductions up to where their operands would take more than the limit.
    fn free_reduced(&self, graph: &Graph, wanted: &mut SecondaryMap<NodeId, Wanted>) {
        let users = users(graph);
        let wait_of = |id: NodeId| {
            let mut waits = graph.nodes[id].results().flat_map(|result| &users[result]).copied();
            waits.next().filter(|_| waits.next().is_none())
        };
        let mut reductions: Vec<(NodeId, NodeId)> = graph
            .order
            .iter()
            .filter(|id| reduces(graph, **id))
            .filter_map(|id| Some((*id, wait_of(*id)?)))
            .collect();
        reductions.sort_by_key(|(start, _)| wanted[*start]);
        let limit = Bytes(self.prefetch_limit.0.saturating_mul(PENDING));
        let (mut pending, mut held) = (VecDeque::<(NodeId, Bytes)>::new(), Bytes(0));
        for (start, wait) in reductions {
            let (position, side) = wanted[start];
            let bytes = graph.nodes[start].operands().map(|operand| graph.ty(operand).bytes()).sum();
            pending.push_back((wait, bytes));
            held += bytes;
            while held > limit
                && pending.len() > FEWEST_PENDING
                && let Some((wait, bytes)) = pending.pop_front()
            {
                held = held - bytes;
                wanted[wait] = wanted[wait].min((position, side + 1));
            }
        }
    }

    /// Moves gathers of state, with what they depend on, up to where the limit allows their results to take memory: first those that are used,
    /// then those that are gathered on along another axis, ahead of where that now starts.
    fn hoist_gathers(&self, graph: &Graph, facts: &Facts, wanted: &mut SecondaryMap<NodeId, Wanted>) {
        let alone = of_state_alone(graph, facts);
        let users = users(graph);
        let is_gather = |id: &NodeId| {
            let gathers = graph.collective(*id).is_some_and(|it| it.kind == CollectiveKind::AllGather);
            gathers && graph.nodes[*id].operands().all(|operand| alone.contains(operand.index()))
        };
        let depths = depths(graph, is_gather);
        let gathers: Vec<NodeId> = graph.order.iter().copied().filter(is_gather).collect();
        for depth in (1..=gathers.iter().map(|id| depths[*id]).max().unwrap_or(0)).rev() {
            // By now its wait is right before its first use.
            let first_use = |id: NodeId| {
                let waits = graph.nodes[id].results().flat_map(|result| &users[result]);
                waits.map(|wait| wanted[*wait].0).min().unwrap_or(graph.order.len())
            };
            let size =
                |id: NodeId| graph.nodes[id].results().map(|result| graph.ty(result).bytes()).sum::<Bytes>();
            let at_depth = gathers.iter().copied().filter(|id| depths[*id] == depth);
            let mut gathers: Vec<(usize, NodeId, Bytes)> =
                at_depth.map(|id| (first_use(id), id, size(id))).collect();
            gathers.sort_by_key(|(first_use, ..)| *first_use);
            // The gathers behind `in_use` are ahead of their use when the current one starts.
            let (mut in_use, mut ahead) = (0, Bytes(0));
            for current in 0..gathers.len() {
                ahead += gathers[current].2;
                while in_use < current && ahead > self.prefetch_limit {
                    ahead = ahead - gathers[in_use].2;
                    in_use += 1;
                }
                let start = if in_use == 0 { 0 } else { gathers[in_use - 1].0 };
                hoist(graph, wanted, gathers[current].1, (start, -1));
            }
        }
    }
}

/// Starts what reduces on along another axis when the next reduction along the first one starts, so that the first need not be waited for at once;
/// whether there is any.
fn stagger(graph: &Graph, facts: &Facts, wanted: &mut SecondaryMap<NodeId, Wanted>) -> bool {
    let (users, before) = (users(graph), reduced_before(graph, facts));
    let mut lengths: SecondaryMap<NodeId, usize> = SecondaryMap::with_default(0);
    let mut chains: Vec<Vec<NodeId>> = Vec::new();
    for id in graph.order.iter().copied().filter(|id| reduces(graph, *id)) {
        let length = before[id].map_or(0, |before| lengths[before] + 1);
        lengths[id] = length;
        chains.resize(chains.len().max(length + 1), Vec::new());
        chains[length].push(id);
    }
    for at in 1..chains.len() {
        let mut starts: Vec<(NodeId, usize)> = chains[at - 1].iter().map(|id| (*id, wanted[*id].0)).collect();
        starts.sort_by_key(|(_, start)| *start);
        for id in &chains[at] {
            let Some(first) = before[*id] else { continue };
            let is_next = |(other, start): &&(NodeId, usize)| {
                *start > wanted[first].0 && axis_of(graph, *other) == axis_of(graph, first)
            };
            let waits = graph.nodes[*id].results().flat_map(|result| &users[result]);
            let waited = waits.map(|wait| wanted[*wait].0).min();
            let next = starts.iter().find(is_next).map(|(_, start)| *start);
            if let Some(next) = next.filter(|next| waited.is_some_and(|waited| *next < waited)) {
                // Behind what starts there.
                wanted[*id] = (next + 1, -1);
            }
        }
    }
    chains.len() > 1
}

/// For each reduction the last one that it reduces on, with nothing but waits, views, copies, casts and concatenations in between.
fn reduced_before(graph: &Graph, facts: &Facts) -> SecondaryMap<NodeId, Option<NodeId>> {
    let positions = graph.positions();
    let mut reduced: SecondaryMap<ValueId, Option<NodeId>> = SecondaryMap::with_default(None);
    let mut before: SecondaryMap<NodeId, Option<NodeId>> = SecondaryMap::with_default(None);
    for id in &graph.order {
        let node = &graph.nodes[*id];
        let all: Option<Vec<NodeId>> = node.operands().map(|operand| reduced[operand]).collect();
        let last = all.and_then(|all| all.into_iter().max_by_key(|one| positions[*one]));
        if reduces(graph, *id) {
            before[*id] = last;
            node.results().for_each(|result| reduced[result] = Some(*id));
        } else if facts.carries(node) || facts.joins(node) {
            node.results().for_each(|result| reduced[result] = last);
        }
    }
    before
}

fn reduces(graph: &Graph, id: NodeId) -> bool {
    let kind = graph.collective(id).map(|collective| collective.kind);
    matches!(kind, Some(CollectiveKind::ReduceScatter | CollectiveKind::AllReduce))
}

fn axis_of(graph: &Graph, id: NodeId) -> Option<&str> {
    graph.collective(id).map(|collective| collective.axis)
}

/// For each gather, how many are on the way from state to its result, its own included.
fn depths(graph: &Graph, is_gather: impl Fn(&NodeId) -> bool) -> SecondaryMap<NodeId, u32> {
    let mut depths: SecondaryMap<NodeId, u32> = SecondaryMap::with_default(0);
    for id in &graph.order {
        let makers = graph.nodes[*id].operands().filter_map(|operand| graph.maker(operand));
        depths[*id] = makers.map(|maker| depths[maker]).max().unwrap_or(0) + u32::from(is_gather(id));
    }
    depths
}

/// Moves a node and all that it depends on up to `target`, as far as they come after it.
fn hoist(graph: &Graph, wanted: &mut SecondaryMap<NodeId, Wanted>, id: NodeId, target: Wanted) {
    let mut todo = vec![id];
    while let Some(id) = todo.pop() {
        if wanted[id] > target {
            wanted[id] = target;
            todo.extend(graph.nodes[id].operands().filter_map(|operand| graph.maker(operand)));
        }
    }
}

/// Moves waits, with views, copies and casts of their results, to right before their first use. What is only returned is waited for at
/// the end.
fn wait_late(graph: &Graph, facts: &Facts, wanted: &mut SecondaryMap<NodeId, Wanted>) {
    let (users, ends) = (users(graph), end_values(graph));
    let mut waited: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(false);
    let mut late = Vec::new();
    for id in &graph.order {
        let node = &graph.nodes[*id];
        let is_sent_on = || {
            node.results()
                .flat_map(|result| &users[result])
                .all(|user| facts.is_collective(&graph.nodes[*user]))
        };
        let carries = facts.carries(node) || facts.joins(node) && is_sent_on();
        let carries = carries && node.operands().all(|operand| waited[operand]);
        if facts.is_wait(node) || carries {
            node.results().for_each(|result| waited[result] = true);
            late.push(*id);
        }
    }
    for id in late.iter().rev() {
        // The wait for what was sent stands where it is received for sure.
        let is_used = |value: ValueId| !users[value].is_empty() || ends.contains(value.index());
        if !graph.nodes[*id].results().any(is_used) {
            continue;
        }
        let results = graph.nodes[*id].results();
        let first = results.flat_map(|result| &users[result]).map(|user| wanted[*user]).min();
        wanted[*id] = first.map_or((graph.order.len(), 0), |(position, side)| (position, side.min(0) - 1));
    }
}
