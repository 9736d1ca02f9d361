//! Offload: what forward made and backward reads is copied to memory of the host, and back before its first reader there, so that it takes
//! no memory of the device in between.
//!
//! What is copied, and where its memory is free and its copy back starts, is decided by the search and stands in the plan. A copy starts right
//! behind the operation that makes its operand, and everything runs on beside it. Views of what comes back are made again.

use std::{fmt, str::FromStr};

use base::{Code, Diagnostic, Result, SecondaryMap};
use ir::{Arg, Device, FROM_HOST, Graph, NodeId, PartKind, Patch, TO_HOST, ValueId, WAIT_COPY};
use rustc_hash::FxHashMap;

use crate::{
    Pass,
    facts::{Facts, Users, users},
    recompute::runs_again,
};

/// What nodes of it are labelled.
pub const OFFLOAD: &str = "offload";

/// Copies results of forward to the host and back.
pub struct Offload {
    /// Which, and when.
    pub stays: Stays,
}

/// The results of an operation on the host. All are positions in program order, in which what runs again does not count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stay {
    /// The operation that makes them, right behind which the copy to the host starts.
    pub made: u32,
    /// Right behind which operation that copy is waited for, and their memory is free.
    pub gone: u32,
    /// Right behind which operation the copy back starts.
    pub back: u32,
}

/// What is on the host for a while, ordered by the operation that makes it; as text `3:5-9`, for made, gone and back.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Stays(pub Vec<Stay>);

impl Stays {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The same, of positions in the whole order of a program, in which what runs again does count.
    #[must_use]
    pub fn counted_without_again(self, graph: &Graph) -> Self {
        let mut count = 0_u32;
        let counted = graph.order.iter().map(|id| {
            count += u32::from(!runs_again(graph, *id));
            count.saturating_sub(1)
        });
        let counted: Vec<u32> = counted.collect();
        let of = |position: u32| counted[position as usize];
        let stay = |Stay { made, gone, back }| Stay { made: of(made), gone: of(gone), back: of(back) };
        Self(self.0.into_iter().map(stay).collect())
    }
}

impl fmt::Display for Stays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Stay { made, gone, back }) in self.0.iter().enumerate() {
            let space = if number == 0 { "" } else { " " };
            write!(f, "{space}{made}:{gone}-{back}")?;
        }
        Ok(())
    }
}

impl FromStr for Stays {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let stay = |word: &str| {
            let (made, rest) = word.split_once(':')?;
            let (gone, back) = rest.split_once('-')?;
            let [made, gone, back] = [made, gone, back].map(|position| position.parse().ok());
            let stay = Stay { made: made?, gone: gone?, back: back? };
            (stay.made <= stay.gone && stay.gone <= stay.back).then_some(stay)
        };
        let stays = text.split_whitespace().map(|word| {
            stay(word).ok_or_else(|| format!("`{word}` is not three ascending positions such as `3:5-9`"))
        });
        let mut stays: Vec<Stay> = stays.collect::<Result<_, _>>()?;
        stays.sort_unstable();
        if stays.windows(2).any(|pair| pair[0].made == pair[1].made) {
            return Err("an operation stands there twice".to_owned());
        }
        Ok(Self(stays))
    }
}

base::serialized_as_text!(Stays);

impl Pass for Offload {
    fn name(&self) -> &'static str {
        OFFLOAD
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(OFFLOAD);
        if self.stays.is_empty() {
            return Ok(patch);
        }
        let order: Vec<NodeId> = graph.order.iter().filter(|id| !runs_again(graph, **id)).copied().collect();
        let mut offloading = Offloading {
            graph,
            order,
            facts: Facts::new(graph),
            users: users(graph),
            positions: graph.positions(),
        };
        // Copies of one direction run in the order in which they start: that in which they are needed.
        let mut stays = self.stays.0.clone();
        stays.sort_by_key(|stay| (stay.back, stay.made));
        let mut values = Vec::new();
        for stay in stays {
            values.extend(offloading.values(stay)?);
        }
        values.sort_by_key(|(stay, _, uses)| (stay.back, uses.first));
        for (stay, value, uses) in values {
            offloading.offload(stay, value, &uses, &mut patch);
        }
        Ok(patch)
    }
}

fn foreign(stay: Stay) -> Box<Diagnostic> {
    Diagnostic::new(Code::FOREIGN_PLAN, "the plan is for another training step")
        .because(format!("the results of operation {} cannot be on the host until backward", stay.made))
        .hint("plan again: the model, the batch or the version of PyTorch has changed")
}

/// What of backward reads a value of forward, itself or through views that forward makes of it.
struct Uses {
    /// The readers in program order, each with what it reads.
    readers: Vec<(NodeId, ValueId)>,
    /// The position of the first.
    first: usize,
    /// The operation behind which the copy back starts.
    back: NodeId,
}

