//! Horizontal grouping: one operation on lists where there were many, one for each parameter.
//!
//! An optimizer does the same to every parameter, and capture gives a node for each. Nodes of the update part that have the
//! same operator and the same settings, and do not depend on each other, become one node of the table of list operations. Those that
//! can be done in place stay apart from those that cannot: one that cannot would take memory for new results of all. So do those between which
//! something is sent to another pipeline stage: what is sent of the first ones would wait for the others.

use aten::{ListForm, Role};
use base::{PrimaryMap, Result, SecondaryMap};
use ir::{Arg, Graph, Node, NodeId, Op, OpId, PartKind, Patch, Return, ReturnType, TensorType, ValueId};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    Pass,
    facts::{Facts, transfers_before},
};

/// Makes list operations of the update part's nodes.
pub struct GroupLists;

impl Pass for GroupLists {
    fn name(&self) -> &'static str {
        "group_lists"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        for group in groups(graph).iter().filter(|group| group.members.len() > 1) {
            let name = &graph.op_name(group.members[0]);
            patch.label(format!("group_lists: {} {name}", group.members.len()));
            match group.form {
                Form::List(list, form) => list_operation(graph, &mut patch, list, form, &group.members),
                Form::Entrywise => longer_lists(graph, &mut patch, &group.members),
            }
        }
        Ok(patch)
    }
}

/// How the nodes of a group become one.
#[derive(Clone, Copy)]
enum Form {
    List(&'static aten::Row, &'static ListForm),
    Entrywise,
}

struct Group {
    form: Form,
    /// In program order.
    members: Vec<NodeId>,
}

/// A node that may be grouped, with each form that it fits and the key of the group that it would be in.
struct Candidate {
    node: NodeId,
    choices: Vec<(Form, Vec<u8>)>,
}

/// All candidates, grouped: each joins its largest group.
fn groups(graph: &Graph) -> Vec<Group> {
    let candidates = candidates(graph);
    let mut company: FxHashMap<&[u8], usize> = FxHashMap::default();
    for (_, key) in candidates.iter().flat_map(|candidate| &candidate.choices) {
        *company.entry(key).or_default() += 1;
    }
    let mut known: FxHashMap<&[u8], usize> = FxHashMap::default();
    let mut groups: Vec<Group> = Vec::new();
    for candidate in &candidates {
        let most = candidate.choices.iter().rev().max_by_key(|(_, key)| company[key.as_slice()]);
        let (form, key) = most.expect("a candidate has a choice");
        let group = *known.entry(key).or_insert(groups.len());
        if group == groups.len() {
            groups.push(Group { form: *form, members: Vec::new() });
        }
        groups[group].members.push(candidate.node);
    }
    groups
}

/// The candidates in program order. A key holds the *level*, the largest number of candidates on a path to the node: members of a
/// group do not depend on each other, and since every path from a group to another goes up, neither do groups in a circle.
fn candidates(graph: &Graph) -> Vec<Candidate> {
    let mut levels: SecondaryMap<ValueId, u32> = SecondaryMap::with_default(0);
    let named: PrimaryMap<OpId, Vec<Form>> = graph.ops.values().map(|op| forms_of(&op.name)).collect();
    let in_place = memory::in_place(&memory::steps_of(graph));
    let transfers_before = transfers_before(graph, &Facts::new(graph));
    let mut candidates = Vec::new();
    for (id, in_place) in graph.order.iter().zip(in_place) {
        let node = &graph.nodes[*id];
        let forms = forms(graph, node, &named[node.op]);
        let below = node.operands().map(|operand| levels[operand]).max().unwrap_or(0);
        let level = below + u32::from(!forms.is_empty());
        for result in node.results() {
            levels[result] = level;
        }
        if !forms.is_empty() {
            let apart = (level, in_place, transfers_before[*id]);
            let choices = forms.into_iter().map(|form| (form, key(graph, apart, form, node)));
            candidates.push(Candidate { node: *id, choices: choices.collect() });
        }
    }
    candidates
}

/// The forms that nodes of an operator may fit.
fn forms_of(name: &str) -> Vec<Form> {
    if aten::row(name).is_some_and(|row| row.entrywise) {
        return vec![Form::Entrywise];
    }
    aten::list_forms(name).map(|(list, form)| Form::List(list, form)).collect()
}

/// Those of its operator's forms that a node fits; none if it is no candidate.
fn forms(graph: &Graph, node: &Node, named: &[Form]) -> Vec<Form> {
    if graph.parts[node.part].kind != PartKind::Update {
        return Vec::new();
    }
    named.iter().filter(|form| fits_form(graph, node, **form)).copied().collect()
}

fn fits_form(graph: &Graph, node: &Node, form: Form) -> bool {
    let Form::List(_, form) = form else {
        return !node.args.iter().any(|arg| matches!(arg, Arg::Values(values) if values.len() > 1));
    };
    let [Return::Value(result)] = node.returns.as_slice() else { return false };
    let fitting = form.roles.len() == node.args.len()
        && form.roles.iter().zip(&node.args).all(|(role, arg)| fits(graph, *role, arg));
    // A list operation works on entries whose first tensor says what the result is.
    let shape = |value: ValueId| &graph.ty(value).shape;
    let reduces = || form.to_numbers && shape(*result).is_empty();
    let keeps = || entries(form, node).next().is_some_and(|first| shape(first) == shape(*result));
    fitting && (reduces() || keeps())
}

