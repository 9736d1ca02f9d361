//! One kernel as functions of CUDA C.

mod body;
mod groups;
mod held;
mod parts;
mod points;
mod rows;
mod shared;
mod spans;
mod sums;

use loops::{Access, Bounds, Element, Kernel};

use self::body::Body;
use crate::{
    form::{Form, Width},
    lines::Lines,
};

/// The most blocks of a grid.
const MOST_BLOCKS: usize = (1 << 31) - 1;

/// A function that is launched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its name in the program.
    pub name: String,
    /// How many blocks run it.
    pub blocks: usize,
    /// Threads of each block.
    pub threads: usize,
}

/// A kernel as functions that are launched one after the other. Each takes the addresses of all operands and, where there are numbers to
/// keep, that of these.
#[derive(Clone, Debug)]
pub struct Emitted {
    /// Their definitions.
    pub text: String,
    /// In order.
    pub functions: Vec<Function>,
    /// How many numbers of single precision the functions keep for each other.
    pub kept: usize,
    /// Operands that must begin at a multiple of so many bytes.
    pub aligned: Vec<(usize, usize)>,
    /// What memory must hold.
    pub bounds: Bounds,
    /// Whether operands are read again when some have been written, so that none may lie where another does.
    pub reads_again: bool,
    /// Whether threads hold their rows from the loop that reads them to the last one.
    pub(crate) holds_rows: bool,
    /// Whether each operand is written.
    pub(crate) written: Vec<bool>,
}

/// The functions of a verified kernel, whose names begin with `name`; or why there are none.
pub(crate) fn emit(kernel: &Kernel, name: &str, width: Width) -> Result<Emitted, String> {
    let form = groups::form(kernel, width).unwrap_or_else(|| Form::of(kernel, width));
    let sums = sums::Sums::of(&form)?;
    let mut emitter =
        Emitter { form: &form, sums: &sums, name, lines: Lines::default(), functions: Vec::new(), end: None };
    for line in kernel.to_string().lines() {
        emitter.lines.line(format!("// {line}"));
    }
    match (form.by_rows, form.rows_each) {
        (false, _) => emitter.points(),
        (true, Some(rows)) => emitter.groups(rows),
        (true, None) => emitter.rows_and_sums(),
    }
    let Emitter { lines, functions, .. } = emitter;
    if functions.iter().any(|function| function.blocks > MOST_BLOCKS) {
        return Err("more blocks than a grid has".to_owned());
    }
    Ok(Emitted {
        text: lines.finish(),
        functions,
        kept: sums.kept(),
        aligned: form.aligned(),
        bounds: Bounds::of(kernel),
        holds_rows: form.by_rows && held::loops_of(&form).1.is_some(),
        reads_again: form.rows_each.is_none() && !sums.list.is_empty(),
        written: kernel.operands.iter().map(|operand| operand.access != Access::Read).collect(),
    })
}

struct Emitter<'a> {
    form: &'a Form<'a>,
    sums: &'a sums::Sums,
    name: &'a str,
    lines: Lines,
    functions: Vec<Function>,
    /// Where a row ends, in a loop whose pieces may lie behind it.
    end: Option<String>,
}

impl Emitter<'_> {
    /// Rows, and then their sums, for which points are computed again.
    fn rows_and_sums(&mut self) {
        self.rows();
        if self.sums.list.is_empty() {
            return;
        }
        let single = Form::single(self.form.kernel);
        let mut own = Emitter {
            form: &single,
            sums: self.sums,
            name: self.name,
            lines: std::mem::take(&mut self.lines),
            functions: std::mem::take(&mut self.functions),
            end: None,
        };
        own.parts();
        own.totals();
        (self.lines, self.functions) = (own.lines, own.functions);
    }

    /// Begins a function that so many threads run, unless there are none.
    fn begin(&mut self, part: &str, blocks: usize, threads: usize) {
        let name = format!("{}{part}", self.name);
        let parameters = self.parameters();
        self.lines
            .open(format!("extern \"C\" __global__ void __launch_bounds__({threads}) {name}({parameters})"));
        self.lines.line(format!("typedef {} index;", self.form.index(self.sums.kept())));
        self.functions.push(Function { name, blocks, threads });
    }

    fn parameters(&self) -> String {
        let operands = self.form.kernel.operands.iter().enumerate();
        let operands = operands.map(|(index, operand)| {
            let ty = c_type(operand.element);
            let constant = if operand.access == Access::Read { "const " } else { "" };
            format!("{constant}{ty}* a{index}")
        });
        let kept = (self.sums.kept() > 0).then(|| "float* kept".to_owned());
        operands.chain(kept).collect::<Vec<_>>().join(", ")
    }

    fn body<'a>(form: &'a Form<'a>) -> Body<'a> {
        Body { form }
    }

    /// Where operands begin in the row of this number.
    fn starts(&mut self, row: &str) {
        for (operand, strides) in self.form.nest.outer_strides.iter().enumerate() {
            if self.form.is_sum(loops::OperandId(operand as u32)) {
                continue;
            }
            let start = start(&self.form.nest.outer, strides, row);
            self.lines.line(format!("const index o{operand} = {start};"));
        }
    }
}

/// The type of an element in CUDA C.
pub(crate) const fn c_type(element: Element) -> &'static str {
    match element {
        Element::F32 => "float",
        Element::Bf16 => "unsigned short",
        Element::F16 => "half_bits",
        Element::Bool => "unsigned char",
        Element::I64 => "long long",
    }
}

/// The position of the first element of a row, by the sizes of the loops around it and an operand's strides along them.
pub(crate) fn start(sizes: &[usize], strides: &[usize], row: &str) -> String {
    let mut terms = Vec::new();
    let mut inner = 1;
    for (dim, (size, stride)) in sizes.iter().zip(strides).enumerate().rev() {
        let mut at = if inner == 1 { row.to_owned() } else { format!("{row} / {inner}") };
        if dim > 0 {
            at = format!("{at} % {size}");
        }
        match stride {
            0 => {}
            1 => terms.push(at),
            _ => terms.push(format!("{at} * {stride}")),
        }
        inner *= size.max(&1);
    }
    terms.reverse();
    if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
}

#[cfg(test)]
mod tests {
    use super::start;

    #[test]
    fn a_row_begins_where_its_places_in_the_loops_say() {
        assert_eq!(start(&[], &[], "row"), "0");
        assert_eq!(start(&[7], &[12], "row"), "row * 12");
        assert_eq!(start(&[7, 5, 3], &[1, 0, 9], "row"), "row / 15 + row % 3 * 9");
    }
}
