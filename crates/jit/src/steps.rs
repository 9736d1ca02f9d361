//! A kernel as simple operations over vectors: each is one instruction, or a few, of the processor.

use loops::{
    Binary, Op, OperandId, Unary,
    math::{self, Math, ROUNDER},
};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// The result of a step.
pub(crate) type V = u32;

/// A comparison.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Compare {
    Less,
    LessEqual,
    Equal,
    Unordered,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Code {
    /// The element so many behind that of the point.
    Load(OperandId, u32),
    /// The position in the row.
    Column,
    Bits(u32),
    /// A number of the row, by position.
    Row(u32),
    /// What a reduction has so far at these points, by its position in the loop.
    Lanes(u32),
    /// What an earlier loop has kept for these points, by position.
    Kept(u32),
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    And,
    Or,
    Xor,
    AddWords,
    SubWords,
    Scale,
    Sqrt,
    NumberOfWord,
    ShiftRight(u8),
    /// Copies of the sign move in.
    ShiftRightSigned(u8),
    ShiftLeft(u8),
    Fma,
    /// Of three: the third less the product of the first two, rounded once.
    NegatedFma,
    /// Of four: the first, if no word of the last has its highest bit; else the quotients of the others.
    Quotient,
    /// A comparison; only [`Select`](Self::Select) takes it, and so no step is made for it.
    Compare(Compare),
    /// Of four: where the first two compare so the third, else the fourth.
    Select(Compare),
}

/// The least exponent of what is divided by products, and there are 128 of them: none of the products is too small or too large.
const LEAST_EXPONENT: i32 = -75;
/// The greatest exponent of what divides, and of its inverse.
const MOST_EXPONENT: i32 = 20;

/// A step with what it takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Step {
    pub(crate) code: Code,
    args: [V; 4],
    count: u8,
}

impl Step {
    fn new(code: Code, given: &[V]) -> Self {
        let mut args = [0; 4];
        args[..given.len()].copy_from_slice(given);
        Self { code, args, count: given.len() as u8 }
    }

    /// What it takes.
    pub(crate) fn args(&self) -> &[V] {
        &self.args[..usize::from(self.count)]
    }
}

/// Where a result goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Output {
    /// To the element of an operand that lies so many behind that of the point.
    Store(OperandId, u32),
    /// Added to that element.
    Add(OperandId, u32),
    /// To a number of the row, by position.
    Row(u32),
    /// To the results of a reduction, by its position in the loop.
    Lanes(u32),
    /// To memory for later loops, by position.
    Kept(u32),
}

/// Steps without branches.
#[derive(Default)]
pub(crate) struct Steps {
    pub(crate) steps: Vec<Step>,
    pub(crate) outputs: Vec<(Output, V)>,
}

impl Steps {
    /// The steps that an output needs.
    pub(crate) fn without_dead(self) -> Self {
        let mut needed = vec![false; self.steps.len()];
        self.outputs.iter().for_each(|(_, value)| needed[*value as usize] = true);
        for (index, step) in self.steps.iter().enumerate().rev() {
            if needed[index] {
                step.args().iter().for_each(|arg| needed[*arg as usize] = true);
            }
        }
        let mut now = vec![0; self.steps.len()];
        let mut steps: Vec<Step> = Vec::new();
        for (index, mut step) in self.steps.into_iter().enumerate().filter(|(index, _)| needed[*index]) {
            now[index] = steps.len() as V;
            step.args.iter_mut().take(usize::from(step.count)).for_each(|arg| *arg = now[*arg as usize]);
            steps.push(step);
        }
        let outputs = self.outputs.into_iter().map(|(output, value)| (output, now[value as usize]));
        Self { steps, outputs: outputs.collect() }
    }
}

/// Steps that there is room for from the beginning.
const STEPS: usize = 56;

/// Makes steps, equal ones once.
pub(crate) struct Maker {
    pub(crate) steps: Vec<Step>,
    known: FxHashMap<Step, V>,
    /// Whether the processor multiplies by powers of two in one instruction.
    scales: bool,
    /// Whether constants divide by products: several steps that run side by side, where a division keeps others waiting.
    multiplies: bool,
}

impl Maker {
    pub(crate) fn new(scales: bool, multiplies: bool) -> Self {
        // Most blocks have no more, so that nothing is moved while they grow.
        let known = FxHashMap::with_capacity_and_hasher(STEPS, FxBuildHasher);
        Self { steps: Vec::with_capacity(STEPS), known, scales, multiplies }
    }

