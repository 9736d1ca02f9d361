//! What a row of the operation table holds.

use base::{Bytes, Flops};
use ir::{Arg, Dtype};

use crate::{Call, Eager, Factors, Formula, Moves, OnLists, Seed, Strategy, call::argument};

/// Everything that is known of one operation.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub struct Row {
    /// The operator's name, overload included.
    pub name: &'static str,
    /// Its arguments and returns, see [`Row::schema`].
    pub signature: &'static str,
    /// How it may be sharded.
    pub rule: Rule,
    /// Through which operands a partial value may pass.
    pub linear: Linear,
    /// What must be localised beside the operands.
    pub sizes: Sizes,
    /// How much work it is.
    pub work: Work,
    /// Whose memory its results are.
    pub memory: Memory,
    /// In which order its results lie in memory.
    pub strides: Strides,
    /// Whether its kernel walks through memory, so that all tensors must lie there as the first does.
    pub walks_memory: bool,
    /// What it writes into a tensor of which an operand gives no more than type and shape.
    pub fills: Option<Fill>,
    /// What it is rewritten into before it is sharded.
    pub rewrite: Option<Rewrite>,
    /// Whether the CPU kernel computes element by element into the memory of its result, which then keeps that memory even if the result is
    /// one number.
    pub full_size: bool,
    /// What its kernel allocates for itself while it runs, beyond its results.
    pub workspace: Option<fn(&Call<'_>) -> Bytes>,
    /// Whether it draws random numbers.
    pub random: Random,
    /// The operands that are the matrices of a product: how they lie in memory changes nothing of the result, and little of what it takes.
    pub matrices: &'static [usize],
    /// Whether it multiplies matrices, as convolutions and attention do too. Processors without instructions for products in 16 bits take
    /// several times as long for them as in `f32`.
    pub multiplies: bool,
    /// What it draws, if each number can follow from the place of an element alone.
    pub draws: Option<Draw>,
    /// The argument that only tells its random numbers from those of other calls.
    pub number: Option<usize>,
    /// Whether an operator with `_` behind its name does the same in place.
    pub in_place: bool,
    /// The operator that writes the result into a given tensor, if its kernel does so without a copy.
    pub out: Option<&'static str>,
    /// Whether the result is the first operand where both have the same type: each keeps the order of elements whenever it keeps the
    /// sizes, so that equal types mean equal tensors; a permutation does not.
    pub identity: bool,
    /// Whether the same holds where the second argument is the number 1.
    pub scales: bool,
    /// The argument that the result is, where both have the same type, of an operation that copies it over another.
    pub copied: Option<usize>,
    /// Whether it copies or casts one tensor.
    pub copies: bool,
    /// How it moves elements, where that is all that it does.
    pub moves: Option<Moves>,
    /// What it does to each tensor of a list.
    pub on_lists: Option<OnLists>,
    /// Whether its dimensions are counted in the result, which has more than the operand.
    pub dims_of_result: bool,
    /// Whether the dispatcher takes its sizes as symbols below autograd, as kernels that are not structured do.
    pub symbols: bool,
    /// The operations on single tensors that it does for lists.
    pub list_of: &'static [ListForm],
    /// Whether it works on every entry of its lists by itself, so that calls can be merged by concatenating their lists.
    pub entrywise: bool,
    /// The argument that the form in place writes only to undo a loss scale, and the argument that gives the scale.
    pub scaled: Option<(usize, usize)>,
    /// The operator that takes a tensor where this one takes a `Scalar`, and the integers that it takes beyond that.
    pub with_tensor: Option<(&'static str, &'static [i64])>,
    /// What each element of its result is, so that it can be part of a kernel.
    pub formula: Option<Formula>,
    /// How it divides a dimension into groups, if it does.
    pub groups: Option<Groups>,
    /// Whether its kernel computes on an empty shard what it should: an empty part of the result, or 0 of a sum.
    pub may_be_empty: bool,
}

