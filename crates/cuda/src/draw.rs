//! Random numbers at positions, of which a part of a tensor is drawn.

use loops::Element;
use random::Distribution;

use crate::{
    emit::{Function, c_type, start},
    form::{MOST_BLOCKS, POINT_BLOCK},
    functions::literal,
    lines::Lines,
};

/// What is drawn: the elements of a part of a tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Draw {
    /// The sizes of the tensor.
    pub sizes: Vec<i64>,
    /// The sizes of the part.
    pub part: Vec<i64>,
    /// The number of the operation that draws.
    pub operation: u32,
    /// What each element is.
    pub drawn: Distribution,
    /// The type that it is written in, which is not `bool`.
    pub element: Element,
}

impl Draw {
    /// How many elements are drawn.
    pub(crate) fn count(&self) -> usize {
        self.part.iter().product::<i64>() as usize
    }

    /// The function, which takes the key (seed and step), for each dimension where the part's elements are in it, and where numbers go.
    pub(crate) fn emit(&self, name: String) -> (String, Function) {
        let (mut lines, count) = (Lines::default(), self.count());
        let places: Vec<String> =
            (0..self.sizes.len()).map(|dim| format!("const long long* p{dim}, ")).collect();
        let head = format!("extern \"C\" __global__ void __launch_bounds__({POINT_BLOCK}) {name}");
        lines.open(format!("{head}(const long long* key, {}{}* to)", places.concat(), c_type(self.element)));
        lines.line("typedef unsigned long long index;");
        let first = format!("(index)blockIdx.x * {POINT_BLOCK} + threadIdx.x");
        let next = format!("(index)gridDim.x * {POINT_BLOCK}");
        lines.open(format!("for (index at = {first}; at < {count}; at += {next})"));
        lines.line("index position = 0;");
        let part: Vec<usize> = self.part.iter().map(|size| *size as usize).collect();
        for (dim, size) in self.sizes.iter().enumerate() {
            let mut along = vec![0; part.len()];
            along[dim] = 1;
            let place = start(&part, &along, "at");
            lines.line(format!("position = position * {size} + (index)p{dim}[{place}];"));
        }
        lines.line(format!("const drawn word = at_position(key, {}u, position);", self.operation));
        lines.line(format!("put(to + at, {});", self.value()));
        lines.close();
        lines.close();
        let blocks = count.div_ceil(POINT_BLOCK).min(MOST_BLOCKS);
        (lines.finish(), Function { name, blocks, threads: POINT_BLOCK })
    }

    fn value(&self) -> String {
        let number = |number: f32| literal(number.to_bits());
        match self.drawn {
            Distribution::Bernoulli { p } => {
                let threshold = random::threshold(p);
                let all = number(f32::from(u8::from(threshold > 0)));
                format!("bernoulli(word, {}u, {all})", threshold.wrapping_sub(1) as u32)
            }
            Distribution::Uniform { low, high, digits } => {
                let unit = 1.0 / (1_u32 << digits) as f32;
                let [width, low, high, unit] = [high - low, low, high, unit].map(number);
                format!("uniform(word, {low}, {high}, {width}, {unit}, {digits})")
            }
            Distribution::Normal { mean, std } => format!("normal(word, {}, {})", number(mean), number(std)),
            Distribution::Exponential { rate } => format!("exponential(word, {})", number(rate)),
            Distribution::Cauchy { median, sigma } => {
                format!("cauchy(word, {}, {})", number(median), number(sigma))
            }
            Distribution::Geometric { p } => format!("geometric(word, {})", number(random::per_log(p))),
            Distribution::Integers { low, high } => {
                let range = high.wrapping_sub(low) as u64;
                let whole = format!("integer(word, (long long){}ull, {range}ull)", low as u64);
                if self.element == Element::I64 { whole } else { format!("(float){whole}") }
            }
        }
    }
}