    pub(crate) fn step(&mut self, code: Code, args: &[V]) -> V {
        let step = Step::new(code, args);
        if let Some(value) = self.known.get(&step) {
            return *value;
        }
        let value = self.steps.len() as V;
        self.steps.push(step);
        self.known.insert(step, value);
        value
    }

    /// The steps of an operation of these values.
    pub(crate) fn op(&mut self, op: Op, taken: &[V]) -> V {
        match (op, taken) {
            (Op::Load(operand, offset), _) => self.step(Code::Load(operand, offset), &[]),
            (Op::Column, _) => self.step(Code::Column, &[]),
            (Op::Const(bits), _) => self.bits(bits),
            (Op::Unary(unary, _), [a]) => self.unary(unary, *a),
            (Op::Binary(binary, ..), [a, b]) => self.binary(binary, *a, *b),
            (Op::Fma(..), [a, b, c]) => self.fma(*a, *b, *c),
            (Op::Select(..), [mask, yes, no]) => self.select(*mask, *yes, *no),
            _ => unreachable!("reductions are no steps, and all else takes as many values as it has"),
        }
    }

    fn unary(&mut self, unary: Unary, a: V) -> V {
        match unary {
            Unary::Neg => math::neg(self, a),
            Unary::Abs => math::abs(self, a),
            Unary::Sqrt => self.sqrt(a),
            Unary::Exp => math::exp(self, a),
            Unary::Log => math::log(self, a),
            Unary::Tanh => math::tanh(self, a),
            Unary::Sigmoid => math::sigmoid(self, a),
            Unary::Erf => math::erf(self, a),
            Unary::RoundBf16 => math::round_bf16(self, a),
            Unary::RoundF16 => math::round_f16(self, a),
        }
    }

    pub(crate) fn binary(&mut self, binary: Binary, a: V, b: V) -> V {
        match binary {
            Binary::Add => self.add(a, b),
            Binary::Sub => self.sub(a, b),
            Binary::Mul => self.mul(a, b),
            Binary::Div => self.div(a, b),
            Binary::Max => math::maximum(self, a, b),
            Binary::Min => math::minimum(self, a, b),
            Binary::Less => self.less(a, b),
            Binary::LessEqual => self.less_equal(a, b),
            Binary::Equal => self.equal(a, b),
        }
    }

    /// `a / b`, to the bit, for a constant with this inverse: a number next to it, by the inverse in two parts, and once more what is left
    /// over times the inverse, which gives the nearest one (P. Markstein, IBM J. Res. Dev. 34(1), 1990).
    fn quotient(&mut self, a: V, b: V, [near, rest]: [f32; 2]) -> V {
        let (near, rest) = (self.number(near), self.number(rest));
        let small = self.mul(a, rest);
        let first = self.fma(a, near, small);
        let left = self.step(Code::NegatedFma, &[first, b, a]);
        let made = self.fma(left, near, first);
        // The sign goes; what has none of the exponents, such as 0 and what is infinite, comes to lie above all that do.
        let (magnitude, least) = (self.add_words(a, a), self.bits(((LEAST_EXPONENT + 127) as u32) << 24));
        let is_apart = self.sub_words(magnitude, least);
        self.step(Code::Quotient, &[made, a, b, is_apart])
    }

    /// Two to the power of each word.
    fn power(&mut self, word: V) -> V {
        let bias = self.bits(127);
        let biased = self.add_words(word, bias);
        self.step(Code::ShiftLeft(23), &[biased])
    }
}

/// The inverse of a constant as the nearest number and the rest, where quotients by it can be had from products: not where it has all bits,
/// for then the nearest inverse does not always lead to the nearest quotient.
fn inverse_in_two(bits: u32) -> Option<[f32; 2]> {
    let (exponent, rest) = ((bits >> 23 & 0xff) as i32 - 127, bits & ((1 << 23) - 1));
    if !(-MOST_EXPONENT..=MOST_EXPONENT).contains(&exponent) || rest == (1 << 23) - 1 {
        return None;
    }
    let by = f32::from_bits(bits);
    let near = 1.0 / by;
    Some([near, (1.0 / f64::from(by) - f64::from(near)) as f32])
}

/// The bits of what a power of two gives 1 with, where both are normal numbers.
const fn inverse_of_power(bits: u32) -> Option<u32> {
    let (sign, exponent, rest) = (bits & 1 << 31, bits >> 23 & 0xff, bits & ((1 << 23) - 1));
    match (exponent, rest) {
        (1..=253, 0) => Some(sign | (254 - exponent) << 23),
        _ => None,
    }
}

