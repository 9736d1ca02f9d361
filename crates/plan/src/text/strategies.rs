//! Strategies as text.

use aten::Strategy;
use ir::Placement;
use rustc_hash::FxHashMap;
use shard::ClassId;

/// `operands -> results`; `replicate` where all are.
pub fn text_of(strategy: &Strategy) -> String {
    let list =
        |placements: &[Placement]| placements.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut all = strategy.operands.iter().chain(&strategy.results);
    if all.all(|placement| *placement == Placement::Replicate) {
        return "replicate".into();
    }
    format!("{} -> {}", list(&strategy.operands), list(&strategy.results))
}

/// The texts of strategies, each once.
#[derive(Default)]
pub struct Texts {
    all: Vec<String>,
    by_text: FxHashMap<String, u32>,
    by_class: FxHashMap<(ClassId, usize), u32>,
}

impl Texts {
    /// The number of the text of one of a class's strategies.
    pub fn number(&mut self, class: ClassId, strategies: &[Strategy], strategy: &Strategy) -> u32 {
        let position = strategies.iter().position(|one| one == strategy).unwrap_or(strategies.len());
        if let Some(number) = self.by_class.get(&(class, position)) {
            return *number;
        }
        let text = text_of(strategy);
        let next = self.all.len() as u32;
        let number = *self.by_text.entry(text.clone()).or_insert(next);
        if number == next {
            self.all.push(text);
        }
        self.by_class.insert((class, position), number);
        number
    }

    /// A text.
    pub fn text(&self, number: u32) -> &str {
        &self.all[number as usize]
    }
}
