//! The text form of a kernel, and its reader.
//!
//! ```text
//! kernel [64, 256]
//! read a0: f32 {256, 1}
//! read a1: bf16 {0, 1}
//! write a2: f32 {256, 1}
//! %0 = load a0
//! %1 = load a1
//! %2 = mul %0 %1
//! store a2 %2
//! ```
//!
//! `load a0 +32` is the element that lies 32 behind that of the point, and `store a2 +32 %2` writes it; `column` is the position of the point in its row.
//! `row_sum %0`, `row_max %0` and `row_min %0` are one number for each row; an operand of a row has the stride 0 along the last dimension. Stores to
//! an operand that begins with `add` are added up over rows.

use std::{fmt, fmt::Write as _, str::FromStr};

use base::{Code, Diagnostic, Result};

use crate::{
    Access, Binary, Element, Kernel, Op, Operand, OperandId, Reduction, Store, Unary, Value, verify,
};

/// The word of `item` in a table of names.
fn word<T: PartialEq>(names: &[(T, &'static str)], item: &T) -> &'static str {
    names.iter().find(|(named, _)| named == item).map_or("", |(_, word)| word)
}

/// The item of `word` in a table of names.
fn named<T: Copy>(names: &[(T, &'static str)], word: &str) -> Option<T> {
    names.iter().find(|(_, name)| *name == word).map(|(item, _)| *item)
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {:?}", self.domain)?;
        for (index, operand) in self.operands.iter().enumerate() {
            let (access, element) =
                (word(&Access::NAMES, &operand.access), word(&Element::NAMES, &operand.element));
            let strides: Vec<String> = operand.strides.iter().map(ToString::to_string).collect();
            writeln!(f, "{access} a{index}: {element} {{{}}}", strides.join(", "))?;
        }
        for (index, op) in self.body.iter().enumerate() {
            writeln!(f, "%{index} = {}", op_text(op))?;
        }
        self.stores.iter().try_for_each(|store| {
            writeln!(f, "store {}{} {}", store.operand, behind(store.offset), store.value)
        })
    }
}

fn behind(offset: u32) -> String {
    if offset == 0 { String::new() } else { format!(" +{offset}") }
}

fn op_text(op: &Op) -> String {
    let mut text = match op {
        Op::Load(operand, offset) => return format!("load {operand}{}", behind(*offset)),
        Op::Column => return "column".to_owned(),
        Op::Const(bits) => return format!("const {:?}", f32::from_bits(*bits)),
        Op::Unary(unary, _) => word(&Unary::NAMES, unary).to_owned(),
        Op::Binary(binary, ..) => word(&Binary::NAMES, binary).to_owned(),
        Op::Reduce(reduction, _) => word(&Reduction::NAMES, reduction).to_owned(),
        Op::Fma(..) => "fma".to_owned(),
        Op::Select(..) => "select".to_owned(),
    };
    for value in op.operands() {
        let _ = write!(text, " {value}");
    }
    text
}

impl FromStr for Kernel {
    type Err = Box<Diagnostic>;

    /// Reads and verifies a kernel.
    fn from_str(text: &str) -> Result<Self> {
        let mut kernel = Self::default();
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
        for (number, line) in lines {
            read_line(&mut kernel, line).map_err(|fault| {
                Diagnostic::new(Code::BAD_TEXT, fault).at_line("kernel", number as u32 + 1, 0)
            })?;
        }
        verify(&kernel)?;
        Ok(kernel)
    }
}

fn read_line(kernel: &mut Kernel, line: &str) -> Result<(), String> {
    let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
    if let Some(access) = named(&Access::NAMES, first) {
        kernel.operands.push(operand(kernel.operands.len(), access, rest)?);
    } else if first == "kernel" {
        kernel.domain = numbers(rest, '[', ']')?;
    } else if first == "store" {
        let (to, value) = rest.rsplit_once(' ').ok_or("expected an operand and a value")?;
        let (operand, offset) = place(to)?;
        kernel.stores.push(Store { operand, offset, value: Value(id(value, '%')?) });
    } else {
        let (index, op) = line.split_once('=').ok_or_else(|| format!("`{first}` begins no line"))?;
        if id(index.trim(), '%')? as usize != kernel.body.len() {
            return Err(format!("expected %{} here", kernel.body.len()));
        }
        kernel.body.push(read_op(op.trim())?);
    }
    Ok(())
}

/// The number behind `prefix`.
fn id(text: &str, prefix: char) -> Result<u32, String> {
    let digits = text.trim().strip_prefix(prefix).and_then(|digits| digits.parse().ok());
    digits.ok_or_else(|| format!("expected `{prefix}` and a number, found `{text}`"))
}

/// An operand, perhaps with how far behind the point's element.
fn place(text: &str) -> Result<(OperandId, u32), String> {
    let (operand, offset) = text.split_once(' ').unwrap_or((text, "+0"));
    Ok((OperandId(id(operand, 'a')?), id(offset, '+')?))
}

fn numbers(text: &str, open: char, close: char) -> Result<Vec<i64>, String> {
    let inner = text.trim().strip_prefix(open).and_then(|text| text.strip_suffix(close));
    let inner = inner.ok_or_else(|| format!("expected `{open}` .. `{close}`, found `{text}`"))?;
    let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| part.parse().map_err(|_| format!("`{part}` is no number"))).collect()
}

fn operand(index: usize, access: Access, text: &str) -> Result<Operand, String> {
    let (name, ty) = text.split_once(':').ok_or("expected `:` behind the operand")?;
    if id(name, 'a')? as usize != index {
        return Err(format!("expected a{index} here"));
    }
    let (element, strides) = ty.trim().split_once(' ').ok_or("expected an element type and strides")?;
    let element =
        named(&Element::NAMES, element).ok_or_else(|| format!("unknown element type `{element}`"))?;
    Ok(Operand { access, element, strides: numbers(strides, '{', '}')? })
}

fn read_op(text: &str) -> Result<Op, String> {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    if name == "load" {
        return place(rest).map(|(operand, offset)| Op::Load(operand, offset));
    }
    if text == "column" {
        return Ok(Op::Column);
    }
    if name == "const" {
        let number: f32 = rest.parse().map_err(|_| format!("`{rest}` is no number"))?;
        return Ok(Op::Const(number.to_bits()));
    }
    let values =
        rest.split_whitespace().map(|value| id(value, '%').map(Value)).collect::<Result<Vec<_>, _>>()?;
    let op = match *values.as_slice() {
        [a] => named(&Unary::NAMES, name)
            .map(|unary| Op::Unary(unary, a))
            .or_else(|| named(&Reduction::NAMES, name).map(|reduction| Op::Reduce(reduction, a))),
        [a, b] => named(&Binary::NAMES, name).map(|binary| Op::Binary(binary, a, b)),
        [a, b, c] if name == "fma" => Some(Op::Fma(a, b, c)),
        [a, b, c] if name == "select" => Some(Op::Select(a, b, c)),
        _ => None,
    };
    op.ok_or_else(|| format!("unknown operation `{name}` of {} values", values.len()))
}
