//! Whether operations can run as one: nothing outside stands between two of them.

use aten::RunTimeSizes;
use ir::{DeviceKind, Graph, NodeId, ValueDef, ValueId};

use super::{
    eager::Rounding,
    views::{View, view},
};

/// The operations of a graph by position in its program, and the group that each is in.
pub(super) struct Positions<'a> {
    pub(super) graph: &'a Graph,
    /// The position of each node.
    pub(super) of: base::SecondaryMap<NodeId, Option<usize>>,
    /// What each value is a view of, if it is.
    views: base::SecondaryMap<ValueId, Option<View>>,
    /// What has a size that is known at run time only: no kernel is made for that.
    pub(super) sizes: RunTimeSizes,
    /// The kind of device that kernels are for: an accelerator's where there is one.
    pub(super) kind: DeviceKind,
    /// How kernels round.
    pub(super) rounding: Rounding,
}

impl<'a> Positions<'a> {
    pub(super) fn new(graph: &'a Graph, rounding: Rounding) -> Self {
        let mut of = base::SecondaryMap::with_default(None);
        graph.order.iter().enumerate().for_each(|(position, id)| of[*id] = Some(position));
        let mut views = base::SecondaryMap::with_default(None);
        graph.values.ids().for_each(|value| views[value] = view(graph, value));
        let kinds = graph.values.values().map(|value| value.ty.device.kind);
        let kind =
            kinds.into_iter().find(|kind| !kind.is_cpu() && *kind != DeviceKind::META).unwrap_or_default();
        Self { graph, of, views, sizes: RunTimeSizes::of(graph), kind, rounding }
    }

    /// What a value is a view of, if it is.
    pub(super) fn view(&self, value: ValueId) -> Option<View> {
        self.views[value]
    }

    /// What a value is a view of, then what that is one of, and so on.
    pub(super) fn viewed(&self, value: ValueId) -> impl Iterator<Item = View> + '_ {
        std::iter::successors(self.view(value), |view| self.view(view.of))
    }

    /// Whether an operation makes nothing but a view.
    pub(super) fn is_view(&self, position: usize) -> bool {
        let mut results = self.graph.nodes[self.graph.order[position]].results();
        results.next().is_some_and(|value| self.views[value].is_some())
    }

    /// Whether members of a group (positions in order) make a value, or what it is a view of.
    pub(super) fn is_own(&self, value: ValueId, members: &[usize]) -> bool {
        let own = |value| self.maker(value).is_some_and(|maker| members.binary_search(&maker).is_ok());
        own(value) || self.viewed(value).any(|view| own(view.of))
    }

    /// The positions of what makes the operands of an operation, and of what makes what these are views of.
    pub(super) fn all_makers(&self, position: usize) -> impl Iterator<Item = usize> + '_ {
        let node = &self.graph.nodes[self.graph.order[position]];
        let values = node
            .operands()
            .flat_map(|value| std::iter::once(value).chain(self.viewed(value).map(|view| view.of)));
        values.filter_map(|value| self.maker(value))
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
                    let node = &self.graph.nodes[self.graph.order[position]];
                    let others = node.operands().filter(|value| !self.is_own(*value, members));
                    let mut makers = others.filter_map(|value| self.maker(value));
                    if makers.any(|maker| maker >= *first && needs[maker - first]) {
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
