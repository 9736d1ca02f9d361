//! Where a program is cut into stages: by an exact dynamic programme over the positions at which little crosses.

use base::SecondaryMap;
use cost::{Machine, collective_time, local_time};
use ir::{Collective, CollectiveKind, Graph, ModuleId, NodeId, PartKind, PlaceId, STAGES, ValueDef, ValueId};
use rustc_hash::FxHashMap;
use shard::stages::forward_end;

/// At most so many positions are considered, those at which the fewest bytes cross first.
const MOST_POSITIONS: usize = 400;

/// How much longer than at best the slowest stage may take where less is sent, in percent.
const SLOWER: [i64; 6] = [0, 2, 5, 10, 25, 50];

/// The times of the slowest stage and of all sending, and the number of the position at which the last stage begins.
type Way = ((i64, i64), usize);

/// What cuts of a step's forward part cost.
pub struct Profile {
    /// For each position of forward, what all operations before it take, with those of backward and of updates that belong to them: time, or
    /// memory.
    before: Vec<i64>,
    /// For each position, what sending takes that crosses there, and its gradient back.
    crossing: Vec<i64>,
}

impl Profile {
    /// The memory of a step in canonical form: what stages hold of state and of gradients, and of what forward makes for backward, of which a
    /// stage has `stages` of `micro_batches` parts under way.
    pub fn of_memory(graph: &Graph, stages: u32, micro_batches: u32) -> Self {
        let end = forward_end(graph);
        let bytes = memory(graph, end, stages, micro_batches);
        let crossing = crossing_bytes(graph, end);
        Self { before: sums(bytes), crossing: crossing.into_iter().map(|bytes| bytes as i64).collect() }
    }

    /// The times of a step in canonical form.
    pub fn of(graph: &Graph, machine: Machine<'_>) -> Self {
        let end = forward_end(graph);
        let bytes = crossing_bytes(graph, end);
        let sending = |bytes: u64| {
            let collective = Collective {
                kind: CollectiveKind::Broadcast,
                reduction: None,
                axis: STAGES,
                bytes: base::Bytes(bytes),
            };
            2 * collective_time(machine, collective)
        };
        let times = times(graph, machine, end);
        Self { before: sums(times), crossing: bytes.into_iter().map(sending).collect() }
    }

    /// Ways to cut into so many stages, from the one whose slowest stage takes least, with what is sent to it, on to those at which less is sent
    /// and the slowest stage takes up to half more, so many at most. None where forward has too few operations.
    pub fn ways(&self, stages: u32, count: usize) -> Vec<Vec<usize>> {
        let Some((slowest, _)) = self.cheapest(stages, i64::MAX, |(slowest, sent)| (slowest, sent)) else {
            return Vec::new();
        };
        let mut found: Vec<Vec<usize>> = Vec::new();
        for percent in SLOWER {
            if found.len() == count {
                break;
            }
            let most = slowest.0.saturating_add(slowest.0 / 100 * percent);
            let cheapest = self.cheapest(stages, most, |(slowest, sent)| (sent, slowest));
            found.extend(cheapest.map(|(_, cuts)| cuts));
            found.dedup();
        }
        found
    }

    /// The cuts of least `cost` of the time of the slowest stage and that of all sending, where no stage takes more than `most`: the two times,
    /// and the cuts.
    fn cheapest(
        &self,
        stages: u32,
        most: i64,
        cost: impl Fn((i64, i64)) -> (i64, i64),
    ) -> Option<((i64, i64), Vec<usize>)> {
        let end = self.before.len() - 1;
        let mut positions: Vec<usize> = (1..end).collect();
        positions.sort_by_key(|at| (self.crossing[*at], *at));
        positions.truncate(MOST_POSITIONS.max(stages as usize));
        positions.push(0);
        positions.sort_unstable();
        let stage = |from: usize, to: usize| {
            let sent = if from == 0 { 0 } else { self.crossing[from] };
            let time = self.before[to] - self.before[from] + sent;
            (time <= most).then_some((time, sent))
        };
        // For each position: the times of the stages that end there, and where the last of them begins.
        let mut layers: Vec<Vec<Option<Way>>> = Vec::new();
        for number in 1..=stages {
            let ends: Vec<usize> = if number == stages { vec![end] } else { positions.clone() };
            let way = |to: &usize| {
                let begins = positions.iter().take_while(|from| *from < to).enumerate();
                let ways = begins.filter_map(|(at, from)| {
                    let (slowest, sent) = match layers.last() {
                        Some(before) => before[at]?.0,
                        None if *from == 0 => (0, 0),
                        None => return None,
                    };
                    let (time, more) = stage(*from, *to)?;
                    Some(((slowest.max(time), sent + more), at))
                });
                ways.min_by_key(|(times, at)| (cost(*times), *at))
            };
            let layer = ends.iter().map(way).collect();
            layers.push(layer);
        }
        let (times, mut at) = layers.pop()?.pop()??;
        let mut cuts = Vec::new();
        while let Some(layer) = layers.pop() {
            cuts.push(positions[at]);
            at = layer[at]?.1;
        }
        cuts.reverse();
        Some((times, cuts))
    }
}

