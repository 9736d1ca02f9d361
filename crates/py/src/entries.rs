//! Entries of dictionaries that are to stay the same objects, looked at before each step: there are hundreds, which Python would look up one
//! by one, with nothing of it in a cache behind a step.

use pyo3::{
    PyTraverseError, PyVisit,
    prelude::*,
    types::{PyDict, PyDictMethods},
};

/// Entries of dictionaries, with what is in them.
#[pyclass(frozen, module = "unisono._native")]
pub struct Entries {
    entries: Vec<(Py<PyDict>, Py<PyAny>, Py<PyAny>)>,
}

#[pymethods]
impl Entries {
    /// Takes dictionaries, keys and values as they are.
    #[new]
    fn new(entries: Vec<(Py<PyDict>, Py<PyAny>, Py<PyAny>)>) -> Self {
        Self { entries }
    }

    /// The number of the first that holds another object now; a dictionary without the key holds `None`. What a dictionary's class makes
    /// of a look-up is not asked.
    fn first_other(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        for (number, (holder, key, value)) in self.entries.iter().enumerate() {
            let is_same = match holder.bind(py).get_item(key)? {
                Some(now) => now.is(value),
                None => value.is_none(py),
            };
            if !is_same {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn __len__(&self) -> usize {
        self.entries.len()
    }

    // The user's model may hold the step that holds these. Dictionaries are what such circles are broken at.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for (holder, key, value) in &self.entries {
            visit.call(holder)?;
            visit.call(key)?;
            visit.call(value)?;
        }
        Ok(())
    }
}
