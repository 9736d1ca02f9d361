//! Interned texts: names, categories, shapes. Equal texts have equal ids, so that analyses compare numbers.

use base::{Id, define_id};
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

define_id!(
    /// An interned text.
    NameId, "s"
);

impl NameId {
    /// Stands for an absent text in columns that are mostly present.
    pub const NONE: Self = Self(u32::MAX);

    /// The id, or `None` where it is [`NameId::NONE`].
    pub fn some(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }
}

/// A table of distinct texts in the order of their first occurrence.
#[derive(Clone, Default, Debug)]
pub struct Names {
    texts: IndexSet<Box<str>, FxBuildHasher>,
}

impl Names {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty table with room for `count` texts.
    pub fn with_capacity(count: usize) -> Self {
        Self { texts: IndexSet::with_capacity_and_hasher(count, FxBuildHasher) }
    }

    /// The id of `text`, which is added if it is new.
    pub fn intern(&mut self, text: &str) -> NameId {
        if let Some(index) = self.texts.get_index_of(text) {
            return NameId::from_index(index);
        }
        NameId::from_index(self.texts.insert_full(text.into()).0)
    }

    /// The id of `text` if it is in the table.
    pub fn find(&self, text: &str) -> Option<NameId> {
        self.texts.get_index_of(text).map(NameId::from_index)
    }

    /// The text of `id`; empty for [`NameId::NONE`].
    pub fn text(&self, id: NameId) -> &str {
        self.texts.get_index(id.index()).map_or("", AsRef::as_ref)
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// All texts in the order of their ids.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.texts.iter().map(AsRef::as_ref)
    }

    /// Adds all texts of `other` and returns what each of its ids is here.
    pub fn absorb(&mut self, other: &Self) -> Renaming {
        Renaming(other.iter().map(|text| self.intern(text)).collect())
    }

    /// A property of every text, computed once per text rather than once per event.
    pub fn map<T>(&self, property: impl Fn(&str) -> T) -> Vec<T> {
        self.iter().map(property).collect()
    }
}

/// Where the ids of one table of names are in another.
#[derive(Clone, Debug)]
pub struct Renaming(Vec<NameId>);

impl Renaming {
    /// The id in the other table; [`NameId::NONE`] stays what it is.
    pub fn apply(&self, id: NameId) -> NameId {
        self.0.get(id.index()).copied().unwrap_or(NameId::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_one_id_and_absorbing_keeps_texts() {
        let mut a = Names::new();
        let mut b = Names::new();
        let (x, y) = (a.intern("x"), b.intern("y"));
        let also_x = b.intern("x");
        let renaming = a.absorb(&b);
        assert_eq!((a.text(renaming.apply(y)), renaming.apply(also_x)), ("y", x));
        assert_eq!(renaming.apply(NameId::NONE), NameId::NONE);
    }
}
