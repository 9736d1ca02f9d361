//! First fit in logarithmic time.

/// Bins with room; finds the first with room enough. A tree of the most room below each node, which grows.
#[derive(Clone, Debug)]
pub struct Rooms {
    leaves: usize,
    count: usize,
    room: Vec<u64>,
}

impl Rooms {
    /// `count` bins with `room` each.
    pub fn new(count: usize, room: u64) -> Self {
        Self::of(&vec![room; count])
    }

    /// Bins with the room given for each.
    pub fn of(left: &[u64]) -> Self {
        let (count, leaves) = (left.len(), left.len().next_power_of_two());
        let mut rooms = Self { leaves, count, room: vec![0; 2 * leaves] };
        rooms.room[leaves..leaves + count].copy_from_slice(left);
        rooms.climb_all();
        rooms
    }

    /// The room that a bin has left.
    pub fn left(&self, bin: usize) -> u64 {
        self.room[self.leaves + bin]
    }

    /// One more bin.
    pub fn push(&mut self, room: u64) {
        if self.count == self.leaves {
            let old = self.room.split_off(self.leaves);
            self.leaves *= 2;
            self.room = vec![0; 2 * self.leaves];
            self.room[self.leaves..][..old.len()].copy_from_slice(&old);
            self.climb_all();
        }
        self.count += 1;
        self.set(self.count - 1, room);
    }

    /// The most room of any bin.
    pub fn most(&self) -> u64 {
        self.room[1]
    }

    /// Uses room of the first bin that has it, and names the bin.
    pub fn place(&mut self, size: u64) -> Option<usize> {
        if self.count == 0 || self.room[1] < size {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node = 2 * node + usize::from(self.room[2 * node] < size);
        }
        self.set(node - self.leaves, self.room[node] - size);
        Some(node - self.leaves)
    }

    fn set(&mut self, bin: usize, room: u64) {
        let mut node = self.leaves + bin;
        self.room[node] = room;
        while node > 1 {
            node /= 2;
            self.room[node] = self.room[2 * node].max(self.room[2 * node + 1]);
        }
    }

    fn climb_all(&mut self) {
        for node in (1..self.leaves).rev() {
            self.room[node] = self.room[2 * node].max(self.room[2 * node + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_first_with_room_and_grows() {
        let mut rooms = Rooms::new(2, 10);
        assert_eq!([6, 6, 4, 4].map(|size| rooms.place(size)), [Some(0), Some(1), Some(0), Some(1)]);
        assert_eq!((rooms.place(1), rooms.most()), (None, 0));
        rooms.push(3);
        rooms.push(9);
        rooms.push(9);
        assert_eq!(
            [3, 4, 6, 5, 1].map(|size| rooms.place(size)),
            [Some(2), Some(3), Some(4), Some(3), Some(4)]
        );
        assert_eq!(Rooms::new(0, 5).place(0), None);
    }
}
