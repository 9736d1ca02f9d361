//! Random kernels and an oracle, for property tests and fuzzing, here and in crates that use this one (feature `testing`).

use std::cell::Cell;

use ir::{contiguous_strides, testing::Random};

use crate::{
    Access, Binary, Builder, Element, Kernel, Memory, Op, OperandId, Reduction, Unary, Value, bf16_of,
    f32_of, f32_of_half, half_of,
};

/// A valid kernel on a small random domain, with broadcast, transposed and spread operands; some by rows.
pub fn random_kernel(random: &mut Random) -> Kernel {
    let rank = random.below(4);
    let mut domain: Vec<i64> = (0..rank).map(|_| size(random)).collect();
    let by_rows = rank > 0 && random.below(2) == 0;
    if by_rows && random.below(16) == 0 {
        few_long_rows(random, &mut domain);
    }
    let mut builder = Builder::default();
    let reads: Vec<OperandId> =
        (0..=random.below(5)).map(|_| operand(random, &mut builder, &domain, Access::Read)).collect();
    let mut numbers: Vec<Value> = reads.iter().map(|operand| builder.load(*operand)).collect();
    for operand in reads.iter().filter(|_| random.below(4) == 0).collect::<Vec<_>>() {
        numbers.push(builder.load_behind(*operand, random.below(40) as u32));
    }
    if by_rows {
        others(random, &mut builder, &domain, &mut numbers);
    }
    let (mut masks, mut reduced) = (Vec::new(), Vec::new());
    for _ in 0..random.below(24) {
        value(random, &mut builder, &mut numbers, &mut masks);
        if by_rows && reduced.len() < 4 && random.below(6) == 0 {
            let reduction = random.pick(&Reduction::NAMES).0;
            let made = builder.reduce(reduction, *random.pick(&numbers));
            numbers.push(made);
            reduced.push(made);
        }
    }
    for _ in 0..=random.below(3) {
        pieces(random, &mut builder, &domain, &numbers);
    }
    if by_rows {
        sums(random, &mut builder, &domain, &numbers, &reduced);
    }
    builder.finish(domain)
}

/// A written operand, perhaps with room for a few pieces side by side, of which each has the domain's last dimension.
fn pieces(random: &mut Random, builder: &mut Builder, domain: &[i64], numbers: &[Value]) {
    if domain.is_empty() || random.below(3) > 0 {
        let to = operand(random, builder, domain, Access::Write);
        return builder.store(to, *random.pick(numbers));
    }
    let (count, last) = (2 + random.below(2) as i64, domain.len() - 1);
    let mut whole = domain.to_vec();
    whole[last] = whole[last].max(1) * count;
    let to = builder.operand(Access::Write, Element::F32, contiguous_strides(&whole).to_vec());
    for piece in 0..count {
        builder.store_behind(to, (piece * domain[last].max(1)) as u32, *random.pick(numbers));
    }
}

/// Numbers that only kernels by rows have: integers, one for each row, and positions in a row.
fn others(random: &mut Random, builder: &mut Builder, domain: &[i64], numbers: &mut Vec<Value>) {
    if random.below(4) == 0 {
        let mut strides = contiguous_strides(&domain[..domain.len() - 1]).to_vec();
        strides.push(0);
        let from = builder.operand(Access::Read, Element::I64, strides);
        numbers.push(builder.load(from));
    }
    if random.below(4) == 0 {
        numbers.push(builder.column());
    }
}

/// Operands that are written once for a row, and those that rows are added up in.
fn sums(random: &mut Random, builder: &mut Builder, domain: &[i64], numbers: &[Value], reduced: &[Value]) {
    let last = domain.len() - 1;
    if !reduced.is_empty() && random.below(2) == 0 {
        let mut strides = contiguous_strides(&domain[..last]).to_vec();
        strides.push(0);
        let to = builder.operand(Access::Write, *random.pick(&[Element::F32, Element::Bf16]), strides);
        builder.store(to, *random.pick(reduced));
    }
    for all in [false, true] {
        let from = if all { reduced } else { numbers };
        if !from.is_empty() && random.below(2) == 0 {
            let mut strides = vec![0; last];
            strides.push(i64::from(!all));
            let to = builder.operand(Access::Add, *random.pick(&[Element::F32, Element::Bf16]), strides);
            for piece in 0..=random.below(2) * random.below(3) {
                let apart = if all { 1 } else { domain[last].max(1) };
                builder.store_behind(to, (piece as i64 * apart) as u32, *random.pick(from));
            }
        }
    }
}

