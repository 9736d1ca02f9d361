//! Patterns as data.

/// Some operations, how they are connected, and what is read of them by others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// What it is called.
    pub name: String,
    /// The operations, each behind those whose results it reads.
    pub steps: Vec<Step>,
    /// The names of what is read from elsewhere: values, or arguments of another kind.
    pub captures: Vec<String>,
    /// The results that others may read: those that are not named are read within the pattern alone.
    pub roots: Vec<Port>,
    /// What must hold for captures, by their numbers.
    pub properties: Vec<(usize, String)>,
}

/// A result of an operation: which operation, which result.
pub type Port = (usize, usize);

/// An operation of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What it does.
    pub op: String,
    /// Whether its first two arguments may change places.
    pub commutes: bool,
    /// What it is called with.
    pub arguments: Vec<Term>,
    /// The names of its results.
    pub results: Vec<String>,
}

/// An argument in a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Term {
    /// A result of another operation of the pattern.
    Made(Port),
    /// What is read from elsewhere, by its number: the same wherever it stands.
    Captured(usize),
    /// Some of these.
    List(Vec<Term>),
    /// This literal.
    Is(String),
    /// Anything.
    Any,
}

/// How the operation of a step is found when those of others are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// It is the last one of the pattern, where the search begins.
    Anchor,
    /// It makes what a known operation reads.
    Makes { user: usize, argument: usize },
    /// It reads what a known operation makes.
    Reads(Port),
}

impl Step {
    /// The results of other steps that it reads, by argument.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (usize, Port)> + '_ {
        self.arguments.iter().enumerate().filter_map(|(at, term)| match term {
            Term::Made(port) => Some((at, *port)),
            _ => None,
        })
    }
}

impl Pattern {
    /// The number of a capture.
    pub fn capture(&self, name: &str) -> Option<usize> {
        self.captures.iter().position(|known| known == name)
    }

    /// The result of that name.
    pub fn port(&self, name: &str) -> Option<Port> {
        let mut steps = self.steps.iter().enumerate();
        steps.find_map(|(step, Step { results, .. })| {
            Some((step, results.iter().position(|known| known == name)?))
        })
    }

    /// Whether each operation is found from the last one, by what they read and make: only then can it be looked for.
    pub fn is_connected(&self) -> bool {
        self.ways().is_some()
    }

    /// The steps in an order in which each is found by one before it; none where they are not connected.
    pub(crate) fn ways(&self) -> Option<Vec<(usize, Way)>> {
        let mut ways = vec![(self.steps.len().checked_sub(1)?, Way::Anchor)];
        while ways.len() < self.steps.len() {
            ways.push(self.next(&ways)?);
        }
        Some(ways)
    }

    /// A step that a known one reads from or, where there is none, one that reads from a known one.
    fn next(&self, known: &[(usize, Way)]) -> Option<(usize, Way)> {
        let is_known = |step: usize| known.iter().any(|(known, _)| *known == step);
        let made = known.iter().find_map(|(user, _)| {
            let found = self.steps[*user].ports().find(|(_, (maker, _))| !is_known(*maker));
            found.map(|(argument, (maker, _))| (maker, Way::Makes { user: *user, argument }))
        });
        made.or_else(|| {
            let unknown = (0..self.steps.len()).filter(|step| !is_known(*step));
            unknown.into_iter().find_map(|step| {
                let found = self.steps[step].ports().find(|(_, (maker, _))| is_known(*maker));
                found.map(|(_, port)| (step, Way::Reads(port)))
            })
        })
    }
}
