//! The program with groups in it: each where its operands are there, all else as near to its place as may be.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{convex::Positions, partition::Item};

/// The order of groups (their members by position) and of all other operations. Nothing passes an operation for which `fixed` holds.
pub(super) fn schedule(positions: &Positions<'_>, groups: &[Vec<usize>], fixed: &[bool]) -> Vec<Item> {
    let count = positions.graph.order.len();
    // Units are groups, by their last members, and single operations.
    let mut unit: Vec<usize> = (0..count).collect();
    let mut item: Vec<Item> = (0..count).map(Item::Node).collect();
    for (number, members) in groups.iter().enumerate() {
        let last = *members.last().expect("a group has members");
        item[last] = Item::Group(number);
        for member in members {
            unit[*member] = last;
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
    let mut start = 0;
    for (position, fixed) in fixed.iter().enumerate() {
        positions.makers(position).for_each(|maker| edge(maker, position));
        if start > 0 {
            edge(start - 1, position);
        }
        if *fixed {
            (start..position).for_each(|before| edge(before, position));
            start = position + 1;
        }
    }
    let ready = (0..count).filter(|position| unit[*position] == *position && missing[*position] == 0);
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