fn size(random: &mut Random) -> i64 {
    match random.below(64) {
        0..8 => 1,
        8..15 => random.below(200) as i64,
        15 => random.below(700) as i64,
        16..24 => 16 * random.below(8) as i64,
        _ => random.below(24) as i64,
    }
}

/// Rows that are cut into spans.
fn few_long_rows(random: &mut Random, domain: &mut [i64]) {
    for size in domain.iter_mut() {
        *size = (*size).min(2);
    }
    if let Some(last) = domain.last_mut() {
        *last = 1000 + random.below(2200) as i64;
        if random.below(8) == 0 {
            *last *= 7;
        }
    }
}

fn operand(random: &mut Random, builder: &mut Builder, domain: &[i64], access: Access) -> OperandId {
    let mut strides = contiguous_strides(domain).to_vec();
    let kind = random.below(6);
    if kind == 0 && domain.len() >= 2 {
        // Transposed: the first two dimensions in the other order.
        let rest: i64 = domain[2..].iter().map(|size| (*size).max(1)).product();
        (strides[0], strides[1]) = (rest, rest * domain[0].max(1));
    } else if kind == 1 {
        let gap = 1 + random.below(3) as i64;
        for stride in &mut strides {
            *stride *= gap;
        }
    } else if kind <= 3 && access == Access::Read {
        for stride in &mut strides {
            *stride *= random.below(2) as i64;
        }
    }
    let elements = [Element::F32, Element::F32, Element::Bf16, Element::Bool];
    let count = if access == Access::Read { elements.len() } else { 3 };
    let element = match *random.pick(&elements[..count]) {
        // Seldom, since processors have no machine code for it.
        Element::Bf16 if random.below(8) == 0 => Element::F16,
        element => element,
    };
    builder.operand(access, element, strides)
}

fn value(random: &mut Random, builder: &mut Builder, numbers: &mut Vec<Value>, masks: &mut Vec<Value>) {
    let (a, b, c) = (*random.pick(numbers), *random.pick(numbers), *random.pick(numbers));
    let made = match random.below(10) {
        0 => {
            let number = number(random);
            builder.constant(number)
        }
        1..4 => builder.unary(random.pick(&Unary::NAMES).0, a),
        4..8 => {
            let binary = random.pick(&Binary::NAMES).0;
            let made = builder.binary(binary, a, b);
            if binary.is_mask() {
                return masks.push(made);
            }
            made
        }
        8 => builder.fma(a, b, c),
        _ if masks.is_empty() => return,
        _ => builder.select(*random.pick(masks), a, b),
    };
    numbers.push(made);
}

/// A number as kernels meet them: mostly ordinary ones, some at the edges.
fn number(random: &mut Random) -> f32 {
    const EDGES: [f32; 12] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-42,
        -88.5,
        89.5,
    ];
    let unit = (random.bits() >> 40) as f32 / (1_u32 << 24) as f32 * 2.0 - 1.0;
    match random.below(16) {
        0 => *random.pick(&EDGES),
        1 => f32::from_bits(random.bits() as u32),
        2..6 => unit * 100.0,
        _ => unit * 3.0,
    }
}

/// Memory of an operand's own.
pub enum Owned {
    /// `f32`
    F32(Vec<Cell<f32>>),
    /// `bf16`, by its bits.
    Bf16(Vec<Cell<u16>>),
    /// `f16`, by its bits.
    F16(Vec<Cell<u16>>),
    /// `bool`
    Bool(Vec<Cell<u8>>),
    /// `i64`
    I64(Vec<Cell<i64>>),
}

impl Owned {
    /// As a kernel takes it.
    pub fn memory(&self) -> Memory<'_> {
        match self {
            Self::F32(cells) => Memory::F32(cells),
            Self::Bf16(cells) => Memory::Bf16(cells),
            Self::F16(cells) => Memory::F16(cells),
            Self::Bool(cells) => Memory::Bool(cells),
            Self::I64(cells) => Memory::I64(cells),
        }
    }

    /// The bits of all elements; those of all NaNs are equal.
    pub fn bits(&self) -> Vec<u32> {
        let same = |number: f32| if number.is_nan() { f32::NAN.to_bits() } else { number.to_bits() };
        match self {
            Self::F32(cells) => cells.iter().map(|cell| same(cell.get())).collect(),
            Self::Bf16(cells) => cells.iter().map(|cell| same(f32_of(cell.get()))).collect(),
            Self::F16(cells) => cells.iter().map(|cell| same(f32_of_half(cell.get()))).collect(),
            Self::Bool(cells) => cells.iter().map(|cell| u32::from(cell.get())).collect(),
            Self::I64(cells) => cells.iter().map(|cell| cell.get() as u32).collect(),
        }
    }
}

