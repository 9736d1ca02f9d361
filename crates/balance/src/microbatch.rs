//! Packing a rank's samples into micro-batches that fit its memory.

/// First-fit-decreasing by tokens into micro-batches of at most `room` tokens; every sample fits one on its own. Samples keep
/// their given order within a micro-batch of equal tokens.
pub fn pack(samples: &[u32], tokens: &[u64], room: u64) -> Vec<Vec<u32>> {
    pack_below(samples, room, u64::MAX, |sample| (tokens[sample], 0))
}

/// The same with a second capacity: the cost of a micro-batch stays below `limit` unless one sample alone exceeds it.
/// `size` gives tokens and cost of a sample.
pub fn pack_below(
    samples: &[u32],
    room: u64,
    limit: u64,
    size: impl Fn(usize) -> (u64, u64),
) -> Vec<Vec<u32>> {
    let mut order = samples.to_vec();
    order.sort_by_key(|sample| (std::cmp::Reverse(size(*sample as usize)), *sample));
    let mut batches: Vec<(u64, u64, Vec<u32>)> = Vec::new();
    for sample in order {
        let (tokens, cost) = size(sample as usize);
        let fits = |batch: &&mut (u64, u64, Vec<u32>)| {
            batch.0.saturating_add(tokens) <= room && batch.1.saturating_add(cost) <= limit
        };
        match batches.iter_mut().find(fits) {
            Some(batch) => {
                batch.0 += tokens;
                batch.1 += cost;
                batch.2.push(sample);
            }
            None => batches.push((tokens, cost, vec![sample])),
        }
    }
    batches.into_iter().map(|batch| batch.2).collect()
}

/// Splits micro-batches until there are `count`, where there are samples enough, and adds empty ones for the rest.
pub fn stretch(batches: &mut Vec<Vec<u32>>, count: usize) {
    while batches.len() < count {
        let largest = batches.iter_mut().max_by_key(|batch| batch.len()).filter(|batch| batch.len() > 1);
        let half = largest.map(|batch| batch.split_off(batch.len().div_ceil(2)));
        batches.push(half.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_micro_batch_exceeds_the_room_and_none_is_wasted() {
        let tokens = [60, 50, 40, 30, 20];
        assert_eq!(pack(&[0, 1, 2, 3, 4], &tokens, 100), [vec![0, 2], vec![1, 3, 4]]);
    }

    #[test]
    fn stretching_splits_first_and_pads_last() {
        let mut batches = vec![vec![1, 2, 3]];
        stretch(&mut batches, 5);
        assert_eq!(batches, [vec![1], vec![3], vec![2], vec![], vec![]]);
    }
}