struct Offloading<'g> {
    graph: &'g Graph,
    /// The program order without what runs again.
    order: Vec<NodeId>,
    facts: Facts,
    users: Users,
    positions: SecondaryMap<NodeId, usize>,
}

impl Offloading<'_> {
    /// The results of an operation that backward reads.
    fn values(&self, stay: Stay) -> Result<Vec<(Stay, ValueId, Uses)>> {
        let at = |position: u32| self.order.get(position as usize).copied();
        let (Some(made), Some(gone), Some(back)) = (at(stay.made), at(stay.gone), at(stay.back)) else {
            return Err(foreign(stay));
        };
        let node = &self.graph.nodes[made];
        let is_made = self.graph.part_kind(made) == PartKind::Forward
            && !self.facts.is_view(node)
            && !self.facts.is_communication(node);
        let mut values = Vec::new();
        for value in node.results().filter(|_| is_made) {
            let uses = self.uses(value, back);
            if uses.readers.is_empty() {
                continue;
            }
            let is_between = stay.made <= stay.gone && stay.gone <= stay.back;
            if !is_between || self.positions[gone] >= uses.first {
                return Err(foreign(stay));
            }
            values.push((stay, value, uses));
        }
        if values.is_empty() { Err(foreign(stay)) } else { Ok(values) }
    }

    fn uses(&self, value: ValueId, back: NodeId) -> Uses {
        let mut readers = Vec::new();
        let mut todo = vec![value];
        while let Some(value) = todo.pop() {
            for user in &self.users[value] {
                match self.graph.part_kind(*user) {
                    PartKind::Backward => readers.push((*user, value)),
                    _ if self.facts.is_view(&self.graph.nodes[*user]) => {
                        todo.extend(self.graph.nodes[*user].results());
                    }
                    _ => {}
                }
            }
        }
        readers.sort_unstable_by_key(|(user, value)| (self.positions[*user], *value));
        readers.dedup();
        let first = readers.first().map_or(usize::MAX, |(user, _)| self.positions[*user]);
        // A gather that reads it may have come early for what runs again.
        let is_late = self.positions[back] >= first;
        let back = if is_late { self.graph.order[first.saturating_sub(1)] } else { back };
        Uses { readers, first, back }
    }

    fn offload(&mut self, stay: Stay, value: ValueId, uses: &Uses, patch: &mut Patch<'_>) {
        let ty = self.graph.ty(value).clone();
        let on_host = ir::TensorType { device: Device::default(), ..ty.clone() };
        let at = |position: u32| self.order[position as usize];
        let out = patch.push_value(at(stay.made), TO_HOST, vec![Arg::Value(value)], on_host.clone());
        let there = patch.push_value(at(stay.gone), WAIT_COPY, vec![Arg::Value(out)], on_host);
        let args = vec![Arg::Value(there), Arg::Device(ty.device)];
        let back = patch.push_value(uses.back, FROM_HOST, args, ty.clone());
        let Some((first, _)) = uses.readers.first() else { return };
        let here = patch.push_value(*first, WAIT_COPY, vec![Arg::Value(back)], ty);
        let mut now = FxHashMap::from_iter([(value, here)]);
        for (reader, read) in &uses.readers {
            let new = self.seen_again(*read, *reader, &mut now, patch);
            patch.replace_in(*reader, *read, new);
        }
    }

    /// What stands for a value, or for a view of it, since it is back: views are made again before their first reader.
    fn seen_again(
        &self,
        value: ValueId,
        reader: NodeId,
        now: &mut FxHashMap<ValueId, ValueId>,
        patch: &mut Patch<'_>,
    ) -> ValueId {
        let mut chain = Vec::new();
        let mut from = value;
        while !now.contains_key(&from) {
            let Some(maker) = self.graph.maker(from) else { return value };
            chain.push(maker);
            let Some(operand) = self.graph.nodes[maker].operands().next() else { return value };
            from = operand;
        }
        for maker in chain.into_iter().rev() {
            let copy = patch.copy(maker, reader, |operand| now.get(&operand).copied().unwrap_or(operand));
            let copies: Vec<ValueId> = patch.node(copy).results().collect();
            now.extend(self.graph.nodes[maker].results().zip(copies));
        }
        now.get(&value).copied().unwrap_or(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_are_written_as_three_positions_and_read_back() {
        let stay = |made, gone, back| Stay { made, gone, back };
        let stays = Stays(vec![stay(3, 5, 9), stay(4, 5, 8)]);
        assert_eq!(stays.to_string(), "3:5-9 4:5-8");
        assert_eq!("4:5-8 3:5-9".parse(), Ok(stays));
        assert_eq!("".parse(), Ok(Stays::default()));
        for wrong in ["3", "3:5", "3:2-9", "3:5-4", "a:1-2", "3:5-9 3:6-9"] {
            assert!(wrong.parse::<Stays>().is_err(), "{wrong}");
        }
    }
}
