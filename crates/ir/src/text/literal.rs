//! Reading types, lists and literals.

use base::{Result, unknown_name_hint};

use super::cursor::Cursor;
use crate::{Arg, Device, Dims, Dtype, TensorType, contiguous_strides};

/// Takes `v3: f32[2]`.
pub(super) fn typed(cursor: &mut Cursor<'_>) -> Result<(u32, TensorType)> {
    // A word would swallow the colon.
    cursor.expect("v")?;
    let number = cursor.integer("the number of a value")?;
    cursor.expect(":")?;
    Ok((number, tensor_type(cursor)?))
}

/// Takes a type such as `f32[8, 4]{1, 8} cuda:0`.
fn tensor_type(cursor: &mut Cursor<'_>) -> Result<TensorType> {
    let before = cursor.mark();
    let word = cursor.word();
    let Some(dtype) = Dtype::from_text(word) else {
        cursor.back(before);
        let names = Dtype::ALL.iter().map(|dtype| dtype.text());
        return Err(cursor.wrong("an element type").hint(unknown_name_hint(word, names)));
    };
    cursor.expect("[")?;
    let shape = Dims::from_vec(separated(cursor, "]", |cursor| cursor.integer("a size"))?);
    if let Err(fault) = crate::verify::check_shape(&shape) {
        cursor.back(before);
        return Err(cursor.fault(&fault));
    }
    let strides = if cursor.eat("{") {
        Dims::from_vec(separated(cursor, "}", |cursor| cursor.integer("a stride"))?)
    } else {
        contiguous_strides(&shape)
    };
    let on_device = cursor.rest().starts_with(|c: char| c.is_ascii_lowercase());
    let device = if on_device { device(cursor)? } else { Device::default() };
    Ok(TensorType { dtype, shape, strides, device })
}

fn device(cursor: &mut Cursor<'_>) -> Result<Device> {
    let before = cursor.mark();
    cursor.word().parse().map_err(|cause: String| {
        cursor.back(before);
        cursor.wrong("a device").because(cause)
    })
}

/// Takes entries between commas up to and with `end`.
pub(super) fn separated<'t, T>(
    cursor: &mut Cursor<'t>,
    end: &str,
    mut entry: impl FnMut(&mut Cursor<'t>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut entries = Vec::new();
    if cursor.eat(end) {
        return Ok(entries);
    }
    loop {
        entries.push(entry(cursor)?);
        if cursor.eat(end) {
            return Ok(entries);
        }
        if !cursor.eat(",") {
            return Err(cursor.wrong(&format!("`,` or `{end}`")));
        }
    }
}

/// Takes what stands in the parentheses behind `word`.
pub(super) fn option(cursor: &mut Cursor<'_>, word: &str) -> Result<Arg> {
    cursor.expect("(")?;
    let arg = match word {
        "device" => Arg::Device(device(cursor)?),
        "layout" => Arg::Layout(cursor.word().into()),
        _ => Arg::MemoryFormat(cursor.word().into()),
    };
    cursor.expect(")")?;
    Ok(arg)
}

pub(super) fn literal(word: &str) -> Option<Arg> {
    match word {
        "none" => return Some(Arg::None),
        "true" => return Some(Arg::Bool(true)),
        "false" => return Some(Arg::Bool(false)),
        "nan" => return Some(Arg::Float(f64::NAN)),
        "inf" => return Some(Arg::Float(f64::INFINITY)),
        "-inf" => return Some(Arg::Float(f64::NEG_INFINITY)),
        _ => {}
    }
    if !word.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
        return Dtype::from_text(word).map(Arg::Dtype);
    }
    let fraction = word.contains(['.', 'e']);
    let float = || word.parse::<f64>().ok().filter(|number| number.is_finite()).map(Arg::Float);
    if fraction { float() } else { word.parse().ok().map(Arg::Int) }
}

/// Adds `element` to the list of its kind.
pub(super) fn append(list: &mut Option<Arg>, element: Arg) -> Result<(), ()> {
    let list = list.get_or_insert_with(|| match element {
        Arg::Value(_) | Arg::None => Arg::Values(Vec::new()),
        Arg::Float(_) => Arg::Floats(Vec::new()),
        Arg::Bool(_) => Arg::Bools(Vec::new()),
        _ => Arg::Ints(Vec::new()),
    });
    match (list, element) {
        (Arg::Values(values), Arg::Value(value)) => values.push(Some(value)),
        (Arg::Values(values), Arg::None) => values.push(None),
        (Arg::Ints(numbers), Arg::Int(number)) => numbers.push(number),
        (Arg::Floats(numbers), Arg::Float(number)) => numbers.push(number),
        (Arg::Bools(truths), Arg::Bool(truth)) => truths.push(truth),
        _ => return Err(()),
    }
    Ok(())
}
