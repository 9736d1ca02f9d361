//! Making kernels.

use base::PrimaryMap;
use rustc_hash::FxHashMap;

use crate::{
    Access, Binary, Element, Kernel, Op, Operand, OperandId, Reduction, Store, Unary, Value,
    math::{Scalar, round_bf16, round_f16},
};

/// Positions in a row below this are numbers of single precision.
const MOST_COLUMNS: i64 = 1 << 24;

/// A point of each row, and what stands there.
struct Point {
    at: Value,
    value: Value,
}

/// Makes a kernel; equal values are made once.
#[derive(Default)]
pub struct Builder {
    operands: PrimaryMap<OperandId, Operand>,
    body: PrimaryMap<Value, Op>,
    known: FxHashMap<Op, Value>,
    stores: Vec<Store>,
}

impl Builder {
    /// A further operand.
    pub fn operand(&mut self, access: Access, element: Element, strides: Vec<i64>) -> OperandId {
        self.operands.push(Operand { access, element, strides })
    }

    /// The element of an operand.
    pub fn load(&mut self, operand: OperandId) -> Value {
        self.load_behind(operand, 0)
    }

    /// The element of an operand so many elements behind that of the point.
    pub fn load_behind(&mut self, operand: OperandId, offset: u32) -> Value {
        self.value(Op::Load(operand, offset))
    }

    /// The position of the point in its row.
    pub fn column(&mut self) -> Value {
        self.value(Op::Column)
    }

    /// A number.
    pub fn constant(&mut self, number: f32) -> Value {
        let number = if number.is_nan() { f32::NAN } else { number };
        self.value(Op::Const(number.to_bits()))
    }

    /// A function of one value.
    pub fn unary(&mut self, unary: Unary, a: Value) -> Value {
        if let (Unary::Neg, Some(number)) = (unary, self.number(a)) {
            return self.constant(-number);
        }
        self.value(Op::Unary(unary, a))
    }

    /// A value as an element of this type has it.
    pub fn rounded(&mut self, element: Element, a: Value) -> Value {
        let (unary, round): (_, fn(&mut Scalar, f32) -> f32) = match element {
            Element::Bf16 => (Unary::RoundBf16, round_bf16),
            Element::F16 => (Unary::RoundF16, round_f16),
            Element::F32 | Element::Bool | Element::I64 => return a,
        };
        if let Some(number) = self.number(a) {
            return self.constant(round(&mut Scalar, number));
        }
        let is_load =
            |op: Op| matches!(op, Op::Load(operand, _) if self.operands[operand].element == element);
        match self.body[a] {
            op if is_load(op) || matches!(op, Op::Unary(done, _) if done == unary) => a,
            _ => self.unary(unary, a),
        }
    }

    /// A function of two values; a product with one is the other.
    pub fn binary(&mut self, binary: Binary, a: Value, b: Value) -> Value {
        if binary == Binary::Mul {
            match (self.number(a), self.number(b)) {
                (_, Some(1.0)) => return a,
                (Some(1.0), _) => return b,
                _ => {}
            }
        }
        let (a, b) = if binary.commutes() { (a.min(b), a.max(b)) } else { (a, b) };
        self.value(Op::Binary(binary, a, b))
    }

    /// `a * b + c`, rounded once. With 1 or -1 as a factor it is a sum or a difference.
    pub fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        match (self.number(a), self.number(b)) {
            (Some(1.0), _) => return self.binary(Binary::Add, b, c),
            (Some(-1.0), _) => return self.binary(Binary::Sub, c, b),
            (_, Some(1.0)) => return self.binary(Binary::Add, a, c),
            (_, Some(-1.0)) => return self.binary(Binary::Sub, c, a),
            _ => {}
        }
        self.value(Op::Fma(a, b, c))
    }

    /// `yes` where the mask holds, else `no`.
    pub fn select(&mut self, mask: Value, yes: Value, no: Value) -> Value {
        self.value(Op::Select(mask, yes, no))
    }

    /// One number for each row.
    pub fn reduce(&mut self, reduction: Reduction, a: Value) -> Value {
        self.value(Op::Reduce(reduction, a))
    }

    /// The sum of a row of so many points. Of what is 0 but at one point, whose place is a number of the row, it is what stands there: the gradient
    /// of a loss that takes one logarithm of each row.
    pub fn sum_of_row(&mut self, a: Value, points: i64) -> Value {
        let Some(Point { at, value }) = self.one_point(a).filter(|_| points < MOST_COLUMNS) else {
            return self.reduce(Reduction::Sum, a);
        };
        let (zero, end) = (self.constant(0.0), self.constant(points as f32));
        let (from, below) = (self.binary(Binary::LessEqual, zero, at), self.binary(Binary::Less, at, end));
        let value = self.select(below, value, zero);
        let value = self.select(from, value, zero);
        // The sum of -0 and zeros is 0.
        self.binary(Binary::Add, value, zero)
    }

    /// The only point of a row at which a value is not 0, if there is such.
    fn one_point(&mut self, a: Value) -> Option<Point> {
        let Op::Select(mask, yes, no) = self.body[a] else { return None };
        let is_zero = |this: &Self, value: Value| this.body[value] == Op::Const(0);
        if self.is_of_row(mask) {
            let (point, yes_is) = if is_zero(self, no) {
                (self.one_point(yes)?, true)
            } else if is_zero(self, yes) {
                (self.one_point(no)?, false)
            } else {
                return None;
            };
            let zero = self.constant(0.0);
            let (yes, no) = if yes_is { (point.value, zero) } else { (zero, point.value) };
            return Some(Point { at: point.at, value: self.select(mask, yes, no) });
        }
        let Op::Binary(Binary::Equal, one, other) = self.body[mask] else { return None };
        let at = match (self.body[one], self.body[other]) {
            (Op::Column, _) => other,
            (_, Op::Column) => one,
            _ => return None,
        };
        let is_whole =
            matches!(self.body[at], Op::Load(operand, _) if self.operands[operand].element == Element::I64);
        let is_one = is_whole && self.is_of_row(at) && is_zero(self, no) && self.is_of_row(yes);
        is_one.then_some(Point { at, value: yes })
    }

    /// Whether a value is the same at all points of a row.
    fn is_of_row(&self, value: Value) -> bool {
        match self.body[value] {
            Op::Const(_) | Op::Reduce(..) => true,
            Op::Column => false,
            Op::Load(operand, _) => self.operands[operand].strides.last() == Some(&0),
            op => op.operands().all(|taken| self.is_of_row(taken)),
        }
    }

    /// Writes a value to an operand.
    pub fn store(&mut self, operand: OperandId, value: Value) {
        self.store_behind(operand, 0, value);
    }

    /// Writes a value so many elements behind that of the point.
    pub fn store_behind(&mut self, operand: OperandId, offset: u32, value: Value) {
        self.stores.push(Store { operand, offset, value });
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// The kernel over `domain`, without values that nothing takes.
    pub fn finish(self, domain: Vec<i64>) -> Kernel {
        let operands = self.operands.values().cloned().collect();
        let body: Vec<Op> = self.body.values().copied().collect();
        Kernel { domain, operands, body, stores: self.stores }.without_dead()
    }

    fn number(&self, value: Value) -> Option<f32> {
        match self.body[value] {
            Op::Const(bits) => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    fn value(&mut self, op: Op) -> Value {
        if let Some(value) = self.known.get(&op) {
            return *value;
        }
        let value = self.body.push(op);
        self.known.insert(op, value);
        value
    }
}
