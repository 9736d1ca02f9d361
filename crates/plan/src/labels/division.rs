//! How the computation along an axis is divided.

use aten::{Call, Realise, Strategy, Work};
use cost::{Machine, operation_time};
use ir::{Graph, MeshAxis, Placement, ValueId};
use shard::Assignment;

use super::{Known, origins::Origin};

/// What products, attention and convolutions are divided by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Samples of the batch.
    Data,
    /// Positions of its samples.
    Sequence,
    /// Features: dimensions of parameters, and what comes of them, such as heads of attention.
    Tensor,
    /// Products that each have parameters of their own.
    Expert,
    /// Nothing.
    None,
}

impl Way {
    /// All ways, in the order of their sums.
    const ALL: [Self; 5] = [Self::Data, Self::Sequence, Self::Tensor, Self::Expert, Self::None];

    /// What it is called along an axis of `ranks`.
    fn name(self, ranks: u32) -> String {
        match self {
            Self::Data => format!("data parallel {ranks}"),
            Self::Sequence => format!("sequence parallel {ranks}"),
            Self::Tensor => format!("tensor parallel {ranks}"),
            Self::Expert => format!("expert parallel {ranks}"),
            Self::None => "replicated".to_owned(),
        }
    }
}

/// From this share of the time on, in percent, a way to divide the computation is named.
const NAMED: i64 = 10;
/// From this share on, in percent, most of something is meant.
const MOST: i64 = 50;

/// How computation is divided, in words.
pub struct Division {
    /// The ways, the most used one first.
    pub name: String,
    /// How what lies between products is divided, where it is in another way.
    pub further: Option<&'static str>,
}

/// Times of operations.
#[derive(Default)]
struct Sums {
    /// Of products, attention and convolutions, by the way in which they are divided.
    ways: [i64; Way::ALL.len()],
    /// Of other operations on activations that are divided by samples.
    by_samples: i64,
    /// Of those divided by positions.
    by_positions: i64,
    /// Of those that each rank does alike.
    alike: i64,
    /// Of attention in which keys and values go around the ranks.
    around: i64,
}

/// How the computation along an axis is divided.
pub fn divided(
    graph: &Graph,
    known: &Known,
    assignment: &Assignment,
    axis: &MeshAxis,
    machine: Machine<'_>,
) -> Division {
    let sums = sums(graph, known, assignment, axis, machine);
    let total = sums.ways.iter().sum::<i64>().max(1);
    let share = |way: Way| sums.ways[way as usize] * 100 / total;
    let mut named: Vec<Way> = Way::ALL.into_iter().filter(|way| share(*way) >= NAMED).collect();
    named.sort_by_key(|way| std::cmp::Reverse(sums.ways[*way as usize]));
    let name = match named.as_slice() {
        // A step without products.
        [] => Way::None.name(axis.size),
        [one] => one.name(axis.size),
        several => {
            let part = |way: &Way| {
                let percent = (sums.ways[*way as usize] * 100 + total / 2) / total;
                format!("{} ({percent} %)", way.name(axis.size))
            };
            several.iter().map(part).collect::<Vec<_>>().join(" + ")
        }
    };
    let between = (sums.by_samples + sums.by_positions + sums.alike).max(1);
    let is_most = |part: i64| part * 100 >= between * MOST;
    let further = match share(Way::Tensor) >= MOST {
        _ if sums.around > 0 => Some("keys and values in a ring"),
        true if is_most(sums.by_positions) => Some("sequence sharded"),
        true if is_most(sums.by_samples) => Some("samples sharded"),
        _ => None,
    };
    Division { name, further }
}

fn sums(
    graph: &Graph,
    known: &Known,
    assignment: &Assignment,
    axis: &MeshAxis,
    machine: Machine<'_>,
) -> Sums {
    let reader = Reader { graph, known };
    let mut sums = Sums::default();
    for id in &graph.order {
        let call = Call::new(graph, *id);
        let Some(row) = aten::row(call.name()) else { continue };
        let replicated;
        let strategy = if let Some(strategy) = assignment.nodes.get(id) {
            strategy
        } else {
            replicated = aten::replicated(&call);
            &replicated
        };
        let time = || operation_time(machine, &call, strategy, axis);
        match row.work {
            Work::Flops(_) => {
                let time = time();
                sums.ways[reader.way(&call, strategy) as usize] += time;
                sums.around += if strategy.realise.goes_around() { time } else { 0 };
            }
            Work::Traffic if reader.is_of_activations(&call) => {
                match (reader.way(&call, strategy), reader.origin(&call, strategy)) {
                    (_, Some(Origin::Samples)) => sums.by_samples += time(),
                    (_, Some(Origin::Positions)) => sums.by_positions += time(),
                    (Way::None, None) => sums.alike += time(),
                    (_, None) => {}
                }
            }
            _ => {}
        }
    }
    sums
}

struct Reader<'g> {
    graph: &'g Graph,
    known: &'g Known,
}

impl Reader<'_> {
    /// What a product is divided by.
    fn way(&self, call: &Call<'_>, strategy: &Strategy) -> Way {
        match strategy.realise {
            Realise::OwnGroups => return Way::Expert,
            // Rows of tokens, in whatever order.
            Realise::PartsOfGroups => return Way::Data,
            _ => {}
        }
        let is_sharded = |placement: &Placement| matches!(placement, Placement::Shard { .. });
        let all = || strategy.operands.iter().chain(&strategy.results);
        if !all().any(is_sharded) {
            return Way::None;
        }
        let mut operands = call.operands.iter().zip(&strategy.operands);
        let of_state =
            operands.any(|(value, placement)| self.known.of_state[*value] && is_sharded(placement));
        // The gradient of a parameter whose shard is the same as the parameter's.
        let results = call.results.iter().zip(&strategy.results);
        let gradient = results
            .into_iter()
            .any(|(value, placement)| self.known.gradients[*value] && is_sharded(placement));
        if of_state || gradient {
            let first = strategy.results.first();
            let is_one_each = all().all(|placement| Some(placement) == first);
            return if is_one_each && strategy.operands.len() > 1 { Way::Expert } else { Way::Tensor };
        }
        match self.origin(call, strategy) {
            Some(Origin::Samples) => Way::Data,
            Some(Origin::Positions) => Way::Sequence,
            None => Way::Tensor,
        }
    }

    /// The dimension of the batch that an operation is divided by.
    fn origin(&self, call: &Call<'_>, strategy: &Strategy) -> Option<Origin> {
        let operands = call.operands.iter().zip(&strategy.operands);
        let mut placed = operands.chain(call.results.iter().zip(&strategy.results));
        placed.find_map(|(value, placement)| self.known.origins.of(*value, *placement))
    }

    /// Whether an operation is one of forward and backward that does not only work on state or its gradients.
    fn is_of_activations(&self, call: &Call<'_>) -> bool {
        let is_other = |value: &ValueId| !self.known.of_state[*value] && !self.known.gradients[*value];
        call.operands.iter().any(is_other)
            && call.results.iter().any(is_other)
            && self.graph.parts[call.node.part].kind != ir::PartKind::Update
    }
}
