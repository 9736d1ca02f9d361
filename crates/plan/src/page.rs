//! The page of a plan: its figures and a step of it, as what a reader sees.

mod lanes;
mod tables;

use base::{Bytes, Nanos, Result};
use ir::{PartKind, RankGraph};
use report::{Considered, Memory, Paint, PlanPage, Share, Step};
use timeline::{Rank, Timeline, step::Figures};

use crate::{
    explain::{undivided, without_row},
    simulate::Pipeline,
    summary::{NANOS_PER_MILLI, Summary, nanos},
};

/// The page, as HTML, of the plan with these figures; `graph` is what a rank runs, `predicted` and `measured` are steps of it. Of a pipeline
/// the step of the first rank of each stage is shown too, and its first rank's is the prediction.
pub fn page(
    summary: &Summary,
    graph: &RankGraph,
    predicted: &Timeline,
    measured: Option<&Timeline>,
    pipeline: Option<&Pipeline>,
) -> Result<String> {
    let predicted = pipeline.map_or(predicted, |pipeline| &pipeline.timeline);
    let first = |timeline: &Timeline| timeline.ranks.first().cloned().unwrap_or_default();
    let rank = first(predicted);
    let took = measured.map(|timeline| Figures::of(timeline, &first(timeline)).step);
    let shown = [("predicted", Some(predicted)), ("measured", measured)];
    let steps = shown.into_iter().filter_map(|(heading, timeline)| {
        Some(Step { heading: heading.to_owned(), strips: lanes::strips(timeline?, graph) })
    });
    let stages =
        pipeline.map(|pipeline| Step { heading: "stages".to_owned(), strips: lanes::stages(pipeline) });
    let page = PlanPage {
        label: summary.label.clone(),
        lead: lead(summary, took, rank.rank),
        warnings: warnings(summary),
        shares: shares(summary),
        rank: rank.rank,
        steps: stages.into_iter().chain(steps).collect(),
        memory: memory(summary, &rank),
        at_peak: tables::at_peak(summary),
        held: tables::held(summary),
        modules: tables::modules(summary),
        collectives: tables::collectives(summary),
        causes: tables::causes(summary),
        state: tables::state(summary),
        plans: considered(summary),
    };
    page.html()
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole * 100.0 } else { 0.0 }
}

/// What the plan is for and what it takes, in sentences.
fn lead(summary: &Summary, measured: Option<Nanos>, rank: u32) -> Vec<String> {
    let axes: Vec<String> = summary.mesh.iter().map(|(axis, size)| format!("{axis} = {size}")).collect();
    let tokens = summary.tokens_per_second.map(|tokens| format!(", {} tokens per second", grouped(tokens)));
    let peak = Bytes(summary.peak_bytes);
    let limit = summary.memory_limit.map(|limit| {
        let share = percent(summary.peak_bytes as f64, limit as f64);
        format!(", {share:.0} % of the limit of {}", Bytes(limit))
    });
    let mut sentences = vec![
        format!(
            "A plan for {} on the mesh {}: a step is predicted to take {}{}. A rank needs {peak} at the peak{}. \
             It is limited by {}.",
            devices(summary),
            axes.join(" × "),
            nanos(summary.step_ms),
            tokens.unwrap_or_default(),
            limit.unwrap_or_default(),
            summary.limited_by,
        ),
        format!(
            "Operations take {} of the step, waiting for collectives {}. The collectives take {} in all, and {:.0} % of that \
             is hidden beside operations. Products, attention and convolutions alone take {} when they are divided over all \
             ranks: no plan on so many takes less.",
            nanos(summary.compute_ms),
            nanos(summary.exposed_ms),
            nanos(summary.communication_ms),
            percent(summary.communication_ms - summary.exposed_ms, summary.communication_ms).max(0.0),
            nanos(summary.least_ms),
        ),
    ];
    if summary.call_ms > 0.0 {
        sentences.push(format!(
            "Around its program a step takes {} on the host, which no lane shows.",
            nanos(summary.call_ms)
        ));
    }
    if summary.recomputed_ms > 0.0 {
        sentences.push(format!(
            "Of the operations {} are forward's, run again in backward instead of holding their results until then.",
            nanos(summary.recomputed_ms)
        ));
    }
    let of_forward = summary.offloaded_bytes - summary.host_state_bytes;
    let on_host = [
        (of_forward, "of what forward leaves are on the host until backward"),
        (summary.host_state_bytes, "of state are on the host between steps, and come for the update"),
    ];
    for (bytes, what) in on_host.into_iter().filter(|(bytes, _)| *bytes > 0) {
        let waiting = nanos(summary.exposed_copies_ms);
        let rank = if summary.pipeline.is_some() { "the stage with most on its host" } else { "the rank" };
        sentences.push(format!("{} {what}; {rank} waits {waiting} for copies.", Bytes(bytes)));
    }
    sentences.extend(measured.map(|took| {
        let program_ms = summary.step_ms - summary.call_ms;
        let more = percent(took.0 as f64 / NANOS_PER_MILLI - program_ms, program_ms);
        format!("Measured on rank {rank}, the program took {took}: {more:+.0} % against the prediction.")
    }));
    sentences
}

