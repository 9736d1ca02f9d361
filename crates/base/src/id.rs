//! Typed `u32` ids and the dense maps indexed by them.
//!
//! A graph is a set of tables indexed by ids; an id of one table cannot be used for another by mistake.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Index, IndexMut},
};

use serde::{Deserialize, Serialize};

/// A dense `u32` id. Implemented by [`define_id!`](crate::define_id) only.
pub trait Id: Copy + Eq + Ord + std::hash::Hash + fmt::Debug {
    /// The id of the `index`-th entry.
    fn from_index(index: usize) -> Self;
    /// The position of the entry in its table.
    fn index(self) -> usize;
}

/// Defines a typed id: `define_id!(/** A node. */ NodeId, "n")` prints as `n12`.
#[macro_export]
macro_rules! define_id {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $crate::Id for $name {
            fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).expect("a table holds at most u32::MAX entries"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

/// The table that owns its entries: pushing makes the next id.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrimaryMap<K: Id, V> {
    entries: Vec<V>,
    #[serde(skip)]
    key: PhantomData<K>,
}

impl<K: Id, V> Default for PrimaryMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Id, V> PrimaryMap<K, V> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { entries: Vec::new(), key: PhantomData }
    }

    /// An empty table with room for `capacity` entries.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), key: PhantomData }
    }

    /// Appends an entry and returns its id.
    pub fn push(&mut self, value: V) -> K {
        let id = self.next_id();
        self.entries.push(value);
        id
    }

    /// The id that the next [`push`](Self::push) will return.
    pub fn next_id(&self) -> K {
        K::from_index(self.entries.len())
    }

    /// The entry of `id`, or `None` where the table is shorter.
    pub fn get(&self, id: K) -> Option<&V> {
        self.entries.get(id.index())
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All ids in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.entries.len()).map(K::from_index)
    }

    /// All entries with their ids, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.entries.iter().enumerate().map(|(i, v)| (K::from_index(i), v))
    }

    /// All entries, mutable, with their ids, in order.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (K, &mut V)> + ExactSizeIterator {
        self.entries.iter_mut().enumerate().map(|(i, v)| (K::from_index(i), v))
    }

    /// All entries in order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.entries.iter()
    }
}

impl<K: Id, V> IntoIterator for PrimaryMap<K, V> {
    type Item = V;
    type IntoIter = std::vec::IntoIter<V>;
    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<K: Id, V> Extend<V> for PrimaryMap<K, V> {
    fn extend<I: IntoIterator<Item = V>>(&mut self, values: I) {
        self.entries.extend(values);
    }
}

impl<K: Id, V> Index<K> for PrimaryMap<K, V> {
    type Output = V;
    fn index(&self, id: K) -> &V {
        &self.entries[id.index()]
    }
}

impl<K: Id, V> IndexMut<K> for PrimaryMap<K, V> {
    fn index_mut(&mut self, id: K) -> &mut V {
        &mut self.entries[id.index()]
    }
}

impl<K: Id, V> FromIterator<V> for PrimaryMap<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(iter: I) -> Self {
        Self { entries: iter.into_iter().collect(), key: PhantomData }
    }
}

impl<K: Id, V: fmt::Debug> fmt::Debug for PrimaryMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A side table: a value for every id of some other table, a default where none was set.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecondaryMap<K: Id, V: Clone> {
    entries: Vec<V>,
    default: V,
    #[serde(skip)]
    key: PhantomData<K>,
}

impl<K: Id, V: Clone + Default> Default for SecondaryMap<K, V> {
    fn default() -> Self {
        Self::with_default(V::default())
    }
}

impl<K: Id, V: Clone> SecondaryMap<K, V> {
    /// A side table in which every id has the value `default`.
    pub const fn with_default(default: V) -> Self {
        Self { entries: Vec::new(), default, key: PhantomData }
    }

    /// The ids up to the last one that was set, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().enumerate().map(|(i, v)| (K::from_index(i), v))
    }
}

impl<K: Id, V: Clone> Index<K> for SecondaryMap<K, V> {
    type Output = V;
    fn index(&self, id: K) -> &V {
        self.entries.get(id.index()).unwrap_or(&self.default)
    }
}

impl<K: Id, V: Clone> IndexMut<K> for SecondaryMap<K, V> {
    fn index_mut(&mut self, id: K) -> &mut V {
        if id.index() >= self.entries.len() {
            self.entries.resize(id.index() + 1, self.default.clone());
        }
        &mut self.entries[id.index()]
    }
}

impl<K: Id, V: Clone + fmt::Debug> fmt::Debug for SecondaryMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    define_id!(/** An id of a test table. */ TestId, "t");

    #[test]
    fn a_side_table_answers_its_default_beyond_what_was_set() {
        let mut side = SecondaryMap::<TestId, u8>::with_default(7);
        side[TestId(2)] = 1;
        assert_eq!((side[TestId(0)], side[TestId(2)], side[TestId(9)]), (7, 1, 7));
    }

    #[test]
    fn ids_count_up_and_print_with_their_prefix() {
        let mut map = PrimaryMap::<TestId, &str>::new();
        assert_eq!(map.push("a"), TestId(0));
        assert_eq!(format!("{}", map.push("b")), "t1");
        assert_eq!(map[TestId(1)], "b");
    }
}
