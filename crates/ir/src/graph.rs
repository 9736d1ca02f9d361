//! The graph: inputs, values, nodes in program order, and side tables.

use base::{Id, Place, PrimaryMap, SecondaryMap, define_id};
use serde::{Deserialize, Serialize};

use crate::{Device, Dtype, TensorType};

define_id!(/** A tensor: an input or a result of a node. */ ValueId, "v");
define_id!(/** An operation in the graph. */ NodeId, "n");
define_id!(/** A tensor that comes from outside. */ InputId, "i");
define_id!(/** An entry of the table of operators that a graph uses. */ OpId, "op");
define_id!(/** A place in the user's code. */ PlaceId, "p");
define_id!(/** A module path. */ ModuleId, "m");
define_id!(/** What made a node, if it was not capture. */ LabelId, "l");
define_id!(/** A part of the program. */ PartId, "part");

/// An operator with its schema, once per graph.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Op {
    /// Qualified name with the overload, such as `aten::add.Tensor`; no overload for the default one: `aten::mm`.
    pub name: String,
    /// Arguments and returns as PyTorch prints them, such as `(Tensor self, Tensor mat2) -> Tensor`.
    pub schema: String,
    /// How it may be sharded, for an operator that the operation table does not know and that the user registered a rule for: as an
    /// einsum, `b s h, h d -> b s d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

/// What an input is to the step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputClass {
    /// A trainable parameter.
    Parameter,
    /// A buffer of the model.
    Buffer,
    /// State of the optimizer.
    Optimizer,
    /// A tensor of the user's that the step reads but neither the model nor the optimizer owns.
    Constant,
    /// Part of the global batch.
    Batch,
    /// A number that may change from step to step, such as the learning rate.
    Hyper,
}

impl InputClass {
    /// All classes, with their names in the text form.
    pub const NAMES: [(Self, &str); 6] = [
        (Self::Parameter, "parameter"),
        (Self::Buffer, "buffer"),
        (Self::Optimizer, "optimizer"),
        (Self::Constant, "constant"),
        (Self::Batch, "batch"),
        (Self::Hyper, "hyper"),
    ];

    /// Its name in the text form.
    pub fn text(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Whether it lives on from step to step.
    pub const fn is_state(self) -> bool {
        matches!(self, Self::Parameter | Self::Buffer | Self::Optimizer | Self::Constant)
    }
}

/// A tensor that comes from outside.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Input {
    /// What it is to the step.
    pub class: InputClass,
    /// Its name, unique in the graph: `params.<fully qualified name>`, `buffers.<...>`, `optimizer.<parameter>.<key>`,
    /// `batch.<argument path>`, `hyper.<group>.<key>`, `constants.<number>`.
    pub name: String,
    /// The value that it is in the graph.
    pub value: ValueId,
}

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueDef {
    /// An input of the graph.
    Input(InputId),
    /// A result of a node: its position among the node's results, lists flattened.
    Result(NodeId, u32),
}

/// A tensor in the graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Value {
    /// Element type, sizes, strides, device.
    #[serde(rename = "type")]
    pub ty: TensorType,
    /// Where it comes from.
    pub def: ValueDef,
}

/// One argument of a node, in the order of the schema, keyword-only arguments and defaults included.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arg {
    /// An optional argument that is absent.
    None,
    /// A tensor.
    Value(ValueId),
    /// A list of tensors, some of which may be absent.
    Values(Vec<Option<ValueId>>),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A number with a fraction; may be infinite or not a number.
    Float(f64),
    /// A list of such numbers.
    Floats(Vec<f64>),
    /// A truth value.
    Bool(bool),
    /// A list of truth values.
    Bools(Vec<bool>),
    /// A string.
    Str(String),
    /// A list of strings.
    Strs(Vec<String>),
    /// An element type.
    Dtype(Dtype),
    /// A memory layout, such as `strided`.
    Layout(String),
    /// A memory format, such as `contiguous` or `preserve`.
    MemoryFormat(String),
    /// A device.
    Device(Device),
}

/// One return of a node, in the order of the schema.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Return {
    /// A return that is undefined, or that nothing can use.
    None,
    /// A tensor.
    Value(ValueId),
    /// A list of tensors.
    Values(Vec<ValueId>),
}

/// What the operations of a part of the program do.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// What gradients are computed of, or what only the user asked for.
    #[default]
    Forward,
    /// Run by the autograd engine.
    Backward,
    /// From gradients to new state: clipping, optimizer. Only here may state be written.
    Update,
}

impl PartKind {
    /// All kinds, with their names in the text form.
    pub const NAMES: [(Self, &str); 3] =
        [(Self::Forward, "forward"), (Self::Backward, "backward"), (Self::Update, "update")];

    /// Its name in the text form.
    pub fn text(self) -> &'static str {
        Self::NAMES[self as usize].1
    }
}

/// A part of the program: a contiguous range of its order. A step that accumulates gradients over two micro-batches has five, forward and
/// backward twice and then an update; two networks that learn in turn have three each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Part {
    /// What its operations do.
    pub kind: PartKind,
    /// The micro-batch that it computes; none where it belongs to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<u32>,
}

