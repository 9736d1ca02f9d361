//! What the loops over a row have in common: a thread that has few points of a row holds what it has computed of them in registers, from the
//! loop that computes it to those that take it. Memory is read once then, and not once for each loop.

use loops::{Op, Store, Value, phases::Phase};

use crate::form::Form;

/// The most pieces of its row that a thread has in registers, and the most numbers that it holds.
const MOST_PIECES: usize = 16;
const MOST_NUMBERS: usize = 128;
/// The most numbers that all threads of a row hold: with more, a device has few rows at once. What is reduced twice waits for threads twice, in
/// which other rows have to be under way.
const MOST_OF_A_ROW: usize = 40 << 10;
const MOST_OF_A_ROW_REDUCED_AGAIN: usize = 20 << 10;

/// The loop of a phase.
#[derive(Clone)]
pub(super) struct Loop {
    /// What it computes, in order.
    pub(super) points: Vec<Value>,
    /// What loops before it have computed, and it takes.
    pub(super) taken: Vec<Value>,
    /// What it computes, and loops behind it take.
    pub(super) held: Vec<Value>,
    pub(super) stores: Vec<Store>,
    /// What threads add to the sums of rows that they hold.
    pub(super) sums: Vec<Store>,
    pub(super) reductions: Vec<Value>,
}

impl Loop {
    /// A phase's loop, which is the only one.
    pub(super) fn of(phase: &Phase) -> Self {
        let (points, stores) = (phase.points.clone(), phase.stores.clone());
        let none = Vec::new();
        Self { points, taken: Vec::new(), held: Vec::new(), stores, sums: none, reductions: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stores.is_empty() && self.sums.is_empty() && self.reductions.is_empty()
    }
}

/// The loops of a kernel by rows; and how many pieces a thread has of its row, where loops hold something or threads hold sums of rows. Where
/// they do not, these are left out.
pub(super) fn loops_of(form: &Form<'_>) -> (Vec<Loop>, Option<usize>) {
    let plain: Vec<Loop> = form.phases.list.iter().map(|phase| plain(form, phase)).collect();
    let pieces = form.pieces();
    if form.rows_each.is_some() {
        return (holding(form, &plain), Some(pieces));
    }
    if pieces > MOST_PIECES {
        return (plain, None);
    }
    let held = holding(form, &plain);
    let numbers = held_by(&held) * pieces * form.width;
    let reducing = form.phases.list.iter().filter(|phase| !phase.reductions.is_empty()).count();
    let most = if reducing > 1 { MOST_OF_A_ROW_REDUCED_AGAIN } else { MOST_OF_A_ROW };
    if numbers == 0 || numbers > MOST_NUMBERS || numbers * form.team * form.spans > most {
        (plain, None)
    } else {
        (held, Some(pieces))
    }
}

/// How many numbers loops hold for each point.
pub(super) fn held_by(loops: &[Loop]) -> usize {
    loops.iter().map(|one| one.held.len()).sum()
}

fn plain(form: &Form<'_>, phase: &Phase) -> Loop {
    let (sums, stores): (Vec<Store>, Vec<Store>) =
        phase.stores.iter().partition(|store| form.is_sum(store.operand));
    let sums = if form.rows_each.is_some() { sums } else { Vec::new() };
    let one = Loop { stores, sums, reductions: phase.reductions.clone(), ..Loop::of(&Phase::default()) };
    let points = needed(form, &one, &|_| false).0;
    Loop { points, ..one }
}

/// The same loops, each of which takes what one before it has computed.
fn holding(form: &Form<'_>, plain: &[Loop]) -> Vec<Loop> {
    let mut maker: Vec<Option<usize>> = vec![None; form.kernel.body.len()];
    let mut made: Vec<Loop> = Vec::new();
    for (number, one) in plain.iter().enumerate() {
        let is_there = |value: Value| maker[value.0 as usize].is_some() && is_held(form, value);
        let (points, taken) = needed(form, one, &is_there);
        for value in &taken {
            let held = &mut made[maker[value.0 as usize].expect("it has been computed")].held;
            if !held.contains(value) {
                held.push(*value);
            }
        }
        for value in &points {
            maker[value.0 as usize].get_or_insert(number);
        }
        made.push(Loop { points, taken, ..one.clone() });
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
fn needed(form: &Form<'_>, one: &Loop, is_there: &dyn Fn(Value) -> bool) -> (Vec<Value>, Vec<Value>) {
    let kernel = form.kernel;
    let mut needed = vec![false; kernel.body.len()];
    let reduced = one.reductions.iter().flat_map(|value| kernel.op(*value).operands());
    let stored = one.stores.iter().chain(&one.sums).map(|store| store.value);
    reduced.chain(stored).for_each(|value| needed[value.0 as usize] = true);
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
