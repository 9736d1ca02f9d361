//! Sorting by cost.

const DIGIT: u32 = 11;

/// Sample ids from the most costly to the cheapest, ties by id, with their costs: a radix sort of the significant bits.
pub fn falling(costs: &[u64]) -> (Vec<u32>, Vec<u64>) {
    let largest = costs.iter().copied().max().unwrap_or(0);
    // Rising in `largest - cost` is falling in cost, and a stable sort keeps the ids of equal costs in order.
    let mut from: Vec<(u64, u32)> = (0_u32..).zip(costs).map(|(id, cost)| (largest - cost, id)).collect();
    if from.len() < 64 {
        from.sort_unstable();
    } else {
        radix(&mut from);
    }
    (from.iter().map(|entry| entry.1).collect(), from.iter().map(|entry| largest - entry.0).collect())
}

fn radix(from: &mut Vec<(u64, u32)>) {
    let spread = from.iter().fold(0, |bits, entry| bits | entry.0);
    let mut to = vec![(0, 0); from.len()];
    let mut shift = 0;
    while shift < 64 - spread.leading_zeros() {
        let digit = |key: u64| (key >> shift) as usize & ((1 << DIGIT) - 1);
        let mut starts = [0_u32; 1 << DIGIT];
        for entry in from.iter() {
            starts[digit(entry.0)] += 1;
        }
        let mut sum = 0;
        for start in &mut starts {
            (*start, sum) = (sum, sum + *start);
        }
        for entry in from.iter() {
            let place = &mut starts[digit(entry.0)];
            to[*place as usize] = *entry;
            *place += 1;
        }
        std::mem::swap(from, &mut to);
        shift += DIGIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_radix_sort_is_the_sort_by_cost_then_id() {
        arbtest::arbtest(|u| {
            let mask = u.arbitrary::<u64>()? >> 2;
            let count = u.int_in_range(0..=300)?;
            let costs: Vec<u64> =
                (0..count).map(|_| Ok(u.arbitrary::<u64>()? & mask)).collect::<Result<_, _>>()?;
            let mut expected: Vec<u32> = (0..count).collect();
            expected.sort_by_key(|id| (std::cmp::Reverse(costs[*id as usize]), *id));
            let (ids, sorted) = falling(&costs);
            assert_eq!(ids, expected);
            assert!(ids.iter().zip(&sorted).all(|(id, cost)| costs[*id as usize] == *cost));
            Ok(())
        });
    }
}
