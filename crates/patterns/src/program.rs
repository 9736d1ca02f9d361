//! What a program is for patterns.

use std::fmt::Debug;

/// What an operation is called with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Argument<Value> {
    /// What another operation makes, or the program is given.
    Value(Value),
    /// Some of these; none stands for one that is not given.
    Values(Vec<Option<Value>>),
    /// Anything else, as text.
    Literal(String),
}

/// Operations in order, each of which makes values of earlier ones.
pub trait Program {
    /// What operations read and make.
    type Value: Copy + Eq + Debug;
    /// An operation of the program.
    type Op: Copy + Eq + Debug;

    /// All operations, in an order in which they can run.
    fn ops(&self) -> Vec<Self::Op>;
    /// What an operation does.
    fn name(&self, op: Self::Op) -> &str;
    /// What it is called with.
    fn arguments(&self, op: Self::Op) -> Vec<Argument<Self::Value>>;
    /// What it makes, by position; none for what is never there.
    fn results(&self, op: Self::Op) -> Vec<Option<Self::Value>>;
    /// What makes a value, if an operation does.
    fn maker(&self, value: Self::Value) -> Option<Self::Op>;
    /// The operations that read a value.
    fn users(&self, value: Self::Value) -> Vec<Self::Op>;
    /// Whether a value is read by something else than operations.
    fn leaves(&self, value: Self::Value) -> bool;
    /// Whether something that a pattern asks for by name holds for a value.
    fn holds(&self, property: &str, value: Self::Value) -> bool;
}
