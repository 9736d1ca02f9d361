//! Pins and alternatives as they are given on the command line.

use std::{convert::Infallible, path::Path};

use base::{Code, Diagnostic, Result};
use plan::{Alternative, Pins};

use crate::files;

/// An alternative to a plan: the pins of a file, or what [`Alternative`] reads of a text.
pub fn named(text: &str) -> Result<Alternative> {
    let path = Path::new(text);
    if path.extension().is_some_and(|end| end == "toml") || path.is_file() {
        return Ok(Alternative::Pins(pins(path)?));
    }
    Ok(text.parse().unwrap_or_else(|never: Infallible| match never {}))
}

/// The pins of a file.
pub fn pins(path: &Path) -> Result<Pins> {
    let text = files::text(path)?;
    toml::from_str(&text).map_err(|error| {
        let before = &text[..error.span().map_or(0, |span| span.start).min(text.len())];
        let line = 1 + before.matches('\n').count() as u32;
        Diagnostic::new(Code::BAD_PIN, format!("pins that cannot be used: {}", error.message()))
            .at_line(path.to_string_lossy(), line, 0)
            .hint("pins map name patterns to placements by axis: \"params.*\" = { ranks = \"shard(0)\" }")
    })
}
