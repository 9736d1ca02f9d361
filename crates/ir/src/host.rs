//! Copies between a device and its host: the one place that knows their operators.
//!
//! A copy is started, and waited for by another operator, as collectives are. Until then its operand is read.

use crate::{Graph, InputId, NodeId, ValueDef, collective::name_of};

/// The schema of the operator that starts a copy to memory of the host.
pub const TO_HOST: &str = "unisono::to_host(Tensor self) -> Tensor";
/// The schema of the operator that starts a copy from there to a device.
pub const FROM_HOST: &str = "unisono::from_host(Tensor self, Device device) -> Tensor";
/// The schema of the operator that starts a copy of `value` to memory of the host, that of `self` where it may be written over.
pub const TO_HOST_OVER: &str = "unisono::to_host_over(Tensor self, Tensor value) -> Tensor";
/// The schema of the operator that waits for a copy.
pub const WAIT_COPY: &str = "unisono::wait_copy(Tensor self) -> Tensor";

/// What an operator has to do with copies between device and host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HostCopy {
    /// It starts a copy to the host.
    Out,
    /// It starts one to the host, over what is there.
    Over,
    /// It starts a copy from the host.
    Back,
    /// It waits for one.
    Wait,
}

impl HostCopy {
    const ALL: [Self; 4] = [Self::Out, Self::Over, Self::Back, Self::Wait];

    /// The schema of its operator.
    pub const fn schema(self) -> &'static str {
        match self {
            Self::Out => TO_HOST,
            Self::Over => TO_HOST_OVER,
            Self::Back => FROM_HOST,
            Self::Wait => WAIT_COPY,
        }
    }

    /// Whether it starts a copy to the host.
    pub const fn is_out(self) -> bool {
        matches!(self, Self::Out | Self::Over)
    }

    /// What an operator has to do with such copies, if anything; the form in place of one has the same to do.
    pub fn of_operator(name: &str) -> Option<Self> {
        // Most operators are none, and every pass asks of every node.
        if !name.starts_with("unisono::") {
            return None;
        }
        let name = name.strip_suffix('_').unwrap_or(name);
        Self::ALL.into_iter().find(|copy| name_of(copy.schema()) == name)
    }
}

impl Graph {
    /// What a node has to do with copies between device and host, if anything.
    pub fn host_copy(&self, id: NodeId) -> Option<HostCopy> {
        HostCopy::of_operator(self.op_name(id))
    }

    /// The inputs that copies from the host read, ascending: state that is on the host between steps.
    pub fn inputs_on_host(&self) -> Vec<InputId> {
        let is_back = |name: &str| HostCopy::of_operator(name) == Some(HostCopy::Back);
        if !self.ops.values().any(|op| is_back(&op.name)) {
            return Vec::new();
        }
        let copies = self.order.iter().filter(|id| is_back(self.op_name(**id)));
        let read = copies.flat_map(|id| self.nodes[*id].operands());
        let inputs = read.filter_map(|value| match self.values[value].def {
            ValueDef::Input(input) => Some(input),
            ValueDef::Result(..) => None,
        });
        let mut inputs: Vec<InputId> = inputs.collect();
        inputs.sort_unstable();
        inputs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_known_by_their_names() {
        for copy in HostCopy::ALL {
            assert_eq!(HostCopy::of_operator(name_of(copy.schema())), Some(copy));
        }
        assert_eq!(HostCopy::of_operator("unisono::to_host_over_"), Some(HostCopy::Over));
        assert_eq!(HostCopy::of_operator("unisono::random_at"), None);
        assert_eq!(HostCopy::of_operator("aten::neg"), None);
    }
}