/// Memory for the operands of a kernel, with random numbers.
pub fn memory_for(kernel: &Kernel, random: &mut Random) -> Vec<Owned> {
    let owned = kernel.operands.iter().enumerate().map(|(index, operand)| {
        let extent = crate::verify::extent(kernel, index).unwrap_or(0) as usize;
        match operand.element {
            Element::Bool => {
                return Owned::Bool((0..extent).map(|_| Cell::new(random.below(2) as u8)).collect());
            }
            Element::I64 => {
                let integer = |random: &mut Random| random.bits() as i64 >> random.below(64);
                return Owned::I64((0..extent).map(|_| Cell::new(integer(random))).collect());
            }
            Element::F32 | Element::Bf16 | Element::F16 => {}
        }
        let numbers = (0..extent).map(|_| number(random));
        match operand.element {
            Element::Bf16 => Owned::Bf16(numbers.map(|number| Cell::new(bf16_of(number))).collect()),
            Element::F16 => Owned::F16(numbers.map(|number| Cell::new(half_of(number))).collect()),
            _ => Owned::F32(numbers.map(Cell::new).collect()),
        }
    });
    owned.collect()
}

/// What a kernel writes, point by point: for each store the indices of elements with the numbers that `function` gives for each value
/// from those of its operands, and `reduce` for each row. Sums of rows are left out.
pub fn by_point<N: Copy>(
    kernel: &Kernel,
    memory: &[Owned],
    number: impl Fn(f32) -> N,
    function: impl Fn(Op, &[N]) -> N,
    reduce: impl Fn(Reduction, &[N]) -> N,
) -> Vec<Vec<(usize, N)>> {
    let points = usize::try_from(kernel.points()).unwrap_or(0);
    let inner = kernel.domain.last().map_or(1, |size| *size as usize).max(1);
    let mut values: Vec<Vec<N>> = Vec::with_capacity(kernel.body.len());
    for op in &kernel.body {
        let made = match op {
            Op::Load(operand, offset) => {
                let index = |point| index_at(kernel, *operand, point) + *offset as usize;
                let at = |point| element(&memory[operand.0 as usize], index(point));
                (0..points).map(|point| number(at(point))).collect()
            }
            Op::Column => (0..points).map(|point| number((point % inner) as f32)).collect(),
            Op::Const(bits) => vec![number(f32::from_bits(*bits)); points],
            Op::Reduce(reduction, from) => {
                let rows = values[from.0 as usize].chunks(inner);
                rows.flat_map(|row| std::iter::repeat_n(reduce(*reduction, row), inner)).collect()
            }
            _ => {
                let taken =
                    |point: usize| op.operands().map(|value| values[value.0 as usize][point]).collect();
                (0..points).map(|point| function(*op, &{ taken(point) } as &Vec<N>)).collect()
            }
        };
        values.push(made);
    }
    let written = kernel.stores.iter().map(|store| {
        let is_sum = kernel.operands[store.operand.0 as usize].access == Access::Add;
        let points = 0..if is_sum { 0 } else { points };
        points
            .map(|point| {
                let index = index_at(kernel, store.operand, point) + store.offset as usize;
                (index, values[store.value.0 as usize][point])
            })
            .collect()
    });
    written.collect()
}

fn index_at(kernel: &Kernel, operand: OperandId, point: usize) -> usize {
    let mut left = point;
    let strides = &kernel.operands[operand.0 as usize].strides;
    let dims = kernel.domain.iter().zip(strides).rev();
    dims.map(|(size, stride)| {
        let at = left % *size as usize;
        left /= *size as usize;
        at * *stride as usize
    })
    .sum()
}

fn element(memory: &Owned, index: usize) -> f32 {
    match memory {
        Owned::F32(cells) => cells[index].get(),
        Owned::Bf16(cells) => f32_of(cells[index].get()),
        Owned::F16(cells) => f32_of_half(cells[index].get()),
        Owned::Bool(cells) => f32::from(cells[index].get()),
        Owned::I64(cells) => cells[index].get() as f32,
    }
}
