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
    /// The positions that read each value.
    pub(super) users: base::SecondaryMap<ValueId, Vec<usize>>,
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
        let mut users: base::SecondaryMap<ValueId, Vec<usize>> = base::SecondaryMap::with_default(Vec::new());
        for (position, id) in graph.order.iter().enumerate() {
            graph.nodes[*id].operands().for_each(|value| users[value].push(position));
        }
        let mut views = base::SecondaryMap::with_default(None);
        graph.values.ids().for_each(|value| views[value] = view(graph, value));
        let kinds = graph.values.values().map(|value| value.ty.device.kind);
        let kind =
            kinds.into_iter().find(|kind| !kind.is_cpu() && *kind != DeviceKind::META).unwrap_or_default();
        Self { graph, of, views, users, sizes: RunTimeSizes::of(graph), kind, rounding }
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

    /// Whether no way leads from `members` (positions in order) to outside and back. Those of each of `groups` (`group_of` has the number of
    /// each position's) run as one too, wherever they stand. No group has operations behind the last member.
    pub(super) fn is_convex(
        &self,
        members: &[usize],
        group_of: &[Option<usize>],
        groups: &[Vec<usize>],
    ) -> bool {
        let Some(last) = members.last() else { return true };
        let inside = |position: usize| members.binary_search(&position).is_ok();
        // Operations outside that need a member.
        let mut needs = vec![false; last + 1];
        let mut found: Vec<usize> = members.to_vec();
        while let Some(position) = found.pop() {
            let as_one = group_of[position].filter(|_| !inside(position));
            let others = as_one.map_or(&[][..], |group| &groups[group]);
            let news = |other: usize| other <= *last && !inside(other);
            for other in others {
                if !std::mem::replace(&mut needs[*other], true) {
                    found.push(*other);
                }
            }
            for value in self.graph.nodes[self.graph.order[position]].results() {
                let users = &self.users[value];
                let leads_back = |user: &usize| inside(*user) && !self.is_own(value, members);
                if !inside(position) && users.iter().any(leads_back) {
                    return false;
                }
                for user in users.iter().copied().filter(|user| news(*user)) {
                    if !std::mem::replace(&mut needs[user], true) {
                        found.push(user);
                    }
                }
            }
        }
        true
    }
}
