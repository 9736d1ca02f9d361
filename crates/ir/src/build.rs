//! Making graphs by hand: by readers, tests and stages that write a new graph.

use std::{fmt, str::FromStr};

use crate::{
    Arg, Graph, Input, InputClass, Node, NodeId, Op, OpId, Part, PartId, PartKind, Return, Schema,
    TensorType, Value, ValueDef, ValueId,
};

/// What a return of a new node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReturnType {
    /// Undefined, or nothing that can be used.
    None,
    /// A tensor.
    Tensor(TensorType),
    /// A list of tensors.
    Tensors(Vec<TensorType>),
}

impl From<TensorType> for ReturnType {
    fn from(ty: TensorType) -> Self {
        Self::Tensor(ty)
    }
}

impl fmt::Display for Op {
    /// As PyTorch prints it: `aten::mm(Tensor self, Tensor mat2) -> Tensor`, and a registered rule behind it: `rule "m k, k n -> m n"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.name, self.schema)?;
        self.rule.iter().try_for_each(|rule| write!(f, "{RULE}{rule}\""))
    }
}

impl FromStr for Op {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no schema such as `aten::mm(Tensor self, Tensor mat2) -> Tensor`");
        let start = text.find('(').filter(|start| text[..*start].contains("::")).ok_or_else(wrong)?;
        let (name, rest) = text.split_at(start);
        let (schema, rule) = match rest.strip_suffix('"').and_then(|rest| rest.rsplit_once(RULE)) {
            Some((schema, rule)) => (schema, Some(rule.to_owned())),
            None => (rest, None),
        };
        Schema::parse(schema).ok_or_else(wrong)?;
        Ok(Self { name: name.into(), schema: schema.into(), rule })
    }
}

/// Begins the rule behind a schema.
const RULE: &str = " rule \"";

impl Graph {
    /// The id of the operator that `text` is the schema of, added where the table lacks it.
    ///
    /// # Panics
    /// Where `text` is no schema: it is meant for schemas written in code.
    pub fn op(&mut self, text: &str) -> OpId {
        let name = &text[..text.find('(').unwrap_or(text.len())];
        let known = self.ops.iter().find(|(_, known)| known.name == name).map(|(id, _)| id);
        known.unwrap_or_else(|| self.ops.push(text.parse().expect("a schema in code is well formed")))
    }

    /// Adds an input.
    pub fn input(&mut self, class: InputClass, name: impl Into<String>, ty: TensorType) -> ValueId {
        let value = self.values.push(Value { ty, def: ValueDef::Input(self.inputs.next_id()) });
        self.inputs.push(Input { class, name: name.into(), value });
        value
    }

    /// Begins a part of the program: what is added from here on stands in it.
    pub fn begin_part(&mut self, kind: PartKind) -> PartId {
        self.begin_part_of(Part { kind, micro_batch: None })
    }

    /// The same for a part that may be of one micro-batch.
    pub fn begin_part_of(&mut self, part: Part) -> PartId {
        self.parts.push(part)
    }

    /// The part that a node at the end of the program stands in: the last one, or a first one, forward.
    pub fn current_part(&mut self) -> PartId {
        if self.parts.is_empty() { self.begin_part(PartKind::Forward) } else { self.last_part() }
    }

    /// Adds a node at the end of the program, in its last part, of no place, module or label.
    pub fn push(&mut self, op: &str, args: Vec<Arg>, returns: Vec<ReturnType>) -> NodeId {
        let part = self.current_part();
        let op = self.op(op);
        let id = self.nodes.next_id();
        let returns = new_returns(id, returns, |value| self.values.push(value));
        self.nodes.push(Node {
            op,
            args,
            returns,
            place: None,
            module: None,
            part,
            label: None,
            stage: None,
        });
        self.order.push(id);
        id
    }

    /// Adds a node that returns one tensor of type `ty` at the end of the program, as [`push`](Self::push) does.
    pub fn push_value(&mut self, op: &str, args: Vec<Arg>, ty: TensorType) -> ValueId {
        let result = self.values.next_id();
        self.push(op, args, vec![ty.into()]);
        result
    }
}

/// Makes the values that node `id` returns; `push` adds each.
pub(crate) fn new_returns(
    id: NodeId,
    returns: Vec<ReturnType>,
    mut push: impl FnMut(Value) -> ValueId,
) -> Vec<Return> {
    let mut position = 0;
    let mut new = |ty| {
        position += 1;
        push(Value { ty, def: ValueDef::Result(id, position - 1) })
    };
    let made = returns.into_iter().map(|returned| match returned {
        ReturnType::None => Return::None,
        ReturnType::Tensor(ty) => Return::Value(new(ty)),
        ReturnType::Tensors(types) => Return::Values(types.into_iter().map(&mut new).collect()),
    });
    made.collect()
}