/// An operation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Which operator.
    pub op: OpId,
    /// Its arguments in schema order.
    pub args: Vec<Arg>,
    /// Its returns in schema order.
    pub returns: Vec<Return>,
    /// Where in the user's code it comes from.
    pub place: Option<PlaceId>,
    /// The module whose forward made it.
    pub module: Option<ModuleId>,
    /// The part of the program that it stands in.
    pub part: PartId,
    /// The patch or reshard that made it; none for what was captured.
    #[serde(default)]
    pub label: Option<LabelId>,
    /// The chunk of a pipeline that it is in; none where it runs on each stage that needs it, and where there are no stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<u32>,
}

/// A module path, such as `blocks.0.attention`.
pub type Module = String;

/// A training step, or one rank's part of it.
///
/// `nodes` owns the node data; `order` is the program. Nothing is mutated: `updates` say which value an input has at the end.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Graph {
    /// The operators in use.
    pub ops: PrimaryMap<OpId, Op>,
    /// Tensors from outside.
    pub inputs: PrimaryMap<InputId, Input>,
    /// All tensors.
    pub values: PrimaryMap<ValueId, Value>,
    /// All operations, in no particular order.
    pub nodes: PrimaryMap<NodeId, Node>,
    /// The program: each node at most once, definitions before uses. Nodes that are not in it are dead.
    pub order: Vec<NodeId>,
    /// What the step returns.
    pub returns: Vec<ValueId>,
    /// Which inputs change, and to what.
    pub updates: Vec<(InputId, ValueId)>,
    /// Places in the user's code.
    pub places: PrimaryMap<PlaceId, Place>,
    /// Module paths.
    pub modules: PrimaryMap<ModuleId, Module>,
    /// What made the nodes that were not captured: a pass's patch, a reshard.
    #[serde(default)]
    pub labels: PrimaryMap<LabelId, String>,
    /// The parts of the program in their order.
    pub parts: PrimaryMap<PartId, Part>,
}

/// The schema of the operator that stands for a kernel of several operations, where it is counted what they take together.
pub const KERNEL: &str = "unisono::kernel(Tensor[] reads) -> Tensor[]";

/// Whether an operator is one of a kernel.
pub fn is_kernel(name: &str) -> bool {
    KERNEL.split('(').next() == Some(name)
}

impl Arg {
    /// The tensors of this argument.
    pub fn values(&self) -> impl Iterator<Item = ValueId> + '_ {
        let (one, many): (Option<ValueId>, &[Option<ValueId>]) = match self {
            Self::Value(value) => (Some(*value), &[]),
            Self::Values(values) => (None, values),
            _ => (None, &[]),
        };
        one.into_iter().chain(many.iter().copied().flatten())
    }

    /// Replaces every tensor of this argument by what `map` gives for it.
    pub fn map_values(&mut self, mut map: impl FnMut(ValueId) -> ValueId) {
        match self {
            Self::Value(value) => *value = map(*value),
            Self::Values(values) => values.iter_mut().flatten().for_each(|value| *value = map(*value)),
            _ => {}
        }
    }
}

impl Return {
    /// The tensors of this return.
    pub fn values(&self) -> &[ValueId] {
        match self {
            Self::None => &[],
            Self::Value(value) => std::slice::from_ref(value),
            Self::Values(values) => values,
        }
    }

    /// The tensors of this return, mutable.
    pub fn values_mut(&mut self) -> &mut [ValueId] {
        match self {
            Self::None => &mut [],
            Self::Value(value) => std::slice::from_mut(value),
            Self::Values(values) => values,
        }
    }
}

impl Node {
    /// The tensors that it reads, in argument order.
    pub fn operands(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.args.iter().flat_map(Arg::values)
    }

    /// The tensors that it makes, in return order.
    pub fn results(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.returns.iter().flat_map(Return::values).copied()
    }
}

impl Graph {
    /// The name of a node's operator, overload included.
    pub fn op_name(&self, node: NodeId) -> &str {
        &self.ops[self.nodes[node].op].name
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value].ty
    }

    /// The node that makes a value; none where it is an input.
    pub fn maker(&self, value: ValueId) -> Option<NodeId> {
        match self.values[value].def {
            ValueDef::Result(node, _) => Some(node),
            ValueDef::Input(_) => None,
        }
    }

    /// The position of each node in the order.
    pub fn positions(&self) -> SecondaryMap<NodeId, usize> {
        let mut positions = SecondaryMap::with_default(0);
        self.order.iter().enumerate().for_each(|(position, id)| positions[*id] = position);
        positions
    }

    /// What the part of the program does that a node stands in.
    pub fn part_kind(&self, node: NodeId) -> PartKind {
        self.parts[self.nodes[node].part].kind
    }

    /// The last part of the program; the first one where there is none yet.
    pub fn last_part(&self) -> PartId {
        PartId::from_index(self.parts.len().saturating_sub(1))
    }

    /// The place in the user's code that a node comes from.
    pub fn place(&self, node: NodeId) -> Option<&Place> {
        self.nodes[node].place.map(|place| &self.places[place])
    }
}
