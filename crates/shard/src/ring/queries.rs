//! Causal attention of sharded queries, keys and values whole: each rank has an early and a late piece of queries, and the keys before each.

use ir::ValueId;
use smallvec::SmallVec;

use super::{
    Ring,
    backward::{OfQueries, Sums},
    forward::{Found, merged, of_some},
    in_type,
};
use crate::emit::Emitter;

/// One of a rank's two pieces of queries.
#[derive(Clone, Copy)]
struct Piece {
    /// 0 for the early one, 1 for the late one.
    number: u32,
    /// Which of the two that it holds: the kept one or the received one.
    held: usize,
    /// Its place in the sequence.
    place: i64,
}

impl Ring<'_> {
    /// The results of attention of this rank's queries.
    pub fn forward_of_queries(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        let label = out.origin.label;
        let of_query = self.of_operand(0);
        self.label(out, "halves of queries", 0);
        let query = of_query.there(out, self.operands[0]);
        let query = self.mirrored(out, query, of_query.positions());
        let queries = of_query.taken::<2>(out, query);
        let [early, late] = self.pieces().map(|one| self.found_behind(out, queries[one.held], one));
        self.label(out, "halves of results", 1);
        let found = self.in_place(out, early, late);
        out.origin.label = label;
        [found.result, found.logarithms].into_iter().chain(found.others).collect()
    }

    /// The gradients of this rank's queries, and its parts of those of keys and values.
    pub fn backward_of_queries(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        let label = out.origin.label;
        let of_key = self.of_result(1);
        let queries = self.mirrored_queries(out);
        let both = self.pieces().map(|one| self.gradients_behind(out, queries[one.held], one));
        let of_pair = out.sum("add", both[0][1], both[1][1]);
        let of_pair = in_type(out, of_pair, self.realised.call.result(1).dtype);
        self.label(out, "halves of gradients", 1);
        let dtype = self.realised.call.result(0).dtype;
        let pieces = both.map(|[of_query, _]| {
            let of_query = self.of_result(0).back(out, of_query);
            in_type(out, of_query, dtype)
        });
        let of_query = self.shard_of(out, 0, pieces);
        out.origin.label = label;
        let [of_keys, of_values] = of_key.taken(out, of_pair);
        SmallVec::from_slice(&[of_query, of_keys, of_values])
    }

    /// This rank's early and late piece.
    fn pieces(&self) -> [Piece; 2] {
        let (place, last) = (self.order.place(), 2 * self.order.ranks - 1);
        [
            Piece { number: 0, held: self.order.early(), place: i64::from(place) },
            Piece { number: 1, held: self.order.late(), place: i64::from(last - place) },
        ]
    }

    /// Keys and values of a piece of so many positions, and of all before it; of the first piece, where none are before it. What is written from
    /// there on is labelled as what comes of these.
    fn seen_from(&self, out: &mut Emitter<'_>, key: usize, size: i64, one: Piece) -> [[ValueId; 2]; 2] {
        let seen = |out: &mut Emitter<'_>, start, end| {
            [key, key + 1].map(|operand| out.slice(self.operands[operand], 2, start, end))
        };
        self.label(out, "keys and values of a piece", one.number);
        let own = seen(out, one.place * size, (one.place + 1) * size);
        self.label(out, "keys and values before a piece", one.number);
        [own, seen(out, 0, one.place.max(1) * size)]
    }

    fn found_behind(&self, out: &mut Emitter<'_>, query: ValueId, one: Piece) -> Found {
        let size = out.ty(query).shape[2];
        let [own, before] = self.seen_from(out, 1, size, one);
        let found = self.found(out, query, own, true);
        let more = self.found(out, query, before, false);
        let more = of_some(out, &more, one.place > 0);
        merged(out, found, &more)
    }

    /// The gradients that come of a piece of queries: of itself, and of all keys and values.
    fn gradients_behind(&self, out: &mut Emitter<'_>, queries: OfQueries, one: Piece) -> Sums {
        let place = one.place;
        let size = out.ty(queries[1]).shape[2];
        let count = 2 * i64::from(self.order.ranks);
        let [own, before] = self.seen_from(out, 2, size, one);
        let [of_query, of_pair] = self.gradients(out, queries, own, true);
        let more = self.gradients(out, queries, before, false).map(|one| out.kept_or_zeros(one, place > 0));
        let dim = self.of_result(1).positions() + 1;
        let of_pair = out.pad(of_pair, dim, place * size, (count - place - 1) * size);
        let of_others = out.pad(more[1], dim, 0, (count - place.max(1)) * size);
        [out.sum("add", of_query, more[0]), out.sum("add", of_pair, of_others)]
    }
}
