//! Mutated graphs, planned: every answer is a plan or a diagnostic, never a panic. Shared by the test and the example that runs longer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cluster::{
    Cluster,
    testing::{link, uniform},
};
use ir::{Graph, testing::Random};
use unisono_plan::{Effort, PlanSettings, plan_graph, rank_graph};

/// Captured steps: a perceptron with AdamW, attention with cross-entropy, images with batch norm.
const STEPS: [&str; 3] =
    [include_str!("perceptron.txt"), include_str!("attention.txt"), include_str!("images.txt")];

/// How the mutated graphs of a run ended.
#[derive(Default, Debug)]
pub struct Outcomes {
    /// Refused by the reader.
    pub unread: usize,
    /// Refused by the planner.
    pub refused: usize,
    /// Planned, and made into a rank's graph.
    pub planned: usize,
    /// The seeds of those that ended in a panic.
    pub panicked: Vec<u64>,
}

/// Plans `count` mutated graphs, from `seed` on.
pub fn run(seed: u64, count: usize) -> Outcomes {
    let cluster = uniform(1e11, 1e10, link(1_000.0, 1e9));
    let messages =
        STEPS.map(|text| Graph::from_text("step", text).expect("a captured step is well formed").to_bytes());
    let mut outcomes = Outcomes::default();
    for case in 0..count as u64 {
        let seed = seed.wrapping_add(case);
        let mut random = Random::new(seed);
        let which = random.below(STEPS.len());
        let graph = if random.once_in(4) {
            Graph::from_bytes(&mutated_bytes(&messages[which], &mut random))
        } else {
            Graph::from_text("step", &mutated_text(STEPS[which], &mut random))
        };
        let Ok(graph) = graph else {
            outcomes.unread += 1;
            continue;
        };
        let mesh: &[(&str, u32)] = match random.below(6) {
            0 => &[("ranks", 1)],
            1 => &[("ranks", 3)],
            2 => &[("ranks", 4)],
            3 => &[("outer", 2), ("inner", 2)],
            _ => &[("ranks", 2)],
        };
        match catch_unwind(AssertUnwindSafe(|| planned(&graph, &cluster, mesh))) {
            Ok(Ok(())) => outcomes.planned += 1,
            Ok(Err(_)) => outcomes.refused += 1,
            Err(_) => outcomes.panicked.push(seed),
        }
    }
    outcomes
}

fn planned(graph: &Graph, cluster: &Cluster, mesh: &[(&str, u32)]) -> base::Result<()> {
    let mesh = mesh.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
    let settings = PlanSettings { mesh, effort: Effort::Quick, ..PlanSettings::default() };
    let plan = plan_graph(graph, cluster, &settings)?;
    rank_graph(graph, &plan, plan.mesh().ranks() - 1)?;
    Ok(())
}

/// A message with a few bytes changed.
fn mutated_bytes(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        bytes[at] = random.bits() as u8;
    }
    bytes
}

/// A text with a few words changed.
fn mutated_text(text: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..=random.below(3) {
        let at = random.below(lines.len());
        match random.below(8) {
            0 => drop(lines.remove(at)),
            1 => {
                let other = random.below(lines.len());
                lines.swap(at, other);
            }
            2 => lines[at] = with_other_operator(&lines, at, random),
            _ => lines[at] = with_other_number(&lines[at], random),
        }
    }
    lines.join("\n") + "\n"
}

/// A line with the operator of another one.
fn with_other_operator(lines: &[String], at: usize, random: &mut Random) -> String {
    let name = |line: &str| line.split_whitespace().find(|word| word.contains("aten::")).map(str::to_owned);
    let operator = |word: String| word.split('(').next().unwrap_or_default().to_owned();
    let other = &lines[random.below(lines.len())];
    match (name(&lines[at]).map(operator), name(other).map(operator)) {
        (Some(old), Some(new)) => lines[at].replacen(&old, &new, 1),
        _ => lines[at].clone(),
    }
}

/// A line with one of its numbers changed.
fn with_other_number(line: &str, random: &mut Random) -> String {
    let starts: Vec<usize> = line
        .char_indices()
        .filter(|(at, letter)| {
            letter.is_ascii_digit() && !line[..*at].ends_with(|c: char| c.is_ascii_digit())
        })
        .map(|(at, _)| at)
        .collect();
    let Some(start) = (!starts.is_empty()).then(|| starts[random.below(starts.len())]) else {
        return line.to_owned();
    };
    let end = line[start..].find(|c: char| !c.is_ascii_digit()).map_or(line.len(), |length| start + length);
    let numbers = [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "7",
        "9",
        "64",
        "-1",
        "1000000007",
        "9223372036854775807",
        "none",
        "true",
        "1.5",
    ];
    format!("{}{}{}", &line[..start], random.pick(&numbers), &line[end..])
}
