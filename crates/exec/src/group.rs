//! Grouping: operations that do the same to many tensors become one operation on lists.
//!
//! An optimizer's code, captured one parameter at a time, is thousands of small operations. A call waits in its group until
//! something needs what it makes; then the whole group runs as one call.

use indexmap::IndexMap;
use rustc_hash::FxHashMap;
use torch_sys::{Arg, Output, Schema, Slot, Type};

use crate::{OpCall, ProgramSpec, Role, role};

/// How an operation on tensors becomes one on lists.
struct Rule {
    from: &'static str,
    to: &'static str,
    /// How many leading arguments become lists.
    lists: usize,
    /// For each further argument of the list operation, the position of the one that it takes over.
    rest: &'static [usize],
    /// Arguments that must have these values, because the list operation has none for them.
    fixed: &'static [(usize, Fixed)],
}

#[derive(Clone, Copy)]
enum Fixed {
    None,
    False,
}

impl Fixed {
    fn holds(self, arg: &Arg) -> bool {
        matches!((self, arg), (Self::None, Arg::None) | (Self::False, Arg::Bool(false)))
    }
}

macro_rules! rules {
    ($($from:literal, $to:literal, $lists:literal, $rest:expr, $fixed:expr;)*) => {
        &[$(Rule { from: $from, to: $to, lists: $lists, rest: &$rest, fixed: &$fixed },)*]
    };
}

/// The operations of optimizers and of clipping. On CPU a list operation calls the single one for each entry, in C++: the
/// results are the same, bit for bit.
const RULES: &[Rule] = rules! {
    "aten::mul.Tensor", "aten::_foreach_mul.Tensor", 1, [1], [];
    "aten::mul.Scalar", "aten::_foreach_mul.Scalar", 1, [1], [];
    // with the number as a tensor, which is made once: the scalar form makes one for each entry
    "aten::add.Scalar", "aten::_foreach_add.Tensor", 1, [1, 2], [];
    "aten::add.Tensor", "aten::_foreach_add.List", 2, [2], [];
    "aten::sub.Tensor", "aten::_foreach_sub.List", 2, [2], [];
    "aten::div.Tensor", "aten::_foreach_div.List", 2, [], [];
    "aten::div.Scalar", "aten::_foreach_div.Scalar", 1, [1], [];
    "aten::sqrt", "aten::_foreach_sqrt", 1, [], [];
    "aten::lerp.Scalar", "aten::_foreach_lerp.Scalar", 2, [2], [];
    "aten::addcmul", "aten::_foreach_addcmul.Scalar", 3, [3], [];
    "aten::addcdiv", "aten::_foreach_addcdiv.Scalar", 3, [3], [];
    "aten::linalg_vector_norm", "aten::_foreach_norm.Scalar", 1, [1, 4], [(2, Fixed::None), (3, Fixed::False)];
};

/// The list operations that grouping may use.
pub(crate) fn list_operations() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|rule| rule.to)
}

/// What calls of one group have in common: the list operation and all arguments that are no lists.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    op: u32,
    rest: Vec<String>,
}

/// A call that waits: the arguments of the list operation as it would be with this call alone.
struct Waiting {
    call: OpCall,
    args: Vec<Arg>,
    outputs: Vec<Output>,
}

/// Calls that wait for each other.
#[derive(Default)]
struct Group {
    members: Vec<Waiting>,
    /// Views of what the members make, which wait with them.
    views: Vec<OpCall>,
    /// Groups whose results the members read.
    after: Vec<Key>,
}

/// The same program with groups.
pub(crate) fn group(spec: &ProgramSpec, schemas: &[Schema]) -> ProgramSpec {
    let numbers = schemas.iter().enumerate().map(|(index, schema)| (schema.full_name(), index as u32));
    let mut grouping = Grouping {
        spec,
        schemas,
        numbers: numbers.collect(),
        groups: IndexMap::new(),
        maker: FxHashMap::default(),
        calls: Vec::with_capacity(spec.calls.len()),
    };
    for call in &spec.calls {
        grouping.take(call);
    }
    grouping.flush_all();
    ProgramSpec { calls: grouping.calls, ..spec.clone() }
}

struct Grouping<'a> {
    spec: &'a ProgramSpec,
    schemas: &'a [Schema],
    numbers: FxHashMap<String, u32>,
    groups: IndexMap<Key, Group>,
    /// The group in which the call that fills a slot waits.
    maker: FxHashMap<Slot, Key>,
    calls: Vec<OpCall>,
}

