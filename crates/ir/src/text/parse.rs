//! The parser: tables first, since nodes refer to what stands behind them, then the program.

use base::{Code, Diagnostic, Id, Place, PrimaryMap, Result, nearest, unknown_name_hint};
use rustc_hash::FxHashMap;

use super::{
    MAX_TEXT_BYTES, TEXT_VERSION,
    cursor::Cursor,
    literal::{append, literal, option, separated, typed},
};
use crate::{
    Arg, Graph, Input, InputClass, InputId, LabelId, ModuleId, Node, NodeId, Op, OpId, Part, PartKind,
    PlaceId, Return, Value, ValueDef, ValueId, verify,
};

impl Graph {
    /// Reads and verifies the text form; `file` is what diagnostics call it. Fails with [`Code::BAD_TEXT`] at line and
    /// column, [`Code::OTHER_VERSION`], [`Code::TOO_LARGE`] or [`Code::BAD_GRAPH`].
    pub fn from_text(file: &str, text: &str) -> Result<Self> {
        if text.len() > MAX_TEXT_BYTES {
            let message =
                format!("{file} has {} bytes and is over the limit of {MAX_TEXT_BYTES}", text.len());
            return Err(Diagnostic::new(Code::TOO_LARGE, message));
        }
        let mut parser = Parser { file, ..Parser::default() };
        let lines = || text.lines().zip(1..).filter(|(line, _)| !Cursor::new(file, 0, line).at_end());
        parser.header(lines().next())?;
        for (line, number) in lines().skip(1) {
            parser.table(&mut Cursor::new(file, number, line))?;
        }
        for (line, number) in lines().skip(1) {
            parser.statement(&mut Cursor::new(file, number, line))?;
        }
        verify(&parser.graph).map_err(|diagnostic| match diagnostic.place {
            Some(_) => diagnostic,
            None => diagnostic.at_line(file, 0, 0),
        })?;
        Ok(parser.graph)
    }
}

#[derive(Default)]
struct Parser<'t> {
    file: &'t str,
    graph: Graph,
    ops: FxHashMap<&'t str, OpId>,
    values: FxHashMap<u32, ValueId>,
    inputs: FxHashMap<String, InputId>,
    places: FxHashMap<u32, PlaceId>,
    modules: FxHashMap<u32, ModuleId>,
    labels: FxHashMap<u32, LabelId>,
}

/// The words that begin the statements other than nodes.
const STATEMENTS: [&str; 8] = ["op", "input", "part", "return", "update", "place", "module", "label"];

