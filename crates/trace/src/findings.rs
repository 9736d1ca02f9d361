//! What is wrong, most costly first: at most five findings, each with its evidence, its share of the time and what to do.

use base::Nanos;
use serde::Serialize;

use crate::{
    Frames, answers::Answers, breakdown, causal::CriticalPath, exposed::Exposed, idle, launch,
    memory::DeviceMemory, source::Origin, stats::round, waiting::Waiting,
};

/// Something that costs time or memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What it is, in one sentence.
    pub title: String,
    /// The numbers that say so.
    pub evidence: String,
    /// Share of the time that it costs, in per cent.
    pub share: f64,
    /// What to do.
    pub action: String,
    /// The analysis with the details.
    pub analysis: &'static str,
    /// The rank concerned, if it is one.
    pub rank: Option<u32>,
}

/// Below this share a finding is not worth a line, in per cent.
const LEAST: f64 = 2.0;

/// The findings of all ranks, given what other analyses say.
pub fn findings(answers: &Answers<'_, '_>) -> Vec<Finding> {
    let frames = answers.frames;
    let mut findings = Vec::new();
    findings.extend(late_rank(frames, answers.waiting()));
    findings.extend(exposed_communication(frames, answers.exposed()));
    findings.extend(host_bound(frames));
    findings.extend(short_kernels(frames));
    findings.extend(answers.path().and_then(on_path));
    findings.retain(|finding: &Finding| finding.share >= LEAST);
    findings.extend(growth(answers.memory()));
    findings.sort_by(|a, b| b.share.total_cmp(&a.share));
    findings.truncate(5);
    findings
}

/// Microseconds from the first begin to the last end over all ranks, summed over ranks.
fn total_time(frames: &Frames<'_>) -> f64 {
    let span = |frame: &crate::Frame<'_>| {
        let begin = frame.rows().map(|row| frame.begin[row]).min().unwrap_or(0);
        frame.rows().map(|row| frame.end(row)).max().unwrap_or(0) - begin
    };
    frames.ranks.iter().map(span).sum::<i64>() as f64 / 1000.0
}

fn place(origin: &Origin) -> String {
    match (&origin.module, &origin.line) {
        (Some(module), Some(line)) => format!(" in {module}, {line}"),
        (None, Some(line)) => format!(" at {line}"),
        (Some(module), None) => format!(" in {module}"),
        (None, None) => String::new(),
    }
}

/// Microseconds in a unit that a person reads.
fn time(micros: f64) -> Nanos {
    Nanos((micros * 1e3).round() as i64)
}

/// A rank that others wait for more than chance would have it.
fn late_rank(frames: &Frames<'_>, waiting: &Waiting) -> Option<Finding> {
    let all: f64 = waiting.ranks.iter().map(|rank| rank.wait).sum();
    let worst = waiting.ranks.iter().max_by(|a, b| a.caused.total_cmp(&b.caused))?;
    // by chance alone each rank would be last as often as any other
    let expected = 100.0 / waiting.ranks.len() as f64;
    if worst.caused_percent < 1.5 * expected || waiting.matched < 2 {
        return None;
    }
    let reason = worst.reasons.first().map_or_else(String::new, |reason| {
        format!(
            "; before, it spent {} more than the others on `{}`{}",
            time(reason.extra),
            short(&reason.name),
            place(&reason.origin)
        )
    });
    Some(Finding {
        title: format!("rank {} is late: the others wait for it", worst.rank),
        evidence: format!(
            "it came last to {} of {} collectives and caused {:.0} % of {} of waiting{reason}",
            worst.last,
            waiting.matched,
            worst.caused_percent,
            time(all)
        ),
        share: round(100.0 * worst.caused / total_time(frames), 1),
        action: "balance the work of this rank, or find what only it does before the collectives".to_owned(),
        analysis: "collectives",
        rank: Some(worst.rank),
    })
}

fn exposed_communication(frames: &Frames<'_>, table: &[Exposed]) -> Option<Finding> {
    let all: f64 = table.iter().map(|row| row.exposed).sum();
    let worst = table.first()?;
    Some(Finding {
        title: "communication is not hidden behind computation".to_owned(),
        evidence: format!(
            "{} on all ranks in which nothing computes; the most: {} on rank {}, {}{}",
            time(all),
            worst.operation,
            worst.rank,
            time(worst.exposed),
            place(&worst.origin)
        ),
        share: round(100.0 * all / total_time(frames), 1),
        action: "issue it earlier, in larger buckets or on a stream of its own; see who is late first"
            .to_owned(),
        analysis: "exposed_communication",
        rank: None,
    })
}