/// The sum of all before each position.
fn sums(of: Vec<i64>) -> Vec<i64> {
    let mut before = vec![0];
    for one in of {
        before.push(before.last().copied().unwrap_or(0) + one);
    }
    before
}

/// For each operation of forward the bytes that come with it: state that it reads first, with its gradient and what the update keeps beside
/// it, and its results that backward reads.
fn memory(graph: &Graph, end: usize, stages: u32, micro_batches: u32) -> Vec<i64> {
    let bytes_of = |value: ValueId| graph.ty(value).bytes().0 as i64;
    let mut bytes = vec![0; end];
    let mut reader: SecondaryMap<ValueId, Option<usize>> = SecondaryMap::with_default(None);
    let mut maker: SecondaryMap<ValueId, Option<usize>> = SecondaryMap::with_default(None);
    let is_state = |value: ValueId| matches!(graph.values[value].def, ValueDef::Input(input) if graph.inputs[input].class.is_state());
    for (at, id) in graph.order[..end].iter().enumerate() {
        let node = &graph.nodes[*id];
        let looks = aten::is_view(graph, *id);
        for value in node.operands().filter(|value| is_state(*value)) {
            if reader[value].is_none() {
                reader[value] = Some(at);
                // With its gradient.
                bytes[at] += 2 * bytes_of(value);
            }
        }
        for value in node.results() {
            maker[value] = if looks { node.operands().next().and_then(|of| maker[of]) } else { Some(at) };
        }
    }
    let mut kept: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(false);
    for id in &graph.order[end..] {
        let node = &graph.nodes[*id];
        let at = node.operands().find_map(|value| reader[value]);
        for value in node.operands() {
            if is_state(value) && reader[value].is_none() {
                if let Some(bytes) = bytes.get_mut(at.unwrap_or(0)) {
                    *bytes += bytes_of(value);
                }
                reader[value] = at;
            }
            if let Some(made) = maker[value].filter(|_| !kept[value]) {
                kept[value] = true;
                let under_way = i64::from(stages.min(micro_batches)) * bytes_of(value);
                bytes[made] += under_way / i64::from(micro_batches.max(1));
            }
        }
        if graph.part_kind(*id) == PartKind::Update {
            node.results().for_each(|value| reader[value] = at);
        }
    }
    bytes
}

/// For each position of forward, the bytes that are computed before it and used in forward behind it; views count as what they look at.
fn crossing_bytes(graph: &Graph, end: usize) -> Vec<u64> {
    let mut made: SecondaryMap<ValueId, Option<usize>> = SecondaryMap::with_default(None);
    let mut root: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    let mut last: SecondaryMap<ValueId, usize> = SecondaryMap::with_default(0);
    for (at, id) in graph.order[..end].iter().enumerate() {
        let node = &graph.nodes[*id];
        let looks = aten::is_view(graph, *id);
        let first = node.operands().next();
        for value in node.operands() {
            let value = root.get(&value).copied().unwrap_or(value);
            last[value] = at;
        }
        for value in node.results() {
            if let Some(first) = first.filter(|_| looks) {
                root.insert(value, root.get(&first).copied().unwrap_or(first));
            } else if first.is_some() {
                made[value] = Some(at);
            }
        }
    }
    let mut change = vec![0_i64; end + 1];
    for value in graph.values.ids() {
        if let Some(at) = made[value].filter(|at| last[value] > *at) {
            let bytes = graph.ty(value).bytes().0 as i64;
            change[at + 1] += bytes;
            change[last[value] + 1] -= bytes;
        }
    }
    let mut sum = 0;
    change
        .into_iter()
        .map(|more| {
            sum += more;
            sum as u64
        })
        .collect()
}

