//! Kernels: their text form, what the verifier refuses, and what the interpreter computes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::float_cmp, reason = "limits are exact")]

use std::cell::Cell;

use ir::testing::Random;
use unisono_loops::{
    Access, Binary, Builder, Element, Interpreter, Kernel, Memory, Op, Operand, Reduction, Unary, Value,
    bf16_of,
    math::{self, Math, Scalar},
    phases,
    testing::{Owned, by_point, memory_for, random_kernel},
    verify,
};

const SWIGLU: &str = "\
kernel [4, 6]
read a0: f32 {6, 1}
read a1: bf16 {0, 1}
write a2: f32 {6, 1}
%0 = load a0
%1 = load a1
%2 = sigmoid %0
%3 = mul %0 %2
%4 = mul %1 %3
%5 = const 0.5
%6 = lt %4 %5
%7 = select %6 %5 %4
store a2 %7
";

#[test]
fn a_kernel_is_read_back_from_its_text() {
    let kernel: Kernel = SWIGLU.parse().unwrap();
    assert_eq!(kernel.to_string(), SWIGLU);
    for seed in 0..200 {
        let kernel = random_kernel(&mut Random::new(seed));
        assert_eq!(kernel.to_string().parse::<Kernel>().unwrap().to_string(), kernel.to_string());
    }
}

#[test]
fn mistakes_in_a_text_are_named_with_their_line() {
    let wrong = |from: &str, to: &str| SWIGLU.replace(from, to).parse::<Kernel>().unwrap_err().to_string();
    assert!(wrong("sigmoid", "sigmod").contains("kernel:7"), "{}", wrong("sigmoid", "sigmod"));
    assert!(wrong("sigmoid", "sigmod").contains("`sigmod`"));
    assert!(wrong("%3 = mul %0", "%3 = mul %9").contains("used before it is defined"));
    assert!(wrong("select %6", "select %5").contains("a mask"));
    assert!(wrong("store a2", "store a1").contains("a1 is stored to"));
    assert!(wrong("load a1", "load a2").contains("not read"));
}

#[test]
fn the_verifier_refuses_what_could_leave_an_operand() {
    let kernel: Kernel = SWIGLU.parse().unwrap();
    let with = |operand: usize, strides: [i64; 2]| {
        let mut changed = kernel.clone();
        changed.operands[operand].strides = strides.to_vec();
        verify(&changed)
    };
    assert!(with(0, [100, 7]).is_ok());
    assert!(with(0, [-6, 1]).is_err());
    assert!(with(0, [i64::MAX, 1]).is_err());
    assert!(with(2, [5, 1]).unwrap_err().message.contains("two points to the same element"));
    assert!(with(2, [0, 1]).is_err());
    assert!(with(2, [1, 4]).is_ok());
    let mut huge = kernel;
    huge.domain = vec![1 << 40, 1 << 40];
    assert!(verify(&huge).is_err());
}

#[test]
fn memory_that_is_too_short_or_shared_is_refused() {
    let kernel: Kernel = SWIGLU.parse().unwrap();
    let interpreter = Interpreter::new(&kernel).unwrap();
    let floats = |count: usize| vec![Cell::new(1.0_f32); count];
    let (x, y, z) = (floats(48), vec![Cell::new(bf16_of(2.0)); 6], floats(24));
    let run = |a: &[Cell<f32>], b: &[Cell<u16>], c: &[Cell<f32>]| {
        interpreter.run(&[Memory::F32(a), Memory::Bf16(b), Memory::F32(c)])
    };
    assert!(run(&x[..24], &y, &z).is_ok());
    assert!(run(&x[..23], &y, &z).unwrap_err().message.contains("a0"));
    assert!(run(&x[..24], &y[..5], &z).is_err());
    assert!(run(&x, &y, &x[1..]).unwrap_err().message.contains("is written where"));
    assert!(run(&x, &y, &x).is_ok(), "a written operand may lie exactly where a read one does");
}

