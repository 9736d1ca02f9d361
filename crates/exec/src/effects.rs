//! What operations do besides computing their returns, read off their schemas and, where those are silent, their names.

use torch_sys::{Schema, Type};

/// What an operation is to the executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It computes new tensors or writes into its arguments.
    Compute,
    /// Its returns share the memory of its argument.
    View,
    /// Its return *is* its argument.
    Alias,
    /// It starts a collective operation.
    Collective,
    /// It waits for one.
    Wait,
}

/// Views whose result says more than sizes and strides (conjugation, negation), or that need no ordinary memory.
const NO_PLAIN_VIEW: &[&str] = &[
    "aten::_conj",
    "aten::_neg_view",
    "aten::conj",
    "aten::resolve_conj",
    "aten::resolve_neg",
    "aten::_indices",
    "aten::_values",
    "aten::indices",
    "aten::values",
    "aten::crow_indices",
    "aten::col_indices",
    "aten::_nested_view_from_buffer",
    "aten::set_",
];

/// Views whose schemas say that their results are new.
const SILENT_VIEWS: &[&str] = &["aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"];

const ALIASES: &[&str] = &["aten::detach", "aten::alias", "aten::lift_fresh", "aten::lift"];

/// The role of an operation.
pub fn role(schema: &Schema) -> Role {
    let name = schema.name.as_str();
    match name {
        "_c10d_functional::wait_tensor" => Role::Wait,
        _ if SILENT_VIEWS.contains(&name) => Role::View,
        _ if ALIASES.contains(&name) => Role::Alias,
        _ if name.starts_with("_c10d_functional") => Role::Collective,
        _ if is_view(schema) => Role::View,
        _ => Role::Compute,
    }
}

fn is_view(schema: &Schema) -> bool {
    let tensor = |ty: &Type| matches!(ty, Type::Tensor) || *ty == Type::List(Box::new(Type::Tensor));
    schema.name.starts_with("aten::")
        && !schema.mutates()
        && !NO_PLAIN_VIEW.contains(&schema.name.as_str())
        && schema.arguments.first().is_some_and(|first| first.ty == Type::Tensor && first.alias.is_some())
        && !schema.returns.is_empty()
        && schema.returns.iter().all(|returned| tensor(&returned.ty) && returned.alias.is_some())
}

/// Parts of the names of operations that draw random numbers: all that PyTorch 2.13 tags `nondeterministic_seeded` have one.
const RANDOM: &[&str] = &[
    "rand",
    "normal",
    "bernoulli",
    "dropout",
    "multinomial",
    "poisson",
    "exponential",
    "geometric",
    "cauchy",
    "uniform",
    "binomial",
    "dirichlet",
    "standard_gamma",
    "fused_rng",
    "rrelu",
    "fractional_max_pool",
    "attention",
    "scaled_dot_product",
    "_fused_sdp",
    "_nested_tensor_softmax",
    "rnn",
    "lstm",
    "gru",
];

/// Whether an operation gives the same for the same arguments, and does nothing else: then it may be run once for all steps.
pub fn is_pure(schema: &Schema) -> bool {
    let name = schema.name.as_str();
    let plain = name.starts_with("aten::") || name.starts_with("prims::");
    plain && !schema.mutates() && !RANDOM.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role_of(text: &str) -> Role {
        role(&Schema::parse(text).unwrap())
    }

    #[test]
    fn roles_follow_from_schemas() {
        assert_eq!(role_of("aten::t(Tensor(a) self) -> Tensor(a)"), Role::View);
        assert_eq!(role_of("aten::unbind.int(Tensor(a -> *) self, int dim=0) -> Tensor(a)[]"), Role::View);
        assert_eq!(
            role_of("aten::unsafe_split.Tensor(Tensor self, SymInt s, int d=0) -> Tensor[]"),
            Role::View
        );
        assert_eq!(role_of("aten::detach(Tensor(a) self) -> Tensor(a)"), Role::Alias);
        assert_eq!(role_of("aten::add_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)"), Role::Compute);
        assert_eq!(role_of("aten::_conj(Tensor(a) self) -> Tensor(a)"), Role::Compute);
        assert_eq!(role_of("aten::mm(Tensor self, Tensor mat2) -> Tensor"), Role::Compute);
        assert_eq!(
            role_of("_c10d_functional::broadcast(Tensor x, int src, Any g) -> Tensor"),
            Role::Collective
        );
        assert_eq!(role_of("_c10d_functional::wait_tensor(Tensor tensor) -> Tensor"), Role::Wait);
    }

    #[test]
    fn random_writing_and_foreign_operations_are_not_pure() {
        let pure = |text: &str| is_pure(&Schema::parse(text).unwrap());
        assert!(pure("aten::arange(Scalar end) -> Tensor"));
        assert!(!pure("aten::rand(SymInt[] size) -> Tensor"));
        assert!(!pure("aten::zero_(Tensor(a!) self) -> Tensor(a!)"));
        assert!(!pure("mine::f(Tensor x) -> Tensor"));
    }
}
