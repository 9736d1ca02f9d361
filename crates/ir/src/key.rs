//! What makes two nodes the same operation.

use crate::{Arg, Node, Return, ValueId};

impl Node {
    /// Bytes that are equal for nodes with equal operators, equal arguments (tensors counting as what `number` gives for them) and the
    /// same returns present. Floats count by their bits.
    pub fn key(&self, number: impl Fn(ValueId) -> u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend(self.op.0.to_le_bytes());
        bytes.extend((self.returns.len() as u32).to_le_bytes());
        bytes.extend(self.returns.iter().flat_map(|returned| shape_of(returned).to_le_bytes()));
        for arg in &self.args {
            match arg {
                Arg::Value(value) => {
                    bytes.extend([TENSOR, 0]);
                    bytes.extend(number(*value).to_le_bytes());
                }
                Arg::Values(values) => {
                    bytes.extend([TENSOR, 1]);
                    bytes.extend((values.len() as u32).to_le_bytes());
                    for value in values {
                        bytes.push(u8::from(value.is_some()));
                        bytes.extend(value.map_or(0, &number).to_le_bytes());
                    }
                }
                other => {
                    rmp_serde::encode::write(&mut bytes, other).expect("arguments serialize into memory");
                }
            }
        }
        bytes
    }
}

/// Begins a tensor, or a list of them by the byte that follows: no MessagePack begins so.
const TENSOR: u8 = 0xc1;

/// Absent, one tensor, or a list of so many.
fn shape_of(returned: &Return) -> u32 {
    match returned {
        Return::None => 0,
        Return::Value(_) => 1,
        Return::Values(values) => 2 + values.len() as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpId;

    fn node(args: Vec<Arg>) -> Node {
        Node {
            op: OpId(3),
            args,
            returns: vec![Return::Value(ValueId(9))],
            place: None,
            module: None,
            part: crate::PartId(0),
            label: None,
            stage: None,
        }
    }

    #[test]
    fn operands_count_by_their_number_and_other_arguments_by_their_value() {
        let one = node(vec![Arg::Value(ValueId(1)), Arg::Float(0.5)]);
        let two = node(vec![Arg::Value(ValueId(2)), Arg::Float(0.5)]);
        let other = node(vec![Arg::Value(ValueId(1)), Arg::Float(-0.5)]);
        assert_ne!(one.key(|value| value.0), two.key(|value| value.0));
        assert_eq!(one.key(|_| 7), two.key(|_| 7));
        assert_ne!(one.key(|_| 7), other.key(|_| 7));
        let nan = node(vec![Arg::Float(f64::NAN)]);
        assert_eq!(nan.key(|_| 0), nan.clone().key(|_| 0));
    }
}