/// A value from those that it takes, by the functions that everything runs on, one number at a time.
fn scalar(op: Op, taken: &[f32]) -> f32 {
    let m = &mut Scalar;
    match (op, taken) {
        (Op::Unary(unary, _), &[x]) => match unary {
            Unary::Neg => math::neg(m, x),
            Unary::Abs => math::abs(m, x),
            Unary::Sqrt => m.sqrt(x),
            Unary::Exp => math::exp(m, x),
            Unary::Log => math::log(m, x),
            Unary::Tanh => math::tanh(m, x),
            Unary::Sigmoid => math::sigmoid(m, x),
            Unary::Erf => math::erf(m, x),
            Unary::RoundBf16 => math::round_bf16(m, x),
            Unary::RoundF16 => math::round_f16(m, x),
        },
        (Op::Binary(binary, ..), &[a, b]) => match binary {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Max => math::maximum(m, a, b),
            Binary::Min => math::minimum(m, a, b),
            Binary::Less => m.less(a, b),
            Binary::LessEqual => m.less_equal(a, b),
            Binary::Equal => m.equal(a, b),
        },
        (Op::Fma(..), &[a, b, c]) => a.mul_add(b, c),
        (Op::Select(..), &[mask, yes, no]) => m.select(mask, yes, no),
        _ => unreachable!(),
    }
}

/// The points of a row as one number, by the tree that everything runs on.
fn reduced(reduction: Reduction, row: &[f32]) -> f32 {
    let join = |a, b| scalar(Op::Binary(reduction.binary(), Value(0), Value(0)), &[a, b]);
    let mut count = phases::lanes(row.len());
    let mut lanes = vec![reduction.start(); count];
    for span in row.chunks(phases::span(row.len())) {
        let mut own = vec![reduction.start(); count];
        span.iter().enumerate().for_each(|(at, point)| own[at % count] = join(own[at % count], *point));
        lanes.iter_mut().zip(own).for_each(|(lane, own)| *lane = join(*lane, own));
    }
    while count > 1 {
        count /= 2;
        (0..count).for_each(|lane| lanes[lane] = join(lanes[lane], lanes[lane + count]));
    }
    lanes[0]
}

#[test]
fn the_interpreter_computes_every_point_as_one_number_at_a_time_does() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let kernel = random_kernel(&mut random);
        verify(&kernel).unwrap();
        let memory = memory_for(&kernel, &mut random);
        let expected = by_point(&kernel, &memory, |number| number, scalar, reduced);
        let views: Vec<Memory<'_>> = memory.iter().map(Owned::memory).collect();
        Interpreter::new(&kernel).unwrap().run(&views).unwrap();
        for (store, expected) in kernel.stores.iter().zip(expected) {
            let found = memory[store.operand.0 as usize].bits();
            for (index, number) in expected {
                let number = match kernel.operands[store.operand.0 as usize].element {
                    Element::Bf16 => math::round_bf16(&mut Scalar, number),
                    Element::F16 => math::round_f16(&mut Scalar, number),
                    _ => number,
                };
                let bits = if number.is_nan() { f32::NAN.to_bits() } else { number.to_bits() };
                assert_eq!(found[index], bits, "seed {seed}, {} at {index}\n{kernel}", store.operand);
            }
        }
    }
}

const SOFTMAX: &str = "\
kernel [2, 5]
read a0: f32 {5, 1}
write a1: f32 {5, 1}
write a2: f32 {1, 0}
add a3: f32 {0, 1}
add a4: f32 {0, 0}
%0 = load a0
%1 = row_max %0
%2 = sub %0 %1
%3 = exp %2
%4 = row_sum %3
%5 = div %3 %4
store a1 %5
store a2 %1
store a3 %0
store a4 %1
";

