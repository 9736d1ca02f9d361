//! The partition of a graph into kernels and what stays as it is.

use std::collections::BTreeMap;

use base::Bytes;
use ir::{Graph, NodeId, Schema, ValueId};

use super::{
    convex::Positions,
    eager::Rounding,
    groups::Groups,
    schedule::{Unit, schedule},
};
use crate::{Kernel, Nest, Op, Unary};

/// Up to so many points PyTorch's gradient of an error function takes longer to be called than a kernel to run.
const FEW_ERRORS: u64 = 1 << 14;

/// The fewest points of a row, where there are several: the code for a row takes as long as a vector or two of it.
const SHORTEST: usize = 8;

/// About what a processor takes for a call of an operation of PyTorch's on few elements, in nanoseconds.
const CALL: u64 = 1000;
/// What it takes more where the operation is given a number of any type, which is passed by text and becomes a tensor.
const NUMBER: u64 = 4000;
/// What it takes for an element that lies apart from the next one, which is interpreted.
const ELEMENT: u64 = 4;

/// Up to so many points a processor takes longer to call an operation of PyTorch's than to run a kernel of it alone.
const FEW_ALONE: u64 = 1 << 11;

/// The fewest points of a row whose logarithm is worth a kernel that saves nothing else, where rows are many.
const SHORTEST_LOGARITHM: usize = 256;

/// Up to so many points PyTorch's logarithms of rows take longer to be called than a kernel to run.
const FEW_OF_ROWS: u64 = 1 << 12;

/// Operations that run as one kernel.
#[derive(Clone, Debug)]
pub struct Group {
    /// How the kernel rounds.
    pub rounding: Rounding,
    /// The operations in program order.
    pub nodes: Vec<NodeId>,
    /// The kernel: its operands are `reads` and then `writes`.
    pub kernel: Kernel,
    /// The tensors that it reads.
    pub reads: Vec<ValueId>,
    /// The tensors that it makes.
    pub writes: Vec<ValueId>,
    /// How much less it moves than its operations one by one.
    pub saved: Bytes,
}

/// What runs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// An operation, by its position in the program of the graph.
    Node(usize),
    /// A group, by its number.
    Group(usize),
}

/// Operations that stay as they are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Left {
    /// The operator.
    pub op: String,
    /// Why, in a few words.
    pub reason: String,
    /// How many.
    pub count: usize,
}

/// What operations that kernels can compute read and write, each by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coverage {
    /// What those in groups do.
    pub fused: Bytes,
    /// What all do.
    pub all: Bytes,
}

impl Coverage {
    /// The part that is in groups, in hundredths, rounded down; all of it where there is nothing.
    pub fn percent(self) -> u64 {
        (100 * self.fused.0).checked_div(self.all.0).unwrap_or(100)
    }
}

/// A graph's groups, and its program with them in it.
#[derive(Clone, Debug)]
pub struct Partition {
    /// The groups.
    pub groups: Vec<Group>,
    /// All operations and groups in an order in which they can run.
    pub order: Vec<Item>,
    /// What stays as it is, for each operator and reason.
    pub left: Vec<Left>,
    /// How much of what could be in groups is.
    pub coverage: Coverage,
}

impl Partition {
    /// How much less all groups move than their operations.
    pub fn saved(&self) -> Bytes {
        Bytes(self.groups.iter().map(|group| group.saved.0).sum())
    }
}

/// The kernels of a verified graph: groups of pointwise operations of one shape that move less as one, and single ones that PyTorch is slow
/// at or, on a processor, takes longer to call than to run. No group spans a collective or an operation that writes into its arguments, and nothing passes one.
pub fn partition(graph: &Graph, rounding: Rounding) -> Partition {
    partition_unless(graph, rounding, &|_| None)
}

/// Why a group stays PyTorch's operations, in a few words, if it does.
pub type WhyNot<'a> = dyn Fn(&Group) -> Option<String> + 'a;

/// The same without the groups that `why_not` gives a reason against.
pub fn partition_unless(graph: &Graph, rounding: Rounding, why_not: &WhyNot<'_>) -> Partition {
    let positions = Positions::new(graph, rounding);
    let fixed = graph.order.iter().map(|id| is_fixed(graph, *id)).collect();
    let groups = Groups::of(&positions, fixed);
    let worth = groups.members.iter().filter(|members| is_worth(&groups, members));
    // A result whose elements share memory cannot be written by a loop.
    let valid = worth
        .filter_map(|members| Some((members, group(&groups, members)?)))
        .filter(|(_, group)| pays(graph, group, positions.kind.is_cpu()));
    let (mut kept, mut made, mut reasons) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (members, group) in valid {
        if let Some(reason) = why_not(&group) {
            reasons.extend(members.iter().map(|member| (*member, reason.clone())));
        } else {
            kept.push(members.clone());
            made.push(group);
        }
    }
    let gone = gone(&groups, &kept, &made);
    let units: Vec<Unit<'_>> =
        kept.iter().zip(&made).map(|(members, group)| Unit { members, reads: &group.reads }).collect();
    Partition {
        order: schedule(&positions, &units, &groups.fixed, &gone),
        left: left(&groups, &kept, &gone, &reasons),
        coverage: groups.coverage(&kept),
        groups: made,
    }
}

