//! Where patterns stand in a program.

use rustc_hash::FxHashMap;

use crate::{
    Argument, Pattern, Program, Step, Term,
    pattern::{Port, Way},
};

/// Operations of a program that are those of a pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Match<Value, Op> {
    /// Which of the patterns.
    pub pattern: usize,
    /// The operation of each step.
    pub ops: Vec<Op>,
    /// What each capture is.
    pub captured: Vec<Argument<Value>>,
}

impl<Value: Copy, Op> Match<Value, Op> {
    /// The value that a capture is, if it is one.
    pub fn value(&self, capture: usize) -> Option<Value> {
        match self.captured.get(capture)? {
            Argument::Value(value) => Some(*value),
            _ => None,
        }
    }

    /// The literal that a capture is, if it is one.
    pub fn literal(&self, capture: usize) -> Option<&str> {
        match self.captured.get(capture)? {
            Argument::Literal(text) => Some(text),
            _ => None,
        }
    }
}

/// Where patterns stand in a program, in its order; no operation is of two. Each operation is held only against the patterns whose last
/// operation does the same, in their order.
///
/// # Panics
/// Where the operations of a pattern are not connected, which its text form excludes.
pub fn find<P: Program>(patterns: &[Pattern], program: &P) -> Vec<Match<P::Value, P::Op>> {
    let mut by_root: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
    for (number, pattern) in patterns.iter().enumerate() {
        if let Some(last) = pattern.steps.last() {
            by_root.entry(&last.op).or_default().push(number);
        }
    }
    let ways: Vec<_> = patterns
        .iter()
        .map(|pattern| pattern.ways().expect("operations of patterns are connected"))
        .collect();
    let mut found: Vec<Match<P::Value, P::Op>> = Vec::new();
    for op in program.ops() {
        let at_root = by_root.get(program.name(op)).into_iter().flatten();
        let mut matches = at_root.filter_map(|number| {
            let search = Search { pattern: &patterns[*number], ways: &ways[*number], program };
            let Bound { ops, captured, .. } = search.from(op)?;
            let ops: Vec<P::Op> = ops.into_iter().flatten().collect();
            let captured = captured.into_iter().map(|one| one.unwrap_or(Argument::Values(Vec::new())));
            Some(Match { pattern: *number, ops, captured: captured.collect() })
        });
        let is_free = |one: &Match<P::Value, P::Op>| {
            !found.iter().any(|other| other.ops.iter().any(|op| one.ops.contains(op)))
        };
        if let Some(one) = matches.find(is_free) {
            found.push(one);
        }
    }
    found
}

/// What is known while a match is searched.
#[derive(Clone)]
struct Bound<Value, Op> {
    ops: Vec<Option<Op>>,
    /// Whether the first two arguments of the operation of a step stand the other way round in the program.
    turned: Vec<bool>,
    captured: Vec<Option<Argument<Value>>>,
}

struct Search<'a, P> {
    pattern: &'a Pattern,
    ways: &'a [(usize, Way)],
    program: &'a P,
}

type BoundIn<P> = Bound<<P as Program>::Value, <P as Program>::Op>;

