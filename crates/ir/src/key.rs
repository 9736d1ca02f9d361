//! What makes two nodes the same operation.

use crate::{Node, Return, ValueId};

impl Node {
    /// Bytes that are equal for nodes with equal operators, equal arguments (tensors counting as what `number` gives for them) and the
    /// same returns present. Floats count by their bits.
    pub fn key(&self, number: impl Fn(ValueId) -> u32) -> Vec<u8> {
        let mut args = self.args.clone();
        for arg in &mut args {
            arg.map_values(|value| ValueId(number(value)));
        }
        let returns: Vec<u32> = self.returns.iter().map(shape_of).collect();
        let mut bytes = self.op.0.to_le_bytes().to_vec();
        rmp_serde::encode::write(&mut bytes, &(returns, args)).expect("arguments serialize into memory");
        bytes
    }
}

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
    use crate::{Arg, OpId};

    fn node(args: Vec<Arg>) -> Node {
        Node {
            op: OpId(3),
            args,
            returns: vec![Return::Value(ValueId(9))],
            place: None,
            module: None,
            phase: crate::Phase::Forward,
            label: None,
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
