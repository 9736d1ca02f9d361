//! Random numbers as CUDA C on the processor: those of `random` at each position.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::cell::Cell;

use common::{Guarded, device, processor, stream};
use loops::{Element, testing::Owned};
use random::{Distribution, Out, Stream, fill};
use unisono_cuda::{Draw, Module, Width};

const DRAWN: [Distribution; 9] = [
    Distribution::Bernoulli { p: 0.1 },
    Distribution::Bernoulli { p: 0.0 },
    Distribution::Uniform { low: -1.0, high: 3.0, digits: 24 },
    Distribution::Normal { mean: 0.5, std: 2.0 },
    Distribution::Exponential { rate: 0.7 },
    Distribution::Cauchy { median: 0.0, sigma: 1.0 },
    Distribution::Geometric { p: 0.2 },
    Distribution::Integers { low: -5, high: 1000 },
    Distribution::Integers { low: 0, high: 1 << 32 },
];

/// Rows and columns of a part of a tensor of 70 x 90.
const ROWS: [i64; 3] = [0, 3, 69];
const COLUMNS: [i64; 41] = {
    let mut made = [0; 41];
    let mut at = 0;
    while at < 41 {
        made[at] = 49 + at as i64;
        at += 1;
    }
    made
};

fn integers(of: &[i64]) -> Owned {
    Owned::I64(of.iter().map(|number| Cell::new(*number)).collect())
}

fn empty(element: Element) -> Owned {
    let count = ROWS.len() * COLUMNS.len();
    match element {
        Element::Bf16 => Owned::Bf16(vec![Cell::new(0); count]),
        Element::I64 => Owned::I64(vec![Cell::new(0); count]),
        _ => Owned::F32(vec![Cell::new(0.0); count]),
    }
}

/// What `random` draws there.
fn expected(stream: Stream, drawn: Distribution, element: Element) -> Owned {
    let made = empty(element);
    let positions = ROWS.iter().flat_map(|row| COLUMNS.iter().map(move |column| (row * 90 + column) as u64));
    for (at, position) in positions.enumerate() {
        let out = match &made {
            Owned::F32(cells) => Out::F32(&cells[at..=at]),
            Owned::Bf16(cells) => Out::Bf16(&cells[at..=at]),
            Owned::I64(cells) => Out::I64(&cells[at..=at]),
            _ => unreachable!("these are all types that are drawn here"),
        };
        fill(stream, drawn, position, out);
    }
    made
}

#[test]
fn parts_of_tensors_are_drawn_as_on_processors() {
    let Some((library, _)) = processor() else { return };
    let draw = |drawn, element| Draw { sizes: vec![70, 90], part: vec![3, 41], operation: 7, drawn, element };
    let types = [Element::F32, Element::Bf16, Element::I64];
    let draws: Vec<Draw> =
        DRAWN.iter().flat_map(|drawn| types.map(|element| draw(*drawn, element))).collect();
    let module = Module::with_draws(&device(&library), &[], &draws, Width::Wide).unwrap();
    let key = [-123_456_789_012_345, 5];
    let random = Stream { seed: key[0] as u64, step: 5, operation: 7 };
    let given = [integers(&key), integers(&ROWS), integers(&COLUMNS)];
    let there: Vec<Guarded> = given.iter().map(Guarded::of).collect();
    let [key, rows, columns] = [0, 1, 2].map(|index| there[index].memory(&given[index]));
    for (index, draw) in draws.iter().enumerate() {
        let made = empty(draw.element);
        let room = Guarded::of(&made);
        module.draw(index, key, &[rows, columns], room.memory(&made), stream()).unwrap();
        room.read(&made);
        assert_eq!(made.bits(), expected(random, draw.drawn, draw.element).bits(), "{draw:?}");
        assert_eq!(module.drawing(draw), Some(index));
    }
    let short = module.draw(0, key, &[columns, columns], key, stream());
    assert!(short.is_err());
}