fn fits(graph: &Graph, role: Role, arg: &Arg) -> bool {
    match (role, arg) {
        (Role::Each, Arg::Value(_)) | (Role::Neutral, Arg::None | Arg::Bool(false) | Arg::Int(1)) => true,
        (Role::Shared, Arg::Value(value)) => graph.ty(*value).rank() == 0,
        (Role::Each | Role::Shared, _) => false,
        (Role::Static, arg) => arg.values().next().is_none(),
        (Role::Neutral, arg) => *arg == Arg::Ints(Vec::new()) || *arg == Arg::Float(1.0),
    }
}

/// The tensors of a node that become entries of lists.
fn entries<'n>(form: &ListForm, node: &'n Node) -> impl Iterator<Item = ValueId> + use<'n> {
    let roles = form.roles;
    roles.iter().zip(&node.args).filter(|(role, _)| **role == Role::Each).flat_map(|(_, arg)| arg.values())
}

/// What members of a group have in common, as bytes: part, level, whether they are done in place, how many transfers start before them, operator,
/// settings, shared tensors, element types and devices.
fn key(graph: &Graph, (level, in_place, transfers): (u32, bool, u32), form: Form, node: &Node) -> Vec<u8> {
    let mut key = Key { graph, bytes: Vec::with_capacity(128) };
    key.number(node.part.0);
    key.number(level);
    key.number(u32::from(in_place));
    key.number(transfers);
    key.number(node.op.0);
    if let Form::List(list, _) = form {
        key.bytes.extend(list.name.as_bytes());
    }
    for (position, arg) in node.args.iter().enumerate() {
        let is_entry = match form {
            Form::List(_, form) => form.roles[position] == Role::Each,
            Form::Entrywise => matches!(arg, Arg::Values(_)),
        };
        if is_entry { key.list(arg.values()) } else { key.whole(arg) }
    }
    for returned in &node.returns {
        key.list(returned.values().iter().copied());
    }
    key.bytes
}

struct Key<'g> {
    graph: &'g Graph,
    bytes: Vec<u8>,
}

impl Key<'_> {
    fn number(&mut self, number: u32) {
        self.bytes.extend(number.to_le_bytes());
    }

    fn whole(&mut self, what: &impl Serialize) {
        rmp_serde::encode::write(&mut self.bytes, what).expect("arguments serialize into memory");
    }

    /// Element types and devices of tensors, and how many there are.
    fn list(&mut self, values: impl Iterator<Item = ValueId>) {
        let (start, mut count) = (self.bytes.len(), 0);
        self.number(0);
        for value in values {
            let TensorType { dtype, device, .. } = self.graph.ty(value);
            self.number(*dtype as u32);
            self.bytes.extend(device.kind.name().as_bytes());
            self.number(device.index.into());
            count += 1_u32;
        }
        self.bytes[start..start + 4].copy_from_slice(&count.to_le_bytes());
    }
}

/// Replaces `members` by the operation on lists of which `form` says what their arguments become.
fn list_operation(
    graph: &Graph,
    patch: &mut Patch<'_>,
    list: &aten::Row,
    form: &ListForm,
    members: &[NodeId],
) {
    let first = &graph.nodes[members[0]];
    let mut args = Vec::new();
    for (position, role) in form.roles.iter().enumerate() {
        match role {
            Role::Each => args.push(joined(graph, members, position)),
            Role::Shared | Role::Static => args.push(first.args[position].clone()),
            Role::Neutral => {}
        }
    }
    replace_by(graph, patch, &format!("{}{}", list.name, list.signature), args, members);
}

/// Replaces `members`, which are on lists already, by one node on their lists together.
fn longer_lists(graph: &Graph, patch: &mut Patch<'_>, members: &[NodeId]) {
    let first = &graph.nodes[members[0]];
    let args = first.args.iter().enumerate().map(|(position, arg)| match arg {
        Arg::Values(_) => joined(graph, members, position),
        other => other.clone(),
    });
    let op: &Op = &graph.ops[first.op];
    replace_by(graph, patch, &op.to_string(), args.collect(), members);
}

/// The tensors of the argument at `position` of all members, in order.
fn joined(graph: &Graph, members: &[NodeId], position: usize) -> Arg {
    let values = |member: &NodeId| match &graph.nodes[*member].args[position] {
        Arg::Values(values) => values.clone(),
        arg => arg.values().map(Some).collect(),
    };
    Arg::Values(members.iter().flat_map(values).collect())
}

/// Adds the node that stands for all members and gives their results to its users. It takes the first one's position, and moves
/// behind what it needs.
fn replace_by(graph: &Graph, patch: &mut Patch<'_>, op: &str, args: Vec<Arg>, members: &[NodeId]) {
    let returned =
        |member: &NodeId, position: usize| graph.nodes[*member].returns[position].values().to_vec();
    let mut old: Vec<ValueId> = Vec::new();
    let mut returns = Vec::new();
    for (position, first) in graph.nodes[members[0]].returns.iter().enumerate() {
        let values: Vec<ValueId> = members.iter().flat_map(|member| returned(member, position)).collect();
        returns.push(match first {
            Return::None => ReturnType::None,
            _ => ReturnType::Tensors(values.iter().map(|value| graph.ty(*value).clone()).collect()),
        });
        old.extend(values);
    }
    let node = patch.push(members[0], op, args, returns);
    let new: Vec<ValueId> = patch.node(node).results().collect();
    old.into_iter().zip(new).for_each(|(old, new)| patch.replace(old, new));
    for member in members {
        patch.remove(*member);
    }
}
