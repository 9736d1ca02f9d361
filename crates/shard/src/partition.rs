//! From a graph and a choice for each of its operations to the graph of one rank.

use aten::{Call, RunTimeSizes, Strategy};
use base::{Diagnostic, Result, SecondaryMap};
use ir::{
    ANY_SIZE, Collective, CollectiveKind, GROUP_PREFIX, Graph, InputId, LabelId, MeshAxis, NodeId, PartId,
    Placement, RankGraph, Reshard, UNEVEN, ValueDef, ValueId, group_change, reshard_steps,
};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{
    emit::{Emitter, Origin, Script},
    groups::Divided,
    local::local_type,
    operation::Realised,
    reshard::Resharder,
    rows::{RowsOfGroups, bounds},
};

/// What a plan decides along one axis, on the graph that the axes outside it leave.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Assignment {
    /// How each node runs.
    pub nodes: FxHashMap<NodeId, Strategy>,
    /// How each input is stored; inputs that are not here are replicated.
    pub inputs: FxHashMap<InputId, Placement>,
    /// The placement in which a value enters a later part of the program; other copies of it are not used there.
    pub kept: FxHashMap<(ValueId, PartId), Placement>,
    /// Along an axis of micro-batches, when what ranks along other axes hold shards of is gathered.
    pub gathers: Gathers,
    /// Kinds of collectives that no change of placement is made with where others do: what would take one goes by way of another placement.
    pub without: Vec<CollectiveKind>,
}

/// When a program of micro-batches gathers what is the same for all of them, such as parameters that an outer axis shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gathers {
    /// Once before the loop; it is held while that runs.
    #[default]
    Once,
    /// In each micro-batch again.
    Each,
}

impl Gathers {
    /// Whether it is once.
    pub fn is_once(&self) -> bool {
        *self == Self::Once
    }
}

/// A copy of a value.
#[derive(Clone, Copy)]
struct Held {
    placement: Placement,
    local: ValueId,
    part: PartId,
}

/// The graph of the rank at `coordinate` along `axis`: local shapes, localised sizes, and a change of placement exactly where an operation
/// requires a placement in which its operand does not exist yet.
///
/// Every node of a change of placement carries a label that says which value changes from what to what. All ranks' graphs have the same
/// collectives in the same order.
pub fn partition(
    graph: &Graph,
    assignment: &Assignment,
    axis: &MeshAxis,
    coordinate: u32,
) -> Result<RankGraph> {
    // Shards of one size lead to the same decisions on all ranks.
    if coordinate == 0 || !is_uneven(graph, assignment, axis) {
        return Ok(written(graph, assignment, (axis, coordinate), Script::default())?.0);
    }
    let (_, script, _) = written(graph, assignment, (axis, 0), Script::default())?;
    Ok(written(graph, assignment, (axis, coordinate), script.followed())?.0)
}

/// The graph of rank 0 along `axis`, and how many of its operations are of each operation of `graph`, in its order, of each update and of each
/// return, or of one before.
pub fn partition_counted(
    graph: &Graph,
    assignment: &Assignment,
    axis: &MeshAxis,
) -> Result<(RankGraph, Vec<usize>)> {
    let (local, _, ends) = written(graph, assignment, (axis, 0), Script::default())?;
    Ok((local.into_renumbered(), ends))
}

/// Whether shards of different sizes come of an assignment.
fn is_uneven(graph: &Graph, assignment: &Assignment, axis: &MeshAxis) -> bool {
    let is_uneven =
        |value: ValueId, placement: &Placement| placement.is_uneven(&graph.ty(value).shape, axis.size);
    let mut inputs = assignment.inputs.iter();
    let mut nodes = assignment.nodes.iter();
    inputs.any(|(input, placement)| is_uneven(graph.inputs[*input].value, placement))
        || nodes.any(|(id, strategy)| {
            let operands = graph.nodes[*id].operands().zip(&strategy.operands);
            let results = graph.nodes[*id].results().zip(&strategy.results);
            operands.chain(results).any(|(value, placement)| is_uneven(value, placement))
        })
}

