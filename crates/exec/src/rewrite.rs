//! Rewrites of what is to be run, before it is lowered.

use base::{Bytes, Result};
use rustc_hash::FxHashSet;
use torch_sys::Schema;

use crate::{
    Abilities, ProgramSpec,
    buffers::{keep_small_results, out_form},
    inplace::{in_place_name, write_in_place},
    numbers::{numbers_as_tensors, tensor_form},
};

/// The operations that [`rewrite`] uses where `spec` has their schemas: add those that PyTorch has.
pub fn wanted_schemas(spec: &ProgramSpec) -> Vec<String> {
    let names: Vec<&str> =
        spec.schemas.iter().map(|text| text.split('(').next().unwrap_or_default()).collect();
    let mut seen: FxHashSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let forms: Vec<&str> = names.iter().filter_map(|name| tensor_form(name)).collect();
    let in_place = names.iter().chain(&forms).map(|name| in_place_name(name));
    let into = names.iter().filter_map(|name| out_form(name));
    let wanted = in_place.chain(forms.iter().copied().chain(into).map(str::to_owned));
    wanted.filter(|name| seen.insert(name.clone())).collect()
}

/// The same program with operations in place and small results in buffers that take at most `buffers`; its results are the same,
/// bit for bit.
pub fn rewrite(spec: &ProgramSpec, abilities: &Abilities, buffers: Bytes) -> Result<ProgramSpec> {
    let schemas = spec.schemas.iter().map(|text| Schema::parse(text)).collect::<Result<Vec<_>>>()?;
    crate::lower::check(spec, &schemas)?;
    let on_cpu = abilities.proxy_device == "cpu";
    let spec = if on_cpu { numbers_as_tensors(spec, &schemas) } else { spec.clone() };
    if spec.calls.iter().any(|call| schemas[call.op as usize].mutates()) {
        // Somebody else has decided what is written where.
        return Ok(spec);
    }
    let spec = write_in_place(&spec, &schemas);
    Ok(if on_cpu { keep_small_results(&spec, &schemas, buffers) } else { spec })
}