impl Grouping<'_> {
    fn take(&mut self, call: &OpCall) {
        if self.schemas[call.op as usize].mutates() {
            self.flush_all();
        }
        let reads = call.args.iter().flat_map(Arg::slots);
        let keys: Vec<Key> = reads.filter_map(|slot| self.maker.get(&slot).cloned()).collect();
        if let ([key], Role::View | Role::Alias) = (keys.as_slice(), role(&self.schemas[call.op as usize])) {
            self.wait_for(call, key);
            self.groups.entry(key.clone()).or_default().views.push(call.clone());
            return;
        }
        let Some((key, waiting)) = self.listed(call) else {
            for key in keys {
                self.flush(&key);
            }
            self.calls.push(call.clone());
            return;
        };
        for read in keys {
            self.come_after(&key, read);
        }
        self.wait_for(call, &key);
        self.groups.entry(key).or_default().members.push(waiting);
    }

    /// Makes the group `key` run after the group `read`: by a note where that leads to no cycle, else at once.
    fn come_after(&mut self, key: &Key, read: Key) {
        if read == *key || self.runs_after(&read, key) {
            self.flush(&read);
        } else if self.groups.contains_key(&read) {
            let group = self.groups.entry(key.clone()).or_default();
            if !group.after.contains(&read) {
                group.after.push(read);
            }
        }
    }

    /// Whether the waiting group `key` reads, directly or not, what the group `other` makes.
    fn runs_after(&self, key: &Key, other: &Key) -> bool {
        let Some(group) = self.groups.get(key) else { return false };
        group.after.iter().any(|before| before == other || self.runs_after(before, other))
    }

    fn wait_for(&mut self, call: &OpCall, key: &Key) {
        for slot in call.outputs.iter().flat_map(Output::slots) {
            self.maker.insert(slot, key.clone());
        }
    }

    fn flush(&mut self, key: &Key) {
        let Some(group) = self.groups.shift_remove(key) else { return };
        let calls = group.members.iter().map(|waiting| &waiting.call).chain(&group.views);
        for slot in calls.flat_map(|call| &call.outputs).flat_map(Output::slots) {
            self.maker.remove(&slot);
        }
        for before in &group.after {
            self.flush(before);
        }
        match group.members.as_slice() {
            [] => {}
            [one] => self.calls.push(one.call.clone()),
            many => self.calls.push(merged(key.op, many)),
        }
        self.calls.extend(group.views);
    }

    fn flush_all(&mut self) {
        while let Some(key) = self.groups.keys().next().cloned() {
            self.flush(&key);
        }
    }

    /// The call as a list operation with one entry.
    fn listed(&self, call: &OpCall) -> Option<(Key, Waiting)> {
        if !call.groupable {
            return None;
        }
        let schema = &self.schemas[call.op as usize];
        let (op, args, outputs) = if takes_lists(schema) {
            (call.op, call.args.clone(), whole_lists(schema, call))
        } else {
            self.by_rule(schema, call)?
        };
        let is_list = |arg: &&Arg| matches!(arg, Arg::Tensors(_));
        let rest = args.iter().filter(|arg| !is_list(arg)).map(|arg| format!("{arg:?}")).collect();
        Some((Key { op, rest }, Waiting { call: call.clone(), args, outputs }))
    }

    fn by_rule(&self, schema: &Schema, call: &OpCall) -> Option<(u32, Vec<Arg>, Vec<Output>)> {
        let name = schema.full_name();
        let rule = RULES.iter().find(|rule| rule.from == name)?;
        let op = *self.numbers.get(rule.to)?;
        let fixed = rule.fixed.iter().all(|(index, fixed)| fixed.holds(&call.args[*index]));
        if !fixed || !self.fits(rule, call) {
            return None;
        }
        let list = |arg: &Arg| match arg {
            Arg::Tensor(slot) => Some(Arg::Tensors(vec![*slot])),
            _ => None,
        };
        let lists = call.args[..rule.lists].iter().map(list);
        let rest = rule.rest.iter().map(|index| Some(call.args[*index].clone()));
        let args = lists.chain(rest).collect::<Option<Vec<_>>>()?;
        let [Output::Tensor(slot)] = call.outputs.as_slice() else { return None };
        Some((op, args, vec![Output::Tensors(vec![Some(*slot)])]))
    }

    /// List operations do not broadcast between lists, and a common factor must be one number of the same type.
    fn fits(&self, rule: &Rule, call: &OpCall) -> bool {
        let shape = |index: usize| match call.args.get(index) {
            Some(Arg::Tensor(slot)) => self.spec.shape(*slot),
            _ => None,
        };
        let Some(first) = shape(0) else { return false };
        let lists_alike = (1..rule.lists).all(|index| shape(index) == Some(first));
        let others = rule.rest.iter().filter(|index| matches!(call.args[**index], Arg::Tensor(_)));
        let mut others = others.map(|index| shape(*index));
        lists_alike
            && others
                .all(|shape| shape.is_some_and(|shape| shape.sizes.is_empty() && shape.dtype == first.dtype))
    }
}

/// Whether an operation works on lists, entry by entry: fused optimizer kernels.
fn takes_lists(schema: &Schema) -> bool {
    let list = Type::List(Box::new(Type::Tensor));
    schema.name.starts_with("aten::_fused_")
        && schema.arguments.first().is_some_and(|argument| argument.ty == list)
        && schema.returns.iter().all(|returned| returned.ty == list)
}

/// Outputs with an entry for every entry of the argument that each return is the new value of.
fn whole_lists(schema: &Schema, call: &OpCall) -> Vec<Output> {
    let lists = schema.arguments.iter().zip(&call.args).filter_map(|(_, arg)| match arg {
        Arg::Tensors(slots) => Some(slots.len()),
        _ => None,
    });
    let whole = call.outputs.iter().zip(lists).map(|(output, len)| match output {
        Output::Tensors(slots) if slots.len() == len => output.clone(),
        _ => Output::Tensors(vec![None; len]),
    });
    whole.collect()
}

fn merged(op: u32, group: &[Waiting]) -> OpCall {
    let first = &group[0];
    let args = first.args.iter().enumerate().map(|(index, arg)| match arg {
        Arg::Tensors(_) => {
            Arg::Tensors(group.iter().flat_map(|waiting| waiting.args[index].slots()).collect())
        }
        other => other.clone(),
    });
    let outputs = (0..first.outputs.len()).map(|index| {
        let entries = group.iter().flat_map(|waiting| match &waiting.outputs[index] {
            Output::Tensors(slots) => slots.clone(),
            _ => Vec::new(),
        });
        Output::Tensors(entries.collect())
    });
    OpCall { op, args: args.collect(), outputs: outputs.collect(), place: first.call.place, groupable: true }
}
