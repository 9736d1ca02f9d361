//! Decisions for one program from those for another that repeats less.
//!
//! What stands for each operation of the canonical form is known. A rank's graph has a few operations for each of it, changes of placement among
//! them, and those of what stands for an operation stand for those of the operation: so decisions are taken over along one axis after the
//! other.

use std::ops::Range;

use base::{Result, SecondaryMap};
use ir::{
    Arg, AxisKind, Graph, InputId, Mesh, MeshAxis, NodeId, PartId, Placement, RankGraph, ValueDef, ValueId,
};
use rustc_hash::FxHashMap;
use shard::{Assignment, divided, partition_counted};
use smallvec::SmallVec;

use crate::{
    fewer::{Alike, Places},
    intents::span,
};

/// Decisions that were taken over.
pub struct TakenOver<'m> {
    /// Those along each axis.
    pub assignments: Vec<Assignment>,
    /// What the axes but the last leave of the program.
    before_last: Graph,
    last: &'m MeshAxis,
}

impl TakenOver<'_> {
    /// The graph of rank 0.
    pub fn local(&self) -> Result<RankGraph> {
        match self.assignments.last() {
            Some(decided) if self.last.size > 1 => divided(&self.before_last, decided, self.last, 0),
            _ => Ok(self.before_last.clone()),
        }
    }
}

/// The decisions for the second program from those for the first one; none where a rank's graphs differ in more than how often they repeat
/// something.
pub fn taken_over<'m>(
    mesh: &'m Mesh,
    mut pair: Pair,
    assignments: &[Assignment],
) -> Result<Option<TakenOver<'m>>> {
    let axes: Vec<&MeshAxis> = mesh.sharding_axes().collect();
    let mut taken = Vec::new();
    for (number, (axis, decided)) in axes.iter().zip(assignments).enumerate() {
        let own = pair.translated(decided);
        if number + 1 < axes.len() && axis.size > 1 {
            match pair.along(axis, (decided, &own))? {
                Some((within, _)) => pair = within,
                None => return Ok(None),
            }
        }
        taken.push(own);
    }
    let last = axes.last().filter(|_| taken.len() == axes.len());
    Ok(last.map(|last| TakenOver { assignments: taken, before_last: pair.to, last }))
}

/// Two programs, and what of the first one stands for what is in the second.
#[derive(Clone)]
pub struct Pair {
    /// The first one.
    pub from: Graph,
    /// The second one.
    pub to: Graph,
    /// What stands for what.
    pub places: Places,
    /// What is alike in the first one.
    pub alike: Alike,
}

impl Pair {
    /// The first of the values of the first program that are like one.
    pub fn first(&self, value: ValueId, positions: &SecondaryMap<NodeId, usize>) -> ValueId {
        let Self { from, alike, .. } = self;
        match from.values[value].def {
            ValueDef::Input(input) => from.inputs[alike.inputs[input.0 as usize]].value,
            ValueDef::Result(node, result) => {
                let first = from.order[alike.nodes[positions[node]]];
                from.nodes[first].results().nth(result as usize).unwrap_or(value)
            }
        }
    }

    /// What stands for a value.
    pub fn of_value(&self, value: ValueId, positions: &SecondaryMap<NodeId, usize>) -> ValueId {
        match self.to.values[value].def {
            ValueDef::Input(input) => self.from.inputs[self.places.input(input)].value,
            ValueDef::Result(node, result) => {
                let node = self.from.order[self.places.nodes[positions[node]]];
                self.from.nodes[node].results().nth(result as usize).unwrap_or(value)
            }
        }
    }

    /// Decisions for the second program.
    pub fn translated(&self, decided: &Assignment) -> Assignment {
        let Self { from, to, places, .. } = self;
        let positions = to.positions();
        let strategy =
            |(id, at): (&NodeId, &usize)| Some((*id, decided.nodes.get(&from.order[*at])?.clone()));
        let input = |id| Some((id, *decided.inputs.get(&places.input(id))?));
        let mut kept: FxHashMap<ValueId, Vec<(PartId, Placement)>> = FxHashMap::default();
        for ((value, part), placement) in &decided.kept {
            kept.entry(*value).or_default().push((*part, *placement));
        }
        let kept_of = |value: ValueId| {
            let known = kept.get(&self.of_value(value, &positions));
            known.into_iter().flatten().map(move |(part, placement)| ((value, *part), *placement))
        };
        Assignment {
            nodes: to.order.iter().zip(&places.nodes).filter_map(strategy).collect(),
            inputs: to.inputs.ids().filter_map(input).collect(),
            kept: to.values.ids().flat_map(kept_of).collect(),
            gathers: decided.gathers,
            without: decided.without.clone(),
        }
    }

