//! Whether operations can run as one: nothing outside stands between two of them.

use ir::{Graph, NodeId, ValueDef, ValueId};

/// The operations of a graph by position in its program, and the group that each is in.
pub(super) struct Positions<'a> {
    pub(super) graph: &'a Graph,
    /// The position of each node.
    pub(super) of: base::SecondaryMap<NodeId, Option<usize>>,
}

impl<'a> Positions<'a> {
    pub(super) fn new(graph: &'a Graph) -> Self {
        let mut of = base::SecondaryMap::with_default(None);
        graph.order.iter().enumerate().for_each(|(position, id)| of[*id] = Some(position));
        Self { graph, of }
    }

    /// The position of what makes a value.
    pub(super) fn maker(&self, value: ValueId) -> Option<usize> {
        match self.graph.values[value].def {
            ValueDef::Result(node, _) => self.of[node],
            ValueDef::Input(_) => None,
        }
    }

    /// The positions of what makes the operands of an operation.
    pub(super) fn makers(&self, position: usize) -> impl Iterator<Item = usize> + '_ {
        let node = &self.graph.nodes[self.graph.order[position]];
        node.operands().filter_map(|value| self.maker(value))
    }

    /// Whether no way leads from `members` (positions in order) to outside and back. `group_of` has the group of each position, which runs
    /// as one too.
    pub(super) fn is_convex(&self, members: &[usize], group_of: &[Option<usize>]) -> bool {
        let (Some(first), Some(last)) = (members.first(), members.last()) else { return true };
        let inside = |position: usize| members.binary_search(&position).is_ok();
        // Operations outside that need a member, groups as a whole.
        let mut needs = vec![false; last - first + 1];
        let mut groups = Vec::new();
        loop {
            let mut changed = false;
            for position in *first..=*last {
                let needed = |maker: usize| maker >= *first && (inside(maker) || needs[maker - first]);
                let by_group = group_of[position].is_some_and(|group| groups.contains(&group));
                if inside(position) {
                    if self.makers(position).any(|maker| maker >= *first && needs[maker - first]) {
                        return false;
                    }
                } else if !needs[position - first] && (by_group || self.makers(position).any(needed)) {
                    needs[position - first] = true;
                    groups.extend(group_of[position]);
                    changed = true;
                }
            }
            if !changed {
                return true;
            }
        }
    }
}