impl<'t> Parser<'t> {
    fn header(&self, first: Option<(&'t str, u32)>) -> Result<()> {
        let (line, number) = first.unwrap_or(("", 1));
        let mut cursor = Cursor::new(self.file, number, line);
        let hint = format!("a graph begins with the line `unisono graph {TEXT_VERSION}`");
        if !(cursor.eat("unisono ") && cursor.eat("graph ")) {
            return Err(cursor.wrong("the header line").hint(hint));
        }
        let version: u32 = cursor.integer("a version").map_err(|diagnostic| diagnostic.hint(hint))?;
        if version != TEXT_VERSION {
            let message =
                format!("a graph of version {version}, and this Unisono reads version {TEXT_VERSION}");
            let place = Place { file: self.file.into(), line: number, column: 0 };
            return Err(Diagnostic::new(Code::OTHER_VERSION, message).at(place));
        }
        cursor.end()
    }

    /// Reads a line that nodes refer to; leaves others alone.
    fn table(&mut self, cursor: &mut Cursor<'t>) -> Result<()> {
        match cursor.word() {
            "op" => self.operator(cursor),
            "place" => {
                let Self { graph, places, .. } = self;
                row(cursor, 'p', &mut graph.places, places, place)
            }
            "module" => {
                let Self { graph, modules, .. } = self;
                row(cursor, 'm', &mut graph.modules, modules, Cursor::quoted)
            }
            "label" => {
                let Self { graph, labels, .. } = self;
                row(cursor, 'l', &mut graph.labels, labels, Cursor::quoted)
            }
            _ => Ok(()),
        }
    }

    fn operator(&mut self, cursor: &mut Cursor<'t>) -> Result<()> {
        let before = cursor.mark();
        let name = cursor.word();
        cursor.back(before);
        let fault = cursor.wrong("an operator");
        let op: Op = cursor.take_rest().parse().map_err(|cause: String| fault.because(cause))?;
        if self.ops.insert(name, self.graph.ops.next_id()).is_some() {
            cursor.back(before);
            return Err(cursor.fault(&format!("the operator {name} is there already")));
        }
        self.graph.ops.push(op);
        Ok(())
    }

    fn statement(&mut self, cursor: &mut Cursor<'t>) -> Result<()> {
        let before = cursor.mark();
        match cursor.word() {
            "op" | "place" | "module" | "label" => return Ok(()),
            "input" => self.input(cursor)?,
            "part" => self.part(cursor)?,
            "return" => self.returns(cursor)?,
            "update" => self.update(cursor)?,
            word => {
                cursor.back(before);
                self.node(cursor).map_err(|diagnostic| misspelt(diagnostic, word))?;
            }
        }
        cursor.end()
    }

    fn input(&mut self, cursor: &mut Cursor<'t>) -> Result<()> {
        let id = self.graph.inputs.next_id();
        let value = self.define(cursor, ValueDef::Input(id))?;
        cursor.expect("=")?;
        let before = cursor.mark();
        let word = cursor.word();
        let Some((class, _)) = InputClass::NAMES.iter().find(|(_, name)| *name == word) else {
            cursor.back(before);
            let names = InputClass::NAMES.iter().map(|(_, name)| *name);
            return Err(cursor.wrong("a class of inputs").hint(unknown_name_hint(word, names)));
        };
        let name = cursor.quoted()?;
        self.inputs.insert(name.clone(), id);
        self.graph.inputs.push(Input { class: *class, name, value });
        Ok(())
    }

    fn part(&mut self, cursor: &mut Cursor<'t>) -> Result<()> {
        let before = cursor.mark();
        let word = cursor.word();
        let Some((kind, _)) = PartKind::NAMES.iter().find(|(_, name)| *name == word) else {
            cursor.back(before);
            let names = PartKind::NAMES.iter().map(|(_, name)| *name);
            return Err(cursor.wrong("a kind of part").hint(unknown_name_hint(word, names)));
        };
        let micro_batch = if cursor.at_end() { None } else { Some(cursor.count("a micro-batch")?) };
        self.graph.begin_part_of(Part { kind: *kind, micro_batch });
        Ok(())
    }

    fn returns(&mut self, cursor: &mut Cursor<'t>) -> Result<()> {
        loop {
            let value = self.value(cursor)?;
            self.graph.returns.push(value);
            if !cursor.eat(",") {
                return Ok(());
            }
        }
    }

    fn update(&mut self, cursor: &mut Cursor<'t>) -> Result<()> {
        let before = cursor.mark();
        let name = cursor.quoted()?;
        let Some(input) = self.inputs.get(&name).copied() else {
            cursor.back(before);
            let hint = nearest(
                &name,
                self.inputs.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>(),
            );
            let fault = cursor.fault(&format!("there is no input named {name:?}"));
            return Err(match hint {
                Some(near) => fault.hint(format!("did you mean `{near}`?")),
                None => fault.hint("an update names an input that stands above it"),
            });
        };
        cursor.expect("=")?;
        let value = self.value(cursor)?;
        self.graph.updates.push((input, value));
        Ok(())
    }

    fn node(&mut self, cursor: &mut Cursor<'t>) -> Result<()> {
        let id = self.graph.nodes.next_id();
        // What a node defines exists behind its line only: it cannot use itself.
        let mut position = 0;
        let mut defined = Vec::new();
        let returns = if cursor.eat("(") {
            separated(cursor, ")", |cursor| self.returned(cursor, id, &mut position, &mut defined))?
        } else {
            vec![self.returned(cursor, id, &mut position, &mut defined)?]
        };
        cursor.expect("=")?;
        let op = self.op(cursor)?;
        cursor.expect("(")?;
        let args = separated(cursor, ")", |cursor| self.argument(cursor))?;
        let part = self.graph.current_part();
        let mut node = Node { op, args, returns, place: None, module: None, part, label: None, stage: None };
        self.side_information(cursor, &mut node)?;
        for (number, value) in defined {
            self.bind(cursor, number, value)?;
        }
        self.graph.nodes.push(node);
        self.graph.order.push(id);
        Ok(())
    }

    fn returned(
        &mut self,
        cursor: &mut Cursor<'t>,
        node: NodeId,
        position: &mut u32,
        defined: &mut Vec<(u32, ValueId)>,
    ) -> Result<Return> {
        let mut one = |cursor: &mut Cursor<'t>| {
            let (number, ty) = typed(cursor)?;
            let value = self.graph.values.push(Value { ty, def: ValueDef::Result(node, *position) });
            *position += 1;
            defined.push((number, value));
            Ok(value)
        };
        if cursor.eat("_") {
            Ok(Return::None)
        } else if cursor.eat("[") {
            Ok(Return::Values(separated(cursor, "]", one)?))
        } else {
            Ok(Return::Value(one(cursor)?))
        }
    }