#[test]
fn rows_are_reduced_and_added_up() {
    let kernel: Kernel = SOFTMAX.parse().unwrap();
    assert_eq!(kernel.to_string(), SOFTMAX);
    let numbers = |given: &[f32]| given.iter().map(|number| Cell::new(*number)).collect::<Vec<_>>();
    let x = numbers(&[0.0, 0.0, 0.0, 0.0, 0.0, 3.0, f32::NEG_INFINITY, 3.0, -200.0, 3.0]);
    let made = [10, 2, 5, 1].map(|count| numbers(&vec![7.0; count]));
    let memory: Vec<Memory<'_>> = std::iter::once(&x).chain(&made).map(|cells| Memory::F32(cells)).collect();
    Interpreter::new(&kernel).unwrap().run(&memory).unwrap();
    let found = made.map(|cells| cells.iter().map(Cell::get).collect::<Vec<_>>());
    let third = 1.0 / 3.0;
    assert_eq!(found[0], [0.2, 0.2, 0.2, 0.2, 0.2, third, 0.0, third, 0.0, third]);
    assert_eq!(found[1], [0.0, 3.0]);
    assert_eq!(found[2], [3.0, f32::NEG_INFINITY, 3.0, -200.0, 3.0]);
    assert_eq!(found[3], [3.0]);
}

#[test]
fn the_verifier_refuses_rows_that_are_no_rows() {
    let wrong = |from: &str, to: &str| SOFTMAX.replace(from, to).parse::<Kernel>().unwrap_err().to_string();
    assert!(wrong("store a2 %1", "store a2 %0").contains("stored once for a row"));
    assert!(wrong("a2: f32 {1, 0}", "a2: f32 {0, 0}").contains("same element"));
    assert!(wrong("a3: f32 {0, 1}", "a3: f32 {5, 1}").contains("keep rows apart"));
}

#[test]
fn rows_without_points_have_sums_of_nothing() {
    let text = "kernel [3, 0]\nread a0: f32 {0, 1}\nwrite a1: f32 {1, 0}\nadd a2: f32 {0, 0}\n\
        %0 = load a0\n%1 = row_sum %0\nstore a1 %1\nstore a2 %1\n";
    let kernel: Kernel = text.parse().unwrap();
    let (rows, all) = (vec![Cell::new(7.0); 3], [Cell::new(7.0)]);
    Interpreter::new(&kernel)
        .unwrap()
        .run(&[Memory::F32(&[]), Memory::F32(&rows), Memory::F32(&all)])
        .unwrap();
    assert!(rows.iter().chain(&all).all(|cell| cell.get() == 0.0));
}

#[test]
fn a_domain_without_points_writes_nothing() {
    let operand = |access| Operand { access, element: Element::F32, strides: vec![1] };
    let kernel = Kernel {
        domain: vec![0],
        operands: vec![operand(Access::Read), operand(Access::Write)],
        body: vec![Op::Load(unisono_loops::OperandId(0), 0)],
        stores: vec![unisono_loops::Store {
            operand: unisono_loops::OperandId(1),
            offset: 0,
            value: unisono_loops::Value(0),
        }],
    };
    Interpreter::new(&kernel).unwrap().run(&[Memory::F32(&[]), Memory::F32(&[])]).unwrap();
}

