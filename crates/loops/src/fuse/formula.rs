//! Formulas of operations, as their rows have them, evaluated into a kernel.
//!
//! A formula is an expression of the operation's arguments, by their names, perhaps behind definitions of names of its own:
//! `s = sigmoid(self); grad_output * s * (1 + self * (1 - s))`. An operation with several results has as many expressions, with commas between them.

use crate::{Binary, Reduction, Unary, Value, fuse::node::Body};

/// The formula of what lays tensors side by side along a dimension.
pub(super) const JOINED: &str = "joined(tensors, dim)";
/// The formula of what has a tensor from `start` to `end` along a dimension, and 0 elsewhere.
pub(super) const FILLED: &str = "filled(grad_output, dim, start, end)";

/// What a formula makes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Made {
    /// A number for each point, or for each row.
    Value(Value),
    /// The sum of all rows.
    OfRows(Value),
}

/// Whether a formula takes rows together.
pub(super) fn reduces(formula: &str) -> bool {
    ["over ", "_over("].iter().any(|word| formula.contains(word))
}

/// Whether a formula has a function whose last bit is not PyTorch's.
pub(super) fn approximates(formula: &str) -> bool {
    ["exp(", "log(", "tanh(", "sigmoid(", "erf("].iter().any(|function| formula.contains(function))
}

/// The results of a formula for one operation; fails with the reason, in a few words.
pub(super) fn results(formula: &str, body: &mut Body<'_, '_>) -> Result<Vec<Made>, String> {
    let mut names = Vec::new();
    let mut parts = formula.split(';').map(str::trim).peekable();
    while let Some(part) = parts.next() {
        if let Some(argument) = part.strip_prefix("over ") {
            body.must_be_the_row(argument)?;
            continue;
        }
        let (name, expression) = match part.split_once(" = ") {
            Some((name, expression)) if parts.peek().is_some() => (name.trim(), expression),
            _ => ("", part),
        };
        let mut reader =
            Reader { rest: expression.trim(), names: &names, body, may_be_absent: false, of_rows: false };
        if name.is_empty() {
            return reader.all();
        }
        let value = reader.sum()?;
        reader.end()?;
        names.push((name, value));
    }
    Err("a formula without an end".to_owned())
}

struct Reader<'a, 'b, 'c, 'd> {
    rest: &'a str,
    names: &'a [(&'a str, Value)],
    body: &'c mut Body<'b, 'd>,
    /// Whether an argument that is not given is 0: what is made of it is not used.
    may_be_absent: bool,
    /// Whether the result is summed over rows.
    of_rows: bool,
}

