//! What was found, for people.

use base::{Bytes, Nanos};

use crate::{Observed, Refit, Term, observed::LeftOut};

/// How many names stand for all that is unknown or left out.
const NAMED: usize = 4;

/// What a refit found, in lines.
pub fn said(observed: &Observed, refit: &Refit) -> String {
    let mut lines = Vec::new();
    let calls: usize = observed.seen.iter().map(|one| one.calls).sum();
    let [ran, before, now] = refit.nanos.map(time);
    let [off, still] = refit.error.map(|error| format!("{:.0} %", 100.0 * error));
    let mut line = |line: String| lines.push(line);
    line(format!("{calls} calls of {} kinds on {} rank(s)", observed.seen.len(), observed.ranks));
    line(format!("  all of them      {ran} measured, {before} predicted before, {now} now"));
    line(format!("  a kind of them   {off} off before, {still} now, in the middle"));
    if refit.terms.is_empty() {
        line("nothing that the description says is wrong by a tenth".to_owned());
    } else {
        line("wrong in the description:".to_owned());
    }
    let width = refit.terms.iter().map(|term| term.name.len()).max().unwrap_or(0);
    for term in &refit.terms {
        line(format!("  {:width$}  {}", term.name, of_term(term)));
    }
    if !observed.left_out.is_empty() {
        line("left out, because they differ among themselves:".to_owned());
    }
    let mut left_out: Vec<&LeftOut> = observed.left_out.iter().collect();
    left_out.sort_by(|a, b| b.nanos.total_cmp(&a.nanos));
    for LeftOut { what, calls, nanos, why } in left_out.iter().take(NAMED) {
        line(format!("  {calls} calls of {what}, {}: {why}", time(*nanos)));
    }
    if let Some(rest @ [_, ..]) = left_out.get(NAMED..) {
        let nanos = rest.iter().map(|one| one.nanos).sum();
        line(format!("  {} more kinds, {}", rest.len(), time(nanos)));
    }
    if !observed.unknown.is_empty() {
        let mut unknown: Vec<(&String, &f64)> = observed.unknown.iter().collect();
        unknown.sort_by(|a, b| b.1.total_cmp(a.1).then(a.0.cmp(b.0)));
        let all: f64 = observed.unknown.values().sum();
        let names: Vec<String> = unknown.iter().take(NAMED).map(|(name, _)| short(name)).collect();
        let more = unknown.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} others") } else { String::new() };
        line(format!("no operations of the step: {} in {}{more}", time(all), names.join(", ")));
    }
    lines.join("\n")
}

/// A name without the types and arguments that kernels have in theirs.
fn short(name: &str) -> String {
    let name = name.strip_prefix("void ").unwrap_or(name);
    format!("`{}`", name.split(['<', '(']).next().unwrap_or(name))
}

fn of_term(term: &Term) -> String {
    let Term { before, after, slower, calls, sizes, .. } = term;
    let (before, after) = (number(*before), number(*after));
    let size = |(bytes, slower): &(u64, f64)| format!("{slower:.2} at {}", Bytes(*bytes));
    let sizes = match sizes.as_slice() {
        [] => String::new(),
        [one] => format!(": {}", size(one)),
        [first, .., last] => format!(" of {} kinds: {}, {}", sizes.len(), size(first), size(last)),
    };
    let change = match *slower {
        slower if slower < 1.0 => format!("{:.2} times as fast", 1.0 / slower),
        slower => format!("{slower:.2} times as long"),
    };
    format!("{before} -> {after}, {change}; {calls} calls{sizes}")
}

fn number(value: f64) -> String {
    if (0.01..1e5).contains(&value) { format!("{value:.1}") } else { format!("{value:.3e}") }
}

fn time(nanos: f64) -> String {
    Nanos(nanos.round() as i64).to_string()
}
