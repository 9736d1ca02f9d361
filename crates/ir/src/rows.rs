//! Rows of groups, of which each rank has those of its own: the one place that knows the operators that make and exchange them.
//!
//! How many rows a rank has is known when the offsets are. The host reads these once, as `bounds`: where the rows of each rank begin, and
//! where the last ones end.

use crate::{Arg, Graph, NodeId};

/// The schema of the operator that has the host read where the rows of each rank begin, of `size` in all, or of as many as the offsets say
/// where `size` is [`ANY_SIZE`]. Each rank has as many groups as `torch.chunk` gives it.
pub const GROUP_BOUNDS: &str = "unisono::group_bounds(Tensor offsets, int ranks, int size) -> Tensor";
/// The schema of the operator that shows a rank's own rows among all, along a dimension.
pub const OWN_ROWS: &str = "unisono::own_rows(Tensor(a) self, Tensor bounds, int dim, int rank) -> Tensor(a)";
/// The schema of the operator that puts zeros where the rows of other ranks are.
pub const AMONG_ZEROS: &str =
    "unisono::among_zeros(Tensor self, Tensor bounds, int dim, int rank, int size) -> Tensor";
/// The schema of the operator that puts the blocks of a last dimension behind one another along the first one: what goes to each rank.
pub const DEAL_COLUMNS: &str = "unisono::deal_columns(Tensor self, int dim, int ranks) -> Tensor";
/// The schema of the operator that undoes this.
pub const JOIN_COLUMNS: &str = "unisono::join_columns(Tensor self, int dim, int ranks) -> Tensor";
/// The schema of the operator that puts as many copies behind one another as there are ranks.
pub const FOR_EACH_RANK: &str = "unisono::for_each_rank(Tensor self, int ranks) -> Tensor";
/// The schema of the operator that starts an exchange of rows between ranks, see [`RowExchange`].
pub const EXCHANGE_ROWS: &str = "unisono::exchange_rows(Tensor self, Tensor bounds, str exchange, int size, int rank, str group_name) -> Tensor";

/// The schema of the operator that is run for `aten::_grouped_mm` where ranks may have no rows, which not every kernel takes.
pub const PRODUCT_OF_GROUPS: &str = "unisono::product_of_groups(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor";

/// The size of a dimension that is known at run time only.
pub const ANY_SIZE: i64 = -1;

/// What an exchange of rows between ranks does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowExchange {
    /// From equally many rows on each rank to those of its groups.
    ShardsToGroups,
    /// Back.
    GroupsToShards,
    /// From parts of all rows to the parts of the rows of a rank's groups, one behind the other.
    WholeToGroups,
    /// From what is for each rank of the rows of one's own groups, one behind the other, to that of all rows.
    GroupsToWhole,
}

impl RowExchange {
    const ALL: [Self; 4] =
        [Self::ShardsToGroups, Self::GroupsToShards, Self::WholeToGroups, Self::GroupsToWhole];

    /// Its name as an argument of the operator.
    pub const fn text(self) -> &'static str {
        match self {
            Self::ShardsToGroups => "shards to groups",
            Self::GroupsToShards => "groups to shards",
            Self::WholeToGroups => "whole to groups",
            Self::GroupsToWhole => "groups to whole",
        }
    }

    fn of(arg: &Arg) -> Option<Self> {
        let Arg::Str(text) = arg else { return None };
        Self::ALL.into_iter().find(|one| one.text() == text)
    }
}

/// What an operator has to do with rows of groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowOperator {
    /// It reads where those of each rank are.
    Bounds,
    /// It takes a rank's own.
    Own,
    /// It puts them among zeros.
    AmongZeros,
    /// It prepares what is for each rank.
    Deal,
    /// It puts the columns of what came of each rank beside one another.
    Join,
    /// It exchanges them.
    Exchange,
}

impl RowOperator {
    /// What an operator has to do with rows of groups, if anything.
    pub fn of_operator(name: &str) -> Option<Self> {
        // Most operators are none, and every pass asks of every node.
        if !name.starts_with("unisono::") {
            return None;
        }
        let is = |schema: &str| schema.strip_prefix(name).is_some_and(|rest| rest.starts_with('('));
        Some(match () {
            () if is(GROUP_BOUNDS) => Self::Bounds,
            () if is(OWN_ROWS) => Self::Own,
            () if is(AMONG_ZEROS) => Self::AmongZeros,
            () if is(DEAL_COLUMNS) || is(FOR_EACH_RANK) => Self::Deal,
            () if is(JOIN_COLUMNS) => Self::Join,
            () if is(EXCHANGE_ROWS) => Self::Exchange,
            () => return None,
        })
    }
}

impl Graph {
    /// What a node has to do with rows of groups, if anything.
    pub fn row_operator(&self, id: NodeId) -> Option<RowOperator> {
        RowOperator::of_operator(self.op_name(id))
    }

    /// The exchange of rows that a node starts, and how many rows there are in all.
    pub fn row_exchange(&self, id: NodeId) -> Option<(RowExchange, i64)> {
        if self.row_operator(id) != Some(RowOperator::Exchange) {
            return None;
        }
        match self.nodes[id].args.as_slice() {
            [_, _, exchange, Arg::Int(size), ..] => Some((RowExchange::of(exchange)?, *size)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_known_by_their_names() {
        assert_eq!(RowOperator::of_operator("unisono::own_rows"), Some(RowOperator::Own));
        assert_eq!(RowOperator::of_operator("unisono::for_each_rank"), Some(RowOperator::Deal));
        assert_eq!(RowOperator::of_operator("unisono::to_host"), None);
    }

    #[test]
    fn exchanges_are_known_by_their_names() {
        for exchange in RowExchange::ALL {
            assert_eq!(RowExchange::of(&Arg::Str(exchange.text().into())), Some(exchange));
        }
    }
}
