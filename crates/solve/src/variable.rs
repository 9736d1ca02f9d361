//! Variables.

use base::define_id;

define_id!(
    /// A variable: one decision.
    VariableId, "x"
);
