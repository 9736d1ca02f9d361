//! The one error type of all crates: what happened, where in the user's own code or file, why, and what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Audience, Code};

/// The result of everything that can fail because of its input.
pub type Result<T, E = Box<Diagnostic>> = std::result::Result<T, E>;

/// A place in the user's own code or file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The file's path as the user knows it.
    pub file: String,
    /// The line, from 1; 0 where there is none.
    pub line: u32,
    /// The column, from 1; 0 where there is none.
    #[serde(default)]
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        Ok(())
    }
}

/// What went wrong: a stable code, what happened, where, why, and a hint.
///
/// Printed as
/// ```text
/// error[U0012]: unknown key `lenghts`
///   at problem.json:3:5
///   because a problem has no such key
///   hint: did you mean `lengths`?
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Diagnostic {
    /// The stable code.
    pub code: Code,
    /// What happened, in one sentence without a full stop.
    pub message: String,
    /// Where in the user's code or file.
    pub place: Option<Place>,
    /// Why it is so.
    pub cause: Option<String>,
    /// What the user can do.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// A diagnostic with a code and what happened; boxed, because it travels in [`Result`]s.
    pub fn new(code: Code, message: impl Into<String>) -> Box<Self> {
        Box::new(Self { code, message: message.into(), place: None, cause: None, hint: None })
    }

    /// A broken invariant of Unisono's own.
    pub fn bug(message: impl Into<String>) -> Box<Self> {
        Self::new(Code::INTERNAL, message).hint("this is a bug of Unisono: please report it with the input")
    }

    /// Adds where it happened.
    #[must_use]
    pub fn at(mut self: Box<Self>, place: Place) -> Box<Self> {
        self.place = Some(place);
        self
    }

    /// Adds where it happened: a line of a file, both from 1.
    #[must_use]
    pub fn at_line(self: Box<Self>, file: impl Into<String>, line: u32, column: u32) -> Box<Self> {
        self.at(Place { file: file.into(), line, column })
    }

    /// Adds why.
    #[must_use]
    pub fn because(mut self: Box<Self>, cause: impl Into<String>) -> Box<Self> {
        self.cause = Some(cause.into());
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn hint(mut self: Box<Self>, hint: impl Into<String>) -> Box<Self> {
        self.hint = Some(hint.into());
        self
    }

    /// Whose it is to act.
    pub fn audience(&self) -> Audience {
        self.code.info().map_or(Audience::Bug, |info| info.audience)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}", self.code, self.message)?;
        let lines = [
            ("at ", self.place.as_ref().map(ToString::to_string)),
            ("because ", self.cause.clone()),
            ("hint: ", self.hint.clone()),
        ];
        for (label, text) in lines.into_iter().filter_map(|(label, text)| Some((label, text?))) {
            write!(f, "\n  {label}{text}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Diagnostic {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnostic_prints_place_cause_and_hint_on_lines_of_their_own() {
        let diagnostic = Diagnostic::new(Code::UNKNOWN_KEY, "unknown key `lenghts`")
            .at_line("problem.json", 3, 5)
            .because("a problem has no such key")
            .hint("did you mean `lengths`?");
        assert_eq!(
            diagnostic.to_string(),
            "error[U0012]: unknown key `lenghts`\n  at problem.json:3:5\n  because a problem has no such key\n  \
             hint: did you mean `lengths`?"
        );
        assert_eq!(diagnostic.audience(), Audience::Configuration);
    }
}
