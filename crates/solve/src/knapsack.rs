//! Which of many independent exchanges to make within a capacity.

/// An exchange: what it gains and what it weighs, either of which may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub gain: i128,
    pub weight: i128,
}

/// Sets of exchanges are told apart by their weight in this many steps of the capacity.
const SLOTS: usize = 2048;

/// A set of exchanges, as the last one and the set without it.
#[derive(Clone, Copy)]
struct Set {
    gain: i128,
    weight: i128,
    last: usize,
    rest: usize,
}

/// The exchanges to make: they weigh at most `capacity` (not negative) together, and gain as much as could be found. Dynamic
/// programming over the weight, which keeps the best set for each step of it: exact weights, nearly exact gains.
pub(crate) fn choose(exchanges: &[Exchange], capacity: i128) -> Vec<bool> {
    // What frees capacity is made beforehand; undoing it is then an exchange of positive weight.
    let mut made: Vec<bool> = exchanges.iter().map(|exchange| exchange.weight < 0).collect();
    let freed: i128 = exchanges.iter().map(|exchange| exchange.weight.min(0)).sum();
    let capacity = capacity - freed;
    let turned = |exchange: &Exchange| {
        let sign = if exchange.weight < 0 { -1 } else { 1 };
        Exchange { gain: sign * exchange.gain, weight: sign * exchange.weight }
    };
    let items: Vec<Exchange> = exchanges.iter().map(turned).collect();
    for i in best_set(&items, capacity) {
        made[i] = !made[i];
    }
    made
}

/// Indices of the best set of items whose weights are not negative. Heavy ones are decided first.
fn best_set(items: &[Exchange], capacity: i128) -> Vec<usize> {
    let mut worth: Vec<usize> =
        (0..items.len()).filter(|&i| items[i].gain > 0 && items[i].weight <= capacity).collect();
    worth.sort_by_key(|&i| (std::cmp::Reverse(items[i].weight), i));
    let slot = |weight: i128| (weight * (SLOTS as i128 - 1) / capacity.max(1)) as usize;
    let mut sets = vec![Set { gain: 0, weight: 0, last: usize::MAX, rest: 0 }];
    let mut best: Vec<Option<usize>> = vec![None; SLOTS];
    best[0] = Some(0);
    for &i in &worth {
        for from in best.clone().into_iter().flatten() {
            let (gain, weight) = (sets[from].gain + items[i].gain, sets[from].weight + items[i].weight);
            if weight > capacity {
                continue;
            }
            let place = &mut best[slot(weight)];
            if place.is_none_or(|old| (sets[old].gain, -sets[old].weight) < (gain, -weight)) {
                *place = Some(sets.len());
                sets.push(Set { gain, weight, last: i, rest: from });
            }
        }
    }
    let mut at =
        best.into_iter().flatten().max_by_key(|&set| (sets[set].gain, -sets[set].weight)).unwrap_or(0);
    let mut chosen = Vec::new();
    while sets[at].last != usize::MAX {
        chosen.push(sets[at].last);
        at = sets[at].rest;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gain(exchanges: &[Exchange], made: &[bool]) -> (i128, i128) {
        let made = exchanges.iter().zip(made).filter(|&(_, &made)| made).map(|(exchange, _)| exchange);
        made.fold((0, 0), |(gain, weight), exchange| (gain + exchange.gain, weight + exchange.weight))
    }

    #[test]
    fn small_sets_are_chosen_as_by_trying_all() {
        base::testing::cases(1000, |u| {
            let count = u.int_in_range(0..=9)?;
            let mut draw =
                || Ok(Exchange { gain: u.int_in_range(-20..=60)?, weight: u.int_in_range(-20..=60)? });
            let exchanges = (0..count).map(|_| draw()).collect::<arbtest::arbitrary::Result<Vec<_>>>()?;
            let capacity = u.int_in_range(0..=200)?;
            let made = choose(&exchanges, capacity);
            let all =
                (0..1_u32 << count).map(|set| (0..count).map(|i| set >> i & 1 == 1).collect::<Vec<_>>());
            let best = all.map(|set| gain(&exchanges, &set)).filter(|&(_, weight)| weight <= capacity).max();
            let (found, weight) = gain(&exchanges, &made);
            assert!(weight <= capacity);
            assert_eq!(Some(found), best.map(|(gain, _)| gain));
            Ok(())
        });
    }
}
