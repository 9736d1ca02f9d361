//! The printer.

use std::fmt::{self, Display, Formatter, Write};

use base::{Id, Place};

use crate::{Arg, Graph, Node, Part, PartId, Return, ValueId};

impl Display for Graph {
    /// The text form of a verified graph, [renumbered](Graph::renumbered).
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Printer { graph: &self.renumbered() }.print(f)
    }
}

struct Printer<'g> {
    graph: &'g Graph,
}

impl Printer<'_> {
    fn print(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "unisono graph {}", super::TEXT_VERSION)?;
        section(f, self.graph.ops.values(), |f, op| writeln!(f, "op {op}"))?;
        section(f, self.graph.inputs.values(), |f, input| {
            let (value, class) = (input.value, input.class.text());
            writeln!(f, "input {value}: {} = {class} {}", self.graph.ty(value), Quoted(&input.name))
        })?;
        self.program(f)?;
        f.write_str(if self.graph.returns.is_empty() { "" } else { "\nreturn " })?;
        separated(f, &self.graph.returns, |f, value| write!(f, "{value}"))?;
        f.write_str(if self.graph.returns.is_empty() { "" } else { "\n" })?;
        section(f, self.graph.updates.iter(), |f, (input, value)| {
            writeln!(f, "update {} = {value}", Quoted(&self.graph.inputs[*input].name))
        })?;
        section(f, self.graph.places.iter(), |f, (id, place)| writeln!(f, "place {id} {}", Located(place)))?;
        section(f, self.graph.modules.iter(), |f, (id, path)| writeln!(f, "module {id} {}", Quoted(path)))?;
        section(f, self.graph.labels.iter(), |f, (id, label)| writeln!(f, "label {id} {}", Quoted(label)))
    }

    /// The nodes, each part of the program behind a line that says its kind; a first part that is forward goes without.
    fn program(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let first = self.graph.parts.values().next().is_none_or(|part| *part == Part::default());
        let mut current = first.then_some(PartId(0));
        f.write_str(if self.graph.nodes.is_empty() { "" } else { "\n" })?;
        for node in self.graph.nodes.values() {
            if current != Some(node.part) {
                current = Some(node.part);
                let Part { kind, micro_batch } = self.graph.parts[node.part];
                match micro_batch {
                    Some(number) => writeln!(f, "part {} {number}", kind.text())?,
                    None => writeln!(f, "part {}", kind.text())?,
                }
            }
            self.node(f, node)?;
        }
        Ok(())
    }

    fn node(&self, f: &mut Formatter<'_>, node: &Node) -> fmt::Result {
        match node.returns.as_slice() {
            [one] => self.returned(f, one)?,
            returns => {
                f.write_char('(')?;
                separated(f, returns, |f, returned| self.returned(f, returned))?;
                f.write_char(')')?;
            }
        }
        write!(f, " = {}(", self.graph.ops[node.op].name)?;
        separated(f, &node.args, argument)?;
        f.write_char(')')?;
        side_information(f, node)
    }

    fn returned(&self, f: &mut Formatter<'_>, returned: &Return) -> fmt::Result {
        match returned {
            Return::None => f.write_char('_'),
            Return::Value(value) => self.defined(f, *value),
            Return::Values(values) => {
                f.write_char('[')?;
                separated(f, values, |f, value| self.defined(f, *value))?;
                f.write_char(']')
            }
        }
    }

    fn defined(&self, f: &mut Formatter<'_>, value: ValueId) -> fmt::Result {
        write!(f, "{value}: {}", self.graph.ty(value))
    }
}