/// What each operation of forward takes, with its part of what backward takes on its line and of what becomes of the state that it reads.
fn times(graph: &Graph, machine: Machine<'_>, end: usize) -> Vec<i64> {
    let time = |id: NodeId| local_time(machine, &aten::Call::new(graph, id)).max(0);
    let mut times: Vec<i64> = graph.order[..end].iter().map(|id| time(*id)).collect();
    let mut by_origin: FxHashMap<(PlaceId, Option<ModuleId>), Vec<usize>> = FxHashMap::default();
    // Which operation of forward reads state first, or what comes of it.
    let mut reader: SecondaryMap<ValueId, Option<usize>> = SecondaryMap::with_default(None);
    for (at, id) in graph.order[..end].iter().enumerate() {
        let node = &graph.nodes[*id];
        if let Some(place) = node.place {
            by_origin.entry((place, node.module)).or_default().push(at);
        }
        for value in node.operands() {
            let is_state = matches!(graph.values[value].def, ValueDef::Input(input) if graph.inputs[input].class.is_state());
            if is_state && reader[value].is_none() {
                reader[value] = Some(at);
            }
        }
    }
    let forward = times.clone();
    for id in &graph.order[end..] {
        let node = &graph.nodes[*id];
        let taken = time(*id);
        if graph.part_kind(*id) == PartKind::Update {
            let at = node.operands().find_map(|value| reader[value]);
            if let Some(at) = at {
                times[at] += taken;
            }
            node.results().for_each(|value| reader[value] = at);
        } else if let Some(same) = node.place.and_then(|place| by_origin.get(&(place, node.module))) {
            // In the proportions of forward.
            let all: i64 = same.iter().map(|at| forward[*at] + 1).sum();
            for at in same {
                times[*at] += (i128::from(taken) * i128::from(forward[*at] + 1) / i128::from(all)) as i64;
            }
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use ir::{Dtype, Graph, InputClass, PartKind, TensorType};

    use super::Profile;

    /// The least over all ways to cut.
    fn tried(profile: &Profile, stages: u32, from: usize) -> Option<i64> {
        let end = profile.before.len() - 1;
        let sent = if from == 0 { 0 } else { profile.crossing[from] };
        let time = |to: usize| profile.before[to] - profile.before[from] + sent;
        if stages == 1 {
            return Some(time(end));
        }
        (from + 1..end).filter_map(|to| Some(time(to).max(tried(profile, stages - 1, to)?))).min()
    }

    #[test]
    fn the_slowest_stage_takes_the_least_that_any_cuts_allow() {
        let mut random = base_random(7);
        for _ in 0..200 {
            let operations = 2 + random() % 9;
            let mut before = vec![0];
            (0..operations).for_each(|at| before.push(before[at as usize] + (random() % 20) as i64));
            let crossing = (0..=operations).map(|_| (random() % 12) as i64).collect();
            let profile = Profile { before, crossing };
            for stages in 2..5 {
                let expected = tried(&profile, stages, 0);
                let cheapest = profile.cheapest(stages, i64::MAX, |(slowest, sent)| (slowest, sent));
                let found = cheapest.map(|(_, cuts)| {
                    assert_eq!(cuts.len() as u32, stages - 1);
                    let begins = [&[0], cuts.as_slice()].concat();
                    let ends = [cuts.as_slice(), &[profile.before.len() - 1]].concat();
                    let time = |(from, to): (&usize, &usize)| {
                        let sent = if *from == 0 { 0 } else { profile.crossing[*from] };
                        profile.before[*to] - profile.before[*from] + sent
                    };
                    begins.iter().zip(&ends).map(time).max().unwrap_or(0)
                });
                assert_eq!(
                    found, expected,
                    "{stages} stages of {:?}, {:?}",
                    profile.before, profile.crossing
                );
            }
        }
    }

    #[test]
    fn a_step_without_forward_is_cut_nowhere() {
        let mut graph = Graph::default();
        let ty = TensorType::contiguous(Dtype::F32, [4].as_slice());
        let weight = graph.input(InputClass::Parameter, "params.w", ty.clone());
        graph.begin_part(PartKind::Update);
        graph.push_value("aten::relu(Tensor self) -> Tensor", vec![ir::Arg::Value(weight)], ty);
        assert_eq!(Profile::of_memory(&graph, 2, 1).ways(2, 3), Vec::<Vec<usize>>::new());
    }

    /// Numbers that look random, the same in every run.
    fn base_random(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        }
    }
}
