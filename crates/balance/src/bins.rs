//! Ranks with the items that they hold.

/// Items by rank. An item is its position in the falling order of costs: a list in rising order is falling in cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bins {
    /// The sum of costs of each rank.
    pub loads: Vec<u64>,
    /// The items of each rank, rising.
    pub items: Vec<Vec<u32>>,
}

impl Bins {
    /// Empty ranks with room for `room` items each.
    pub fn new(ranks: usize, room: usize) -> Self {
        Self { loads: vec![0; ranks], items: (0..ranks).map(|_| Vec::with_capacity(room)).collect() }
    }

    /// The load of the slowest rank.
    pub fn makespan(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }

    /// Appends an item that is cheaper than all that the rank holds.
    pub fn push(&mut self, rank: usize, item: u32, cost: u64) {
        self.items[rank].push(item);
        self.loads[rank] += cost;
    }
}
