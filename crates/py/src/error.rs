//! Diagnostics as Python exceptions: one class per audience, defined in `unisono.errors`.

use base::{Audience, Diagnostic};
use pyo3::{exceptions::PyRuntimeError, prelude::*, types::PyDict};

/// The name of the class in `unisono.errors` for each audience.
const fn class_name(audience: Audience) -> &'static str {
    match audience {
        Audience::Step => "StepError",
        Audience::Configuration => "ConfigurationError",
        Audience::Hardware => "HardwareError",
        Audience::Resources => "ResourceError",
        Audience::Unsupported => "UnsupportedError",
        Audience::Bug => "InternalError",
    }
}

/// The Python exception for `diagnostic`.
pub fn to_python(py: Python<'_>, diagnostic: &Diagnostic) -> PyErr {
    exception(py, diagnostic).unwrap_or_else(|_| PyRuntimeError::new_err(diagnostic.to_string()))
}

fn exception(py: Python<'_>, diagnostic: &Diagnostic) -> PyResult<PyErr> {
    let class = py.import("unisono.errors")?.getattr(class_name(diagnostic.audience()))?;
    let fields = PyDict::new(py);
    fields.set_item("code", diagnostic.code.to_string())?;
    fields.set_item("place", diagnostic.place.as_ref().map(ToString::to_string))?;
    fields.set_item("cause", &diagnostic.cause)?;
    fields.set_item("hint", &diagnostic.hint)?;
    Ok(PyErr::from_value(class.call((&diagnostic.message,), Some(&fields))?))
}

/// Raises an internal error, so that tests can see how diagnostics arrive in Python.
#[pyfunction]
fn raise_internal_error(py: Python<'_>, message: &str) -> PyResult<()> {
    Err(to_python(py, &Diagnostic::bug(message)))
}

/// Adds what belongs to errors to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(raise_internal_error, module)?)
}