/// How an operation divides a dimension into groups.
#[derive(Clone, Copy)]
pub struct Groups {
    /// The argument that says where each group ends.
    pub offsets: usize,
    /// How the operation runs where each rank has some groups.
    pub strategy: fn(&Call<'_>) -> Option<Strategy>,
}

/// The argument that repeats a size and so must be localised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// There is none.
    None,
    /// The shape of the first result.
    Shape(usize),
    /// The first dimension of the first operand, alone or at the head of a list.
    Batch(usize),
    /// Sizes of parts of the first dimension, of the operand and of the result alike.
    Splits(&'static [usize]),
    /// Where the result begins and ends along a dimension of the operand, of which it is one of several equal pieces wherever that is sharded.
    Span {
        /// The argument with the dimension; the next two are the span.
        dim: usize,
    },
    /// The size or sizes of the results along a dimension of the operand.
    Pieces {
        /// The argument with the sizes.
        sizes: usize,
        /// The argument with the dimension.
        dim: usize,
    },
}

/// In which order the results of an operation lie in memory. An operand is the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strides {
    /// As the operands do, without gaps.
    Dense,
    /// Row-major, however the operands lie.
    RowMajor,
    /// Row-major, or with channels innermost where these operands, of images or volumes, suggest so; all of them where none is named.
    Suggested(&'static [usize]),
    /// The operand's, gaps included.
    Kept,
    /// The operand's in reverse.
    Reversed,
    /// The operand's with the dimensions of arguments 1 and 2 swapped.
    Swapped,
    /// The operand's in the order of argument 1.
    Permuted,
    /// The operand's in another shape.
    Reshaped,
    /// The operand's with a new dimension at argument 1.
    Inserted,
    /// The operand's without those of argument 1 that have size 1.
    Squeezed,
    /// The operand's, and 0 along dimensions that repeat.
    Expanded,
    /// The operand's without the dimension of argument 1.
    Selected,
    /// The operand's with a step, argument 4, along the dimension of argument 1.
    Sliced,
    /// The operand's with a step, argument 3, along the dimension of argument 1, and that dimension's behind them, within each window.
    Windows,
    /// The operand's without the dimensions of arguments 2 and 3, and the sum of theirs behind them.
    Diagonal,
    /// The operand's without those of its last dimension, pairs of parts, in elements of twice the size.
    Paired,
    /// The operand's in elements of half the size, and a last dimension of the two parts of each.
    Parted,
}

impl Strides {
    /// The dimensions of the operand in the order in which the result has them, if the operation does no more than put those that are
    /// there in order.
    pub fn order(self, call: &Call<'_>) -> Option<Vec<usize>> {
        let rank = call.graph.ty(*call.operands.first()?).rank();
        let mut order: Vec<usize> = (0..rank).collect();
        match self {
            _ if rank == 0 => return None,
            Self::Reversed => order.reverse(),
            Self::Swapped => order.swap(call.dim(1, rank)?, call.dim(2, rank)?),
            Self::Permuted => order = call.named_dims(1, rank).to_vec(),
            _ => return None,
        }
        (order.len() == rank).then_some(order)
    }
}

/// What every element of a new tensor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Anything.
    Nothing,
    /// A number.
    Number(i64),
    /// The number at this argument.
    Argument(usize),
}

