//! What comes out of attention, and its logarithms.

use ir::{Arg, ValueId};
use smallvec::SmallVec;

use super::{Ring, Turn, in_type};
use crate::emit::Emitter;

/// What has been computed of some queries so far: the result, in the type in which sums are kept, the logarithms of sums, and what else
/// attention returns.
#[derive(Clone)]
pub(super) struct Found {
    pub result: ValueId,
    pub logarithms: ValueId,
    pub others: SmallVec<[ValueId; 2]>,
}

impl Ring<'_> {
    /// The results of attention of this rank's queries.
    pub fn forward(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        let label = out.origin.label;
        let found = if self.causal { self.causal_forward(out) } else { self.plain_forward(out) };
        out.origin.label = label;
        [found.result, found.logarithms].into_iter().chain(found.others).collect()
    }

    fn plain_forward(&self, out: &mut Emitter<'_>) -> Found {
        let [query, key, value] = [0, 1, 2].map(|operand| self.operands[operand]);
        let of_key = self.of_operand(1);
        self.label(out, "ring of keys and values", 0);
        let mut pair = of_key.stacked(out, &[key, value]);
        let mut found = self.found(out, query, [key, value], false);
        for step in 1..self.order.ranks {
            self.label(out, "ring of keys and values", step);
            pair = self.passed_on(out, pair);
            let seen = of_key.taken(out, pair);
            let more = self.found(out, query, seen, false);
            found = merged(out, found, &more);
        }
        self.narrowed(out, found)
    }

    fn causal_forward(&self, out: &mut Emitter<'_>) -> Found {
        let (of_query, of_key, mine) = (self.of_operand(0), self.of_operand(1), self.order);
        self.label(out, "halves of shards", 0);
        let query = of_query.there(out, self.operands[0]);
        let query = self.mirrored(out, query, of_query.positions());
        let pair = of_key.stacked(out, &self.operands[1..3]);
        let mut pair = self.mirrored(out, pair, of_key.positions() + 1);
        self.label(out, "ring of keys and values", 0);
        let queries = of_query.taken(out, query);
        let [mut early, mut late] = self.own(out, queries, &of_key, pair);
        for step in 1..mine.ranks {
            self.label(out, "ring of keys and values", step);
            pair = self.passed_on(out, pair);
            let owner = mine.owner(step);
            let seen = piece(out, &of_key, pair, owner.early());
            let more = self.found(out, queries[mine.late()], seen, false);
            late = merged(out, late, &more);
            self.label(out, "ring of keys and values, other pair", step);
            let (own, theirs) = mine.other_pair(owner);
            let seen = piece(out, &of_key, pair, theirs);
            let more = self.found(out, queries[own], seen, false);
            let for_early = of_some(out, &more, mine.sees_early(owner));
            let for_late = of_some(out, &more, !mine.sees_early(owner));
            (early, late) = (merged(out, early, &for_early), merged(out, late, &for_late));
        }
        self.label(out, "halves of results", mine.ranks);
        self.in_place(out, early, late)
    }

    /// What this rank's pieces of queries find in its own pieces of keys and values: the early ones, the late ones.
    fn own(&self, out: &mut Emitter<'_>, queries: [ValueId; 2], of_key: &Turn, pair: ValueId) -> [Found; 2] {
        let (early, late) = (self.order.early(), self.order.late());
        let (first, last) = (piece(out, of_key, pair, early), piece(out, of_key, pair, late));
        let of_early = self.found(out, queries[early], first, true);
        let of_late = self.found(out, queries[late], last, true);
        let more = self.found(out, queries[late], first, false);
        [of_early, merged(out, of_late, &more)]
    }

    /// What was found of this rank's shard, of what was found of its early and its late piece.
    pub(super) fn in_place(&self, out: &mut Emitter<'_>, early: Found, late: Found) -> Found {
        let (early, late) = (self.narrowed(out, early), self.narrowed(out, late));
        let result = self.shard_of(out, 0, [early.result, late.result]);
        let logarithms = self.shard_of(out, 1, [early.logarithms, late.logarithms]);
        Found { result, logarithms, others: early.others }
    }

    /// This rank's shard of a result, of its early and its late piece.
    pub(super) fn shard_of(&self, out: &mut Emitter<'_>, result: usize, pieces: [ValueId; 2]) -> ValueId {
        let turn = self.of_result(result);
        let both = turn.stacked(out, &pieces);
        // The piece that was kept, and the one that the other rank gave: each is the early one on some ranks.
        let [kept, other] =
            [self.order.early(), self.order.late()].map(|piece| out.select(both, 0, piece as i64));
        let both = out.stacked(&[kept, other]);
        let shard = self.restored(out, both, turn.positions());
        turn.back(out, shard)
    }

    pub(super) fn found(
        &self,
        out: &mut Emitter<'_>,
        query: ValueId,
        [key, value]: [ValueId; 2],
        causal: bool,
    ) -> Found {
        let made = self.block(out, &[query, key, value], causal);
        let sums = out.graph.ty(made[1]).dtype;
        let result = in_type(out, made[0], sums);
        Found { result, logarithms: made[1], others: made[2..].into() }
    }

    /// What was found, in the element type of the result.
    fn narrowed(&self, out: &mut Emitter<'_>, found: Found) -> Found {
        let result = in_type(out, found.result, self.realised.call.result(0).dtype);
        Found { result, ..found }
    }
}

/// Keys and values of one of two pieces.
pub(super) fn piece(out: &mut Emitter<'_>, of_key: &Turn, pair: ValueId, piece: usize) -> [ValueId; 2] {
    let both = out.select(pair, 0, piece as i64);
    of_key.taken(out, both)
}

/// What was found, or, where it is not kept, what counts for nothing.
pub(super) fn of_some(out: &mut Emitter<'_>, found: &Found, kept: bool) -> Found {
    let nothing = Arg::Float(f64::NEG_INFINITY);
    Found { logarithms: out.kept_or(found.logarithms, kept, nothing), ..found.clone() }
}

/// What comes of the keys of both: the mean of the results, weighted by their sums, and the logarithms of both sums.
pub(super) fn merged(out: &mut Emitter<'_>, found: Found, more: &Found) -> Found {
    let ahead = out.sum("sub", more.logarithms, found.logarithms);
    let weight = out.unary("sigmoid", ahead);
    // cuDNN's logarithms have a dimension of one feature, others none.
    let weight = if out.ty(weight).rank() == 3 { out.unsqueezed(weight, 3) } else { weight };
    let result = out.lerp(found.result, more.result, weight);
    Found { result, logarithms: out.binary("logaddexp", found.logarithms, more.logarithms), ..found }
}
