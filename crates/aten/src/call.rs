//! One operation in a graph, as rules see it.

use ir::{Arg, Graph, Node, NodeId, Op, TensorType, ValueId};
use smallvec::SmallVec;

/// A node with its tensor operands and results numbered: operands in argument order, lists flattened, absent ones left out.
pub struct Call<'a> {
    /// The graph that the node is in.
    pub graph: &'a Graph,
    /// The node's id.
    pub id: NodeId,
    /// The node.
    pub node: &'a Node,
    /// Its operands.
    pub operands: SmallVec<[ValueId; 4]>,
    /// The argument that each operand belongs to.
    pub operand_args: SmallVec<[usize; 4]>,
    /// Its results.
    pub results: SmallVec<[ValueId; 2]>,
}

impl<'a> Call<'a> {
    /// The call that node `id` is.
    pub fn new(graph: &'a Graph, id: NodeId) -> Self {
        let node = &graph.nodes[id];
        let (mut operands, mut operand_args) = (SmallVec::new(), SmallVec::new());
        for (position, arg) in node.args.iter().enumerate() {
            for value in arg.values() {
                operands.push(value);
                operand_args.push(position);
            }
        }
        Self { graph, id, node, operands, operand_args, results: node.results().collect() }
    }

    /// The operator's name, overload included.
    pub fn name(&self) -> &'a str {
        &self.graph.ops[self.node.op].name
    }

    /// The operator.
    pub fn op(&self) -> &'a Op {
        &self.graph.ops[self.node.op]
    }

    /// The position of the argument of that name.
    pub fn argument(&self, name: &str) -> Option<usize> {
        argument(&self.graph.ops[self.node.op].schema, name)
    }

    /// The type of an operand.
    pub fn operand(&self, operand: usize) -> &'a TensorType {
        self.graph.ty(self.operands[operand])
    }

    /// The type of a result.
    pub fn result(&self, result: usize) -> &'a TensorType {
        self.graph.ty(self.results[result])
    }

    /// The size of dimension `dim` of an operand, if both are there.
    pub fn size(&self, operand: usize, dim: usize) -> Option<i64> {
        self.operands.get(operand).and_then(|value| self.graph.ty(*value).shape.get(dim).copied())
    }

    /// The size of dimension `dim` of a result, if both are there.
    pub fn result_size(&self, result: usize, dim: usize) -> Option<i64> {
        self.results.get(result).and_then(|value| self.graph.ty(*value).shape.get(dim).copied())
    }

    /// The operand that is the (first tensor of) argument `arg`, if it is there.
    pub fn operand_of_arg(&self, arg: usize) -> Option<usize> {
        self.operand_args.iter().position(|position| *position == arg)
    }

    /// The type of the tensor that argument `arg` is.
    pub fn arg_type(&self, arg: usize) -> Option<&'a TensorType> {
        self.operand_of_arg(arg).map(|operand| self.operand(operand))
    }

    /// The result that return number `position` is, if it is a tensor.
    pub fn result_of_return(&self, position: usize) -> Option<usize> {
        let before: usize = self.node.returns.get(..position)?.iter().map(|r| r.values().len()).sum();
        (!self.node.returns.get(position)?.values().is_empty()).then_some(before)
    }

    /// An integer argument.
    pub fn int(&self, arg: usize) -> Option<i64> {
        match self.node.args.get(arg)? {
            Arg::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// A truth value argument.
    pub fn flag(&self, arg: usize) -> Option<bool> {
        match self.node.args.get(arg)? {
            Arg::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// A number argument.
    pub fn number(&self, arg: usize) -> Option<f64> {
        match self.node.args.get(arg)? {
            Arg::Int(int) => Some(*int as f64),
            Arg::Float(float) => Some(*float),
            _ => None,
        }
    }

    /// An argument that is a list of integers (or one integer).
    pub fn ints(&self, arg: usize) -> Option<&'a [i64]> {
        match self.node.args.get(arg)? {
            Arg::Ints(ints) => Some(ints),
            Arg::Int(int) => Some(std::slice::from_ref(int)),
            _ => None,
        }
    }

    /// A dimension argument, counted from the start, if a tensor of `rank` has it; one without dimensions counts as one with one.
    pub fn dim(&self, arg: usize, rank: usize) -> Option<usize> {
        self.int(arg).and_then(|dim| wrap(dim, rank))
    }

    /// A list of dimensions, wrapped; all dimensions where the argument is absent or empty, as reductions take it.
    pub fn dims(&self, arg: usize, rank: usize) -> SmallVec<[usize; 4]> {
        let named = self.named_dims(arg, rank);
        if named.is_empty() { (0..rank).collect() } else { named }
    }

    /// A list of dimensions, wrapped; all dimensions where the argument is absent, none where it is empty.
    pub fn named_dims(&self, arg: usize, rank: usize) -> SmallVec<[usize; 4]> {
        match self.ints(arg) {
            Some(dims) => dims.iter().filter_map(|dim| wrap(*dim, rank)).collect(),
            None => (0..rank).collect(),
        }
    }
}

/// A dimension that may count from the end, counted from the start.
fn wrap(dim: i64, rank: usize) -> Option<usize> {
    let rank = rank.max(1) as i64;
    let dim = if dim < 0 { dim.checked_add(rank)? } else { dim };
    (0..rank).contains(&dim).then_some(dim as usize)
}

/// The position of the argument of that name in a schema or a row's signature.
pub fn argument(schema: &str, name: &str) -> Option<usize> {
    let (arguments, _) = schema.split_once(" -> ").unwrap_or((schema, ""));
    let arguments = arguments.split_once('(')?.1;
    let mut names = arguments.trim_end_matches(')').split(", ").filter(|argument| *argument != "*");
    names.position(|argument| {
        let last = argument.rsplit(' ').next().unwrap_or(argument);
        last.split('=').next() == Some(name)
    })
}
