//! One operation as a rank has it: local operands, arguments and types.

use aten::{Call, RunTimeSizes, Sizes, Strategy, Strides};
use ir::{ANY_SIZE, Arg, Placement, Return, TensorType, ValueDef, ValueId, local_shape_at};
use smallvec::SmallVec;

use crate::{
    emit::Emitter,
    layout::{has_channels_innermost, view_strides},
    local::{dense_strides, local_type, same_order},
    reshard::Resharder,
};

/// One operation with its local operands. The rank's graph begins with the operators of the global one, so that their numbers hold in both.
pub struct Realised<'a> {
    /// The operation in the global graph.
    pub call: &'a Call<'a>,
    /// How it runs.
    pub strategy: &'a Strategy,
    /// Its operands in the rank's graph, in the required placements.
    pub operands: SmallVec<[ValueId; 4]>,
    /// The axis.
    pub resharder: &'a Resharder<'a>,
    /// What has a size of run time along an axis outside this one.
    pub sizes: &'a RunTimeSizes,
}

impl Realised<'_> {
    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.resharder.axis.size
    }

    /// A change of placement may leave the dimensions of an operand in another order in memory than the global tensor has them: puts such
    /// operands back in that order, and those that PyTorch would take to be in another, so that the strides of results are those of their
    /// types.
    pub fn lay_out_as_whole(&self, out: &mut Emitter<'_>, operands: &mut [ValueId]) {
        for (slot, operand) in operands.iter_mut().enumerate() {
            let Some(order) = self.order_of_whole(slot) else { continue };
            let like = dense_strides(&out.graph.ty(*operand).shape, order);
            let actual = out.graph.ty(*operand);
            let is_turned = !actual.repeats() && !same_order(&actual.shape, &actual.strides, &like);
            let order = ir::memory_order(order);
            if out.decide(is_turned) {
                *operand = out.laid_out(*operand, &order);
            }
            if self.is_asked_how_it_lies(slot) && out.decide(self.may_be_misread(slot, *operand, out)) {
                // Views that change nothing on one rank are left out there.
                let is_uneven =
                    self.strategy.operands[slot].is_uneven(&self.call.operand(slot).shape, self.ranks());
                *operand = if is_uneven {
                    out.copied_in(*operand, &order)
                } else {
                    out.laid_out_anew(*operand, &order)
                };
            }
        }
    }

    /// Whether the result lies as an operand does along dimensions of one element too: where kernels ask it whether its channels are
    /// innermost, and where they treat each element for itself, of which such a kernel may ask.
    fn is_asked_how_it_lies(&self, slot: usize) -> bool {
        let Some(row) = aten::row(self.call.name()) else { return false };
        match row.strides {
            Strides::Suggested(slots) => slots.is_empty() || slots.contains(&slot),
            _ => matches!(row.rule, aten::Rule::Each),
        }
    }

    /// Whether PyTorch takes an operand for one that lies otherwise than the global tensor, on this rank or, where shards are of several
    /// sizes, on another: the stride of a dimension of one element counts, and a view has any there.
    fn may_be_misread(&self, slot: usize, operand: ValueId, out: &Emitter<'_>) -> bool {
        let (global, placement) = (self.call.operand(slot), self.strategy.operands[slot]);
        let is_innermost = has_channels_innermost(global);
        if is_innermost != has_channels_innermost(out.graph.ty(operand)) {
            return true;
        }
        let has_one = |rank| local_shape_at(&global.shape, placement, self.ranks(), rank).contains(&1);
        is_innermost
            && placement.is_uneven(&global.shape, self.ranks())
            && out.is_view(operand)
            && (0..self.ranks()).any(has_one)
    }

    /// The strides whose order an operand is to have: those of the global tensor. One that repeats there, and no longer does once it has been
    /// exchanged, is to have that of the result; and so is each where shards are of several sizes, because one of one element has no order,
    /// so that another operand says how the result lies.
    fn order_of_whole(&self, slot: usize) -> Option<&[i64]> {
        let global = self.call.operand(slot);
        let row = aten::row(self.call.name());
        let is_each = row.is_some_and(|row| matches!(row.rule, aten::Rule::Each));
        let result = self.call.results.first().map(|_| self.call.result(0));
        let result = result.filter(|result| is_each && result.rank() == global.rank() && !result.repeats());
        match result {
            Some(result) if global.repeats() || self.is_uneven() => Some(&result.strides),
            _ if global.repeats() => None,
            _ => Some(&global.strides),
        }
    }

    /// Whether ranks have shards of several sizes.
    fn is_uneven(&self) -> bool {
        let mut placed = self.strategy.placed(self.call);
        placed.any(|(placement, ty)| placement.is_uneven(&ty.shape, self.ranks()))
    }

    /// Puts operands in the order in memory of the first, such as gradient and state in that of the parameter.
    pub fn lay_out_like_first(&self, out: &mut Emitter<'_>, operands: &mut [ValueId]) {
        let first = out.ty(operands[0]);
        for operand in &mut operands[1..] {
            let ty = out.graph.ty(*operand);
            let is_turned = ty.shape == first.shape && ty.strides != first.strides && first.is_contiguous();
            if out.decide(is_turned) {
                *operand = out.in_order(*operand);
            }
        }
    }

    /// The local shape of a result.
    pub fn result_shape(&self, result: usize) -> ir::Dims {
        self.local_shape(self.call.result(result), self.strategy.results[result])
    }

    /// This rank's shape of a tensor in a placement.
    pub fn local_shape(&self, ty: &TensorType, placement: Placement) -> ir::Dims {
        local_shape_at(&ty.shape, placement, self.ranks(), self.resharder.coordinate)
    }

    /// This rank's type of a tensor in a placement.
    pub fn local_type(&self, ty: &TensorType, placement: Placement) -> TensorType {
        local_type(ty, placement, self.ranks(), self.resharder.coordinate)
    }

    /// The arguments with local operands and localised sizes.
    pub fn args(&self, operands: &[ValueId]) -> Vec<Arg> {
        let mut args = self.call.node.args.clone();
        let mut next = operands.iter().copied();
        for arg in &mut args {
            arg.map_values(|_| next.next().expect("one local operand for each operand"));
        }
        match aten::row(self.call.name()).map_or(Sizes::None, |row| row.sizes) {
            Sizes::None => {}
            Sizes::Shape(arg) => args[arg] = Arg::Ints(self.told_shape(&args[arg])),
            Sizes::Batch(arg) => {
                let local = self.local_shape(self.call.operand(0), self.strategy.operands[0]);
                match &mut args[arg] {
                    Arg::Ints(sizes) => sizes[0] = local[0],
                    size => *size = Arg::Int(local[0]),
                }
            }
            Sizes::Splits(lists) => {
                let sharded = matches!(self.strategy.operands[0], Placement::Shard { dim: 0, .. });
                let local = self.local_shape(self.call.operand(0), self.strategy.operands[0]);
                for arg in lists.iter().filter(|_| sharded) {
                    if let Arg::Ints(sizes) = &mut args[*arg] {
                        let count = sizes.len() as i64;
                        sizes.fill(local[0] / count);
                    }
                }
            }
            Sizes::Span { dim } => {
                let number = aten::piece_of(self.call).map(|(_, number)| number);
                if let (Some(along), Some(number)) = (self.sharded_along(dim), number) {
                    let piece = self.result_shape(0)[along];
                    args[dim + 1] = Arg::Int(number * piece);
                    args[dim + 2] = Arg::Int((number + 1) * piece);
                }
            }
            Sizes::Pieces { sizes, dim } => {
                if let Some(along) = self.sharded_along(dim) {
                    // Pieces of one size, each of which is sharded.
                    let piece = self.result_shape(0)[along];
                    match &mut args[sizes] {
                        Arg::Int(size) => *size = piece,
                        Arg::Ints(sizes) => sizes.fill(piece),
                        _ => {}
                    }
                }
            }
        }
        args
    }

    /// The dimension that an argument names, where the first operand is sharded along it.
    fn sharded_along(&self, arg: usize) -> Option<usize> {
        let along = self.call.dim(arg, self.call.operand(0).rank())?;
        let Placement::Shard { dim, .. } = self.strategy.operands[0] else { return None };
        (usize::from(dim) == along).then_some(along)
    }

    /// The local shape of the result as the operation is told it: sizes that are known at run time only are left out.
    fn told_shape(&self, before: &Arg) -> Vec<i64> {
        let mut shape = self.result_shape(0).to_vec();
        if let Placement::Groups { dim } = self.strategy.results[0] {
            shape[usize::from(dim)] = ANY_SIZE;
        }
        match before {
            Arg::Ints(before) if self.sizes.has(self.call.results[0]) => {
                let left_out = shape.iter_mut().zip(before).filter(|(_, before)| **before == ANY_SIZE);
                left_out.for_each(|(size, _)| *size = ANY_SIZE);
            }
            _ => {}
        }
        shape
    }

    /// Writes the operation itself.
    pub fn push(
        &self,
        out: &mut Emitter<'_>,
        args: Vec<Arg>,
        operands: &[ValueId],
    ) -> SmallVec<[ValueId; 2]> {
        let types: SmallVec<[TensorType; 2]> =
            (0..self.call.results.len()).map(|result| self.local_result(result, operands, out)).collect();
        self.push_typed(out, args, &types)
    }

    /// Writes the operation with results of these types.
    pub fn push_typed(
        &self,
        out: &mut Emitter<'_>,
        args: Vec<Arg>,
        types: &[TensorType],
    ) -> SmallVec<[ValueId; 2]> {
        let id = out.graph.nodes.next_id();
        let mut results = SmallVec::new();
        let mut position = 0;
        let mut local = |value: &ValueId, out: &mut Emitter<'_>| {
            let ty = types[position].clone();
            debug_assert_eq!(self.call.results[position], *value);
            let made = out.graph.values.push(ir::Value { ty, def: ValueDef::Result(id, position as u32) });
            position += 1;
            results.push(made);
            made
        };
        let returns = self.call.node.returns.iter().map(|returned| match returned {
            Return::None => Return::None,
            Return::Value(value) => Return::Value(local(value, out)),
            Return::Values(values) => Return::Values(values.iter().map(|value| local(value, out)).collect()),
        });
        let returns = returns.collect();
        let origin = out.origin;
        out.graph.nodes.push(ir::Node {
            op: self.call.node.op,
            args,
            returns,
            place: origin.place,
            module: origin.module,
            part: origin.part,
            label: origin.label,
            stage: origin.stage,
        });
        out.graph.order.push(id);
        results
    }

    /// The local type of a result: the global type where the operands are as in the global graph; for a view, strides that follow from the
    /// operand's.
    fn local_result(&self, result: usize, operands: &[ValueId], out: &Emitter<'_>) -> TensorType {
        let unchanged = |(slot, value): (usize, &ValueId)| out.graph.ty(*value) == self.call.operand(slot);
        let is_whole = self.strategy.results[result] == Placement::Replicate;
        if is_whole && operands.iter().enumerate().all(unchanged) {
            return self.call.result(result).clone();
        }
        let ty = self.local_type(self.call.result(result), self.strategy.results[result]);
        let operand = operands.first().map(|operand| out.graph.ty(*operand));
        match operand.and_then(|operand| view_strides(self.call, operand, &ty.shape)) {
            Some(strides) => TensorType { strides, ..ty },
            None => ty,
        }
    }
}