/// Prints `entries`, a line each, behind an empty line.
fn section<T>(
    f: &mut Formatter<'_>,
    entries: impl ExactSizeIterator<Item = T>,
    line: impl Fn(&mut Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    if entries.len() > 0 {
        f.write_char('\n')?;
    }
    for entry in entries {
        line(f, entry)?;
    }
    Ok(())
}

fn separated<T>(
    f: &mut Formatter<'_>,
    entries: &[T],
    print: impl Fn(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (i, entry) in entries.iter().enumerate() {
        f.write_str(if i == 0 { "" } else { ", " })?;
        print(f, entry)?;
    }
    Ok(())
}

impl fmt::Display for Arg {
    /// As it stands in the text form of a graph.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        argument(f, self)
    }
}

fn argument(f: &mut Formatter<'_>, arg: &Arg) -> fmt::Result {
    match arg {
        Arg::None => f.write_str("none"),
        Arg::Value(value) => write!(f, "{value}"),
        Arg::Values(values) => list(f, "values", values, |f, value| match value {
            Some(value) => write!(f, "{value}"),
            None => f.write_str("none"),
        }),
        Arg::Int(number) => write!(f, "{number}"),
        Arg::Ints(numbers) => list(f, "", numbers, |f, number| write!(f, "{number}")),
        Arg::Float(number) => float(f, *number),
        Arg::Floats(numbers) => list(f, "floats", numbers, |f, number| float(f, *number)),
        Arg::Bool(truth) => write!(f, "{truth}"),
        Arg::Bools(truths) => list(f, "bools", truths, |f, truth| write!(f, "{truth}")),
        Arg::Str(text) => write!(f, "{}", Quoted(text)),
        Arg::Strs(texts) => list(f, "strs", texts, |f, text| write!(f, "{}", Quoted(text))),
        Arg::Dtype(dtype) => write!(f, "{dtype}"),
        Arg::Layout(layout) => write!(f, "layout({layout})"),
        Arg::MemoryFormat(format) => write!(f, "format({format})"),
        Arg::Device(device) => write!(f, "device({device})"),
    }
}

fn list<T>(
    f: &mut Formatter<'_>,
    of: &str,
    entries: &[T],
    print: impl Fn(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    f.write_str(if entries.is_empty() { of } else { "" })?;
    f.write_char('[')?;
    separated(f, entries, print)?;
    f.write_char(']')
}

/// The shortest text that reads back as the same number and not as an integer.
fn float(f: &mut Formatter<'_>, number: f64) -> fmt::Result {
    if number.is_nan() { f.write_str("nan") } else { write!(f, "{number:?}") }
}

fn side_information(f: &mut Formatter<'_>, node: &Node) -> fmt::Result {
    let mut before = " @";
    let mut word = |f: &mut Formatter<'_>, prefix: &str, id: usize| {
        write!(f, "{}{prefix}{id}", std::mem::replace(&mut before, " "))
    };
    if let Some(place) = node.place {
        word(f, "p", place.index())?;
    }
    if let Some(module) = node.module {
        word(f, "m", module.index())?;
    }
    if let Some(label) = node.label {
        word(f, "l", label.index())?;
    }
    if let Some(stage) = node.stage {
        word(f, "s", stage as usize)?;
    }
    f.write_char('\n')
}

/// A string in quotes on one line.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        let mut plain = 0;
        for (at, c) in self.0.char_indices().filter(|(_, c)| *c == '"' || *c == '\\' || c.is_control()) {
            f.write_str(&self.0[plain..at])?;
            plain = at + c.len_utf8();
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                '\t' => f.write_str("\\t")?,
                '\r' => f.write_str("\\r")?,
                _ => write!(f, "\\u{{{:x}}}", u32::from(c))?,
            }
        }
        f.write_str(&self.0[plain..])?;
        f.write_char('"')
    }
}

/// A place with its file in quotes.
struct Located<'a>(&'a Place);

impl Display for Located<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Place { file, line, column } = self.0;
        write!(f, "{}", Quoted(file))?;
        match (line, column) {
            (0, 0) => Ok(()),
            (line, 0) => write!(f, ":{line}"),
            (line, column) => write!(f, ":{line}:{column}"),
        }
    }
}
