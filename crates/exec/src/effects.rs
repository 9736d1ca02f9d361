//! Side effects and aliasing of operations: by their rows, their schemas and, as a last resort, their names.

use aten::{Memory, Random};
use torch_sys::{Schema, Type};

use crate::kernels::is_kernel;

/// How the executor treats an operation.
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
    /// It starts a copy between device and host.
    Copy,
    /// It waits for one.
    Wait,
}

/// The role of an operation.
pub fn role(schema: &Schema) -> Role {
    let name = schema.name.as_str();
    if ir::is_wait(name) {
        return Role::Wait;
    }
    if ir::CollectiveKind::of_operator(name).is_some() {
        return Role::Collective;
    }
    match ir::HostCopy::of_operator(name) {
        Some(ir::HostCopy::Wait) => return Role::Wait,
        Some(ir::HostCopy::Out | ir::HostCopy::Over | ir::HostCopy::Back) => return Role::Copy,
        None => {}
    }
    match aten::row(&schema.full_name()).map(|row| row.memory) {
        Some(Memory::View | Memory::Repeating) => Role::View,
        Some(Memory::Alias) => Role::Alias,
        None if is_view(schema) => Role::View,
        Some(Memory::Own | Memory::Hidden) | None => Role::Compute,
    }
}

/// Whether the schema of an operation without a row says that it is a view.
fn is_view(schema: &Schema) -> bool {
    let tensor = |ty: &Type| matches!(ty, Type::Tensor) || *ty == Type::List(Box::new(Type::Tensor));
    schema.name.starts_with("aten::")
        && !schema.mutates()
        && schema.arguments.first().is_some_and(|first| first.ty == Type::Tensor && first.alias.is_some())
        && !schema.returns.is_empty()
        && schema.returns.iter().all(|returned| tensor(&returned.ty) && returned.alias.is_some())
}

/// Whether a view shows every element of its operand at most once.
pub(crate) fn shows_once(schema: &Schema) -> bool {
    let known = aten::row(&schema.full_name()).map(|row| row.memory);
    matches!(known, Some(Memory::View | Memory::Alias)) || role(schema) == Role::Wait
}

/// Whether an operation gives the same for the same arguments, and does nothing else: then it may be run once for all steps.
pub fn is_pure(schema: &Schema) -> bool {
    let plain = schema.name.starts_with("aten::") || schema.name.starts_with("prims::") || is_kernel(schema);
    plain && !schema.mutates() && !may_draw(schema)
}

/// Whether an operation may draw random numbers, for some arguments.
fn may_draw(schema: &Schema) -> bool {
    let draws = |argument: &torch_sys::Argument| {
        argument.ty.required() == &Type::Generator
            || argument.name == "dropout_p"
            || argument.name == "dropout"
    };
    match aten::row(&schema.full_name()) {
        Some(row) => row.random != Random::No,
        None => schema.arguments.iter().any(draws),
    }
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
        assert_eq!(role_of(ir::TO_HOST), Role::Copy);
        assert_eq!(role_of(ir::TO_HOST_OVER), Role::Copy);
        assert_eq!(role_of(ir::FROM_HOST), Role::Copy);
        assert_eq!(role_of(ir::WAIT_COPY), Role::Wait);
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
