//! Mutated graphs, planned.

#[path = "../fuzz/mod.rs"]
mod fuzz;

#[test]
fn mutated_graphs_are_planned_or_refused_and_never_panic() {
    let outcomes = fuzz::run(0, 300);
    assert!(outcomes.panicked.is_empty(), "{outcomes:?}");
    assert!(outcomes.planned > 10 && outcomes.refused > 2 && outcomes.unread > 100, "{outcomes:?}");
}
