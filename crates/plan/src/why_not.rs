//! Why a plan is not another one: the other one planned under the same settings, priced alike, and held against it.

mod alternatives;
mod differences;
mod text;

use base::{Bytes, Code, Diagnostic, Nanos, Result};
use cluster::Cluster;
use indexmap::IndexMap;
use ir::Graph;
use serde::Serialize;

use crate::{pins::Pins, plan::Plan, settings::PlanSettings, step::plan_graph, summary::NANOS_PER_MILLI};

pub use alternatives::Alternative;
pub use differences::{Difference, FirstDifference, PlacedOtherwise};

use alternatives::{Distance, Tried};
use differences::Compared;

/// What an alternative to a plan is and takes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WhyNot {
    /// What was asked for.
    pub asked: String,
    /// What came of it, where there is such a plan.
    pub plan: Option<Priced>,
    /// Why there is none.
    pub refused: Option<Refused>,
    /// What is to be known of what came of it.
    pub notes: Vec<String>,
    /// The first input that it places otherwise, and how many there are.
    pub placed_otherwise: Option<PlacedOtherwise>,
    /// The first difference in program order that costs time.
    pub first: Option<FirstDifference>,
    /// All differences by cause, those that cost most first; less than 0 is time saved.
    pub differences: Vec<Difference>,
}

/// A plan with what it takes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Priced {
    /// What it is.
    pub label: String,
    /// Its mesh.
    pub mesh: IndexMap<String, u32>,
    /// How many micro-batches a rank computes one after the other.
    pub micro_batches: u32,
    /// The pins that lead to it.
    pub pins: Pins,
    /// Its predicted time, in milliseconds.
    pub step_ms: f64,
    /// Operations alone.
    pub compute_ms: f64,
    /// Waiting for collectives.
    pub exposed_ms: f64,
    /// Most memory of a rank.
    pub peak_bytes: u64,
    /// Whether it keeps the memory limit.
    pub fits: bool,
    /// How much longer a step takes than under the plan that was chosen; less than 0 where it is faster.
    pub slower_ms: f64,
    /// What of that is operations.
    pub slower_compute_ms: f64,
    /// What of that is waiting.
    pub slower_exposed_ms: f64,
    /// How much more memory a rank needs.
    pub more_bytes: i64,
}

/// Why there is no such plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Refused {
    /// The code of the diagnostic.
    pub code: String,
    /// What is wrong.
    pub message: String,
    /// Why.
    pub because: Option<String>,
}

impl Refused {
    fn of(diagnostic: &Diagnostic) -> Self {
        let Diagnostic { code, message, cause, .. } = diagnostic;
        Self { code: code.to_string(), message: message.clone(), because: cause.clone() }
    }
}

/// Why `plan`, which these settings gave, is not another one.
pub fn why_not(
    graph: &Graph,
    plan: &Plan,
    cluster: &Cluster,
    settings: &PlanSettings,
    alternative: &Alternative,
) -> Result<WhyNot> {
    let tried = alternative.tried(plan, settings)?;
    let mut none = WhyNot {
        asked: alternative.to_string(),
        plan: None,
        refused: None,
        notes: Vec::new(),
        placed_otherwise: None,
        first: None,
        differences: Vec::new(),
    };
    let unlimited;
    let found = match best(graph, cluster, &tried) {
        Ok(found) => found,
        Err(refused) if refused.code == Code::NO_PLAN => {
            none.refused = Some(Refused::of(&refused));
            unlimited = tried.iter().map(Tried::unlimited).collect::<Vec<_>>();
            let Ok(found) = best(graph, cluster, &unlimited) else { return Ok(none) };
            none.notes.push("what follows is what it would take without the memory limit".into());
            found
        }
        Err(refused) => return Ok(WhyNot { refused: Some(Refused::of(&refused)), ..none }),
    };
    compared(graph, cluster, (plan, settings), none, &found)
}

