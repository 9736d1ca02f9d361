//! The table of list operations: which operation on one tensor has which counterpart on lists of tensors.

/// How an argument of the single operation appears in the list operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A tensor: one entry of a list. A missing tensor is none.
    Each,
    /// A 0-dimensional tensor that all have in common.
    Shared,
    /// Something else that all have in common.
    Static,
    /// Absent, false, an empty list or 1: the list operation has no such argument, and means that.
    Neutral,
}

use Role::{Each, Neutral, Shared, Static};

/// A list operation.
#[derive(Debug)]
pub struct ListForm {
    /// The operation on one tensor.
    pub single: &'static str,
    /// What becomes of its arguments, in order.
    pub roles: &'static [Role],
    /// The schema of the operation on lists.
    pub list: &'static str,
}

macro_rules! forms {
    ($($single:literal [$($role:ident),*] => $list:literal;)*) => {
        /// All list operations of torch 2.13 that an optimizer's arithmetic has use for. Where an operation fits
        /// several, it takes the one in which it finds the most others, and the first of equals.
        pub const FORMS: &[ListForm] = &[
            $(ListForm { single: $single, roles: &[$($role),*], list: $list },)*
        ];
    };
}

forms! {
    "aten::add.Tensor" [Each, Shared, Static] => "aten::_foreach_add.Tensor(Tensor[] self, Tensor other, *, Scalar alpha=1) -> Tensor[]";
    "aten::add.Tensor" [Each, Each, Static] => "aten::_foreach_add.List(Tensor[] self, Tensor[] other, *, Scalar alpha=1) -> Tensor[]";
    "aten::add.Tensor" [Each, Static, Neutral] => "aten::_foreach_add.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::add.Scalar" [Each, Static, Neutral] => "aten::_foreach_add.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::sub.Tensor" [Each, Each, Static] => "aten::_foreach_sub.List(Tensor[] self, Tensor[] other, *, Scalar alpha=1) -> Tensor[]";
    "aten::sub.Tensor" [Each, Static, Neutral] => "aten::_foreach_sub.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::sub.Scalar" [Each, Static, Neutral] => "aten::_foreach_sub.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::mul.Tensor" [Each, Shared] => "aten::_foreach_mul.Tensor(Tensor[] self, Tensor other) -> Tensor[]";
    "aten::mul.Tensor" [Each, Each] => "aten::_foreach_mul.List(Tensor[] self, Tensor[] other) -> Tensor[]";
    "aten::mul.Tensor" [Each, Static] => "aten::_foreach_mul.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::mul.Scalar" [Each, Static] => "aten::_foreach_mul.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::div.Tensor" [Each, Shared] => "aten::_foreach_div.Tensor(Tensor[] self, Tensor other) -> Tensor[]";
    "aten::div.Tensor" [Each, Each] => "aten::_foreach_div.List(Tensor[] self, Tensor[] other) -> Tensor[]";
    "aten::div.Tensor" [Each, Static] => "aten::_foreach_div.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::div.Scalar" [Each, Static] => "aten::_foreach_div.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::maximum" [Each, Each] => "aten::_foreach_maximum.List(Tensor[] self, Tensor[] other) -> Tensor[]";
    "aten::minimum" [Each, Each] => "aten::_foreach_minimum.List(Tensor[] self, Tensor[] other) -> Tensor[]";
    "aten::clamp_min" [Each, Static] => "aten::_foreach_clamp_min.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::clamp_max" [Each, Static] => "aten::_foreach_clamp_max.Scalar(Tensor[] self, Scalar scalar) -> Tensor[]";
    "aten::addcmul" [Each, Each, Each, Static] => "aten::_foreach_addcmul.Scalar(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar value=1) -> Tensor[]";
    "aten::addcdiv" [Each, Each, Each, Static] => "aten::_foreach_addcdiv.Scalar(Tensor[] self, Tensor[] tensor1, Tensor[] tensor2, Scalar value=1) -> Tensor[]";
    "aten::lerp.Scalar" [Each, Each, Static] => "aten::_foreach_lerp.Scalar(Tensor[] self, Tensor[] tensors1, Scalar weight) -> Tensor[]";
    "aten::lerp.Tensor" [Each, Each, Each] => "aten::_foreach_lerp.List(Tensor[] self, Tensor[] tensors1, Tensor[] weights) -> Tensor[]";
    "aten::pow.Tensor_Scalar" [Each, Static] => "aten::_foreach_pow.Scalar(Tensor[] self, Scalar exponent) -> Tensor[]";
    "aten::pow.Tensor_Tensor" [Each, Each] => "aten::_foreach_pow.List(Tensor[] self, Tensor[] exponent) -> Tensor[]";
    "aten::pow.Scalar" [Static, Each] => "aten::_foreach_pow.ScalarAndTensor(Scalar self, Tensor[] exponent) -> Tensor[]";
    "aten::linalg_vector_norm" [Each, Static, Neutral, Neutral, Static] => "aten::_foreach_norm.Scalar(Tensor[] self, Scalar ord=2, ScalarType? dtype=None) -> Tensor[]";
    "aten::sqrt" [Each] => "aten::_foreach_sqrt(Tensor[] self) -> Tensor[]";
    "aten::rsqrt" [Each] => "aten::_foreach_rsqrt(Tensor[] self) -> Tensor[]";
    "aten::neg" [Each] => "aten::_foreach_neg(Tensor[] self) -> Tensor[]";
    "aten::abs" [Each] => "aten::_foreach_abs(Tensor[] self) -> Tensor[]";
    "aten::sign" [Each] => "aten::_foreach_sign(Tensor[] self) -> Tensor[]";
    "aten::exp" [Each] => "aten::_foreach_exp(Tensor[] self) -> Tensor[]";
    "aten::log" [Each] => "aten::_foreach_log(Tensor[] self) -> Tensor[]";
    "aten::reciprocal" [Each] => "aten::_foreach_reciprocal(Tensor[] self) -> Tensor[]";
}

/// Operations that are on lists already, one parameter's each, and work on every entry alone: longer lists are the same work.
pub const ENTRYWISE: &[&str] = &[
    "aten::_fused_adam",
    "aten::_fused_adam.tensor_lr",
    "aten::_fused_adamw",
    "aten::_fused_adamw.tensor_lr",
    "aten::_fused_sgd",
    "aten::_fused_sgd.tensor_lr",
    "aten::_fused_adagrad",
    "aten::_fused_adagrad.tensor_lr",
];

#[cfg(test)]
mod tests {
    use ir::{Op, Schema};

    use super::*;

    #[test]
    fn every_form_gives_each_argument_of_its_list_operation() {
        for form in FORMS {
            let op: Op = form.list.parse().unwrap();
            let schema = Schema::parse(&op.schema).unwrap();
            let given: Vec<_> = form.roles.iter().filter(|role| **role != Neutral).collect();
            assert_eq!(given.len(), schema.parameters.len(), "{op}");
            for (role, parameter) in given.iter().zip(&schema.parameters) {
                assert_eq!(**role == Each, parameter.ty.list, "{op}");
                assert_eq!(**role == Static, !parameter.ty.is_tensor(), "{op}");
            }
        }
    }
}
