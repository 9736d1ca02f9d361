//! Operator schemas, as PyTorch prints them: `(Tensor self, *, int dim=0) -> (Tensor values, Tensor[] rest)`.

/// A parsed schema, borrowed from its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schema<'a> {
    /// The arguments in order.
    pub parameters: Vec<Parameter<'a>>,
    /// The returns in order.
    pub returns: Vec<SchemaType<'a>>,
}

/// One argument of a schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its type.
    pub ty: SchemaType<'a>,
    /// Its default, as printed.
    pub default: Option<&'a str>,
    /// Whether it stands after the `*`.
    pub keyword_only: bool,
}

/// The type of an argument or a return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SchemaType<'a> {
    /// The innermost type, such as `Tensor`, `int` or `Scalar`.
    pub base: &'a str,
    /// Whether it is a list of that.
    pub list: bool,
    /// Whether the whole may be absent.
    pub optional: bool,
    /// The alias annotation, such as `a`, `a!` or `a -> *`: what shares memory with what, and what is written.
    pub alias: Option<&'a str>,
}

impl<'a> Schema<'a> {
    /// Parses `text`, or `None` where it is no schema.
    pub fn parse(text: &'a str) -> Option<Self> {
        let arguments_end = closing(text)?;
        let arguments = text.get(1..arguments_end)?;
        let returns = text.get(arguments_end + 1..)?.trim().strip_prefix("->")?.trim();
        let mut parameters = Vec::new();
        let mut keyword_only = false;
        for part in split(arguments)? {
            if part == "*" {
                keyword_only = true;
            } else {
                parameters.push(Parameter::parse(part, keyword_only)?);
            }
        }
        let returns = match closing(returns) {
            Some(end) if end + 1 == returns.len() => split(&returns[1..end])?,
            _ => vec![returns],
        };
        let returns = returns.into_iter().map(|part| SchemaType::parse(type_and_rest(part).0));
        Some(Self { parameters, returns: returns.collect::<Option<_>>()? })
    }

    /// Whether the operator writes to one of its arguments.
    pub fn writes(&self) -> bool {
        self.parameters.iter().any(|parameter| parameter.ty.is_written())
    }

    /// Whether a return may share memory with an argument.
    pub fn aliases(&self) -> bool {
        self.returns.iter().any(|ty| ty.alias.is_some())
    }
}

impl<'a> Parameter<'a> {
    fn parse(text: &'a str, keyword_only: bool) -> Option<Self> {
        let (ty, rest) = type_and_rest(text);
        let (name, default) = match rest.split_once('=') {
            Some((name, default)) => (name.trim(), Some(default.trim())),
            None => (rest.trim(), None),
        };
        Some(Self { name, ty: SchemaType::parse(ty)?, default, keyword_only })
    }
}

impl<'a> SchemaType<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let base_end = text.find(['(', '[', '?']).unwrap_or(text.len());
        let (base, suffix) = text.split_at(base_end);
        let alias = (base == "Tensor").then(|| closing(suffix).map(|end| &suffix[1..end])).flatten();
        let base = if base.is_empty() { text } else { base };
        let named = base.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '(');
        let (list, optional) = (suffix.contains('['), suffix.ends_with('?'));
        named.then_some(Self { base, list, optional, alias })
    }

    /// Whether it is a tensor or a list of tensors.
    pub fn is_tensor(&self) -> bool {
        self.base == "Tensor"
    }

    /// Whether the operator writes to it.
    pub fn is_written(&self) -> bool {
        self.alias.is_some_and(|alias| alias.contains('!'))
    }
}

/// The position of the parenthesis that closes the one which `text` begins with.
fn closing(text: &str) -> Option<usize> {
    text.starts_with('(').then_some(())?;
    at_depth(text).find(|(_, c, depth)| *c == ')' && *depth == 0).map(|(i, ..)| i)
}

/// The parts of `text` between its outermost commas; `None` where brackets or quotes do not match.
fn split(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0);
    for (i, c, at) in at_depth(text) {
        depth = at;
        if c == ',' && at == 0 {
            parts.push(text[start..i].trim());
            start = i + 1;
        }
    }
    let last = text[start..].trim();
    if !(last.is_empty() && parts.is_empty()) {
        parts.push(last);
    }
    (depth == 0 && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

/// The type that `text` begins with, and what follows it.
fn type_and_rest(text: &str) -> (&str, &str) {
    let end = at_depth(text).find(|(_, c, depth)| *c == ' ' && *depth == 0).map_or(text.len(), |(i, ..)| i);
    (&text[..end], text[end..].trim_start())
}

/// The characters of `text` outside of quotes, with their position and the depth of brackets after them.
fn at_depth(text: &str) -> impl Iterator<Item = (usize, char, i32)> {
    let mut depth = 0;
    let mut quote = None;
    let mut previous = ' ';
    text.char_indices().filter_map(move |(i, c)| {
        let arrow = previous == '-' && c == '>';
        let escaped = std::mem::replace(&mut previous, c) == '\\';
        match (quote, c) {
            (Some(open), _) => {
                quote = (open != c || escaped).then_some(open);
                return None;
            }
            (None, '"' | '\'') => {
                quote = Some(c);
                return None;
            }
            (None, '(' | '[') => depth += 1,
            (None, ')' | ']') if !arrow => depth -= 1,
            _ => {}
        }
        Some((i, c, depth))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<'a>(schema: &Schema<'a>) -> Vec<&'a str> {
        schema.parameters.iter().map(|parameter| parameter.name).collect()
    }

    #[test]
    fn arguments_defaults_and_returns_are_told_apart() {
        let text = "(Tensor(a!)? self, int[2] kernel_size, *, float[] s=[1., 2.], str pad=\"a, )\") -> (Tensor(a!) x, Tensor[])";
        let schema = Schema::parse(text).unwrap();
        assert_eq!(names(&schema), ["self", "kernel_size", "s", "pad"]);
        assert!(schema.writes() && schema.aliases());
        assert!(schema.parameters[0].ty.optional && schema.parameters[1].ty.list);
        assert_eq!(schema.parameters[2].default, Some("[1., 2.]"));
        assert!(schema.parameters[2].keyword_only && !schema.parameters[1].keyword_only);
        assert_eq!(schema.returns.len(), 2);
        assert!(schema.returns[1].list && schema.returns[1].is_tensor());
    }

    #[test]
    fn schemas_without_arguments_or_returns_and_with_odd_types_parse() {
        let empty = Schema::parse("() -> ()").unwrap();
        assert!(empty.parameters.is_empty() && empty.returns.is_empty());
        let odd = "(Tensor(a -> *) self, Dict(str, Tensor) d, Any group_name, __torch__.torch.classes.c10d.ProcessGroup g) -> Tensor(a)[]";
        let odd = Schema::parse(odd).unwrap();
        assert_eq!(names(&odd), ["self", "d", "group_name", "g"]);
        assert_eq!((odd.parameters[0].ty.alias, odd.parameters[1].ty.base), (Some("a -> *"), "Dict"));
        assert!(odd.returns[0].list && !odd.writes());
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for text in ["", "(", "()", "Tensor -> Tensor", "(Tensor a", "(Tensor a,) -> Tensor", "([) -> Tensor"]
        {
            assert_eq!(Schema::parse(text), None, "{text}");
        }
    }
}
