//! Whose memory the results of an operation are and whether it draws random numbers: by its row, or without one by its schema.

use ir::Schema;

use crate::{Memory, Random, row};

/// Whose memory the results of the operator `name` are. Without a row, a result that aliases an argument may be any part of it.
pub fn memory(name: &str, schema: &Schema<'_>) -> Memory {
    match row(name) {
        Some(row) => row.memory,
        None if schema.aliases() && !schema.writes() => Memory::Repeating,
        None => Memory::Own,
    }
}

/// Whether the operator `name` draws random numbers. Without a row, it does if it takes a generator or a probability of dropping.
pub fn random(name: &str, schema: &Schema<'_>) -> Random {
    if let Some(row) = row(name) {
        return row.random;
    }
    if schema.parameters.iter().any(|parameter| parameter.ty.base == "Generator") {
        return Random::Yes;
    }
    let drops = |name: &str| name == "dropout_p" || name == "dropout";
    match schema.parameters.iter().position(|parameter| drops(parameter.name)) {
        Some(position) => Random::Unless0(position),
        None => Random::No,
    }
}