impl<P: Program> Search<'_, P> {
    fn from(&self, op: P::Op) -> Option<BoundIn<P>> {
        let bound = Bound {
            ops: vec![None; self.pattern.steps.len()],
            turned: vec![false; self.pattern.steps.len()],
            captured: vec![None; self.pattern.captures.len()],
        };
        self.step(0, &[op], &bound)
    }

    /// The rest of a match, in which the next step is one of `candidates`.
    fn step(&self, way: usize, candidates: &[P::Op], bound: &BoundIn<P>) -> Option<BoundIn<P>> {
        let (step, _) = self.ways[way];
        let Step { op: name, commutes, .. } = &self.pattern.steps[step];
        candidates.iter().find_map(|op| {
            if self.program.name(*op) != name || bound.ops.contains(&Some(*op)) {
                return None;
            }
            let orders = if *commutes { &[false, true][..] } else { &[false] };
            orders.iter().find_map(|turned| {
                let mut bound = bound.clone();
                (bound.ops[step], bound.turned[step]) = (Some(*op), *turned);
                self.takes(step, &mut bound).then_some(())?;
                self.rest(way + 1, &bound)
            })
        })
    }

    fn rest(&self, way: usize, bound: &BoundIn<P>) -> Option<BoundIn<P>> {
        let Some((_, how)) = self.ways.get(way) else { return self.is_whole(bound).then(|| bound.clone()) };
        match *how {
            Way::Anchor => None,
            Way::Makes { user, argument } => {
                let arguments = self.arguments(user, bound)?;
                let Argument::Value(value) = arguments.get(argument)? else { return None };
                self.step(way, &[self.program.maker(*value)?], bound)
            }
            Way::Reads(port) => self.step(way, &self.program.users(self.value(port, bound)?), bound),
        }
    }

    /// The arguments of the operation of a step, in the order in which the pattern has them.
    fn arguments(&self, step: usize, bound: &BoundIn<P>) -> Option<Vec<Argument<P::Value>>> {
        let mut arguments = self.program.arguments(bound.ops[step]?);
        if bound.turned[step] && arguments.len() >= 2 {
            arguments.swap(0, 1);
        }
        Some(arguments)
    }

    /// Whether the arguments of the operation of a step are as the pattern has them; captures take what stands for them. Results of steps
    /// whose operations are not known yet are compared in the end.
    fn takes(&self, step: usize, bound: &mut BoundIn<P>) -> bool {
        let Some(arguments) = self.arguments(step, bound) else { return false };
        let terms = &self.pattern.steps[step].arguments;
        arguments.len() == terms.len()
            && terms.iter().zip(&arguments).all(|(term, found)| self.takes_one(term, found, bound))
    }

    fn takes_one(&self, term: &Term, found: &Argument<P::Value>, bound: &mut BoundIn<P>) -> bool {
        match term {
            Term::Any => true,
            Term::Is(text) => matches!(found, Argument::Literal(literal) if literal == text),
            Term::Captured(number) => bound.captured[*number].get_or_insert_with(|| found.clone()) == found,
            Term::Made(port) => match (found, bound.ops[port.0]) {
                (Argument::Value(value), Some(_)) => self.value(*port, bound) == Some(*value),
                (Argument::Value(value), None) => {
                    let name = &self.pattern.steps[port.0].op;
                    self.program.maker(*value).is_some_and(|maker| self.program.name(maker) == name)
                }
                _ => false,
            },
            Term::List(terms) => match found {
                Argument::Values(values) if values.len() == terms.len() => {
                    terms.iter().zip(values).all(|(term, value)| {
                        value.is_some_and(|value| self.takes_one(term, &Argument::Value(value), bound))
                    })
                }
                _ => false,
            },
        }
    }

    fn value(&self, (step, result): Port, bound: &BoundIn<P>) -> Option<P::Value> {
        self.program.results(bound.ops[step]?).get(result).copied().flatten()
    }

    /// Whether all connections are as they should be, properties hold, and nothing else reads what is not a root.
    fn is_whole(&self, bound: &BoundIn<P>) -> bool {
        let mut again = bound.clone();
        let connected = (0..self.pattern.steps.len()).all(|step| self.takes(step, &mut again));
        let holds = |(capture, property): &(usize, String)| match &bound.captured[*capture] {
            Some(Argument::Value(value)) => self.program.holds(property, *value),
            _ => false,
        };
        connected && self.pattern.properties.iter().all(holds) && self.is_closed(bound)
    }

    fn is_closed(&self, bound: &BoundIn<P>) -> bool {
        let within = |op: &P::Op| bound.ops.contains(&Some(*op));
        bound.ops.iter().flatten().enumerate().all(|(step, op)| {
            self.program.results(*op).into_iter().enumerate().all(|(result, value)| {
                let is_root = self.pattern.roots.contains(&(step, result));
                is_root
                    || value.is_none_or(|value| {
                        !self.program.leaves(value) && self.program.users(value).iter().all(within)
                    })
            })
        })
    }
}
