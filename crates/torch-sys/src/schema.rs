//! Operation schemas: the text that PyTorch prints for one, parsed.

use base::{Code, Diagnostic, Result};

/// The type of an argument or a return.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Type {
    /// `Tensor`
    Tensor,
    /// `int` and `SymInt`
    Int,
    /// `float`
    Float,
    /// `bool`
    Bool,
    /// `str`
    Str,
    /// `Scalar`: an integer, a float or a bool
    Scalar,
    /// `Any`
    Any,
    /// `ScalarType`
    Dtype,
    /// `Layout`
    Layout,
    /// `MemoryFormat`
    MemoryFormat,
    /// `Device`
    Device,
    /// `Generator`
    Generator,
    /// Everything else, by its name.
    Other(String),
    /// `T?`
    Optional(Box<Type>),
    /// `T[]`
    List(Box<Type>),
}

impl Type {
    fn named(name: &str) -> Self {
        match name {
            "Tensor" => Self::Tensor,
            "int" | "SymInt" => Self::Int,
            "float" => Self::Float,
            "bool" => Self::Bool,
            "str" => Self::Str,
            "Scalar" | "number" => Self::Scalar,
            "Any" => Self::Any,
            "ScalarType" => Self::Dtype,
            "Layout" => Self::Layout,
            "MemoryFormat" => Self::MemoryFormat,
            "Device" => Self::Device,
            "Generator" => Self::Generator,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The type without its `?`.
    pub fn required(&self) -> &Self {
        if let Self::Optional(inner) = self { inner } else { self }
    }
}

/// One argument of a schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// Whether its integers may be symbolic (`SymInt`).
    pub symbolic: bool,
    /// Whether the operation writes into it.
    pub written: bool,
    /// The set of aliases that it belongs to (`a` of `Tensor(a)`).
    pub alias: Option<String>,
}

/// One return of a schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Returned {
    /// Its type.
    pub ty: Type,
    /// Whether it is a tensor that the operation has written into.
    pub written: bool,
    /// The set of aliases that it belongs to.
    pub alias: Option<String>,
}

/// An operation's schema.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema {
    /// Name with name space, such as `aten::add`.
    pub name: String,
    /// Overload, such as `Tensor`; empty for the default one.
    pub overload: String,
    /// Arguments in order, keyword-only ones included.
    pub arguments: Vec<Argument>,
    /// Returns in order.
    pub returns: Vec<Returned>,
}

impl Schema {
    /// Parses `ns::name.overload(Type name=default, *, ...) -> (Type, ...)`.
    pub fn parse(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| {
            Diagnostic::new(Code::BAD_PROGRAM, format!("cannot parse the operation schema `{text}`"))
                .because("it is not of the form `ns::name.overload(Type name, ...) -> (Type, ...)`")
        })
    }

    /// `aten::add.Tensor`, or `aten::relu` for the default overload.
    pub fn full_name(&self) -> String {
        if self.overload.is_empty() { self.name.clone() } else { format!("{}.{}", self.name, self.overload) }
    }

    /// Whether the operation writes into one of its arguments.
    pub fn mutates(&self) -> bool {
        self.arguments.iter().any(|argument| argument.written)
    }
}

fn parse(text: &str) -> Option<Schema> {
    let open = text.find('(')?;
    let (full, rest) = text.split_at(open);
    let close = closing(rest)?;
    let returns = rest[close + 1..].trim().strip_prefix("->")?.trim();
    let (name, overload) = full.split_once('.').unwrap_or((full, ""));
    if !name.contains("::") {
        return None;
    }
    Some(Schema {
        name: name.trim().to_owned(),
        overload: overload.trim().to_owned(),
        arguments: commas(&rest[1..close])
            .filter(|part| *part != "*")
            .map(argument)
            .collect::<Option<_>>()?,
        returns: parse_returns(returns)?,
    })
}

fn parse_returns(text: &str) -> Option<Vec<Returned>> {
    let list = match text.strip_prefix('(') {
        Some(inner) => inner.strip_suffix(')')?,
        None => text,
    };
    commas(list)
        .map(|part| {
            let typed = typed(part)?;
            Some(Returned { ty: typed.ty, written: typed.written, alias: typed.alias })
        })
        .collect()
}