/// An operation that cannot be sharded as it is, with the argument that says whether a call is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rewrite {
    /// A loss, which is a mean by this argument: a sum and a division.
    MeanLoss(usize),
    /// The backward of one.
    MeanLossBackward(usize),
    /// Batch norm, by its own statistics by this argument: means, products and sums.
    BatchNorm(usize),
    /// The backward of it.
    BatchNormBackward(usize),
    /// Dropout as one kernel, while training by this argument: a mask, and a product with it.
    Dropout(usize),
    /// A view whose elements are others than those in memory (`_conj`): the operation that computes them.
    Own(&'static str),
    /// What computes the elements of such a view: nothing where the operand is none, as operations give none then.
    Nothing,
    /// A reduction of all elements: this one of the dimensions behind the first one, and then of the first one.
    InTwo(&'static str),
}

/// How an operation may be sharded.
#[derive(Clone, Copy)]
pub enum Rule {
    /// It is not known: it runs replicated, and the report counts it.
    Unknown,
    /// Not at all.
    Fixed,
    /// Each element by itself, operands broadcast: every dimension of the results.
    Each,
    /// As an einsum says, see [`crate::einsum`].
    Einsum(&'static str),
    /// As the einsum says that the graph has for the operator.
    Registered,
    /// As the iteration space of the call says.
    Factors(fn(&Call<'_>) -> Option<Factors>),
    /// As any of several iteration spaces of the call says.
    Either(&'static [fn(&Call<'_>) -> Option<Factors>]),
    /// As a function of the sharding that one operand or result is to have.
    Seeded(fn(&Call<'_>, Seed, u32) -> Option<Strategy>),
}

/// Through which operands a partial value may pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linear {
    /// Through none.
    No,
    /// Through all of them at once: addition, views.
    Jointly,
    /// Through all of them at once, and any reduction: the operation only puts elements together.
    Stacked,
    /// Through any one of these arguments, the others replicated: products.
    InEach(&'static [usize]),
    /// Through these arguments at once, all of which must be tensors; the others replicated.
    Together(&'static [usize]),
    /// Parts of a 2-norm through a 2-norm.
    Norms,
    /// Through a collective that adds.
    Sums,
}

/// How much work an operation is.
#[derive(Clone, Copy)]
pub enum Work {
    /// None: the result is a view.
    View,
    /// None: memory is taken, and nothing written to it.
    Nothing,
    /// The bytes that it reads and writes.
    Traffic,
    /// Floating-point operations beside the traffic.
    Flops(fn(&Call<'_>) -> Flops),
}

/// Whose memory the results of an operation are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Their own, or what its schema says that it writes into and returns.
    Own,
    /// The first operand's, each of its elements at most once.
    View,
    /// The first operand's, elements perhaps more than once.
    Repeating,
    /// The first operand's: the result *is* the operand.
    Alias,
    /// The first operand's, in a way that sizes and strides do not say, such as a conjugation.
    Hidden,
}

impl Memory {
    /// Whether the results share memory with the first operand.
    pub const fn is_shared(self) -> bool {
        !matches!(self, Self::Own)
    }
}

/// Whether an operation draws random numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Random {
    /// Never.
    No,
    /// Always.
    Yes,
    /// Where the number at this argument is not 0.
    Unless0(usize),
}

impl Random {
    /// Whether an operation with these arguments draws.
    pub fn draws(self, args: &[Arg]) -> bool {
        let zero = |arg: &Arg| matches!(arg, Arg::None | Arg::Int(0)) || *arg == Arg::Float(0.0);
        match self {
            Self::No => false,
            Self::Yes => true,
            Self::Unless0(position) => args.get(position).is_none_or(|arg| !zero(arg)),
        }
    }
}

/// What a random operation draws. Positions are those of arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Draw {
    /// Numbers of a distribution of `unisono::random_at`, with its parameters.
    From(&'static str, [Parameter; 2]),
    /// Whole numbers from the first one on, below the second.
    Whole([Parameter; 2]),
    /// 1 with the probabilities of the tensor there, else 0.
    Below(usize),
    /// Normal numbers; arguments 0 and 1, numbers or tensors, are mean and standard deviation.
    Normal,
    /// The exponentials of normal numbers, with mean and standard deviation as arguments 1 and 2.
    LogNormal,
    /// Whole numbers from 0 on, each once.
    Permutation,
    /// Dropout as one kernel, with its probability as argument 1, while training by argument 2.
    Dropout,
}

/// A parameter of a distribution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter {
    /// This number.
    Is(i64),
    /// The number at this argument.
    At(usize),
}

/// The operation on single tensors that an operation on lists does for each entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListForm {
    /// The operation on one tensor.
    pub single: &'static str,
    /// The roles of its arguments, in order.
    pub roles: &'static [Role],
    /// Whether it does so where a call makes a number of each tensor, rather than a tensor of the same shape.
    pub to_numbers: bool,
}

/// How an argument of an operation on one tensor appears in the operation on lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A tensor: one entry of a list.
    Each,
    /// A 0-dimensional tensor that all have in common.
    Shared,
    /// Something else that all have in common.
    Static,
    /// Absent, false, an empty list or 1: the list operation has no such argument, and means that.
    Neutral,
}

impl Row {
    /// A row with nothing but the operator's name and arguments. `operator` is its schema as PyTorch prints it; defaults, alias
    /// annotations and the sizes of lists may be left out, `Tensor` before a name, and the return where it is one tensor.
    pub const fn new(operator: &'static str) -> Self {
        let (name, signature) = split(operator);
        Self {
            name,
            signature,
            rule: Rule::Unknown,
            linear: Linear::No,
            sizes: Sizes::None,
            work: Work::Traffic,
            memory: Memory::Own,
            strides: Strides::Dense,
            walks_memory: false,
            fills: None,
            rewrite: None,
            full_size: false,
            workspace: None,
            random: Random::No,
            matrices: &[],
            multiplies: false,
            draws: None,
            number: None,
            in_place: false,
            out: None,
            identity: false,
            scales: false,
            copied: None,
            copies: false,
            moves: None,
            on_lists: None,
            dims_of_result: false,
            symbols: false,
            list_of: &[],
            entrywise: false,
            scaled: None,
            with_tensor: None,
            formula: None,
            groups: None,
            may_be_empty: true,
        }
    }

    /// The schema that positions in this row count in, as far as the row says it: `(Tensor self, int dim) -> Tensor`.
    pub fn schema(&self) -> String {
        let (arguments, returns) = self.signature.split_once(" -> ").unwrap_or((self.signature, "Tensor"));
        let inner = arguments.trim_start_matches('(').trim_end_matches(')');
        let typed = |part: &str| {
            let bare = !part.is_empty() && part != "*" && !part.contains(' ');
            if bare { format!("Tensor {part}") } else { part.to_owned() }
        };
        let parts: Vec<String> = inner.split(", ").map(typed).collect();
        format!("({}) -> {returns}", parts.join(", "))
    }

    /// Whether its kernel is a whole scaled dot-product attention, scores that no memory holds included.
    pub fn is_attention(&self) -> bool {
        matches!(self.work, Work::Flops(_)) && argument(self.signature, "is_causal").is_some()
    }

    /// Whether it copies tensors one behind the other into one.
    pub fn joins(&self) -> bool {
        self.moves == Some(Moves::Join)
    }

    /// Whether each element of its result is made of, or copied from, elements at the same place in its operands, or in one of them.
    pub fn is_elementwise(&self) -> bool {
        matches!(self.rule, Rule::Each) || self.copies || self.joins()
    }

    /// The operator that does the same in place, if there is one: `aten::_fused_adamw.tensor_lr` has `aten::_fused_adamw_.tensor_lr`.
    pub fn in_place_name(&self) -> Option<String> {
        self.in_place.then(|| match self.name.split_once('.') {
            Some((name, overload)) => format!("{name}_.{overload}"),
            None => format!("{}_", self.name),
        })
    }

    /// Whether it is known how the operation may be sharded.
    pub const fn has_rule(&self) -> bool {
        !matches!(self.rule, Rule::Unknown)
    }
}

/// The parts of `text` before and from the first parenthesis.
const fn split(text: &'static str) -> (&'static str, &'static str) {
    let mut end = 0;
    while text.as_bytes()[end] != b'(' {
        end += 1;
    }
    text.split_at(end)
}

/// Properties beyond a row's constructor.
impl Row {
    pub(crate) const fn sizes(mut self, sizes: Sizes) -> Self {
        self.sizes = sizes;
        self
    }

    /// Its results are the operand's memory, each element at most once.
    pub(crate) const fn view(mut self, strides: Strides) -> Self {
        self.memory = Memory::View;
        self.strides = strides;
        self
    }

    pub(crate) const fn strides(mut self, strides: Strides) -> Self {
        self.strides = strides;
        self
    }

    pub(crate) const fn walks_memory(mut self) -> Self {
        self.walks_memory = true;
        self
    }

    pub(crate) const fn fills(mut self, fill: Fill) -> Self {
        self.fills = Some(fill);
        self
    }

    pub(crate) const fn rewrite(mut self, rewrite: Rewrite) -> Self {
        self.rewrite = Some(rewrite);
        self
    }

    pub(crate) const fn memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    pub(crate) const fn full_size(mut self) -> Self {
        self.full_size = true;
        self
    }

    pub(crate) const fn workspace(mut self, workspace: fn(&Call<'_>) -> Bytes) -> Self {
        self.workspace = Some(workspace);
        self
    }

    pub(crate) const fn random(mut self, random: Random) -> Self {
        self.random = random;
        self
    }

    pub(crate) const fn matrices(mut self, operands: &'static [usize]) -> Self {
        self.matrices = operands;
        self
    }

    pub(crate) const fn multiplies(mut self) -> Self {
        self.multiplies = true;
        self
    }

    /// It draws what follows from the place of an element alone.
    pub(crate) const fn draws(mut self, draw: Draw) -> Self {
        self.random = Random::Yes;
        self.draws = Some(draw);
        self
    }

    pub(crate) const fn in_place(mut self) -> Self {
        self.in_place = true;
        self
    }

    pub(crate) const fn out(mut self, name: &'static str) -> Self {
        self.out = Some(name);
        self
    }

    pub(crate) const fn identity(mut self) -> Self {
        self.identity = true;
        self
    }

    pub(crate) const fn scales(mut self) -> Self {
        self.scales = true;
        self
    }

    pub(crate) const fn numbered(mut self, argument: usize) -> Self {
        self.number = Some(argument);
        self
    }

    pub(crate) const fn copied(mut self, argument: usize) -> Self {
        self.copied = Some(argument);
        self
    }

    pub(crate) const fn copies(mut self) -> Self {
        self.copies = true;
        self
    }

    pub(crate) const fn moves(mut self, moves: Moves) -> Self {
        self.moves = Some(moves);
        self
    }

    pub(crate) const fn on_lists(mut self, what: OnLists) -> Self {
        self.on_lists = Some(what);
        self
    }

    pub(crate) const fn dims_of_result(mut self) -> Self {
        self.dims_of_result = true;
        self
    }

    pub(crate) const fn symbols(mut self) -> Self {
        self.symbols = true;
        self
    }

    pub(crate) const fn list_of(mut self, forms: &'static [ListForm]) -> Self {
        self.list_of = forms;
        self
    }

    pub(crate) const fn entrywise(mut self) -> Self {
        self.entrywise = true;
        self
    }

    pub(crate) const fn scaled(mut self, argument: usize, scale: usize) -> Self {
        self.scaled = Some((argument, scale));
        self
    }

    /// What each element of its result is.
    pub(crate) const fn computes(mut self, text: &'static str) -> Self {
        self.formula = Some(Formula::of(text));
        self
    }

    /// The formula has the bits of PyTorch's kernel.
    pub(crate) const fn as_eager(self) -> Self {
        self.eager(None, None)
    }

    /// The same for results of one type alone.
    pub(crate) const fn as_eager_in(self, only: Dtype) -> Self {
        self.eager(None, Some(only))
    }

    /// Another formula has the bits of PyTorch's kernel.
    pub(crate) const fn as_eager_by(self, text: &'static str) -> Self {
        self.eager(Some(text), None)
    }

    const fn eager(mut self, text: Option<&'static str>, only: Option<Dtype>) -> Self {
        if let Some(formula) = &mut self.formula {
            let text = match text {
                Some(text) => text,
                None => formula.text,
            };
            formula.eager = Some(Eager { text, only });
        }
        self
    }

    /// The same for what PyTorch takes longer for than memory does.
    pub(crate) const fn computes_slowly(mut self, text: &'static str) -> Self {
        self.formula = Some(Formula { slow: true, ..Formula::of(text) });
        self
    }

    /// The same for rows that accelerators are slow at too.
    pub(crate) const fn computes_rows_slowly(mut self, text: &'static str) -> Self {
        self.formula = Some(Formula { slow: true, slow_rows: true, ..Formula::of(text) });
        self
    }

    /// It divides a dimension into groups.
    pub(crate) const fn groups(
        mut self,
        offsets: usize,
        strategy: fn(&Call<'_>) -> Option<Strategy>,
    ) -> Self {
        self.groups = Some(Groups { offsets, strategy });
        self
    }

    /// Its kernel refuses empty tensors, or makes of them what it should not.
    pub(crate) const fn never_empty(mut self) -> Self {
        self.may_be_empty = false;
        self
    }

    pub(crate) const fn with_tensor(mut self, name: &'static str, more: &'static [i64]) -> Self {
        self.with_tensor = Some((name, more));
        self
    }
}