/// The error function in `f64`: its series near 0, the continued fraction of its complement elsewhere.
fn erf64(x: f64) -> f64 {
    let magnitude = x.abs();
    let result = if magnitude < 3.0 {
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..200 {
            term *= -magnitude * magnitude / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let tail = (1..60).rev().fold(0.0, |tail, k| f64::from(k) / 2.0 / (magnitude + tail));
        1.0 - (-magnitude * magnitude).exp() / (magnitude + tail) / std::f64::consts::PI.sqrt()
    };
    result.copysign(x)
}

/// The largest error of `function` against `exact`, in units of the last place of the exact result, over `range`.
fn error(range: (f32, f32), function: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
    const POINTS: u32 = 20_000;
    let at = |index: u32| range.0 + (range.1 - range.0) * (index as f32 / POINTS as f32);
    let errors = (0..=POINTS).map(at).map(|x| {
        let exact = exact(f64::from(x));
        let near = (exact as f32).abs().max(f32::MIN_POSITIVE);
        let unit = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
        (f64::from(function(x)) - exact).abs() / unit
    });
    errors.fold(0.0, f64::max)
}

#[test]
fn functions_keep_their_error() {
    let m = || Scalar;
    let found = [
        ("exp", error((-87.0, 88.0), |x| math::exp(&mut m(), x), f64::exp), 1.0),
        ("tanh", error((-10.0, 10.0), |x| math::tanh(&mut m(), x), f64::tanh), 1.5),
        ("sigmoid", error((-80.0, 80.0), |x| math::sigmoid(&mut m(), x), |x| 1.0 / (1.0 + (-x).exp())), 2.5),
        ("log", error((1e-6, 4.0), |x| math::log(&mut m(), x), f64::ln), 1.0),
        ("log of large numbers", error((4.0, 3e38), |x| math::log(&mut m(), x), f64::ln), 1.0),
        ("erf", error((-5.0, 5.0), |x| math::erf(&mut m(), x), erf64), 1.5),
    ];
    for (name, error, limit) in found {
        assert!(error <= limit, "{name}: {error} units in the last place");
    }
}

#[test]
fn functions_pass_nan_and_keep_their_limits() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let m = &mut Scalar;
    assert_eq!([math::exp(m, inf), math::exp(m, -inf), math::exp(m, -103.0)], [inf, 0.0, 1e-45]);
    assert_eq!([math::tanh(m, inf), math::tanh(m, -inf)], [1.0, -1.0]);
    assert_eq!(math::tanh(m, -0.0).to_bits(), (-0.0_f32).to_bits());
    assert_eq!([math::sigmoid(m, inf), math::sigmoid(m, -inf)], [1.0, 0.0]);
    assert_eq!([math::erf(m, inf), math::erf(m, -inf)], [1.0, -1.0]);
    assert_eq!([math::log(m, inf), math::log(m, 0.0), math::log(m, -0.0)], [inf, -inf, -inf]);
    assert!(math::log(m, -1.0).is_nan());
    let denormal = 1e-42_f32;
    assert!((f64::from(math::log(m, denormal)) - f64::from(denormal).ln()).abs() < 1e-5);
    let functions = [math::exp::<Scalar>, math::tanh, math::sigmoid, math::erf, math::log, math::round_bf16];
    assert!(functions.iter().all(|function| function(m, nan).is_nan()));
    assert!(math::maximum(m, nan, 1.0).is_nan() && math::maximum(m, 1.0, nan).is_nan());
    assert!(math::minimum(m, nan, 1.0).is_nan() && math::minimum(m, 1.0, nan).is_nan());
}

const ROTATED: &str = "\
kernel [3, 4]
read a0: f32 {8, 1}
read a1: bool {4, 1}
read a2: i64 {1, 0}
write a3: f32 {8, 1}
%0 = load a0
%1 = load a0 +4
%2 = neg %1
%3 = load a1
%4 = mul %0 %3
%5 = column
%6 = load a2
%7 = eq %5 %6
%8 = select %7 %2 %4
store a3 %8
store a3 +4 %0
";

