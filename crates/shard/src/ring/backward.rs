//! The gradients of queries, keys and values.

use ir::ValueId;
use smallvec::SmallVec;

use super::{Ring, Turn, forward::piece, in_type};
use crate::emit::Emitter;

/// What belongs to queries: gradient of the result, query, result, logarithms.
pub(super) type OfQueries = [ValueId; 4];

/// Sums so far: the gradient of queries, and those of the keys and values that this rank holds; turned.
pub(super) type Sums = [ValueId; 2];

impl Ring<'_> {
    /// The gradients of this rank's queries, keys and values.
    pub fn backward(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        let label = out.origin.label;
        let [of_query, of_pair] =
            if self.causal { self.causal_backward(out) } else { self.plain_backward(out) };
        out.origin.label = label;
        let of_query = self.of_result(0).back(out, of_query);
        let [of_key, of_value] = self.of_result(1).taken(out, of_pair);
        SmallVec::from_slice(&[of_query, of_key, of_value])
    }

    fn plain_backward(&self, out: &mut Emitter<'_>) -> Sums {
        let [gradient, query, key, value, result, logarithms] =
            [0, 1, 2, 3, 4, 5].map(|operand| self.operands[operand]);
        let (of_queries, of_key) = ([gradient, query, result, logarithms], self.of_operand(2));
        self.label(out, "ring of keys and values", 0);
        let mut pair = of_key.stacked(out, &[key, value]);
        let mut sums = self.gradients(out, of_queries, [key, value], false);
        for step in 1..self.order.ranks {
            self.label(out, "ring of keys and values", step);
            pair = self.passed_on(out, pair);
            let seen = of_key.taken(out, pair);
            let more = self.gradients(out, of_queries, seen, false);
            sums = self.added(out, sums, more, step);
        }
        self.brought_back(out, sums)
    }

    fn causal_backward(&self, out: &mut Emitter<'_>) -> Sums {
        let of_key = self.of_operand(2);
        let queries = self.mirrored_queries(out);
        let pair = of_key.stacked(out, &self.operands[2..4]);
        let mut pair = self.mirrored(out, pair, of_key.positions() + 1);
        let mine = self.order;
        self.label(out, "ring of keys and values", 0);
        let [early, late] = [mine.early(), mine.late()].map(|piece| queries[piece]);
        let mut sums = self.own_gradients(out, [early, late], &of_key, pair);
        for step in 1..mine.ranks {
            self.label(out, "ring of keys and values", step);
            pair = self.passed_on(out, pair);
            let owner = mine.owner(step);
            let seen = piece(out, &of_key, pair, owner.early());
            let first = (self.gradients(out, late, seen, false), mine.late(), owner.early());
            self.label(out, "ring of keys and values, other pair", step);
            let (own, theirs) = mine.other_pair(owner);
            let seen = piece(out, &of_key, pair, theirs);
            let second = (self.gradients(out, queries[own], seen, false), own, theirs);
            let more = summed(out, &[first, second]);
            sums = self.added(out, sums, more, step);
        }
        let [of_query, of_pair] = self.brought_back(out, sums);
        self.label(out, "halves of gradients", mine.ranks);
        [
            self.restored(out, of_query, self.of_result(0).positions()),
            self.restored(out, of_pair, self.of_result(1).positions() + 1),
        ]
    }

    /// What belongs to this rank's two pieces of queries.
    pub(super) fn mirrored_queries(&self, out: &mut Emitter<'_>) -> [OfQueries; 2] {
        let (of_query, of_logarithms) = (self.of_operand(1), self.of_operand(5));
        let [gradient, query, result, logarithms] = [0, 1, 4, 5].map(|operand| self.operands[operand]);
        self.label(out, "halves of shards", 0);
        let three = of_query.stacked(out, &[gradient, query, result]);
        let three = self.mirrored(out, three, of_query.positions() + 1);
        let logarithms = of_logarithms.there(out, logarithms);
        let logarithms = self.mirrored(out, logarithms, of_logarithms.positions());
        [0, 1].map(|piece| {
            let both = out.select(three, 0, piece);
            let [gradient, query, result] = of_query.taken(out, both);
            let logarithms = out.select(logarithms, 0, piece);
            [gradient, query, result, of_logarithms.back(out, logarithms)]
        })
    }

    /// What comes of this rank's own pieces: early and late queries with their own keys, and the late ones with the early keys.
    fn own_gradients(
        &self,
        out: &mut Emitter<'_>,
        [early, late]: [OfQueries; 2],
        of_key: &Turn,
        pair: ValueId,
    ) -> Sums {
        let (first, last) = (self.order.early(), self.order.late());
        let [keys_early, keys_late] = [first, last].map(|one| piece(out, of_key, pair, one));
        let parts = [
            (self.gradients(out, early, keys_early, true), first, first),
            (self.gradients(out, late, keys_late, true), last, last),
            (self.gradients(out, late, keys_early, false), last, first),
        ];
        summed(out, &parts)
    }

    /// The gradients of queries, and of keys and values together, that come of a block, in the type in which sums are kept.
    pub(super) fn gradients(
        &self,
        out: &mut Emitter<'_>,
        [gradient, query, result, logarithms]: OfQueries,
        [key, value]: [ValueId; 2],
        causal: bool,
    ) -> Sums {
        let made = self.block(out, &[gradient, query, key, value, result, logarithms], causal);
        let of_query = self.of_result(0).there(out, made[0]);
        let of_pair = self.of_result(1).stacked(out, &made[1..3]);
        let sums = out.graph.ty(logarithms).dtype;
        [of_query, of_pair].map(|one| in_type(out, one, sums))
    }

    /// Both sums with what a step adds; that of keys and values goes to the next rank with them first.
    fn added(&self, out: &mut Emitter<'_>, sums: Sums, more: Sums, step: u32) -> Sums {
        let of_query = out.sum("add", sums[0], more[0]);
        self.label(out, "ring of gradients of keys and values", step);
        let of_pair = self.passed_on(out, sums[1]);
        [of_query, out.sum("add", of_pair, more[1])]
    }

    /// The sums in the element types of the gradients; those of keys and values with the rank whose they are, which is the next one.
    fn brought_back(&self, out: &mut Emitter<'_>, [of_query, of_pair]: Sums) -> Sums {
        self.label(out, "ring of gradients of keys and values", self.order.ranks);
        let of_pair = in_type(out, of_pair, self.realised.call.result(1).dtype);
        let of_pair = self.passed_on(out, of_pair);
        [in_type(out, of_query, self.realised.call.result(0).dtype), of_pair]
    }
}

/// Gradients of queries and of keys and values, each with the piece that it belongs to, as sums with zeros for the other piece.
fn summed(out: &mut Emitter<'_>, parts: &[(Sums, usize, usize)]) -> Sums {
    let both = |out: &mut Emitter<'_>, gradient: ValueId, piece: usize| {
        let one = out.unsqueezed(gradient, 0);
        out.pad(one, 0, piece as i64, 1 - piece as i64)
    };
    let mut sums: Option<Sums> = None;
    for ([of_query, of_pair], query, key) in parts {
        let more = [both(out, *of_query, *query), both(out, *of_pair, *key)];
        sums = Some(match sums {
            Some(sums) => [0, 1].map(|one| out.sum("add", sums[one], more[one])),
            None => more,
        });
    }
    sums.expect("attention has blocks")
}
