//! Where in the user's program an event comes from: module and source line, from the Python functions around it.

use rustc_hash::FxHashMap;
use serde::Serialize;
use timeline::Class;

use crate::{Frame, stack::Stacks};

/// A place in the user's program.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Origin {
    /// Module instances around it, outermost first, with dots between; absent where the trace has no Python functions.
    pub module: Option<String>,
    /// The innermost Python function outside of libraries, as `file(line): function`; of our own programs the place, as `file:line`.
    pub line: Option<String>,
}

/// Answers where events come from.
pub struct Sources<'f, 't> {
    frame: &'f Frame<'t>,
    /// All events of processor threads.
    pub stacks: &'f Stacks,
    /// The forward operator of each sequence number.
    forward: &'f FxHashMap<i64, u32>,
}

impl<'f, 't> Sources<'f, 't> {
    /// Of one rank.
    pub fn of(frame: &'f Frame<'t>) -> Self {
        Self { frame, stacks: frame.calls(), forward: frame.forward() }
    }

    /// The origin of the event of `row`: of its launch for one on a device, of the forward operator for a backward one.
    pub fn origin(&self, row: usize) -> Origin {
        let call = if self.frame.joins_as_device(row) { self.frame.link[row].row() } else { Some(row) };
        let Some(call) = call else { return Origin::default() };
        if let Some(node) = self.frame.rank.sides.node.get(call as u32) {
            let line = node.place.some().map(|place| self.frame.timeline.names.text(place).to_owned());
            return Origin { module: None, line };
        }
        let own = self.around(call);
        if own.line.is_some() {
            return own;
        }
        self.forward_of(call).map_or(own, |forward| self.around(forward))
    }

    /// The forward operator of a backward one, or of one inside it.
    pub fn forward_of(&self, row: usize) -> Option<usize> {
        let sequence = |row: usize| self.frame.rank.sides.sequence.get(row as u32);
        let number = self.stacks.path(row).find_map(sequence)?.number;
        self.forward.get(&number).map(|&forward| forward as usize).filter(|&forward| forward != row)
    }

    fn around(&self, row: usize) -> Origin {
        let mut origin = Origin::default();
        let mut modules = Vec::new();
        for row in self.stacks.path(row).filter(|&row| self.frame.class(row) == Class::Python) {
            let name = self.frame.text(row);
            if let Some(module) = name.strip_prefix("nn.Module: ") {
                modules.push(module);
            } else if origin.line.is_none() && is_users(name) {
                origin.line = Some(name.to_owned());
            }
        }
        modules.reverse();
        origin.module = (!modules.is_empty()).then(|| modules.join("."));
        origin
    }
}

/// Whether a Python function is the user's own: neither built in nor in a library.
fn is_users(name: &str) -> bool {
    const LIBRARIES: &[&str] = &[
        "<built-in",
        "torch/",
        "site-packages/",
        "<frozen",
        "threading.py",
        "contextlib.py",
        "runpy.py",
        "multiprocessing/",
    ];
    name.contains("): ") && !LIBRARIES.iter().any(|library| name.contains(library))
}