    /// Takes `v3: f32[2]` and adds that value.
    fn define(&mut self, cursor: &mut Cursor<'t>, def: ValueDef) -> Result<ValueId> {
        let (number, ty) = typed(cursor)?;
        let value = self.graph.values.push(Value { ty, def });
        self.bind(cursor, number, value)?;
        Ok(value)
    }

    fn bind(&mut self, cursor: &Cursor<'t>, number: u32, value: ValueId) -> Result<()> {
        match self.values.insert(number, value) {
            None => Ok(()),
            Some(_) => Err(cursor.fault(&format!("v{number} is defined twice"))),
        }
    }

    /// Takes a value that is defined.
    fn value(&self, cursor: &mut Cursor<'t>) -> Result<ValueId> {
        let before = cursor.mark();
        let number = cursor.numbered('v')?;
        self.values.get(&number).copied().ok_or_else(|| {
            cursor.back(before);
            cursor.fault(&format!("v{number} is not defined")).hint("definitions stand above uses")
        })
    }

    fn op(&self, cursor: &mut Cursor<'t>) -> Result<OpId> {
        let before = cursor.mark();
        let name = cursor.word();
        self.ops.get(name).copied().ok_or_else(|| {
            cursor.back(before);
            let fault = cursor.wrong("an operator of the table");
            let names: Vec<&str> = self.graph.ops.values().map(|op| op.name.as_str()).collect();
            match nearest(name, names) {
                Some(near) => fault.hint(format!("did you mean `{near}`?")),
                None => fault.hint(format!("add its schema: `op {name}(...) -> ...`")),
            }
        })
    }

    fn argument(&self, cursor: &mut Cursor<'t>) -> Result<Arg> {
        if cursor.rest().starts_with('"') {
            return cursor.quoted().map(Arg::Str);
        }
        if cursor.eat("[") {
            return self.list(cursor);
        }
        let before = cursor.mark();
        let word = cursor.word();
        let empty = match word {
            "values" => Some(Arg::Values(Vec::new())),
            "floats" => Some(Arg::Floats(Vec::new())),
            "bools" => Some(Arg::Bools(Vec::new())),
            "strs" => Some(Arg::Strs(Vec::new())),
            _ => None,
        };
        if let Some(empty) = empty {
            cursor.expect("[")?;
            cursor.expect("]")?;
            return Ok(empty);
        }
        if matches!(word, "layout" | "format" | "device") {
            return option(cursor, word);
        }
        cursor.back(before);
        self.scalar(cursor)
    }

