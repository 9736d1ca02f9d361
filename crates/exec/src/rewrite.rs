//! Rewrites of what is to be run, before it is lowered.

use base::{Bytes, Result};
use rustc_hash::FxHashSet;
use torch_sys::Schema;

use crate::{
    Abilities, ProgramSpec, buffers::keep_small_results, inplace::write_in_place, large::keep_large_results,
    numbers::numbers_as_tensors,
};

/// The operations that [`rewrite`] uses where `spec` has their schemas: add those that PyTorch has.
pub fn wanted_schemas(spec: &ProgramSpec) -> Vec<String> {
    let names: Vec<&str> =
        spec.schemas.iter().map(|text| text.split('(').next().unwrap_or_default()).collect();
    let mut seen: FxHashSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let rows: Vec<&aten::Row> = names.iter().filter_map(|name| aten::row(name)).collect();
    let with_tensor: Vec<&str> =
        rows.iter().filter_map(|row| row.with_tensor).map(|(name, _)| name).collect();
    let listed = with_tensor.iter().filter_map(|name| aten::row(name));
    let in_place = rows.iter().copied().chain(listed).filter_map(aten::Row::in_place_name);
    let into = rows.iter().filter_map(|row| row.out);
    let wanted = in_place.chain(with_tensor.iter().copied().chain(into).map(str::to_owned));
    wanted.filter(|name| seen.insert(name.clone())).collect()
}

/// The same program with operations in place, small results in buffers that take at most `buffers`, and large ones in memory that is kept,
/// unless buffers are limited further than [`BUFFERS`](memory::BUFFERS); its results are the same, bit for bit.
pub fn rewrite(spec: &ProgramSpec, abilities: &Abilities, buffers: Bytes) -> Result<ProgramSpec> {
    let schemas = spec.schemas.iter().map(|text| Schema::parse(text)).collect::<Result<Vec<_>>>()?;
    crate::lower::check(spec, &schemas)?;
    let on_cpu = abilities.device.is_host();
    let spec = if on_cpu { numbers_as_tensors(spec, &schemas) } else { spec.clone() };
    if spec.calls.iter().any(|call| schemas[call.op as usize].mutates()) {
        // The caller has already decided what is written in place.
        return Ok(spec);
    }
    let spec = write_in_place(&spec, &schemas);
    if !on_cpu {
        return Ok(spec);
    }
    let spec = keep_small_results(&spec, &schemas, buffers);
    // Under a memory limit nothing is held that a step does not need.
    Ok(if buffers < memory::BUFFERS { spec } else { keep_large_results(spec, &schemas) })
}
