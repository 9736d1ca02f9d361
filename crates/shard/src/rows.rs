//! Changes of placement into groups that ranks have some of, and out of them.

use ir::{
    AMONG_ZEROS, Arg, DEAL_COLUMNS, Dims, EXCHANGE_ROWS, FOR_EACH_RANK, GROUP_BOUNDS, GroupChange,
    JOIN_COLUMNS, OWN_ROWS, Placement, RowExchange, TensorType, ValueId, WAIT, expected,
};

use crate::{emit::Emitter, reshard::Resharder, uneven::outermost};

/// The element type of what the host reads.
const READ: ir::Dtype = ir::Dtype::I64;

/// Has the host read where the elements of each of `ranks` begin, of `size` in all.
pub fn bounds(out: &mut Emitter<'_>, offsets: ValueId, ranks: u32, size: i64) -> ValueId {
    let args = vec![Arg::Value(offsets), Arg::Int(i64::from(ranks)), Arg::Int(size)];
    let ty = TensorType::contiguous(READ, Dims::from_slice(&[i64::from(ranks) + 1]));
    out.op(GROUP_BOUNDS, args, ty)
}

/// Puts tensors whose dimension `dim` is divided into groups, or out of them.
pub struct RowsOfGroups<'a> {
    /// The rank, and all that it exchanges elements with.
    pub resharder: &'a Resharder<'a>,
    /// Where the elements of each rank begin, see [`bounds`].
    pub bounds: ValueId,
    /// The dimension.
    pub dim: usize,
    /// How many elements it has in all, or [`ir::ANY_SIZE`].
    pub size: i64,
}

impl RowsOfGroups<'_> {
    /// The local tensor in placement `to` of `value`, which is that of a tensor of type `ty` in another placement.
    pub fn change(
        &self,
        out: &mut Emitter<'_>,
        (value, ty): (ValueId, &TensorType),
        change: GroupChange,
        (from, to): (Placement, Placement),
    ) -> ValueId {
        let all = ty.shape[self.dim];
        let own = expected(all, self.ranks() as u32);
        let columns = |placement: Placement| match placement {
            Placement::Shard { dim, .. } if usize::from(dim) < self.dim => usize::from(dim) + 1,
            Placement::Shard { dim, .. } => usize::from(dim),
            _ => unreachable!("only shards have columns"),
        };
        match change {
            GroupChange::Own => self.own(out, value, (own, &ir::memory_order(&ty.strides))),
            GroupChange::AmongZeros => self.among_zeros(out, value, all),
            GroupChange::Gather => self.in_front(out, value, |out, value| {
                let dealt = self.for_each_rank(out, value);
                self.exchange(out, dealt, RowExchange::GroupsToWhole, all)
            }),
            GroupChange::FromShards => self.in_front(out, value, |out, value| {
                self.exchange(out, value, RowExchange::ShardsToGroups, own)
            }),
            GroupChange::ToShards => self.in_front(out, value, |out, value| {
                let Resharder { axis, coordinate, .. } = self.resharder;
                let shard = ir::local_shape_at(&ty.shape, to, axis.size, *coordinate)[self.dim];
                self.exchange(out, value, RowExchange::GroupsToShards, shard)
            }),
            GroupChange::FromColumns => self.in_front(out, value, |out, value| {
                let rows = own * self.ranks();
                let received = self.exchange(out, value, RowExchange::WholeToGroups, rows);
                self.columns(out, JOIN_COLUMNS, received, columns(from))
            }),
            GroupChange::ToColumns => self.in_front(out, value, |out, value| {
                let dealt = self.columns(out, DEAL_COLUMNS, value, columns(to));
                self.exchange(out, dealt, RowExchange::GroupsToWhole, all)
            }),
        }
    }

    fn ranks(&self) -> i64 {
        i64::from(self.resharder.axis.size)
    }

    fn rank(&self) -> Arg {
        Arg::Int(i64::from(self.resharder.coordinate))
    }

    /// A rank's own elements among all: where these lie, or copied if they do not lie side by side there, or not with their dimensions in
    /// this order.
    fn own(&self, out: &mut Emitter<'_>, value: ValueId, (own, order): (i64, &[usize])) -> ValueId {
        let mut ty = out.ty(value);
        ty.shape[self.dim] = own;
        let is_in_order = ir::memory_order(&ty.strides) == order && order.first() == Some(&self.dim);
        let args = vec![Arg::Value(value), Arg::Value(self.bounds), Arg::Int(self.dim as i64), self.rank()];
        let shown = out.op(OWN_ROWS, args, ty);
        if is_in_order { shown } else { out.laid_out(shown, order) }
    }

    fn among_zeros(&self, out: &mut Emitter<'_>, value: ValueId, all: i64) -> ValueId {
        self.in_front(out, value, |out, value| {
            let mut ty = out.ty(value);
            ty.shape[0] = all;
            let args = vec![
                Arg::Value(value),
                Arg::Value(self.bounds),
                Arg::Int(0),
                self.rank(),
                Arg::Int(self.size),
            ];
            out.op(AMONG_ZEROS, args, ty)
        })
    }

    fn for_each_rank(&self, out: &mut Emitter<'_>, value: ValueId) -> ValueId {
        let mut ty = out.ty(value);
        ty.shape[0] *= self.ranks();
        out.op(FOR_EACH_RANK, vec![Arg::Value(value), Arg::Int(self.ranks())], ty)
    }

    /// The columns for each rank one behind the other, or back beside one another.
    fn columns(&self, out: &mut Emitter<'_>, schema: &str, value: ValueId, dim: usize) -> ValueId {
        let mut ty = out.ty(value);
        let (longer, shorter) = if schema == DEAL_COLUMNS { (0, dim) } else { (dim, 0) };
        ty.shape[longer] *= self.ranks();
        ty.shape[shorter] /= self.ranks();
        let ty = TensorType { strides: ir::contiguous_strides(&ty.shape), ..ty };
        let args = vec![Arg::Value(value), Arg::Int(dim as i64), Arg::Int(self.ranks())];
        out.op(schema, args, ty)
    }

    fn exchange(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        exchange: RowExchange,
        received: i64,
    ) -> ValueId {
        let mut ty = out.ty(value);
        ty.shape[0] = received;
        let args = vec![
            Arg::Value(value),
            Arg::Value(self.bounds),
            Arg::Str(exchange.text().into()),
            Arg::Int(self.size),
            self.rank(),
            Arg::Str(self.resharder.group.into()),
        ];
        let issued = out.op(EXCHANGE_ROWS, args, ty.clone());
        out.op(WAIT, vec![Arg::Value(issued)], ty)
    }

    /// What `made` makes of `value` with the divided dimension in front, in row-major order.
    fn in_front(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        made: impl FnOnce(&mut Emitter<'_>, ValueId) -> ValueId,
    ) -> ValueId {
        let (turned, back) = outermost(out, value, &[self.dim]);
        let turned = out.in_order(turned);
        let made = made(out, turned);
        out.permute(made, &back)
    }
}
