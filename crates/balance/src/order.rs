//! Sorting by cost.

const DIGIT: u32 = 11;

/// Sample ids from the most costly to the cheapest, ties by id, with their costs: a radix sort of the significant bits.
pub fn falling(costs: &[u64]) -> (Vec<u32>, Vec<u64>) {
    let largest = costs.iter().copied().max().unwrap_or(0);
    let spread = costs.iter().fold(0, |bits, cost| bits | (largest - cost));
    let id_bits = costs.len().next_power_of_two().trailing_zeros();
    let cost_bits = 64 - spread.leading_zeros();
    if id_bits + cost_bits <= 64 {
        sort::<u64>(costs, largest, id_bits, cost_bits)
    } else {
        sort::<u128>(costs, largest, 32, cost_bits)
    }
}

/// An id in the low bits, above it what the cost lacks to the largest: rising keys are falling costs.
trait Key: Copy + Ord + Default {
    fn pack(lack: u64, id: u32, id_bits: u32) -> Self;
    fn unpack(self, id_bits: u32) -> (u64, u32);
    fn digit(self, shift: u32, mask: usize) -> usize;
}

impl Key for u64 {
    fn pack(lack: u64, id: u32, id_bits: u32) -> Self {
        lack.checked_shl(id_bits).unwrap_or(0) | Self::from(id)
    }

    fn unpack(self, id_bits: u32) -> (u64, u32) {
        (self.checked_shr(id_bits).unwrap_or(0), (self & ((1 << id_bits) - 1)) as u32)
    }

    fn digit(self, shift: u32, mask: usize) -> usize {
        (self >> shift) as usize & mask
    }
}

impl Key for u128 {
    fn pack(lack: u64, id: u32, id_bits: u32) -> Self {
        Self::from(lack) << id_bits | Self::from(id)
    }

    fn unpack(self, id_bits: u32) -> (u64, u32) {
        ((self >> id_bits) as u64, (self & ((1 << id_bits) - 1)) as u32)
    }

    fn digit(self, shift: u32, mask: usize) -> usize {
        (self >> shift) as usize & mask
    }
}

fn sort<K: Key>(costs: &[u64], largest: u64, id_bits: u32, cost_bits: u32) -> (Vec<u32>, Vec<u64>) {
    let packed = (0_u32..).zip(costs).map(|(id, cost)| K::pack(largest - cost, id, id_bits));
    let mut keys: Vec<K> = packed.collect();
    if keys.len() < 64 {
        keys.sort_unstable();
    } else {
        radix(&mut keys, id_bits, cost_bits);
    }
    let entry = |key: &K| {
        let (lack, id) = key.unpack(id_bits);
        (id, largest - lack)
    };
    keys.iter().map(entry).unzip()
}

/// A stable sort by the bits above the ids, which are in order already.
fn radix<K: Key>(from: &mut Vec<K>, id_bits: u32, cost_bits: u32) {
    let digits = cost_bits.div_ceil(DIGIT);
    let width = cost_bits.div_ceil(digits.max(1));
    let mask = (1 << width) - 1;
    let mut to = vec![K::default(); from.len()];
    for shift in (0..digits).map(|digit| id_bits + digit * width) {
        let mut starts = [0_u32; 1 << DIGIT];
        for key in from.iter() {
            starts[key.digit(shift, mask)] += 1;
        }
        let mut sum = 0;
        for start in &mut starts[..=mask] {
            (*start, sum) = (sum, sum + *start);
        }
        for key in from.iter() {
            let place = &mut starts[key.digit(shift, mask)];
            to[*place as usize] = *key;
            *place += 1;
        }
        std::mem::swap(from, &mut to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_radix_sort_is_the_sort_by_cost_then_id() {
        base::testing::cases(500, |u| {
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
