//! Files that commands read: `-` is stdin.

use std::{io::Read, path::Path};

use base::{Code, Diagnostic, Result};
use cluster::Cluster;
use ir::Graph;

/// The bytes of a file.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    let name = path.to_string_lossy();
    let bytes = if name == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    bytes.map_err(|error| {
        Diagnostic::new(Code::UNREADABLE_FILE, format!("cannot read `{name}`: {error}")).at_line(&*name, 0, 0)
    })
}

/// The text of a file.
pub fn text(path: &Path) -> Result<String> {
    String::from_utf8(bytes(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Diagnostic::new(Code::BAD_TEXT, format!("the file is no text: byte {at} is no UTF-8")).at_line(
            path.to_string_lossy(),
            0,
            0,
        )
    })
}

/// A captured graph, in its text form or as a message. A message is never text: its first byte cannot begin UTF-8.
pub fn graph(path: &Path) -> Result<Graph> {
    let bytes = bytes(path)?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => Graph::from_text(&path.to_string_lossy(), text),
        Err(_) => Graph::from_bytes(&bytes),
    }
}

/// A cluster: the description in a file, or a preset such as `h100:8x8`.
pub fn cluster(name: &str) -> Result<Cluster> {
    let path = Path::new(name);
    let is_file = name == "-" || path.extension().is_some() || path.exists();
    if is_file { Cluster::parse(&text(path)?, name) } else { Cluster::preset(name) }
}

/// Writes a file.
pub fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| {
        let name = path.to_string_lossy();
        Diagnostic::new(Code::UNREADABLE_FILE, format!("cannot write `{name}`: {error}"))
            .at_line(&*name, 0, 0)
    })
}
