//! What the loops over a row have in common: a thread that has few points of a row holds what it has computed of them in registers, from the
//! loop that computes it to those that take it. Memory is read once then, and not once for each loop.

use loops::{
    Op, Store, Value,
    phases::{Phase, lanes},
};

use crate::form::Form;

/// The most pieces of its row that a thread has in registers, and the most numbers that it holds.
const MOST_PIECES: usize = 16;
const MOST_NUMBERS: usize = 128;

/// The loop of a phase.
pub(super) struct Loop {
    /// What it computes, in order.
    pub(super) points: Vec<Value>,
    /// What loops before it have computed, and it takes.
    pub(super) taken: Vec<Value>,
    /// What it computes, and loops behind it take.
    pub(super) held: Vec<Value>,
    pub(super) stores: Vec<Store>,
    pub(super) reductions: Vec<Value>,
}

impl Loop {
    /// A phase's loop, which is the only one.
    pub(super) fn of(phase: &Phase) -> Self {
        let (points, stores) = (phase.points.clone(), phase.stores.clone());
        Self { points, taken: Vec::new(), held: Vec::new(), stores, reductions: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stores.is_empty() && self.reductions.is_empty()
    }
}

/// The loops of a kernel by rows, without sums over rows; and how many pieces a thread has of its row, where loops hold something.
pub(super) fn loops_of(form: &Form<'_>) -> (Vec<Loop>, Option<usize>) {
    let without = |phase: &Phase| -> Loop {
        let stores: Vec<Store> =
            phase.stores.iter().copied().filter(|store| !form.is_sum(store.operand)).collect();
        let points = needed(form, &stores, &phase.reductions, &|_| false).0;
        Loop { points, taken: Vec::new(), held: Vec::new(), stores, reductions: phase.reductions.clone() }
    };
    let plain: Vec<Loop> = form.phases.list.iter().map(without).collect();
    let pieces = form.nest.inner.div_ceil(lanes(form.nest.inner));
    if pieces > MOST_PIECES {
        return (plain, None);
    }
    let held = holding(form, &plain);
    let numbers: usize = held.iter().map(|one| one.held.len()).sum::<usize>() * pieces * form.width;
    if numbers == 0 || numbers > MOST_NUMBERS { (plain, None) } else { (held, Some(pieces)) }
}

/// The same loops, each of which takes what one before it has computed.
fn holding(form: &Form<'_>, plain: &[Loop]) -> Vec<Loop> {
    let mut maker: Vec<Option<usize>> = vec![None; form.kernel.body.len()];
    let mut made: Vec<Loop> = Vec::new();
    for (number, one) in plain.iter().enumerate() {
        let is_there = |value: Value| maker[value.0 as usize].is_some() && is_held(form, value);
        let (points, taken) = needed(form, &one.stores, &one.reductions, &is_there);
        for value in &taken {
            let held = &mut made[maker[value.0 as usize].expect("it has been computed")].held;
            if !held.contains(value) {
                held.push(*value);
            }
        }
        for value in &points {
            maker[value.0 as usize].get_or_insert(number);
        }
        let (stores, reductions) = (one.stores.clone(), one.reductions.clone());
        made.push(Loop { points, taken, held: Vec::new(), stores, reductions });
    }
    made
}

/// Whether a value is worth a register for each point: not one that is there without a load, nor a condition.
fn is_held(form: &Form<'_>, value: Value) -> bool {
    match form.kernel.op(value) {
        Op::Load(operand, _) => form.nest.inner_strides[operand.0 as usize] > 0,
        Op::Column => false,
        op => !op.is_mask(),
    }
}

/// The points that stores and reductions take, in order, and those among what they take that are there already.
fn needed(
    form: &Form<'_>,
    stores: &[Store],
    reductions: &[Value],
    is_there: &dyn Fn(Value) -> bool,
) -> (Vec<Value>, Vec<Value>) {
    let kernel = form.kernel;
    let mut needed = vec![false; kernel.body.len()];
    let reduced = reductions.iter().flat_map(|value| kernel.op(*value).operands());
    reduced.chain(stores.iter().map(|store| store.value)).for_each(|value| needed[value.0 as usize] = true);
    let is_point = |value: Value| {
        !form.phases.is_of_row[value.0 as usize] && !matches!(kernel.op(value), Op::Const(_) | Op::Reduce(..))
    };
    let (mut points, mut taken) = (Vec::new(), Vec::new());
    for index in (0..kernel.body.len()).rev() {
        let value = Value(index as u32);
        if !needed[index] || !is_point(value) {
            continue;
        }
        if is_there(value) {
            taken.push(value);
        } else {
            kernel.op(value).operands().for_each(|operand| needed[operand.0 as usize] = true);
            points.push(value);
        }
    }
    points.reverse();
    taken.reverse();
    (points, taken)
}
