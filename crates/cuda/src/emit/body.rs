//! Values as expressions and definitions.

use loops::{Binary, Op, OperandId, Store, Value};

use crate::{
    form::Form,
    functions::{literal, name_of},
    lines::Lines,
};

pub(super) struct Body<'a> {
    pub(super) form: &'a Form<'a>,
}

impl Body<'_> {
    /// A value where another one takes it.
    pub(super) fn text(&self, value: Value) -> String {
        match self.form.kernel.op(value) {
            Op::Const(bits) => literal(bits),
            _ => format!("v{}", value.0),
        }
    }

    /// Defines a value from what it takes; not one that is loaded or reduced.
    pub(super) fn define(&self, lines: &mut Lines, value: Value, column: &str) {
        let op = self.form.kernel.op(value);
        let taken: Vec<String> = op.operands().map(|value| self.text(value)).collect();
        let expression = match (op, taken.as_slice()) {
            (Op::Column, _) => format!("(float)({column})"),
            (Op::Unary(unary, _), [a]) => format!("{}({a})", name_of(unary)),
            (Op::Binary(binary, ..), [a, b]) => binary_text(binary, a, b),
            (Op::Fma(..), [a, b, c]) => format!("__fmaf_rn({a}, {b}, {c})"),
            (Op::Select(..), [mask, yes, no]) => format!("{mask} ? {yes} : {no}"),
            _ => unreachable!("constants, loads and reductions are no functions of values"),
        };
        let ty = if op.is_mask() { "bool" } else { "float" };
        lines.line(format!("const {ty} v{} = {expression};", value.0));
    }

    /// Defines what is one number for a row: all but reductions.
    pub(super) fn define_of_row(&self, lines: &mut Lines, value: Value) {
        match self.form.kernel.op(value) {
            Op::Load(operand, offset) => {
                let at = behind(&format!("o{}", operand.0), offset);
                lines.line(format!("const float v{} = number(a{}[{at}]);", value.0, operand.0));
            }
            Op::Reduce(..) => {}
            _ => self.define(lines, value, "0"),
        }
    }

    /// Reads what the points of a loop load: one number, or as many as a thread takes; of points that may not be there, only those that are.
    pub(super) fn load(&self, lines: &mut Lines, points: &[Value], some: bool) {
        let width = self.form.width;
        for value in points {
            let Op::Load(operand, offset) = self.form.kernel.op(*value) else { continue };
            let stride = self.form.nest.inner_strides[operand.0 as usize];
            let first = self.first(operand, offset);
            if width == 1 || stride == 0 {
                let number = format!("number(a{}[{first}])", operand.0);
                let number = if some && stride > 0 { format!("here ? {number} : 0.0f") } else { number };
                lines.line(format!("const float v{} = {number};", value.0));
                continue;
            }
            let (name, from) = (format!("x{}", value.0), format!("a{} + {first}", operand.0));
            lines.line(format!("float {name}[{width}];"));
            if self.form.is_wide(operand, offset) {
                lines.line(format!("load<{width}>({from}, left, {name});"));
            } else {
                let stride = stride * self.form.apart;
                lines.line(format!("gather<{width}>({from}, (index){stride}, left, {name});"));
            }
        }
    }

    /// Defines what the points of a loop compute, at the point `column` of the row.
    pub(super) fn compute(&self, lines: &mut Lines, points: &[Value], column: &str) {
        for value in points {
            match self.form.kernel.op(*value) {
                Op::Load(operand, _) => {
                    let is_one =
                        self.form.width == 1 || self.form.nest.inner_strides[operand.0 as usize] == 0;
                    if !is_one {
                        lines.line(format!("const float v{} = x{}[j];", value.0, value.0));
                    }
                }
                _ => self.define(lines, *value, column),
            }
        }
    }

    /// The position of a thread's first element.
    pub(super) fn first(&self, operand: OperandId, offset: u32) -> String {
        let along = match self.form.nest.inner_strides[operand.0 as usize] {
            0 => String::new(),
            1 => " + column".to_owned(),
            stride => format!(" + column * {stride}"),
        };
        behind(&format!("o{}{along}", operand.0), offset)
    }

    /// Writes one number.
    pub(super) fn put(&self, lines: &mut Lines, store: &Store, at: &str) {
        lines.line(format!("put(a{} + {at}, {});", store.operand.0, self.text(store.value)));
    }

    /// Writes as many numbers as a thread takes, which lie in `y` and the store's number.
    pub(super) fn store(&self, lines: &mut Lines, number: usize, store: &Store) {
        let (operand, width) = (store.operand, self.form.width);
        let to = format!("a{} + {}", operand.0, self.first(operand, store.offset));
        if self.form.is_wide(operand, store.offset) {
            lines.line(format!("store<{width}>({to}, left, y{number});"));
        } else {
            let stride = self.form.nest.inner_strides[operand.0 as usize] * self.form.apart;
            lines.line(format!("scatter<{width}>({to}, (index){stride}, left, y{number});"));
        }
    }
}

fn binary_text(binary: Binary, a: &str, b: &str) -> String {
    let operator = match binary {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div => return format!("__fdiv_rn({a}, {b})"),
        Binary::Max => return format!("f_max({a}, {b})"),
        Binary::Min => return format!("f_min({a}, {b})"),
        Binary::Less => "<",
        Binary::LessEqual => "<=",
        Binary::Equal => "==",
    };
    format!("{a} {operator} {b}")
}

/// A position so many elements behind another.
pub(super) fn behind(at: &str, offset: u32) -> String {
    if offset == 0 { at.to_owned() } else { format!("{at} + {offset}") }
}
