//! What goes from stage to stage: which values go together, in which order, and when what was sent has been received for sure.

use ir::{NodeId, PartKind, ValueId};
use rustc_hash::FxHashMap;

use super::{
    order::{Flow, Orders},
    transfer::Route,
};

/// Values of more bytes go alone.
const SMALL: u64 = 4096;

/// Values that one stage sends to another at once.
#[derive(Clone, Debug)]
pub struct Message {
    /// From which stage to which.
    pub route: Route,
    /// What it carries, in the order in which it is made.
    pub values: Vec<ValueId>,
    /// Where the last of it is made: a position in the sender's order counted from 1, 0 for inputs.
    made: usize,
    /// Where the first of it is used: a position in the receiver's order counted from 1; none where it is only returned.
    used: Option<usize>,
}

/// All messages.
pub struct Messages {
    /// Each of them; between two stages, in the order in which they are sent.
    pub all: Vec<Message>,
    /// The message that carries a value to a stage.
    of: FxHashMap<(ValueId, u32), usize>,
    /// For a message, the one whose arrival at its sender says that it has been received.
    confirmed_by: FxHashMap<usize, usize>,
}

impl Messages {
    /// What the stages send each other when they run in these orders.
    pub fn of(flow: &Flow<'_>, orders: &Orders) -> Self {
        let positions = Positions::of(flow, orders);
        let mut messages =
            Self { all: Vec::new(), of: FxHashMap::default(), confirmed_by: FxHashMap::default() };
        let mut open: FxHashMap<Route, usize> = FxHashMap::default();
        for stage in 0..flow.stages {
            let inputs = flow.graph.inputs.values().map(|input| (0, None, input.value));
            let order = (1..).zip(&orders.of[stage as usize]);
            let results = order.flat_map(|(at, step)| {
                let made = move |value| (at, Some(step.id), value);
                flow.graph.nodes[step.id].results().map(made).collect::<Vec<_>>()
            });
            for (made, maker, value) in inputs.chain(results) {
                if flow.sender(value) != Some(stage) {
                    continue;
                }
                for to in flow.sent_to(value).stages() {
                    let route = Route { from: stage, to };
                    let used = positions.used.get(&(to, value)).copied();
                    let message = Message { route, values: vec![value], made, used };
                    messages.add(flow, &positions, &mut open, message, maker);
                }
            }
        }
        messages.confirm();
        messages
    }

    /// The message that carries a value to a stage.
    pub fn with(&self, value: ValueId, to: u32) -> Option<usize> {
        self.of.get(&(value, to)).copied()
    }

    /// The message whose arrival says that another has been received.
    pub fn confirmation(&self, message: usize) -> Option<usize> {
        self.confirmed_by.get(&message).copied()
    }

    /// Adds a value to the last message of its route, if it may go with it, or else as a message of its own.
    ///
    /// Small values of updates go together, such as the norms of all gradients, as long as none of them is used before all are made: then they
    /// are still sent before anybody waits for them.
    fn add(
        &mut self,
        flow: &Flow<'_>,
        positions: &Positions,
        open: &mut FxHashMap<Route, usize>,
        message: Message,
        maker: Option<NodeId>,
    ) {
        let (route, value) = (message.route, message.values[0]);
        let ty = flow.graph.ty(value);
        let is_small = ty.bytes().0 <= SMALL && ty.is_contiguous() && !ty.dtype.is_complex();
        let of_update = maker.filter(|maker| flow.graph.part_kind(*maker) == PartKind::Update);
        let known = open.get(&route).copied().filter(|_| is_small && of_update.is_some());
        let number = match known {
            Some(known) if positions.may_join(flow, &self.all[known], value) => {
                let all = &mut self.all[known];
                all.values.push(value);
                all.made = message.made;
                all.used = all.used.into_iter().chain(message.used).min();
                known
            }
            _ => {
                self.all.push(message);
                self.all.len() - 1
            }
        };
        self.of.insert((value, route.to), number);
        if is_small && of_update.is_some() {
            open.insert(route, number);
        } else {
            open.remove(&route);
        }
    }

    /// A message has been received when another has come back that the receiver made after it used the first.
    fn confirm(&mut self) {
        let mut on: FxHashMap<Route, Vec<usize>> = FxHashMap::default();
        for (number, message) in self.all.iter().enumerate() {
            on.entry(message.route).or_default().push(number);
        }
        for (route, numbers) in &on {
            let Some(back) = on.get(&Route { from: route.to, to: route.from }) else { continue };
            let mut back = back.iter().copied().filter(|number| self.all[*number].used.is_some()).peekable();
            for number in numbers {
                let Message { made, used: Some(used), .. } = self.all[*number] else { continue };
                let is_early = |other: &usize| {
                    let Message { made: answered, used: seen, .. } = &self.all[*other];
                    *answered < used || seen.is_none_or(|seen| seen <= made)
                };
                while back.peek().is_some_and(is_early) {
                    back.next();
                }
                if let Some(other) = back.peek() {
                    self.confirmed_by.insert(*number, *other);
                }
            }
        }
    }
}

/// Where values are made and used.
struct Positions {
    /// The first use of a value on a stage: a position in its order counted from 1.
    used: FxHashMap<(u32, ValueId), usize>,
    /// The moments at which it is made, and first used.
    made_at: FxHashMap<(u32, ValueId), usize>,
    used_at: FxHashMap<(u32, ValueId), usize>,
}

impl Positions {
    fn of(flow: &Flow<'_>, orders: &Orders) -> Self {
        let mut found =
            Self { used: FxHashMap::default(), made_at: FxHashMap::default(), used_at: FxHashMap::default() };
        for (stage, (order, times)) in (0..).zip(orders.of.iter().zip(&orders.at)) {
            for ((position, step), time) in (1..).zip(order).zip(times) {
                for value in flow.graph.nodes[step.id].operands() {
                    found.used.entry((stage, value)).or_insert(position);
                    found.used_at.entry((stage, value)).or_insert(*time);
                }
                for value in flow.graph.nodes[step.id].results() {
                    found.made_at.insert((stage, value), *time);
                }
            }
        }
        found
    }

    /// Whether nothing of a message is used before another value is made that is to go with it.
    fn may_join(&self, flow: &Flow<'_>, message: &Message, value: ValueId) -> bool {
        let Route { from, to } = message.route;
        let first = message.values.iter().filter_map(|one| self.used_at.get(&(to, *one))).min();
        let made = self.made_at.get(&(from, value)).copied().unwrap_or(0);
        let is_alike = flow.graph.ty(message.values[0]).dtype == flow.graph.ty(value).dtype;
        is_alike && first.is_none_or(|first| made < *first)
    }
}
