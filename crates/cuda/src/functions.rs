//! The functions of kernels as text, from their one definition in [`loops::math`].

use loops::{
    Unary,
    math::{self, Math, Power},
};

use crate::lines::Lines;

/// Exponentials from that of its negative to its own are normal numbers, and so are their reciprocals.
const NORMAL: f32 = 87.0;
const RECIPROCAL: &str = include_str!("reciprocal.h");

/// A number of a kernel as CUDA C has it: in digits where these say all of it.
pub(crate) fn literal(bits: u32) -> String {
    let number = f32::from_bits(bits);
    if number.is_normal() || number == 0.0 {
        format!("{number:?}f")
    } else {
        format!("__uint_as_float(0x{bits:08x}u)")
    }
}

/// The name of a function that is more than an operator.
pub(crate) fn name_of(unary: Unary) -> &'static str {
    match unary {
        Unary::Neg => "f_neg",
        Unary::Abs => "f_abs",
        Unary::Sqrt => "__fsqrt_rn",
        Unary::Exp => "f_exp",
        Unary::Log => "f_log",
        Unary::Tanh => "f_tanh",
        Unary::Sigmoid => "f_sigmoid",
        Unary::Erf => "f_erf",
        Unary::RoundBf16 => "f_round_bf16",
        Unary::RoundF16 => "f_round_f16",
    }
}

/// The definitions of those functions that `text` names.
pub(crate) fn definitions(text: &str) -> String {
    let mut lines = Lines::default();
    let names = |name: &str| text.contains(&format!("{name}("));
    for (unary, _) in Unary::NAMES {
        let name = name_of(unary);
        match unary {
            Unary::Sqrt => {}
            Unary::Sigmoid if names(name) => sigmoid(&mut lines, name),
            _ if names(name) => define(&mut lines, name, &["a"], |maker, [a, _]| function(maker, unary, a)),
            _ => {}
        }
    }
    if names("f_max") {
        define(&mut lines, "f_max", &["a", "b"], |maker, [a, b]| math::maximum(maker, a, b));
    }
    if names("f_min") {
        define(&mut lines, "f_min", &["a", "b"], |maker, [a, b]| math::minimum(maker, a, b));
    }
    lines.finish()
}

/// The same bits with half of the instructions, but where a result is no normal number: what multiplies by a power of two need not mind the
/// limits of exponents then, and the reciprocal of a number from 1 to 2^126 is right after one step from the device's estimate.
fn sigmoid(lines: &mut Lines, name: &str) {
    lines.line(RECIPROCAL.trim_end());
    let far = format!("{name}_far");
    function_of(lines, "__noinline__", &far, &["a"], |maker, [a, _]| math::sigmoid(maker, a));
    define(lines, name, &["a"], |maker, [a, _]| {
        let negative = maker.step("float", &format!("-{}", maker.text(a)));
        let (low, high) = (maker.number(-NORMAL), maker.number(NORMAL));
        let x = maker.max(low, negative);
        let x = maker.min(high, x);
        let Power { of_rest, shifted, .. } = math::power(maker, x);
        let (of_rest, shifted) = (maker.word(of_rest), maker.word(shifted));
        let power = maker.step("float", &format!("__uint_as_float({of_rest} + ({shifted} << 23))"));
        let one = maker.number(1.0);
        let sum = maker.add(one, power);
        let near = format!("reciprocal({})", maker.text(sum));
        let (a, limit) = (maker.text(a), literal((-NORMAL).to_bits()));
        maker.step("float", &format!("{a} >= {limit} ? {near} : {far}({a})"))
    });
}

fn function(maker: &mut Maker, unary: Unary, a: usize) -> usize {
    match unary {
        Unary::Neg => math::neg(maker, a),
        Unary::Abs => math::abs(maker, a),
        Unary::Sqrt => maker.sqrt(a),
        Unary::Exp => math::exp(maker, a),
        Unary::Log => math::log(maker, a),
        Unary::Tanh => math::tanh(maker, a),
        Unary::Sigmoid => math::sigmoid(maker, a),
        Unary::Erf => math::erf(maker, a),
        Unary::RoundBf16 => math::round_bf16(maker, a),
        Unary::RoundF16 => math::round_f16(maker, a),
    }
}

fn define(
    lines: &mut Lines,
    name: &str,
    parameters: &[&str],
    body: impl FnOnce(&mut Maker, [usize; 2]) -> usize,
) {
    function_of(lines, "__forceinline__", name, parameters, body);
}

fn function_of(
    lines: &mut Lines,
    inlined: &str,
    name: &str,
    parameters: &[&str],
    body: impl FnOnce(&mut Maker, [usize; 2]) -> usize,
) {
    let list: Vec<String> = parameters.iter().map(|name| format!("float {name}")).collect();
    lines.open(format!("__device__ {inlined} float {name}({})", list.join(", ")));
    let mut maker = Maker { lines, values: Vec::new(), count: 0 };
    let taken: Vec<usize> = parameters.iter().map(|name| maker.named((*name).to_owned())).collect();
    let result = body(&mut maker, [taken[0], *taken.last().unwrap_or(&0)]);
    let result = maker.text(result);
    lines.line(format!("return {result};"));
    lines.close();
}

enum Made {
    Bits(u32),
    Named(String),
}

/// Writes each step as a line.
struct Maker<'a> {
    lines: &'a mut Lines,
    values: Vec<Made>,
    count: usize,
}