fn argument(part: &str) -> Option<Argument> {
    let typed = typed(part)?;
    let name = typed.rest.split('=').next()?.trim();
    if name.is_empty() {
        return None;
    }
    let symbolic = part.starts_with("SymInt");
    Some(Argument {
        name: name.to_owned(),
        ty: typed.ty,
        symbolic,
        written: typed.written,
        alias: typed.alias,
    })
}

struct Typed<'a> {
    ty: Type,
    written: bool,
    alias: Option<String>,
    rest: &'a str,
}

/// A type with its suffixes: `[n]`, `?` and alias annotations `(a!)`, `(a -> *)` in any order.
fn typed(part: &str) -> Option<Typed<'_>> {
    let end = part.find(|c: char| !(c.is_alphanumeric() || "._:".contains(c))).unwrap_or(part.len());
    if end == 0 {
        return None;
    }
    let (mut ty, mut rest) = (Type::named(&part[..end]), &part[end..]);
    let (mut written, mut alias) = (false, None);
    loop {
        match rest.chars().next() {
            Some('[') => {
                ty = Type::List(Box::new(ty));
                rest = &rest[rest.find(']')? + 1..];
            }
            Some('?') => {
                ty = Type::Optional(Box::new(ty));
                rest = &rest[1..];
            }
            Some('(') => {
                let close = closing(rest)?;
                let annotation = &rest[1..close];
                written |= annotation.contains('!');
                alias =
                    annotation.split(['!', ' ', '|']).next().filter(|set| !set.is_empty()).map(str::to_owned);
                rest = &rest[close + 1..];
            }
            _ => return Some(Typed { ty, written, alias, rest }),
        }
    }
}

/// The position of the parenthesis that closes the one at the start.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_u32;
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' | '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// The parts between commas outside of brackets and quotes, trimmed.
fn commas(text: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut quoted) = (0_i32, false);
    text.split(move |c: char| {
        match c {
            '"' | '\'' => quoted = !quoted,
            '(' | '[' if !quoted => depth += 1,
            ')' | ']' if !quoted => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0 && !quoted
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_aliases_and_keyword_only_arguments_are_read() {
        let schema = Schema::parse(
            "aten::f.out(Tensor(a!)[] self, SymInt[2]? size=[1, 2], *, Scalar alpha=1, str s=\"a,(b\") -> (Tensor(a!) x, Tensor?[])",
        )
        .unwrap();
        assert_eq!(schema.full_name(), "aten::f.out");
        let names: Vec<&str> = schema.arguments.iter().map(|argument| argument.name.as_str()).collect();
        assert_eq!(names, ["self", "size", "alpha", "s"]);
        assert_eq!(schema.arguments[0].ty, Type::List(Box::new(Type::Tensor)));
        assert_eq!((schema.arguments[0].written, schema.arguments[0].alias.as_deref()), (true, Some("a")));
        assert_eq!(schema.arguments[1].ty, Type::Optional(Box::new(Type::List(Box::new(Type::Int)))));
        assert_eq!(schema.arguments[2].ty, Type::Scalar);
        assert_eq!(schema.returns[1].ty, Type::List(Box::new(Type::Optional(Box::new(Type::Tensor)))));
        assert!(schema.mutates());
    }

    #[test]
    fn a_view_s_alias_set_is_the_one_before_the_arrow() {
        let schema =
            Schema::parse("aten::split.Tensor(Tensor(a -> *) self, SymInt n, int dim=0) -> Tensor(a)[]")
                .unwrap();
        assert_eq!(schema.arguments[0].alias, schema.returns[0].alias);
        assert!(!schema.mutates());
    }

    #[test]
    fn a_schema_without_returns_has_none_and_nonsense_is_refused() {
        assert!(Schema::parse("aten::f_(Tensor(a!)[] x) -> ()").unwrap().returns.is_empty());
        for text in ["", "aten::f", "f(Tensor x) -> Tensor", "aten::f(Tensor) -> Tensor", "aten::f(Tensor x"]
        {
            assert!(Schema::parse(text).is_err(), "{text}");
        }
    }
}
