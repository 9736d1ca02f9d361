//! Steps with registers: a value has a register from its step to its last use, or lies in memory where there are too many at once.

use std::ops::Range;

use smallvec::SmallVec;

use crate::steps::{Code, Output, Step, Steps, V};

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A vector register.
    Register(u8),
    /// The constants of the kernel, by position.
    Constant(u32),
    /// The stack, by position.
    Stack(u32),
    /// The numbers of the row, by position.
    Row(u32),
    /// What reductions have so far, by position.
    Lanes(u32),
    /// What earlier loops have kept, by position.
    Kept(u32),
}

impl Place {
    /// Whether it is no register.
    pub(crate) const fn is_memory(self) -> bool {
        !matches!(self, Self::Register(_))
    }
}

/// What the machine does.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// A step into a register.
    Step { code: Code, to: u8, from: SmallVec<[Place; 4]> },
    /// A register's vector goes to the stack.
    Spill { register: u8, slot: u32 },
    /// A value goes where it is to go.
    Output { to: Output, from: Place },
}

/// The actions of a block.
pub(crate) struct Actions {
    pub(crate) list: Vec<Action>,
    /// Vectors on the stack.
    pub(crate) slots: u32,
}

impl Actions {
    /// The actions for `steps` on a processor with `count` registers to use. What they need of constants is added to those of the kernel.
    pub(crate) fn of(steps: &Steps, count: u8, constants: &mut Constants) -> Self {
        let mut allocation = Allocation::new(steps, count, constants);
        for (index, step) in steps.steps.iter().enumerate() {
            allocation.step(index, step);
        }
        for (to, value) in &steps.outputs {
            let from = allocation.place(*value);
            allocation.made.list.push(Action::Output { to: *to, from });
        }
        allocation.made
    }

    /// How many registers they write: the first ones.
    pub(crate) fn written(&self) -> u8 {
        let written = self.list.iter().map(|action| match action {
            Action::Step { to, .. } => to + 1,
            Action::Spill { .. } | Action::Output { .. } => 0,
        });
        written.max().unwrap_or(0)
    }

    /// Takes the constants that are needed most often from these registers: the register and the constant of each. They are to be loaded before.
    /// Otherwise each use of one reads a vector of memory, of which processors read no more at once than they multiply.
    pub(crate) fn hold_constants(&mut self, registers: Range<u8>) -> Vec<(u8, u32)> {
        let mut uses: Vec<(u32, usize)> = Vec::new();
        for place in self.list.iter_mut().flat_map(Action::places) {
            let Place::Constant(constant) = *place else { continue };
            match uses.iter_mut().find(|(known, _)| *known == constant) {
                Some((_, times)) => *times += 1,
                None => uses.push((constant, 1)),
            }
        }
        uses.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        let held: Vec<(u8, u32)> = registers.zip(uses.into_iter().map(|(constant, _)| constant)).collect();
        for place in self.list.iter_mut().flat_map(Action::places) {
            let register = held.iter().find(|(_, constant)| *place == Place::Constant(*constant));
            if let Some((register, _)) = register {
                *place = Place::Register(*register);
            }
        }
        held
    }
}

impl Action {
    /// What it takes.
    fn places(&mut self) -> impl Iterator<Item = &mut Place> {
        match self {
            Self::Step { from, .. } => from.iter_mut(),
            Self::Output { from, .. } => std::slice::from_mut(from).iter_mut(),
            Self::Spill { .. } => [].iter_mut(),
        }
    }
}

/// The constants of a kernel, each once.
#[derive(Default)]
pub(crate) struct Constants(pub(crate) Vec<u32>);

impl Constants {
    /// The place of a constant.
    pub(crate) fn place(&mut self, bits: u32) -> Place {
        let known = self.0.iter().position(|known| *known == bits);
        Place::Constant(known.unwrap_or_else(|| {
            self.0.push(bits);
            self.0.len() - 1
        }) as u32)
    }
}

/// For each value the steps that take it; an output counts as a step behind all.
struct Uses {
    /// Those of all values, the last step of each first.
    steps: Vec<u32>,
    /// Where those of each value are that are still to come.
    of: Vec<Range<u32>>,
}