impl Maker<'_> {
    fn value(&mut self, made: Made) -> usize {
        self.values.push(made);
        self.values.len() - 1
    }

    fn named(&mut self, name: String) -> usize {
        self.value(Made::Named(name))
    }

    fn text(&self, value: usize) -> String {
        match &self.values[value] {
            Made::Bits(bits) => literal(*bits),
            Made::Named(name) => name.clone(),
        }
    }

    fn word(&self, value: usize) -> String {
        match &self.values[value] {
            Made::Bits(bits) => format!("0x{bits:08x}u"),
            Made::Named(name) => format!("__float_as_uint({name})"),
        }
    }

    fn step(&mut self, ty: &str, expression: &str) -> usize {
        let name = format!("t{}", self.count);
        self.count += 1;
        self.lines.line(format!("const {ty} {name} = {expression};"));
        self.named(name)
    }

    fn infix(&mut self, operator: &str, a: usize, b: usize) -> usize {
        let expression = format!("{} {operator} {}", self.text(a), self.text(b));
        self.step("float", &expression)
    }

    fn words(&mut self, operator: &str, a: usize, b: usize) -> usize {
        let expression = format!("__uint_as_float({} {operator} {})", self.word(a), self.word(b));
        self.step("float", &expression)
    }

    fn mask(&mut self, operator: &str, a: usize, b: usize) -> usize {
        let expression = format!("{} {operator} {}", self.text(a), self.text(b));
        self.step("bool", &expression)
    }

    fn call(&mut self, name: &str, taken: &[usize]) -> usize {
        let list: Vec<String> = taken.iter().map(|value| self.text(*value)).collect();
        self.step("float", &format!("{name}({})", list.join(", ")))
    }
}

impl Math for Maker<'_> {
    type V = usize;

    fn bits(&mut self, bits: u32) -> usize {
        self.value(Made::Bits(bits))
    }
    fn add(&mut self, a: usize, b: usize) -> usize {
        self.infix("+", a, b)
    }
    fn sub(&mut self, a: usize, b: usize) -> usize {
        self.infix("-", a, b)
    }
    fn mul(&mut self, a: usize, b: usize) -> usize {
        self.infix("*", a, b)
    }
    fn div(&mut self, a: usize, b: usize) -> usize {
        self.call("__fdiv_rn", &[a, b])
    }
    fn fma(&mut self, a: usize, b: usize, c: usize) -> usize {
        self.call("__fmaf_rn", &[a, b, c])
    }
    fn sqrt(&mut self, a: usize) -> usize {
        self.call("__fsqrt_rn", &[a])
    }
    fn max(&mut self, a: usize, b: usize) -> usize {
        let (a, b) = (self.text(a), self.text(b));
        self.step("float", &format!("{a} > {b} ? {a} : {b}"))
    }
    fn min(&mut self, a: usize, b: usize) -> usize {
        let (a, b) = (self.text(a), self.text(b));
        self.step("float", &format!("{a} < {b} ? {a} : {b}"))
    }
    fn and(&mut self, a: usize, b: usize) -> usize {
        self.words("&", a, b)
    }
    fn or(&mut self, a: usize, b: usize) -> usize {
        self.words("|", a, b)
    }
    fn xor(&mut self, a: usize, b: usize) -> usize {
        self.words("^", a, b)
    }
    fn add_words(&mut self, a: usize, b: usize) -> usize {
        self.words("+", a, b)
    }
    fn sub_words(&mut self, a: usize, b: usize) -> usize {
        self.words("-", a, b)
    }
    fn shift_right(&mut self, a: usize, bits: u8) -> usize {
        let word = self.word(a);
        self.step("float", &format!("__uint_as_float({word} >> {bits})"))
    }
    fn number_of_word(&mut self, a: usize) -> usize {
        let word = self.word(a);
        self.step("float", &format!("(float)(int){word}"))
    }
    fn scale(&mut self, a: usize, _: usize, shifted: usize) -> usize {
        self.call("scaled", &[a, shifted])
    }
    fn less(&mut self, a: usize, b: usize) -> usize {
        self.mask("<", a, b)
    }
    fn less_equal(&mut self, a: usize, b: usize) -> usize {
        self.mask("<=", a, b)
    }
    fn equal(&mut self, a: usize, b: usize) -> usize {
        self.mask("==", a, b)
    }
    fn unordered(&mut self, a: usize, b: usize) -> usize {
        let (a, b) = (self.text(a), self.text(b));
        let expression = if a == b { format!("{a} != {a}") } else { format!("{a} != {a} || {b} != {b}") };
        self.step("bool", &expression)
    }
    fn select(&mut self, mask: usize, yes: usize, no: usize) -> usize {
        let (mask, yes, no) = (self.text(mask), self.text(yes), self.text(no));
        self.step("float", &format!("{mask} ? {yes} : {no}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_where_these_say_all_of_them() {
        let all = [1.0_f32, -0.0, 1.5e-7, 1e20, f32::NAN, f32::INFINITY, 1e-42].map(f32::to_bits);
        let texts = all.map(literal);
        assert_eq!(texts[..4], ["1.0f", "-0.0f", "1.5e-7f", "1e20f"]);
        let bits = [0x7fc0_0000_u32, 0x7f80_0000, 1e-42_f32.to_bits()];
        let words = bits.map(|bits| format!("__uint_as_float(0x{bits:08x}u)"));
        assert_eq!(texts[4..], words);
    }

    #[test]
    fn only_functions_that_a_text_names_are_defined() {
        let text = definitions("f_neg(v1) + f_exp(v2)");
        let defined: Vec<&str> = text.lines().filter(|line| line.starts_with("__device__")).collect();
        let expected =
            ["f_neg", "f_exp"].map(|name| format!("__device__ __forceinline__ float {name}(float a) {{"));
        assert_eq!(defined, expected);
    }
}
