//! The time of attention in which keys and values go around the ranks.

use aten::{Call, Realise, Strategy};
use base::Bytes;
use ir::{Collective, CollectiveKind, Dtype, MeshAxis, local_bytes};

use crate::{
    collectives::collective_time,
    machine::{Machine, traffic},
};

/// Passes over results or gradients for each step of a ring: two are read, one is written.
const PASSES: u64 = 3;

/// Bytes that a rank has of the tensors of attention.
struct Held {
    /// Of queries, and so of results.
    query: u64,
    /// Of keys and values together.
    pair: u64,
    /// How many times as much they are in the type in which sums are kept.
    widened: u64,
}

/// The time of attention, or of its backward, whose blocks take `blocks` in all: what is sent passes behind them, but for the exchange of
/// halves that evens out a causal mask.
pub fn time_around(
    machine: Machine<'_>,
    call: &Call<'_>,
    strategy: &Strategy,
    axis: &MeshAxis,
    blocks: i64,
) -> i64 {
    let backward = matches!(strategy.realise, Realise::RingBackward | Realise::CausalQueriesBackward);
    let (held, steps) = (held(call, strategy, axis, backward), u64::from(axis.size.saturating_sub(1)));
    let sent = |bytes: u64| {
        let kind = CollectiveKind::Permute;
        let all = Collective { kind, reduction: None, axis: &axis.name, bytes: Bytes(bytes) };
        collective_time(machine, all)
    };
    let around = steps as i64 * sent(held.pair);
    let causal = call.argument("is_causal").and_then(|causal| call.flag(causal)) == Some(true);
    if !strategy.realise.goes_around() {
        return blocks + time_of_queries(machine, &held, backward, sent);
    }
    let (around, halves, summed) = if backward {
        let gradients = steps as i64 * sent(held.pair * held.widened) + sent(held.pair);
        (around + gradients, [3 * held.query, held.pair, held.query, held.pair], held.query + held.pair)
    } else {
        (around, [held.query, held.pair, held.query, 0], held.query)
    };
    let exchanged: i64 = halves.into_iter().filter(|_| causal).map(|bytes| sent(bytes / 2)).sum();
    let copied = if causal { 2 * halves.iter().sum::<u64>() } else { 2 * held.pair };
    let added = steps * PASSES * summed * held.widened;
    blocks.max(around) + exchanged + traffic(machine.cluster, copied + added)
}

/// What causal attention of sharded queries takes beside its blocks: the exchange of halves of queries and results, and passes over memory.
fn time_of_queries(machine: Machine<'_>, held: &Held, backward: bool, sent: impl Fn(u64) -> i64) -> i64 {
    let there = if backward { 3 } else { 1 };
    let exchanged = sent(there * held.query / 2) + sent(held.query / 2);
    // Gradients of whole keys and values are added up of four parts, each with zeros around it.
    let added = PASSES * held.widened * (held.query + if backward { 4 * held.pair } else { 0 });
    exchanged + traffic(machine.cluster, 2 * (there + 1) * held.query + added)
}

fn held(call: &Call<'_>, strategy: &Strategy, axis: &MeshAxis, backward: bool) -> Held {
    let local = |operand: usize| local_bytes(call.operand(operand), strategy.operands[operand], axis.size);
    let query = usize::from(backward);
    let sums: Dtype = if backward { call.operand(5).dtype } else { call.result(1).dtype };
    let widened = (sums.bytes() / call.operand(query).dtype.bytes()).max(1);
    Held { query: local(query), pair: local(query + 1) + local(query + 2), widened }
}