impl Uses {
    fn of(steps: &Steps) -> Self {
        let taken = || {
            let outputs = steps.outputs.iter().map(|(_, value)| (*value, u32::MAX));
            let steps = steps.steps.iter().enumerate().rev();
            outputs.chain(
                steps.flat_map(|(index, step)| step.args().iter().map(move |arg| (*arg, index as u32))),
            )
        };
        let mut of = vec![0..0_u32; steps.steps.len()];
        taken().for_each(|(value, _)| of[value as usize].end += 1);
        let mut start = 0;
        for range in &mut of {
            let count = range.end;
            *range = start..start;
            start += count;
        }
        let mut all = vec![0; start as usize];
        for (value, step) in taken() {
            let range = &mut of[value as usize];
            all[range.end as usize] = step;
            range.end += 1;
        }
        Self { steps: all, of }
    }

    /// The next step that takes a value, if there is one.
    fn next(&self, value: V) -> Option<u32> {
        let range = &self.of[value as usize];
        (range.start < range.end).then(|| self.steps[range.end as usize - 1])
    }

    /// Is done with that step.
    fn pop(&mut self, value: V) {
        self.of[value as usize].end -= 1;
    }
}

struct Allocation<'a> {
    made: Actions,
    constants: &'a mut Constants,
    uses: Uses,
    places: Vec<Option<Place>>,
    /// The value in each register.
    holds: Vec<Option<V>>,
    free_slots: Vec<u32>,
}

impl<'a> Allocation<'a> {
    fn new(steps: &Steps, count: u8, constants: &'a mut Constants) -> Self {
        Self {
            made: Actions { list: Vec::with_capacity(steps.steps.len() + steps.outputs.len()), slots: 0 },
            constants,
            uses: Uses::of(steps),
            places: vec![None; steps.steps.len()],
            holds: vec![None; usize::from(count)],
            free_slots: Vec::new(),
        }
    }

    fn place(&self, value: V) -> Place {
        self.places[value as usize].expect("a value has a place from its step on")
    }

    fn step(&mut self, index: usize, step: &Step) {
        let in_memory = match step.code {
            Code::Bits(bits) => Some(self.constants.place(bits)),
            Code::Row(number) => Some(Place::Row(number)),
            Code::Lanes(position) => Some(Place::Lanes(position)),
            Code::Kept(position) => Some(Place::Kept(position)),
            _ => None,
        };
        if in_memory.is_some() {
            self.places[index] = in_memory;
            return;
        }
        let from: SmallVec<[Place; 4]> = step.args().iter().map(|arg| self.place(*arg)).collect();
        let mut ended: SmallVec<[u32; 4]> = SmallVec::new();
        for arg in step.args() {
            ended.extend(self.used(*arg, index as u32));
        }
        let to = self.register(step.args());
        ended.sort_unstable();
        ended.dedup();
        self.free_slots.extend(ended);
        self.holds[usize::from(to)] = Some(index as V);
        self.places[index] = Some(Place::Register(to));
        self.made.list.push(Action::Step { code: step.code, to, from });
    }

    /// Notes a use, and frees the register of a value without further ones; gives its place on the stack, if that is where it is.
    fn used(&mut self, value: V, index: u32) -> Option<u32> {
        while self.uses.next(value) == Some(index) {
            self.uses.pop(value);
        }
        let is_over = self.uses.next(value).is_none();
        match self.places[value as usize] {
            Some(Place::Register(register)) if is_over => self.holds[usize::from(register)] = None,
            Some(Place::Stack(slot)) if is_over => return Some(slot),
            _ => {}
        }
        None
    }

    /// A register for a step's result: one that is free, or that of the value whose next use is furthest away. What the step takes stays.
    fn register(&mut self, taken: &[V]) -> u8 {
        if let Some(free) = self.holds.iter().position(Option::is_none) {
            return free as u8;
        }
        let held = self.holds.iter().enumerate().filter_map(|(register, value)| Some((register, (*value)?)));
        let others = held.filter(|(_, value)| !taken.contains(value));
        let (register, value) = others
            .max_by_key(|(_, value)| self.uses.next(*value))
            .expect("there are more registers than a step takes");
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.made.slots += 1;
            self.made.slots - 1
        });
        self.places[value as usize] = Some(Place::Stack(slot));
        self.made.list.push(Action::Spill { register: register as u8, slot });
        register as u8
    }
}