impl Math for Maker {
    type V = V;

    fn bits(&mut self, bits: u32) -> V {
        self.step(Code::Bits(bits), &[])
    }
    fn add(&mut self, a: V, b: V) -> V {
        self.step(Code::Add, &[a, b])
    }
    fn sub(&mut self, a: V, b: V) -> V {
        self.step(Code::Sub, &[a, b])
    }
    fn mul(&mut self, a: V, b: V) -> V {
        self.step(Code::Mul, &[a, b])
    }
    /// A quotient by a power of two is the product with its inverse, to the bit, and sooner there.
    fn div(&mut self, a: V, b: V) -> V {
        if let Code::Bits(bits) = self.steps[b as usize].code {
            if let Some(inverse) = inverse_of_power(bits) {
                let inverse = self.bits(inverse);
                return self.mul(a, inverse);
            }
            if let Some(inverse) = inverse_in_two(bits).filter(|_| self.multiplies) {
                return self.quotient(a, b, inverse);
            }
        }
        self.step(Code::Div, &[a, b])
    }
    fn fma(&mut self, a: V, b: V, c: V) -> V {
        self.step(Code::Fma, &[a, b, c])
    }
    fn sqrt(&mut self, a: V) -> V {
        self.step(Code::Sqrt, &[a])
    }
    fn max(&mut self, a: V, b: V) -> V {
        self.step(Code::Max, &[a, b])
    }
    fn min(&mut self, a: V, b: V) -> V {
        self.step(Code::Min, &[a, b])
    }
    fn and(&mut self, a: V, b: V) -> V {
        self.step(Code::And, &[a, b])
    }
    fn or(&mut self, a: V, b: V) -> V {
        self.step(Code::Or, &[a, b])
    }
    fn xor(&mut self, a: V, b: V) -> V {
        self.step(Code::Xor, &[a, b])
    }
    fn add_words(&mut self, a: V, b: V) -> V {
        self.step(Code::AddWords, &[a, b])
    }
    fn sub_words(&mut self, a: V, b: V) -> V {
        self.step(Code::SubWords, &[a, b])
    }
    fn shift_right(&mut self, a: V, bits: u8) -> V {
        self.step(Code::ShiftRight(bits), &[a])
    }
    fn number_of_word(&mut self, a: V) -> V {
        self.step(Code::NumberOfWord, &[a])
    }

    /// Without an instruction for it: two products, of which the first one is exact.
    fn scale(&mut self, a: V, n: V, shifted: V) -> V {
        if self.scales {
            return self.step(Code::Scale, &[a, n]);
        }
        let rounder = self.bits(ROUNDER.to_bits());
        let word = self.sub_words(shifted, rounder);
        let half = self.step(Code::ShiftRightSigned(1), &[word]);
        let rest = self.sub_words(word, half);
        let (first, second) = (self.power(half), self.power(rest));
        let product = self.mul(a, first);
        self.mul(product, second)
    }

    fn less(&mut self, a: V, b: V) -> V {
        self.step(Code::Compare(Compare::Less), &[a, b])
    }
    fn less_equal(&mut self, a: V, b: V) -> V {
        self.step(Code::Compare(Compare::LessEqual), &[a, b])
    }
    fn equal(&mut self, a: V, b: V) -> V {
        self.step(Code::Compare(Compare::Equal), &[a, b])
    }
    fn unordered(&mut self, a: V, b: V) -> V {
        self.step(Code::Compare(Compare::Unordered), &[a, b])
    }

    fn select(&mut self, mask: V, yes: V, no: V) -> V {
        let compare = self.steps[mask as usize];
        let Code::Compare(how) = compare.code else {
            unreachable!("masks are comparisons, as the verifier checks");
        };
        self.step(Code::Select(how), &[compare.args[0], compare.args[1], yes, no])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_have_inverses_that_are_exact() {
        let inverse = |number: f32| inverse_of_power(number.to_bits()).map(f32::from_bits);
        for exponent in -126..=126 {
            let power = 2.0_f32.powi(exponent);
            assert_eq!(inverse(power), Some(1.0 / power));
            assert_eq!(inverse(-power), Some(-1.0 / power));
        }
        for other in [0.0, 3.0, 2.0_f32.powi(127), f32::MIN_POSITIVE / 2.0, f32::INFINITY, f32::NAN] {
            assert_eq!(inverse(other), None);
        }
    }
}