    /// Takes the elements of a list, up to its bracket; the first says of what it is.
    fn list(&self, cursor: &mut Cursor<'t>) -> Result<Arg> {
        let quoted = cursor.rest().starts_with('"');
        if quoted {
            return separated(cursor, "]", Cursor::quoted).map(Arg::Strs);
        }
        let mut list = None;
        let all: Vec<()> = separated(cursor, "]", |cursor| {
            let before = cursor.mark();
            let element = self.scalar(cursor)?;
            append(&mut list, element).map_err(|()| {
                cursor.back(before);
                cursor.wrong("an element of the same kind as the one before it")
            })
        })?;
        debug_assert!(list.is_some() || all.is_empty());
        Ok(list.unwrap_or(Arg::Ints(Vec::new())))
    }

    /// Takes a value or a literal without brackets or quotes.
    fn scalar(&self, cursor: &mut Cursor<'t>) -> Result<Arg> {
        let before = cursor.mark();
        let word = cursor.word();
        if let Some(literal) = literal(word) {
            return Ok(literal);
        }
        cursor.back(before);
        if word.starts_with('v') {
            return self.value(cursor).map(Arg::Value);
        }
        Err(cursor.wrong("an argument").hint("arguments: v0, none, 1, 0.5, nan, true, f32, \"text\", [1, 2], layout(..), format(..), device(..)"))
    }

    fn side_information(&self, cursor: &mut Cursor<'t>, node: &mut Node) -> Result<()> {
        if !cursor.eat("@") {
            return Ok(());
        }
        while !cursor.at_end() {
            match cursor.rest().as_bytes()[0] {
                b'p' => node.place = Some(known(cursor, 'p', &self.places)?),
                b'm' => node.module = Some(known(cursor, 'm', &self.modules)?),
                b'l' => node.label = Some(known(cursor, 'l', &self.labels)?),
                b's' => node.stage = Some(cursor.numbered('s')?),
                _ => return Err(cursor.wrong("p0, m0, l0 or s0")),
            }
        }
        Ok(())
    }
}

/// A node that begins with an almost known word is a misspelt statement.
fn misspelt(diagnostic: Box<Diagnostic>, word: &str) -> Box<Diagnostic> {
    let statement = word.bytes().all(|b| b.is_ascii_lowercase()).then(|| nearest(word, STATEMENTS)).flatten();
    match statement.filter(|_| word.len() > 1 && diagnostic.hint.is_none()) {
        Some(near) => diagnostic.hint(format!("did you mean `{near}`?")),
        None => diagnostic,
    }
}

/// Takes a row of a table, `p0 ...`, and its end of line.
fn row<'t, K: Id, V>(
    cursor: &mut Cursor<'t>,
    prefix: char,
    table: &mut PrimaryMap<K, V>,
    names: &mut FxHashMap<u32, K>,
    entry: impl Fn(&mut Cursor<'t>) -> Result<V>,
) -> Result<()> {
    let before = cursor.mark();
    let number = cursor.numbered(prefix)?;
    if names.insert(number, table.next_id()).is_some() {
        cursor.back(before);
        return Err(cursor.fault(&format!("{prefix}{number} is there already")));
    }
    table.push(entry(cursor)?);
    cursor.end()
}

fn place(cursor: &mut Cursor<'_>) -> Result<Place> {
    let file = cursor.quoted()?;
    let mut number = || if cursor.eat(":") { cursor.integer("a line or column") } else { Ok(0) };
    Ok(Place { file, line: number()?, column: number()? })
}

/// Takes the id of a row, such as `p3`.
fn known<K: Id>(cursor: &mut Cursor<'_>, prefix: char, names: &FxHashMap<u32, K>) -> Result<K> {
    let before = cursor.mark();
    let number = cursor.numbered(prefix)?;
    names.get(&number).copied().ok_or_else(|| {
        cursor.back(before);
        cursor.fault(&format!("{prefix}{number} is not in its table"))
    })
}
