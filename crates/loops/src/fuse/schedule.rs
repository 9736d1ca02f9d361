//! The program with groups in it: each where its operands are there, all else as near to its place as may be.

use std::{cmp::Reverse, collections::BinaryHeap};

use ir::ValueId;

use super::{convex::Positions, partition::Item};

/// A group, as far as its place goes.
pub(super) struct Unit<'a> {
    /// Its operations by position.
    pub(super) members: &'a [usize],
    pub(super) reads: &'a [ValueId],
}

/// The order of groups and of all other operations but those for which `gone` holds, which nothing reads. Nothing passes an operation for
/// which `fixed` holds.
pub(super) fn schedule(
    positions: &Positions<'_>,
    groups: &[Unit<'_>],
    fixed: &[bool],
    gone: &[bool],
) -> Vec<Item> {
    let count = positions.graph.order.len();
    // Units are groups, by their last members, and single operations.
    let mut unit: Vec<usize> = (0..count).collect();
    let mut item: Vec<Item> = (0..count).map(Item::Node).collect();
    let mut is_grouped = vec![false; count];
    for (number, group) in groups.iter().enumerate() {
        let last = *group.members.last().expect("a group has members");
        item[last] = Item::Group(number);
        for member in group.members {
            unit[*member] = last;
            is_grouped[*member] = true;
        }
    }
    let mut missing = vec![0_usize; count];
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut edge = |from: usize, to: usize| {
        if unit[from] != unit[to] {
            users[unit[from]].push(unit[to]);
            missing[unit[to]] += 1;
        }
    };
    for group in groups {
        let makers = group.reads.iter().filter_map(|value| positions.maker(*value));
        makers.for_each(|maker| edge(maker, group.members[0]));
    }
    let mut start = 0;
    for (position, fixed) in fixed.iter().enumerate().filter(|(position, _)| !gone[*position]) {
        if !is_grouped[position] {
            positions.makers(position).for_each(|maker| edge(maker, position));
        }
        if start > 0 {
            edge(start - 1, position);
        }
        if *fixed {
            (start..position).filter(|before| !gone[*before]).for_each(|before| edge(before, position));
            start = position + 1;
        }
    }
    let is_there = |position: &usize| unit[*position] == *position && !gone[*position];
    let ready = (0..count).filter(|position| is_there(position) && missing[*position] == 0);
    let mut ready: BinaryHeap<Reverse<usize>> = ready.map(Reverse).collect();
    let mut order = Vec::with_capacity(count);
    while let Some(Reverse(position)) = ready.pop() {
        order.push(item[position]);
        for user in std::mem::take(&mut users[position]) {
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    order
}