/// The graph of a rank, the decisions that it took or followed, and where in its order what is of each operation ends.
fn written(
    graph: &Graph,
    assignment: &Assignment,
    (axis, coordinate): (&MeshAxis, u32),
    script: Script,
) -> Result<(RankGraph, Script, Vec<usize>)> {
    let group = format!("{GROUP_PREFIX}{}", axis.name);
    let resharder = Resharder { axis, coordinate, group: &group };
    let mut state = Partition {
        graph,
        assignment,
        resharder: &resharder,
        out: Graph {
            ops: graph.ops.clone(),
            places: graph.places.clone(),
            modules: graph.modules.clone(),
            parts: graph.parts.clone(),
            labels: graph.labels.clone(),
            ..Graph::default()
        },
        held: SecondaryMap::default(),
        wanted_whole: wanted_whole(graph, assignment),
        names: names(graph),
        divided: if has_groups(assignment) { Divided::new(graph, axis) } else { Divided::default() },
        sizes: RunTimeSizes::of(graph),
        bounds: FxHashMap::default(),
        script,
        ends: Vec::with_capacity(graph.order.len() + graph.updates.len() + graph.returns.len()),
    };
    state.inputs();
    for node in &graph.order {
        state.node(*node)?;
        state.ends.push(state.out.order.len());
    }
    state.finish()?;
    Ok((state.out, state.script, state.ends))
}

/// The values that some use requires replicated, by the part of the program of that use, or by the part that a later one expects to have
/// made them.
fn wanted_whole(graph: &Graph, assignment: &Assignment) -> FxHashSet<(ValueId, PartId)> {
    let mut wanted = FxHashSet::default();
    let mut last_use: FxHashMap<ValueId, PartId> = FxHashMap::default();
    for id in &graph.order {
        let node = &graph.nodes[*id];
        let strategy = assignment.nodes.get(id);
        for (position, value) in node.operands().enumerate() {
            let before = last_use.insert(value, node.part);
            let kept = assignment.kept.get(&(value, node.part));
            if let (Some(before), Some(Placement::Replicate)) = (before, kept) {
                wanted.insert((value, before));
            }
            if strategy.is_none_or(|strategy| strategy.operands[position] == Placement::Replicate) {
                wanted.insert((value, node.part));
            }
        }
    }
    let stored = |input| assignment.inputs.get(input).copied().unwrap_or(Placement::Replicate);
    let updates = graph.updates.iter().filter(|(input, _)| stored(input) == Placement::Replicate);
    let ends = updates.map(|(_, value)| value).chain(&graph.returns);
    wanted.extend(ends.map(|value| (*value, graph.last_part())));
    wanted
}

fn has_groups(assignment: &Assignment) -> bool {
    let mut strategies = assignment.nodes.values();
    strategies.any(|strategy| {
        strategy.operands.iter().chain(&strategy.results).any(|placement| placement.is_groups())
    })
}

fn names(graph: &Graph) -> FxHashMap<ValueId, &str> {
    graph.inputs.values().map(|input| (input.value, input.name.as_str())).collect()
}

struct Partition<'a> {
    graph: &'a Graph,
    assignment: &'a Assignment,
    resharder: &'a Resharder<'a>,
    out: Graph,
    held: SecondaryMap<ValueId, SmallVec<[Held; 2]>>,
    wanted_whole: FxHashSet<(ValueId, PartId)>,
    names: FxHashMap<ValueId, &'a str>,
    divided: Divided,
    /// What has a size of run time along an axis outside this one.
    sizes: RunTimeSizes,
    /// For offsets, and how many elements they divide, where those of each rank begin.
    bounds: FxHashMap<(ValueId, i64), ValueId>,
    script: Script,
    /// How many operations were written when each one, and each update and return, was.
    ends: Vec<usize>,
}

