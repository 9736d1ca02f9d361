//! The verifier: what holds of a kernel before anything runs or is compiled.

use base::{Code, Diagnostic, Result};

use crate::{Access, Element, Kernel, Nest, Op, Operand, OperandId, Store, Value, phases::of_row};

/// The most dimensions of a domain.
const MAX_DIMS: usize = 64;
/// The most points of a domain, and elements of an operand.
const MAX_POINTS: i64 = 1 << 48;

/// Checks every invariant of `kernel`:
/// - the domain has no negative size, and a size of it that fits;
/// - each operand has a stride for each dimension, none negative, and its last index fits;
/// - a written operand is `f32` or `bf16` and has stores, and no two points of the domain are written to the same element, or no two rows
///   where it has one element for each row; then what is stored is one number for each row. Where it has several stores, they are evenly
///   apart, and no two write to the same element;
/// - an operand that rows are added up in differs along a row only, one of `i64` does not;
/// - values come before their uses, masks only select, and loads name operands that are read;
/// - a kernel by rows has a dimension that is the row.
///
/// Fails with [`Code::BAD_KERNEL`].
pub fn verify(kernel: &Kernel) -> Result<()> {
    verified(kernel).map(drop)
}

/// The same, with the loops of the kernel.
pub(crate) fn verified(kernel: &Kernel) -> Result<Nest> {
    domain(&kernel.domain)?;
    for index in 0..kernel.operands.len() {
        map(kernel, index).map_err(|fault| bad(format!("operand a{index}: {fault}")))?;
    }
    for (index, op) in kernel.body.iter().enumerate() {
        body(kernel, index, op).map_err(|fault| bad(format!("value %{index}: {fault}")))?;
    }
    stores(kernel)?;
    let nest = Nest::of(kernel);
    if kernel.by_rows() {
        rows(kernel, &nest)?;
    }
    Ok(nest)
}

/// Checks what holds of a kernel by rows beyond that.
fn rows(kernel: &Kernel, nest: &Nest) -> Result<()> {
    if kernel.domain.is_empty() {
        return Err(bad("a kernel by rows needs a dimension"));
    }
    let is_of_row = of_row(kernel, &nest.inner_strides, true);
    let once = |store: &&Store| nest.inner_strides[store.operand.0 as usize] == 0;
    match kernel.stores.iter().filter(once).find(|store| !is_of_row[store.value.0 as usize]) {
        Some(store) => {
            Err(bad(format!("{} is stored once for a row, but has a number for each point", store.value)))
        }
        None => Ok(()),
    }
}

/// How many elements an operand has at least: one more than the largest index that a point of the domain has.
pub(crate) fn extent(kernel: &Kernel, operand: usize) -> Option<i64> {
    let behind = kernel.last_offset(OperandId(operand as u32));
    let last = kernel
        .domain
        .iter()
        .zip(&kernel.operands[operand].strides)
        .try_fold(i64::from(behind), |last, (size, stride)| {
            last.checked_add((size - 1).max(0).checked_mul(*stride)?)
        });
    last.filter(|last| *last < MAX_POINTS).map(|last| last + 1)
}

pub(crate) fn bad(fault: impl Into<String>) -> Box<Diagnostic> {
    Diagnostic::new(Code::BAD_KERNEL, fault)
}

fn domain(domain: &[i64]) -> Result<()> {
    let points = domain.iter().try_fold(1_i64, |points, size| {
        points.checked_mul((*size).max(1)).filter(|points| *size >= 0 && *points <= MAX_POINTS)
    });
    match points {
        Some(_) if domain.len() <= MAX_DIMS => Ok(()),
        _ => Err(bad(format!("the domain {domain:?} is negative or too large"))),
    }
}