    /// What an axis of several ranks leaves of both, and where in the first what is of each operation ends; none where one has other operations than the
    /// other for what stands for it.
    pub fn along(
        &self,
        axis: &MeshAxis,
        (first, second): (&Assignment, &Assignment),
    ) -> Result<Option<(Self, Vec<usize>)>> {
        let is_alike = axis.kind == AxisKind::Ranks && self.from.parts.len() == self.to.parts.len();
        let Some(stand_ins) = self.stand_ins().filter(|_| is_alike) else { return Ok(None) };
        let (from, ends_from) = partition_counted(&self.from, first, axis)?;
        let (to, ends_to) = partition_counted(&self.to, second, axis)?;
        let mut nodes = Vec::with_capacity(to.order.len());
        for (at, of) in stand_ins.into_iter().enumerate() {
            let own = span(&ends_to, at);
            let of_one = |of: usize| counterparts((&from, span(&ends_from, of)), (&to, own.clone()));
            // The layer that follows another one may change the placement of what it reads, where that which stands for it does not.
            match of_one(of).or_else(|| self.as_well(of).find_map(of_one)) {
                Some(found) => nodes.extend(found),
                None => return Ok(None),
            }
        }
        let places = self.places.with_nodes(nodes);
        let alike = self.alike_in(&from, &ends_from);
        Ok(Some((Self { from, to, places, alike }, ends_from)))
    }

    /// The operations that are like one.
    fn as_well(&self, of: usize) -> impl Iterator<Item = usize> + '_ {
        let first = self.alike.nodes.get(of).copied();
        let all = self.alike.nodes.iter().enumerate();
        all.filter(move |(at, known)| Some(**known) == first && *at != of).map(|(at, _)| at)
    }

    /// What is alike in what an axis leaves: what is of operations that are alike, where that is of the same operators.
    fn alike_in(&self, local: &Graph, ends: &[usize]) -> Alike {
        let Graph { order, updates, .. } = &self.from;
        let first_of_update = |(at, (input, _)): (usize, &(InputId, ValueId))| {
            let first = self.alike.inputs[input.0 as usize];
            order.len() + update_of(&self.from, first).filter(|known| *known < at).unwrap_or(at)
        };
        let firsts = self.alike.nodes.iter().copied().chain(updates.iter().enumerate().map(first_of_update));
        let mut nodes: Vec<usize> = (0..local.order.len()).collect();
        for (at, first) in firsts.enumerate().filter(|(at, first)| at != first) {
            let (own, of_first) = (span(ends, at), span(ends, first));
            let found = counterparts((local, of_first), (local, own.clone())).into_iter().flatten();
            own.zip(found).for_each(|(own, first)| nodes[own] = nodes[first]);
        }
        Alike { nodes, inputs: self.alike.inputs.clone() }
    }

    /// For each operation, update and return of the second program the number of what stands for it among those of the first.
    fn stand_ins(&self) -> Option<Vec<usize>> {
        let Self { from, to, places, .. } = self;
        let updates = to
            .updates
            .iter()
            .map(|(input, _)| Some(from.order.len() + update_of(from, places.input(*input))?));
        let first_return = from.order.len() + from.updates.len();
        let returns = (0..to.returns.len()).map(|at| (at < from.returns.len()).then_some(first_return + at));
        places.nodes.iter().map(|at| Some(*at)).chain(updates).chain(returns).collect()
    }
}

/// The number of the update of an input.
fn update_of(graph: &Graph, input: InputId) -> Option<usize> {
    graph.updates.iter().position(|(known, _)| *known == input)
}

/// For each operation of the second span the one of the first that is as it, from the last one on; none where there is one without. The first span
/// may have more: where a value is used first, its placement changes, and it is there for those that follow. So may the second, for what reads a
/// value of every layer.
fn counterparts(
    (one, here): (&Graph, Range<usize>),
    (other, there): (&Graph, Range<usize>),
) -> Option<Vec<usize>> {
    let mut left = here.clone();
    let of = |at: usize| {
        let is_as = |own: &usize| is_as((one, one.order[*own]), (other, other.order[at]));
        if let Some(own) = left.clone().rev().find(is_as) {
            left.end = own;
            return Some(own);
        }
        here.clone().rev().find(is_as)
    };
    let mut found: Vec<usize> = there.rev().map(of).collect::<Option<_>>()?;
    found.reverse();
    Some(found)
}

/// Whether two operations differ in nothing but which tensors they read, and which random numbers they draw.
fn is_as((one, here): (&Graph, NodeId), (other, there): (&Graph, NodeId)) -> bool {
    let values = |graph: &'_ Graph, id: NodeId| -> SmallVec<[ValueId; 8]> {
        graph.nodes[id].operands().chain(graph.nodes[id].results()).collect()
    };
    let (values, others) = (values(one, here), values(other, there));
    let same_type = |(value, other_value): (&ValueId, &ValueId)| one.ty(*value) == other.ty(*other_value);
    let (args, other_args) = (&one.nodes[here].args, &other.nodes[there].args);
    let number = aten::row(one.op_name(here)).and_then(|row| row.number);
    let same_arg = |(at, (arg, other)): (usize, (&Arg, &Arg))| match (arg, other) {
        (Arg::Value(_), Arg::Value(_)) | (Arg::Values(_), Arg::Values(_)) => true,
        _ => arg == other || number == Some(at),
    };
    one.op_name(here) == other.op_name(there)
        && values.len() == others.len()
        && values.iter().zip(&others).all(same_type)
        && args.len() == other_args.len()
        && args.iter().zip(other_args).enumerate().all(same_arg)
}