/// Devices that idle because the host launches too late.
fn host_bound(frames: &Frames<'_>) -> Option<Finding> {
    let temporal = breakdown::temporal(frames);
    let total: f64 = temporal.iter().map(|rank| rank.total).sum();
    let idle_time: f64 = temporal.iter().map(|rank| rank.idle).sum();
    let (by_cause, _) = idle::idle(frames, 30_000);
    let of = |cause| {
        by_cause.iter().filter(|row| row.idle_category == cause).map(|row| row.idle_time).sum::<f64>()
    };
    let (host, kernel, other) =
        (of(idle::Cause::HostWait), of(idle::Cause::KernelWait), of(idle::Cause::Other));
    let share = host / (host + kernel + other);
    if !share.is_finite() || share < 0.5 {
        return None;
    }
    Some(Finding {
        title: "devices wait for the host".to_owned(),
        evidence: format!(
            "devices idle {:.0} % of the time, and {:.0} % of the streams' gaps end with a launch that came too late",
            100.0 * idle_time / total,
            100.0 * share
        ),
        share: round(100.0 * idle_time / total * share, 1),
        action: "launch less or sooner: larger batches, fused operators, device graphs, no synchronisation in the step".to_owned(),
        analysis: "idle_time_breakdown",
        rank: None,
    })
}

fn short_kernels(frames: &Frames<'_>) -> Option<Finding> {
    let stats = launch::stats(frames, launch::Cutoffs { runtime: 50_000, launch_delay: 100_000 });
    let (short, all) = stats.values().fold((0, 0), |sum, rank| (sum.0 + rank.short_kernels, sum.1 + rank.n));
    let (calls, total) = (stats.values().map(|rank| rank.cpu_sum).sum::<f64>(), total_time(frames));
    if all < 100 || short * 2 < all {
        return None;
    }
    Some(Finding {
        title: "most kernels are shorter than their launch".to_owned(),
        evidence: format!("{short} of {all} kernels; {} are spent in launching", time(calls)),
        share: round(100.0 * calls / total, 1),
        action: "fuse small operators (torch.compile) or launch them together as a device graph".to_owned(),
        analysis: "cuda_kernel_launch_stats",
        rank: None,
    })
}

/// What takes most of the critical path.
fn on_path(path: &CriticalPath) -> Option<Finding> {
    let top = path.top.iter().find(|row| row.class != "cpu_between_calls")?;
    Some(Finding {
        title: format!("`{}` takes the largest part of the critical path", short(&top.name)),
        evidence: format!(
            "{} in {} piece(s) on rank {} ({}){}",
            time(top.time),
            top.count,
            top.rank,
            top.class,
            place(&top.origin)
        ),
        share: round(top.percent, 1),
        action: "a gain here shortens the step; check with `what-if` how far".to_owned(),
        analysis: "critical_path",
        rank: Some(top.rank),
    })
}

fn growth(devices: &[DeviceMemory]) -> Option<Finding> {
    let worst = devices
        .iter()
        .filter(|device| device.step_ends.len() > 2)
        .max_by_key(|device| device.growth_per_step)?;
    if worst.growth_per_step <= 0 {
        return None;
    }
    let holder = worst.never_released.first().map_or_else(String::new, |row| {
        format!("; the most is held by {}{}", row.operator, place(&row.origin))
    });
    Some(Finding {
        title: format!("memory grows from step to step on {} of rank {}", worst.device, worst.rank),
        evidence: format!("at least {} bytes per step{holder}", worst.growth_per_step),
        share: 0.0,
        action: "look for tensors kept over steps: losses appended to a list, graphs held by a reference"
            .to_owned(),
        analysis: "memory",
        rank: Some(worst.rank),
    })
}

/// A kernel's name without arguments and templates, shortened to a readable length.
pub fn short(name: &str) -> String {
    let end = name.find(['<', '(']).filter(|&end| end > 0).unwrap_or(name.len());
    let plain = if name.starts_with('(') || name.contains("): ") { name } else { name[..end].trim() };
    let plain = if plain.chars().all(char::is_whitespace) { name } else { plain };
    plain.chars().take(70).collect()
}
