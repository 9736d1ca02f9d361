//! Rewrites of what is to be run, before it is lowered: grouping into list operations, then writing in place.

use base::Result;
use rustc_hash::FxHashSet;
use torch_sys::Schema;

use crate::{
    ProgramSpec,
    group::{group, list_operations},
    inplace::{in_place_name, write_in_place},
};

/// The operations that [`rewrite`] uses where `spec` has their schemas: add those that PyTorch has.
pub fn wanted_schemas(spec: &ProgramSpec) -> Vec<String> {
    let name = |text: &String| text.split('(').next().unwrap_or_default().to_owned();
    let present: FxHashSet<String> = spec.schemas.iter().map(name).collect();
    let groupable =
        spec.calls.iter().filter(|call| call.groupable).map(|call| name(&spec.schemas[call.op as usize]));
    let groupable: Vec<String> = groupable.collect();
    if groupable.is_empty() {
        return Vec::new();
    }
    let mut seen = present;
    let lists = list_operations().map(str::to_owned);
    let sources: Vec<String> = lists.chain(groupable).collect();
    let wanted = sources.into_iter().flat_map(|name| [in_place_name(&name), name]);
    wanted.filter(|name| seen.insert(name.clone())).collect()
}

/// The same program with groups and in-place operations; its results are the same, bit for bit.
pub fn rewrite(spec: &ProgramSpec) -> Result<ProgramSpec> {
    let schemas = spec.schemas.iter().map(|text| Schema::parse(text)).collect::<Result<Vec<_>>>()?;
    crate::lower::check(spec, &schemas)?;
    Ok(write_in_place(&group(spec, &schemas), &schemas))
}