impl<'a> Reader<'a, '_, '_, '_> {
    /// The expressions of all results.
    fn all(&mut self) -> Result<Vec<Made>, String> {
        let mut made = Vec::new();
        loop {
            self.of_rows = false;
            let value = self.sum()?;
            made.push(if self.of_rows { Made::OfRows(value) } else { Made::Value(value) });
            if !self.eat(",") {
                return self.end().map(|()| made);
            }
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(token) {
            Some(after) => self.rest = after,
            None => return false,
        }
        true
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(format!("the formula lacks `{token}` before `{}`", self.rest))
        }
    }

    fn end(&self) -> Result<(), String> {
        if self.rest.trim().is_empty() { Ok(()) } else { Err(format!("`{}` ends the formula", self.rest)) }
    }

    /// The longest run of letters, digits, points and underscores; a number's exponent may be negative, as in `1e-7`.
    fn word(&mut self) -> &'a str {
        let rest = self.rest.trim_start();
        let run = |from: usize| {
            let is_outside = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.');
            rest[from..].find(is_outside).map_or(rest.len(), |end| from + end)
        };
        let mut end = run(0);
        let is_number = rest.starts_with(|c: char| c.is_ascii_digit());
        if is_number && rest[..end].ends_with('e') && rest[end..].starts_with('-') {
            end = run(end + 1);
        }
        self.rest = &rest[end..];
        &rest[..end]
    }

    fn sum(&mut self) -> Result<Value, String> {
        let mut sum = self.product()?;
        loop {
            let binary = if self.eat("+") {
                Binary::Add
            } else if self.eat("-") {
                Binary::Sub
            } else {
                return Ok(sum);
            };
            let next = self.product()?;
            sum = self.body.maker.builder.binary(binary, sum, next);
        }
    }

    fn product(&mut self) -> Result<Value, String> {
        let mut product = self.factor()?;
        loop {
            let binary = if self.eat("*") {
                Binary::Mul
            } else if self.eat("/") {
                Binary::Div
            } else {
                return Ok(product);
            };
            let next = self.factor()?;
            product = self.body.maker.builder.binary(binary, product, next);
        }
    }

    fn factor(&mut self) -> Result<Value, String> {
        if self.eat("(") {
            let value = self.sum()?;
            return self.expect(")").map(|()| value);
        }
        if self.eat("-") {
            let value = self.factor()?;
            return Ok(self.body.maker.builder.unary(Unary::Neg, value));
        }
        let word = self.word();
        if let Ok(number) = word.parse::<f32>() {
            return Ok(self.body.maker.builder.constant(number));
        }
        if self.eat("(") {
            let value = self.call(word)?;
            return self.expect(")").map(|()| value);
        }
        match self.names.iter().find(|(name, _)| *name == word) {
            Some((_, value)) => Ok(*value),
            None if word == "count" => {
                let count = self.body.row_length() as f32;
                Ok(self.body.maker.builder.constant(count))
            }
            None if word == "column" => self.body.column(),
            None if self.may_be_absent && !self.body.is_given(word)? => {
                Ok(self.body.maker.builder.constant(0.0))
            }
            None => self.body.argument(word),
        }
    }

    fn call(&mut self, name: &str) -> Result<Value, String> {
        match name {
            "pow" => self.power(),
            "case" => self.case(),
            "of_row" => {
                let argument = self.word();
                self.body.of_row(argument)
            }
            "where" => self.choice(),
            "factor" => {
                let argument = self.word();
                self.body.factor(argument)
            }
            "rounded" => {
                let value = self.sum()?;
                Ok(self.body.rounded(value))
            }
            "given" => self.given(),
            "sum_of" => self.reduced(Reduction::Sum),
            "max_of" => self.reduced(Reduction::Max),
            "min_of" => self.reduced(Reduction::Min),
            "rows" => {
                self.of_rows = true;
                self.sum()
            }
            "sum_over" => self.over(false),
            "mean_over" => self.over(true),
            "fma" | "max" | "min" => self.several(name),
            _ => {
                let unary = Unary::NAMES.iter().find(|(_, known)| *known == name);
                let (unary, _) = unary.ok_or_else(|| format!("the formula's function `{name}`"))?;
                let value = self.sum()?;
                Ok(self.body.maker.builder.unary(*unary, value))
            }
        }
    }

    /// `fma(a, b, c)`, `max(a, b)`, `min(a, b)`
    fn several(&mut self, name: &str) -> Result<Value, String> {
        let a = self.sum()?;
        self.expect(",")?;
        let b = self.sum()?;
        if name != "fma" {
            let binary = if name == "max" { Binary::Max } else { Binary::Min };
            return Ok(self.body.maker.builder.binary(binary, a, b));
        }
        self.expect(",")?;
        let c = self.sum()?;
        Ok(self.body.maker.builder.fma(a, b, c))
    }

    /// `where(a <= b, yes, no)`, also with `<` or `==`.
    fn choice(&mut self) -> Result<Value, String> {
        let a = self.sum()?;
        let binary = if self.eat("<=") {
            Binary::LessEqual
        } else if self.eat("==") {
            Binary::Equal
        } else {
            self.expect("<")?;
            Binary::Less
        };
        let b = self.sum()?;
        let mask = self.body.maker.builder.binary(binary, a, b);
        self.expect(",")?;
        let yes = self.sum()?;
        self.expect(",")?;
        let no = self.sum()?;
        Ok(self.body.maker.builder.select(mask, yes, no))
    }

    /// `case(argument, text, yes, no)`: by an argument that is a string or a whole number.
    fn case(&mut self) -> Result<Value, String> {
        let argument = self.word();
        self.expect(",")?;
        let text = self.word();
        self.expect(",")?;
        let holds = match text.parse::<i64>() {
            Ok(number) => self.body.integer(argument)? == number,
            Err(_) => self.body.text(argument)? == text,
        };
        let yes = self.sum()?;
        self.expect(",")?;
        let no = self.sum()?;
        Ok(if holds { yes } else { no })
    }

    /// `given(argument, yes, no)`: by whether an argument is there.
    fn given(&mut self) -> Result<Value, String> {
        let argument = self.word();
        self.expect(",")?;
        let holds = self.body.is_given(argument)?;
        self.may_be_absent = !holds;
        let yes = self.sum()?;
        self.may_be_absent = false;
        self.expect(",")?;
        let no = self.sum()?;
        Ok(if holds { yes } else { no })
    }

    /// `sum_of(a)`, `max_of(a)`, `min_of(a)`: of a row.
    fn reduced(&mut self, reduction: Reduction) -> Result<Value, String> {
        let value = self.sum()?;
        Ok(self.of_row(reduction, value))
    }

    fn of_row(&mut self, reduction: Reduction, value: Value) -> Value {
        let points = self.body.elements_of(true, false);
        let builder = &mut self.body.maker.builder;
        match reduction {
            Reduction::Sum => builder.sum_of_row(value, points),
            _ => builder.reduce(reduction, value),
        }
    }

    /// `sum_over(a, dims)`, `mean_over(a, dims)`, or without `dims` over all: of rows, of all rows together, or of both.
    fn over(&mut self, mean: bool) -> Result<Value, String> {
        let value = self.sum()?;
        let dims = if self.eat(",") { Some(self.word()) } else { None };
        let (row, rows) = self.body.reduced_dims(dims)?;
        self.of_rows |= rows;
        let value = if row { self.of_row(Reduction::Sum, value) } else { value };
        if !mean {
            return Ok(value);
        }
        let count = self.body.elements_of(row, rows) as f32;
        let count = self.body.maker.builder.constant(count);
        Ok(self.body.maker.builder.binary(Binary::Div, value, count))
    }

    /// `pow(a, argument)` for exponents that take few products and roots.
    fn power(&mut self) -> Result<Value, String> {
        let x = self.sum()?;
        self.expect(",")?;
        let argument = self.word();
        let exponent = self.body.scalar(argument)?;
        if !self.body.raises_as_eager(exponent) {
            return Err(format!("the exponent {exponent}, which PyTorch rounds otherwise"));
        }
        let builder = &mut self.body.maker.builder;
        let magnitude = match exponent.abs() {
            0.5 => builder.unary(Unary::Sqrt, x),
            1.0 => x,
            2.0 => builder.binary(Binary::Mul, x, x),
            3.0 => {
                let square = builder.binary(Binary::Mul, x, x);
                let square = self.body.rounded_as_eager(square);
                self.body.maker.builder.binary(Binary::Mul, square, x)
            }
            _ => return Err(format!("the exponent {exponent}")),
        };
        if exponent > 0.0 {
            return Ok(magnitude);
        }
        let magnitude = self.body.rounded_as_eager(magnitude);
        let builder = &mut self.body.maker.builder;
        let one = builder.constant(1.0);
        Ok(builder.binary(Binary::Div, one, magnitude))
    }
}
