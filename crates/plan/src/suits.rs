//! What a search tries beside others, which it may pass over.

use base::{Audience, Result};

/// What was tried, or nothing where it was refused because it does not suit the step, the machine or its memory. A broken invariant of ours is no
/// such reason: to pass over it would lose what was tried, and nobody would hear of it.
pub fn if_it_suits<T>(tried: Result<T>) -> Result<Option<T>> {
    match tried {
        Ok(found) => Ok(Some(found)),
        Err(refused) if refused.audience() == Audience::Bug => Err(refused),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use base::{Code, Diagnostic};

    use super::*;

    #[test]
    fn what_does_not_suit_is_passed_over_and_a_bug_is_not() {
        assert_eq!(if_it_suits(Ok(1)), Ok(Some(1)));
        for code in [Code::BAD_MESH, Code::NO_PLAN, Code::UNSUPPORTED_PLAN] {
            assert_eq!(if_it_suits::<u32>(Err(Diagnostic::new(code, "no"))), Ok(None));
        }
        for bug in [Diagnostic::bug("no"), Diagnostic::new(Code::BAD_GRAPH, "no")] {
            assert_eq!(if_it_suits::<u32>(Err(bug.clone())), Err(bug));
        }
    }
}