#[test]
fn loads_and_stores_have_offsets_and_masks_and_positions_are_numbers() {
    let kernel: Kernel = ROTATED.parse().unwrap();
    assert_eq!(kernel.to_string(), ROTATED);
    let x: Vec<Cell<f32>> = (0..24).map(|index| Cell::new(index as f32)).collect();
    let mask: Vec<Cell<u8>> = (0..12).map(|index| Cell::new(index % 2)).collect();
    let targets = [0, 3, -1].map(Cell::new);
    let run = |x: &[Cell<f32>], to: &[Cell<f32>]| {
        let memory = [Memory::F32(x), Memory::Bool(&mask), Memory::I64(&targets), Memory::F32(to)];
        Interpreter::new(&kernel).unwrap().run(&memory)
    };
    let found = vec![Cell::new(0.0); 24];
    run(&x, &found).unwrap();
    let first: Vec<f32> = found.iter().map(Cell::get).collect();
    assert_eq!(first[..8], [-4.0, 1.0, 0.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
    assert_eq!(first[8..12], [0.0, 9.0, 0.0, -15.0]);
    assert!(run(&x[..23], &found).unwrap_err().message.contains("a0"));
    assert!(run(&x, &x).is_ok(), "each point reads only what it writes itself");
    assert_eq!(x.iter().map(Cell::get).collect::<Vec<_>>(), first);
}

#[test]
fn the_verifier_refuses_stores_that_meet_and_types_that_are_not_written() {
    let wrong = |from: &str, to: &str| ROTATED.replace(from, to).parse::<Kernel>().unwrap_err().to_string();
    assert!(wrong("store a3 +4", "store a3 +3").contains("two points to the same element"));
    assert!(wrong("store a3 +4", "store a3").contains("several times"));
    assert!(wrong("write a3: f32", "write a3: bool").contains("not written"));
    assert!(wrong("a2: i64 {1, 0}", "a2: i64 {4, 1}").contains("an i64 for each point"));
    let once = ROTATED.replace("store a3 +4 %0\n", "");
    let (x, mask) = (vec![Cell::new(0.0); 24], vec![Cell::new(1); 12]);
    let targets = [0, 0, 0].map(Cell::new);
    let memory = [Memory::F32(&x), Memory::Bool(&mask), Memory::I64(&targets), Memory::F32(&x)];
    let kernel = Interpreter::new(&once.parse().unwrap()).unwrap();
    assert!(kernel.run(&memory).unwrap_err().message.contains("is written where"));
}

/// The sum of each row of what is `a1` where the position is `a0`, and 0 elsewhere and where `a0` is `ignored`.
fn slope(points: i64, ignored: f32, sum: impl Fn(&mut Builder, Value) -> Value) -> Kernel {
    let mut builder = Builder::default();
    let place = builder.operand(Access::Read, Element::I64, vec![1, 0]);
    let number = builder.operand(Access::Read, Element::F32, vec![1, 0]);
    let to = builder.operand(Access::Write, Element::F32, vec![1, 0]);
    let (place, number) = (builder.load(place), builder.load(number));
    let (column, zero, ignored) = (builder.column(), builder.constant(0.0), builder.constant(ignored));
    let (is_here, is_ignored) =
        (builder.binary(Binary::Equal, place, column), builder.binary(Binary::Equal, place, ignored));
    let here = builder.select(is_here, number, zero);
    let here = builder.select(is_ignored, zero, here);
    let made = sum(&mut builder, here);
    builder.store(to, made);
    builder.finish(vec![6, points])
}

#[test]
fn the_sum_of_a_row_that_has_one_point_is_what_stands_there() {
    let places = [0, 299, 300, -1, -100, 7].map(Cell::new);
    let numbers = [1.5, -2.5, 3.0, 4.0, 5.0, -0.0].map(Cell::new);
    let run = |kernel: &Kernel| {
        let made = [f32::NAN; 6].map(Cell::new);
        let memory = [Memory::I64(&places), Memory::F32(&numbers), Memory::F32(&made)];
        Interpreter::new(kernel).unwrap().run(&memory).unwrap();
        made.map(|cell| cell.get().to_bits())
    };
    let whole = slope(300, -100.0, |builder, value| builder.reduce(Reduction::Sum, value));
    let one = slope(300, -100.0, |builder, value| builder.sum_of_row(value, 300));
    assert!(!one.body.iter().any(|op| matches!(op, Op::Reduce(..) | Op::Column)));
    assert_eq!(run(&one), run(&whole));
    assert_eq!(run(&one), [1.5_f32, -2.5, 0.0, 0.0, 0.0, 0.0].map(f32::to_bits));
    // Places that single precision does not tell from others.
    let long = slope(1 << 24, -100.0, |builder, value| builder.sum_of_row(value, 1 << 24));
    assert!(long.body.iter().any(|op| matches!(op, Op::Reduce(..))));
}