/// The alternative that was found, held against the plan.
fn compared(
    graph: &Graph,
    cluster: &Cluster,
    (plan, settings): (&Plan, &PlanSettings),
    mut answer: WhyNot,
    found: &Found<'_>,
) -> Result<WhyNot> {
    let limit = settings.memory_limit(cluster);
    let other = &found.plan;
    answer.plan = Some(priced(plan, found, limit));
    answer.notes.extend(found.note(plan));
    if other.fingerprint() == plan.fingerprint() {
        answer.notes.push("this is the plan that was chosen".into());
        return Ok(answer);
    }
    if other.prediction.step_ns <= plan.prediction.step_ns && answer.refused.is_none() {
        answer.notes.push(
            "it takes no longer than the plan: other pins, or the coarse model of the search, kept it out, and its pins lead to it".into(),
        );
    }
    let Compared { placed_otherwise, first, differences } =
        differences::compared(graph, (plan, other), cluster)?;
    Ok(WhyNot { placed_otherwise, first, differences, ..answer })
}

/// A plan that was found for an alternative.
struct Found<'t> {
    plan: Plan,
    distance: Distance,
    tried: &'t Tried,
}

impl Found<'_> {
    /// What is said where it is not what is meant; with the price of that where a runner-up is.
    fn note(&self, plan: &Plan) -> Option<String> {
        if self.distance < Distance::Far {
            return None;
        }
        let meant = &self.tried.meant;
        let known = plan.runners_up.iter().find(|other| meant.distance(&other.name) < Distance::Far);
        let known = known.map_or_else(String::new, |other| {
            let (step, memory) = (Nanos(other.step_ns), Bytes(other.peak_bytes));
            format!("; the search met one that takes {step} and {memory}")
        });
        Some(format!(
            "no pins lead to a plan that is `{meant}`, and this is what comes of those tried{known}"
        ))
    }
}

/// The best of some attempts: one that is what is meant, and of those the fastest. The first refusal where all are refused, that of a limit
/// before any other.
fn best<'t>(graph: &Graph, cluster: &Cluster, tried: &'t [Tried]) -> Result<Found<'t>> {
    let mut found: Vec<Found<'t>> = Vec::new();
    let mut refused: Option<Box<Diagnostic>> = None;
    for tried in tried {
        match plan_graph(graph, cluster, &tried.settings) {
            Ok(plan) => found.push(Found { distance: tried.meant.distance(&plan.label), plan, tried }),
            Err(other) => {
                let is_worth_more =
                    |known: &Diagnostic| known.code != Code::NO_PLAN && other.code == Code::NO_PLAN;
                if refused.as_deref().is_none_or(is_worth_more) {
                    refused = Some(other);
                }
            }
        }
    }
    // Where a limit keeps out what is meant, that is said, and not something else shown.
    let is_limited = refused.as_ref().is_some_and(|refused| refused.code == Code::NO_PLAN);
    let nearest = found.into_iter().min_by_key(|found| (found.distance, found.plan.prediction.step_ns));
    match (nearest.filter(|found| found.distance < Distance::Far || !is_limited), refused) {
        (Some(found), _) => Ok(found),
        (None, Some(refused)) => Err(refused),
        (None, None) => Err(Diagnostic::bug("nothing was tried")),
    }
}

fn priced(plan: &Plan, Found { plan: other, tried, .. }: &Found<'_>, limit: Option<u64>) -> Priced {
    let (a, b) = (&plan.prediction, &other.prediction);
    let millis = |nanos: i64| nanos as f64 / NANOS_PER_MILLI;
    Priced {
        label: other.label.clone(),
        mesh: other.mesh.clone(),
        micro_batches: other.micro_batches,
        pins: tried.settings.pins.clone(),
        step_ms: millis(b.step_ns),
        compute_ms: millis(b.compute_ns),
        exposed_ms: millis(b.exposed_ns),
        peak_bytes: b.peak_bytes,
        fits: b.fits(limit),
        slower_ms: millis(b.step_ns - a.step_ns),
        slower_compute_ms: millis(b.compute_ns - a.compute_ns),
        slower_exposed_ms: millis(b.exposed_ns - a.exposed_ns),
        more_bytes: b.peak_bytes as i64 - a.peak_bytes as i64,
    }
}