fn map(kernel: &Kernel, index: usize) -> Result<(), String> {
    let operand = &kernel.operands[index];
    let (domain, strides) = (&kernel.domain, &operand.strides);
    if strides.len() != domain.len() {
        return Err(format!("{} strides for {} dimensions", strides.len(), domain.len()));
    }
    if strides.iter().any(|stride| *stride < 0) || extent(kernel, index).is_none() {
        return Err(format!("strides {strides:?} are negative or too large"));
    }
    if operand.element == Element::I64 && kernel.domain.last() != Some(&1) && strides.last() != Some(&0) {
        return Err("an i64 for each point".to_owned());
    }
    if operand.access != Access::Read && !operand.element.is_written() {
        return Err("of a type that is not written".to_owned());
    }
    let rows = domain.len().saturating_sub(1);
    let once = operand.access == Access::Write && kernel.is_of_rows(operand);
    match operand.access {
        Access::Write if once && is_injective(kernel, index, rows) => Ok(()),
        Access::Write if is_injective(kernel, index, domain.len()) => Ok(()),
        Access::Write => Err(format!("strides {strides:?} write two points to the same element")),
        Access::Add if strides[..rows].iter().any(|stride| *stride != 0) => {
            Err(format!("strides {strides:?} keep rows apart that are to be added up"))
        }
        Access::Read | Access::Add => Ok(()),
    }
}

/// Whether no two stores and points have the same index, as far as strides that nest can show it. The points are those of the first
/// dimensions.
fn is_injective(kernel: &Kernel, operand: usize, dims: usize) -> bool {
    let offsets = kernel.offsets(OperandId(operand as u32));
    let apart = offsets.windows(2).map(|pair| i64::from(pair[1] - pair[0])).next().unwrap_or(1);
    if offsets.windows(2).any(|pair| i64::from(pair[1] - pair[0]) != apart) {
        return false;
    }
    let strides = kernel.operands[operand].strides[..dims].iter().copied();
    let points = strides.zip(kernel.domain.iter().copied());
    let mut dims: Vec<(i64, i64)> =
        points.chain([(apart, offsets.len() as i64)]).filter(|(_, size)| *size > 1).collect();
    dims.sort_unstable();
    let mut reach = 0;
    dims.iter().all(|(stride, size)| {
        let apart = *stride > reach;
        reach += (size - 1) * stride;
        apart
    })
}

fn body(kernel: &Kernel, index: usize, op: &Op) -> Result<(), String> {
    if let Some(later) = op.operands().find(|value| value.0 as usize >= index) {
        return Err(format!("{later} is used before it is defined"));
    }
    let wanted = [matches!(op, Op::Select(..)), false, false];
    if op.operands().zip(wanted).any(|(value, wanted)| kernel.op(value).is_mask() != wanted) {
        return Err("a mask stands where a number must, or the other way round".to_owned());
    }
    match op {
        Op::Load(operand, _) => match kernel.operands.get(operand.0 as usize).map(|operand| operand.access) {
            Some(Access::Read) => Ok(()),
            _ => Err(format!("{operand} is not read")),
        },
        _ => Ok(()),
    }
}

fn stores(kernel: &Kernel) -> Result<()> {
    let mut written = vec![Vec::new(); kernel.operands.len()];
    for store in &kernel.stores {
        let offsets = written.get_mut(store.operand.0 as usize);
        let offsets =
            offsets.ok_or_else(|| bad(format!("{} is stored to, but is not there", store.operand)))?;
        if offsets.contains(&store.offset) {
            return Err(bad(format!("{} is stored to several times", store.operand)));
        }
        offsets.push(store.offset);
        if !is_number(kernel, store.value) {
            return Err(bad(format!("{} is stored, but is no number", store.value)));
        }
    }
    let wrong = |operand: &Operand, offsets: &[u32]| (operand.access == Access::Read) != offsets.is_empty();
    match kernel.operands.iter().zip(&written).position(|(operand, offsets)| wrong(operand, offsets)) {
        Some(index) => Err(bad(format!("a{index} is stored to {} times", written[index].len()))),
        None => Ok(()),
    }
}

fn is_number(kernel: &Kernel, value: Value) -> bool {
    kernel.body.get(value.0 as usize).is_some_and(|op| !op.is_mask())
}