fn devices(summary: &Summary) -> String {
    match summary.ranks {
        1 => format!("one rank ({})", summary.device),
        ranks => format!("{ranks} ranks ({} each)", summary.device),
    }
}

/// A number with four significant digits and a comma between groups of three.
fn grouped(number: f64) -> String {
    let unit = 10_f64.powi((number.max(1.0).log10().floor() as i32 - 3).max(0));
    let digits = ((number / unit).round() * unit).to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

fn warnings(summary: &Summary) -> Vec<String> {
    let ranks = |axis: &String| summary.mesh.get(axis).copied().unwrap_or(1);
    let axes = summary.undivided.iter().map(|axis| undivided(axis, ranks(axis)));
    let operators = summary.without_row.iter().map(|(operator, count)| {
        let nanos = summary.without_row_ns.get(operator).copied();
        without_row(operator, *count, nanos, summary.ranks)
    });
    axes.chain(operators).collect()
}

/// What the time of a step is made of: parts of the program, and waiting.
fn shares(summary: &Summary) -> Vec<Share> {
    let parts = PartKind::NAMES.map(|(kind, name)| {
        let of_part = summary.account.modules.iter().filter(|one| one.part == name);
        (lanes::paint(kind), of_part.map(|one| one.ms).sum::<f64>())
    });
    let shown = parts.into_iter().chain([(Paint::Wait, summary.exposed_ms)]).filter(|(_, ms)| *ms > 0.0);
    let share = |(paint, ms): (Paint, f64)| {
        let percent = percent(ms, summary.step_ms);
        Share { paint, percent, text: format!("{}: {}, {percent:.0} %", paint.name(), nanos(ms)) }
    };
    shown.map(share).collect()
}

fn memory(summary: &Summary, rank: &Rank) -> Memory {
    let changes = rank.memory.iter().map(|change| (change.time, Bytes(change.total_allocated.max(0) as u64)));
    let before = rank
        .memory
        .first()
        .map(|first| (Nanos(0), Bytes((first.total_allocated - first.bytes).max(0) as u64)));
    Memory {
        state: Bytes(summary.memory.get("state").copied().unwrap_or_default()),
        held: before.into_iter().chain(changes).collect(),
        limit: summary.memory_limit.map(Bytes),
        end: nanos(summary.step_ms),
    }
}

fn considered(summary: &Summary) -> Vec<Considered> {
    let chosen = Considered {
        label: summary.label.clone(),
        step: nanos(summary.step_ms),
        waiting: Some(nanos(summary.exposed_ms)),
        memory: Bytes(summary.peak_bytes),
        fits: true,
    };
    let others = summary.runners_up.iter().map(|other| Considered {
        label: other.label.clone(),
        step: nanos(other.step_ms),
        waiting: other.exposed_ms.map(nanos),
        memory: Bytes(other.peak_bytes),
        fits: other.fits,
    });
    std::iter::once(chosen).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_rounded_and_grouped() {
        let texts = [0.4, 12.0, 999.6, 12_345.0, 1_172_699.2].map(grouped);
        assert_eq!(texts, ["0", "12", "1,000", "12,350", "1,173,000"]);
    }
}