/// The views that nothing reads any more, because kernels look through them.
fn gone(groups: &Groups<'_>, kept: &[Vec<usize>], made: &[Group]) -> Vec<bool> {
    let order = &groups.positions.graph.order;
    let mut group_of = vec![None; order.len()];
    for (number, members) in kept.iter().enumerate() {
        for member in members {
            group_of[*member] = Some(number);
        }
    }
    let mut gone = vec![false; order.len()];
    for position in (0..order.len()).rev().filter(|position| groups.positions.is_view(*position)) {
        let mut results = groups.positions.graph.nodes[order[position]].results();
        gone[position] = results.all(|value| {
            let reads = |user: usize| match group_of[user] {
                Some(number) => made[number].reads.contains(&value),
                None => !gone[user],
            };
            let users = &groups.positions.users[value];
            !groups.leaving[value] && !users.iter().any(|user| reads(*user))
        });
    }
    gone
}

fn is_fixed(graph: &Graph, id: NodeId) -> bool {
    let op = &graph.ops[graph.nodes[id].op];
    ir::is_communication(&op.name) || Schema::parse(&op.schema).is_none_or(|schema| schema.writes())
}

fn is_worth(groups: &Groups<'_>, members: &[usize]) -> bool {
    let slow = |position: &usize| groups.formulas[*position].as_ref().is_ok_and(|formula| formula.slow);
    let points = |position: &usize| groups.domain(*position).iter().product::<i64>() as u64;
    let on_processor = groups.positions.kind.is_cpu();
    let few = |position: &usize| on_processor && points(position) <= FEW_ALONE;
    members.first().is_some_and(|first| points(first) > 0)
        && (groups.saved(members) > 0 || members.iter().any(|member| slow(member) || few(member)))
        && !groups.writes(members).is_empty()
}

/// Whether a group saves more than it loses: rows that are short cost a call each, and elements that lie apart are read one by one. On a
/// processor few such elements take less than the calls that a group saves.
fn pays(graph: &Graph, group: &Group, on_processor: bool) -> bool {
    let nest = Nest::of(&group.kernel);
    let is_short = nest.rows() > 1 && nest.inner < SHORTEST;
    let is_apart = nest.inner_strides.iter().any(|stride| *stride > 1);
    let takes_number = |id: &&NodeId| graph.ops[graph.nodes[**id].op].schema.contains("Scalar ");
    let numbers = group.nodes.iter().filter(takes_number).count() as u64;
    let calls = if on_processor { (group.nodes.len() as u64 - 1) * CALL + numbers * NUMBER } else { 0 };
    if is_short || is_apart && group.kernel.points() * ELEMENT > calls {
        return false;
    }
    // PyTorch's kernel takes the logarithms of several rows at once.
    let computes = |unary: Unary| {
        group.kernel.body.iter().any(|op| matches!(op, Op::Unary(other, _) if *other == unary))
    };
    let is_gradient = computes(Unary::Erf) && computes(Unary::Exp);
    if on_processor && group.saved.0 == 0 && is_gradient && group.kernel.points() > FEW_ERRORS {
        return false;
    }
    let logarithms = computes(Unary::Log);
    let is_many = !on_processor || group.kernel.points() > FEW_OF_ROWS;
    group.saved.0 > 0
        || !group.kernel.by_rows()
        || !logarithms
        || !is_many
        || nest.inner >= SHORTEST_LOGARITHM
}

fn group(groups: &Groups<'_>, members: &[usize]) -> Option<Group> {
    let graph = groups.positions.graph;
    let (kernel, reads) = groups.kernel(members)?;
    Some(Group {
        rounding: groups.positions.rounding,
        nodes: members.iter().map(|member| graph.order[*member]).collect(),
        kernel,
        reads,
        writes: groups.writes(members),
        saved: Bytes(groups.saved(members)),
    })
}

/// What is in no group, for each operator and reason.
fn left(
    groups: &Groups<'_>,
    kept: &[Vec<usize>],
    gone: &[bool],
    reasons: &BTreeMap<usize, String>,
) -> Vec<Left> {
    let graph = groups.positions.graph;
    let mut grouped = gone.to_vec();
    kept.iter().flatten().for_each(|member| grouped[*member] = true);
    let mut found = BTreeMap::new();
    for (position, id) in graph.order.iter().enumerate().filter(|(position, _)| !grouped[*position]) {
        let reason = match &groups.formulas[position] {
            Ok(_) => reasons.get(&position).map_or("no kernel with it would pay", String::as_str),
            Err(reason) => reason,
        };
        *found.entry((graph.op_name(*id), reason)).or_insert(0) += 1;
    }
    let left = |((op, reason), count): ((&str, &str), usize)| Left {
        op: op.to_owned(),
        reason: reason.to_owned(),
        count,
    };
    found.into_iter().map(left).collect()
}
