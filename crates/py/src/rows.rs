//! The operation table in Python, for the tests that hold it against PyTorch.

use aten::{Memory, Random, Row};
use ir::Dtype;
use pyo3::{exceptions::PyRuntimeError, prelude::*, types::PyBytes};
use serde::Serialize;

/// What a row says, in words.
#[derive(Serialize)]
struct Facts {
    name: &'static str,
    schema: String,
    has_rule: bool,
    in_place: Option<String>,
    out: Option<&'static str>,
    with_tensor: Option<&'static str>,
    list_of: Vec<(&'static str, Vec<String>)>,
    memory: String,
    random: String,
    entrywise: bool,
    formula: Option<&'static str>,
    /// For which element type kernels have PyTorch's bits: one, or "all".
    eager: Option<&'static str>,
}

impl Facts {
    fn of(row: &'static Row) -> Self {
        let words = |role: &aten::Role| format!("{role:?}").to_lowercase();
        Self {
            name: row.name,
            schema: row.schema(),
            has_rule: row.has_rule(),
            in_place: row.in_place_name(),
            out: row.out,
            with_tensor: row.with_tensor.map(|(name, _)| name),
            list_of: row
                .list_of
                .iter()
                .map(|form| (form.single, form.roles.iter().map(words).collect()))
                .collect(),
            memory: match row.memory {
                Memory::Own => "own",
                Memory::View | Memory::Repeating => "view",
                Memory::Alias => "alias",
                Memory::Hidden => "hidden",
            }
            .to_owned(),
            random: match row.random {
                Random::No => "no".to_owned(),
                Random::Yes => "yes".to_owned(),
                Random::Unless0(position) => format!("unless {position}"),
            },
            entrywise: row.entrywise,
            formula: row.formula.map(|formula| formula.text),
            eager: row
                .formula
                .and_then(|formula| formula.eager)
                .map(|eager| eager.only.map_or("all", Dtype::text)),
        }
    }
}

/// All rows of the operation table, as MessagePack.
#[pyfunction]
fn operation_rows(py: Python<'_>) -> PyResult<Bound<'_, PyBytes>> {
    let rows: Vec<Facts> = aten::ROWS.iter().map(Facts::of).collect();
    let bytes = rmp_serde::to_vec_named(&rows).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Adds the operation table to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(operation_rows, module)?)
}