impl Partition<'_> {
    fn inputs(&mut self) {
        for (id, input) in self.graph.inputs.iter() {
            let placement = self.assignment.inputs.get(&id).copied().unwrap_or(Placement::Replicate);
            let Resharder { axis, coordinate, .. } = self.resharder;
            let ty = local_type(self.graph.ty(input.value), placement, axis.size, *coordinate);
            let local = self.out.input(input.class, input.name.clone(), ty);
            self.hold(input.value, Held { placement, local, part: PartId(0) });
        }
    }

    fn hold(&mut self, value: ValueId, held: Held) {
        self.held[value].push(held);
    }

    fn node(&mut self, id: NodeId) -> Result<()> {
        let call = Call::new(self.graph, id);
        let node = call.node;
        let strategy = match self.assignment.nodes.get(&id) {
            Some(strategy) => strategy.clone(),
            None => aten::replicated(&call),
        };
        let origin = Origin::of(node);
        let mut operands = SmallVec::new();
        for (value, placement) in call.operands.iter().zip(&strategy.operands) {
            operands.push(self.require(*value, *placement, origin)?);
        }
        let (resharder, sizes) = (self.resharder, &self.sizes);
        let realised = Realised { call: &call, strategy: &strategy, operands, resharder, sizes };
        let script = Some(&mut self.script);
        let results = realised.write(&mut Emitter { graph: &mut self.out, origin, script });
        for ((value, local), placement) in call.results.iter().zip(results).zip(&strategy.results) {
            self.hold(*value, Held { placement: *placement, local, part: node.part });
        }
        Ok(())
    }

    /// The local value of `value` in a placement: an existing copy, or a new one.
    fn require(&mut self, value: ValueId, placement: Placement, origin: Origin) -> Result<ValueId> {
        let available = self.available(value, origin.part);
        if let Some(held) = available.iter().find(|held| held.placement == placement) {
            return Ok(held.local);
        }
        let source = self.nearest(value, placement, origin.part)?;
        let (ty, axis) = (self.graph.ty(value), self.resharder.axis);
        let reshard = Reshard { from: source.placement, to: placement };
        let Some(steps) = reshard_steps(ty, reshard, axis) else {
            if placement == Placement::Replicate || source.placement == Placement::Replicate {
                let message = format!("{value} cannot go from {} to {placement}", source.placement);
                return Err(Diagnostic::bug(message));
            }
            // A part of a norm is no part of a sum: only the whole is.
            self.require(value, Placement::Replicate, origin)?;
            return self.require(value, placement, origin);
        };
        // Where another use in this part of the program needs the value replicated, it is gathered first and sliced for this use: two
        // collectives would send it twice.
        if !steps.is_empty()
            && placement != Placement::Replicate
            && self.wanted_whole.contains(&(value, origin.part))
        {
            self.require(value, Placement::Replicate, origin)?;
            return self.require(value, placement, origin);
        }
        if reshard.from.is_groups() || reshard.to.is_groups() {
            return self.change_groups(value, source, placement, origin);
        }
        let source = match self.way_around(value, reshard) {
            Some(between) => self.changed(value, source, between, origin),
            None => source,
        };
        Ok(self.changed(value, source, placement, origin).local)
    }

    /// A copy of a value in another placement.
    fn changed(&mut self, value: ValueId, source: Held, placement: Placement, origin: Origin) -> Held {
        let reshard = Reshard { from: source.placement, to: placement };
        let label = self.label(value, reshard);
        let origin_of_change = Origin { label: Some(label), ..origin };
        let script = Some(&mut self.script);
        let mut emitter = Emitter { graph: &mut self.out, origin: origin_of_change, script };
        let shape = &self.graph.ty(value).shape;
        let local = self.resharder.reshard(&mut emitter, source.local, shape, reshard);
        let held = Held { placement, local, part: origin.part };
        self.hold(value, held);
        held
    }

    /// The copy from which `placement` follows with the fewest collectives.
    fn nearest(&self, value: ValueId, placement: Placement, part: PartId) -> Result<Held> {
        let (ty, axis) = (self.graph.ty(value), self.resharder.axis);
        let cost = |held: &Held| {
            let steps = reshard_steps(ty, Reshard { from: held.placement, to: placement }, axis);
            steps.map_or((true, usize::MAX, 0), |steps| {
                (!self.may_take(&steps), steps.len(), steps.iter().map(|step| step.bytes.0).sum())
            })
        };
        let nearest = self.available(value, part).into_iter().min_by_key(cost);
        nearest.ok_or_else(|| Diagnostic::bug(format!("no copy of {value}")))
    }

    /// Whether the plan does not do without one of these collectives.
    fn may_take(&self, steps: &[Collective<'_>]) -> bool {
        steps.iter().all(|step| !self.assignment.without.contains(&step.kind))
    }

    /// By which placement a change goes that takes a collective which the plan does without; none where it takes none, or where every way does.
    fn way_around(&self, value: ValueId, change: Reshard) -> Option<Placement> {
        let (ty, axis) = (self.graph.ty(value), self.resharder.axis);
        let is_open = |from, to| {
            reshard_steps(ty, Reshard { from, to }, axis).is_some_and(|steps| self.may_take(&steps))
        };
        if self.assignment.without.is_empty() || is_open(change.from, change.to) {
            return None;
        }
        let is_even = |dim: &usize| ty.shape[*dim] % i64::from(axis.size) == 0;
        let shards = (0..ty.shape.len()).filter(is_even).map(Placement::shard);
        let mut ways = std::iter::once(Placement::Replicate).chain(shards);
        ways.find(|way| {
            ![change.from, change.to].contains(way) && is_open(change.from, *way) && is_open(*way, change.to)
        })
    }

    /// The local value of `value` in groups, or out of them.
    fn change_groups(
        &mut self,
        value: ValueId,
        source: Held,
        to: Placement,
        origin: Origin,
    ) -> Result<ValueId> {
        let (ty, axis) = (self.graph.ty(value), self.resharder.axis);
        let reshard = Reshard { from: source.placement, to };
        let Some(change) = group_change(ty, reshard, axis.size) else {
            self.require(value, Placement::Replicate, origin)?;
            return self.require(value, to, origin);
        };
        let in_groups = if to.is_groups() { to } else { source.placement };
        let division = self.divided.of(value).filter(|division| division.placement() == in_groups);
        let division = division.ok_or_else(|| Diagnostic::bug(format!("{value} is not in groups")))?;
        let dim = usize::from(division.dim);
        let size = if self.sizes.has(value) { ANY_SIZE } else { ty.shape[dim] };
        let bounds = self.bounds(division.offsets, size, origin)?;
        let label = Some(self.label(value, reshard));
        let script = Some(&mut self.script);
        let mut out = Emitter { graph: &mut self.out, origin: Origin { label, ..origin }, script };
        let rows = RowsOfGroups { resharder: self.resharder, bounds, dim, size };
        let local = rows.change(&mut out, (source.local, ty), change, (source.placement, to));
        self.hold(value, Held { placement: to, local, part: origin.part });
        Ok(local)
    }

    /// Where the elements of each rank begin, which the host reads once.
    fn bounds(&mut self, offsets: ValueId, size: i64, origin: Origin) -> Result<ValueId> {
        if let Some(known) = self.bounds.get(&(offsets, size)) {
            return Ok(*known);
        }
        let local = self.require(offsets, Placement::Replicate, origin)?;
        let script = Some(&mut self.script);
        let mut out = Emitter { graph: &mut self.out, origin, script };
        let bounds = bounds(&mut out, local, self.resharder.axis.size, size);
        self.bounds.insert((offsets, size), bounds);
        Ok(bounds)
    }

    /// The copies of a value that may be used in a part of the program.
    fn available(&self, value: ValueId, part: PartId) -> SmallVec<[Held; 2]> {
        let all = self.held[value].clone();
        let Some(kept) = self.assignment.kept.get(&(value, part)) else { return all };
        // An input is available in its own placement at any time.
        let is_input = matches!(self.graph.values[value].def, ValueDef::Input(_));
        let usable = |(number, held): &(usize, &Held)| {
            held.part == part || held.placement == *kept || (is_input && *number == 0)
        };
        let usable: SmallVec<[Held; 2]> =
            all.iter().enumerate().filter(usable).map(|(_, held)| *held).collect();
        if usable.is_empty() { all } else { usable }
    }

    fn label(&mut self, value: ValueId, reshard: Reshard) -> LabelId {
        let name = self.names.get(&value).map_or_else(|| self.made_by(value), |name| (*name).to_owned());
        let axis = self.resharder.axis;
        let is_uneven = |placement: Placement| placement.is_uneven(&self.graph.ty(value).shape, axis.size);
        let sizes = if is_uneven(reshard.from) || is_uneven(reshard.to) { UNEVEN } else { "" };
        self.out
            .labels
            .push(format!("reshard {name} on {}: {} -> {}{sizes}", axis.name, reshard.from, reshard.to))
    }

    /// The name of a value that is no input: the operation and the module that made it.
    fn made_by(&self, value: ValueId) -> String {
        match self.graph.values[value].def {
            ValueDef::Result(node, _) => {
                let module =
                    self.graph.nodes[node].module.map_or("", |module| self.graph.modules[module].as_str());
                format!("{value} of {} in `{module}`", self.graph.op_name(node))
            }
            ValueDef::Input(_) => value.to_string(),
        }
    }

    fn finish(&mut self) -> Result<()> {
        // No line of the user's code uses these: they take the origin of what made them.
        let origin = |value: ValueId| {
            let made_by = match self.graph.values[value].def {
                ValueDef::Result(node, _) => self.graph.nodes[node].place,
                ValueDef::Input(_) => None,
            };
            Origin { part: self.graph.last_part(), place: made_by, ..Origin::default() }
        };
        for (input, value) in &self.graph.updates {
            let placement = self.assignment.inputs.get(input).copied().unwrap_or(Placement::Replicate);
            let local = self.require(*value, placement, origin(*value))?;
            self.out.updates.push((*input, local));
            self.ends.push(self.out.order.len());
        }
        for value in &self.graph.returns {
            let local = self.require(*value, Placement::Replicate, origin(*value))?;
            self.out.returns.push(local);
            self.ends.push(self.out.order.len());
        }
        Ok(())
    }
}
