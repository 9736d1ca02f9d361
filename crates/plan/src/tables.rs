//! The search space as variables and cost tables.
//!
//! A variable for each operation (its strategy), for each input (its placement), and for each value with several uses, in each part of the
//! step where it is used (its copy set). Tables between producers, copy sets and consumers hold the times of changes of placement; copies
//! that live from one part of the step to a later one, and state, have a price by the byte.

use aten::{Call, Strategy};
use base::{Code, Diagnostic, Result, SecondaryMap};
use cluster::Cluster;
use cost::{Company, operation_time, reshard_time};
use ir::{Graph, InputClass, InputId, NodeId, Phase, Placement, TensorType, ValueDef, ValueId};
use rustc_hash::FxHashMap;
use shard::{Assignment, Reshard, Space, local_shape, reshard_steps};
use smallvec::SmallVec;
use solve::{Choices, Cost, Problem, VariableId};

use crate::{
    copies::{CopySet, copy_sets},
    pins::{Demand, Demands},
};

/// What the tables are made from.
pub struct Setting<'a> {
    /// The graph, in canonical form.
    pub graph: &'a Graph,
    /// Its strategies.
    pub space: &'a Space,
    /// Costs.
    pub cluster: &'a Cluster,
    /// What is demanded of inputs.
    pub pins: &'a Demands,
    /// The placement that is demanded of the batch, if one is.
    pub batch: Option<Placement>,
    /// Picoseconds for a million bytes of state and of copies that are kept.
    pub price: i64,
}

/// The placement that is demanded of (the first demanded part of) the batch.
pub fn demand_on_batch(graph: &Graph, pins: &Demands) -> Option<Placement> {
    let batch = graph.inputs.iter().filter(|(_, input)| input.class == InputClass::Batch);
    batch.filter_map(|(id, _)| pins.get(&id)).find_map(|demand| match demand {
        Demand::At { placement, .. } => Some(*placement),
        Demand::Cut => None,
    })
}

/// The problem and what its variables stand for.
pub struct Tables {
    /// The problem.
    pub problem: Problem,
    nodes: FxHashMap<NodeId, (VariableId, Vec<Strategy>)>,
    inputs: FxHashMap<InputId, (VariableId, Vec<Placement>)>,
    copies: Vec<(ValueId, Phase, VariableId, Vec<CopySet>, bool)>,
}

/// Something that requires a value: a variable, and for each of its states the placements that it requires.
#[derive(Clone)]
struct Use {
    variable: VariableId,
    required: Vec<SmallVec<[Placement; 1]>>,
    phase: Phase,
}

/// Something that provides a value: a variable, and for each of its states the placement that it provides.
struct Source {
    variable: VariableId,
    provided: Vec<Placement>,
    phase: Phase,
    /// Whether the value is an input that lives on, whose own placement takes no memory beside its state.
    is_state: bool,
    /// Whether the value only looks at another one's memory.
    is_view: bool,
}

impl Source {
    /// Whether collectives on the value go in buckets where it is used in `phase`: parameters and gradients do.
    fn company(&self, phase: Phase) -> Company {
        if self.is_state || phase == Phase::Optimizer { Company::Bucketed } else { Company::Alone }
    }
}

impl Tables {
    /// Lays out the problem.
    pub fn new(setting: &Setting<'_>) -> Result<Self> {
        let mut tables = Self {
            problem: Problem::new(),
            nodes: FxHashMap::default(),
            inputs: FxHashMap::default(),
            copies: Vec::new(),
        };
        let depends = depends_on_inputs(setting.graph);
        for (id, _) in setting.graph.inputs.iter() {
            tables.input(setting, id)?;
        }
        for id in &setting.graph.order {
            tables.node(setting, *id, &depends);
        }
        let mut uses = tables.uses(setting);
        for value in setting.graph.values.ids() {
            let uses = std::mem::take(&mut uses[value]);
            if let Some(source) = tables.source(setting, value).filter(|_| !uses.is_empty()) {
                tables.connect(setting, value, &source, &uses);
            }
        }
        Ok(tables)
    }

    fn input(&mut self, setting: &Setting<'_>, id: InputId) -> Result<()> {
        let input = &setting.graph.inputs[id];
        let mut placements = vec![Placement::Replicate];
        let may_be_cut =
            input.class.is_state() && input.class != InputClass::Constant || input.class == InputClass::Batch;
        if may_be_cut {
            let offers = &setting.space.offers[input.value];
            placements
                .extend(offers.iter().map(|(dim, blocks)| Placement::Shard { dim: *dim, blocks: *blocks }));
        }
        match setting.pins.get(&id) {
            Some(Demand::At { placement, .. }) if placements.contains(placement) => {
                placements = vec![*placement];
            }
            Some(Demand::At { placement, soft: false }) => {
                return Err(impossible_pin(setting, id, *placement));
            }
            Some(Demand::Cut) if placements.len() > 1 => {
                placements.remove(0);
            }
            // Every rank is given the whole batch; cutting it costs nothing.
            None if input.class == InputClass::Batch => placements.truncate(1),
            Some(_) | None => {}
        }
        let ty = setting.graph.ty(input.value);
        let costs: Vec<Cost> = placements
            .iter()
            .map(|placement| {
                let bytes =
                    if input.class.is_state() { local_bytes(ty, *placement, setting.space.ranks) } else { 0 };
                Cost::new(priced(setting, bytes), 0)
            })
            .collect();
        let variable = self.problem.variable(&costs);
        self.inputs.insert(id, (variable, placements));
        Ok(())
    }

    fn node(&mut self, setting: &Setting<'_>, id: NodeId, depends: &SecondaryMap<ValueId, bool>) {
        let call = Call::new(setting.graph, id);
        let mut strategies = setting.space.strategies[&id].clone();
        // What comes from constants alone is small and wanted whole (masks, positions, angles): cutting it is free afterwards.
        if !call.operands.iter().any(|value| depends[*value]) && !call.operands.is_empty() {
            strategies.truncate(1);
        }
        // A part of the batch whose placement is demanded is used in that placement and no other.
        let as_demanded = |strategy: &Strategy| {
            call.operands.iter().zip(&strategy.operands).all(|(value, placement)| {
                demanded_batch(setting, *value).is_none_or(|demanded| demanded == *placement)
            })
        };
        let kept: Vec<Strategy> =
            strategies.iter().filter(|strategy| as_demanded(strategy)).cloned().collect();
        if !kept.is_empty() {
            strategies = kept;
        }
        let costs: Vec<Cost> = strategies
            .iter()
            .map(|strategy| {
                Cost::new(operation_time(setting.cluster, &call, strategy, setting.space.ranks), 0)
            })
            .collect();
        let variable = self.problem.variable(&costs);
        self.nodes.insert(id, (variable, strategies));
    }

    fn source(&self, setting: &Setting<'_>, value: ValueId) -> Option<Source> {
        match setting.graph.values[value].def {
            ValueDef::Input(id) => {
                let (variable, provided) = &self.inputs[&id];
                Some(Source {
                    variable: *variable,
                    provided: provided.clone(),
                    phase: Phase::Forward,
                    is_state: setting.graph.inputs[id].class.is_state(),
                    is_view: false,
                })
            }
            ValueDef::Result(node, position) => {
                let (variable, strategies) = self.nodes.get(&node)?;
                let row = aten::row(setting.graph.op_name(node));
                Some(Source {
                    variable: *variable,
                    provided: strategies.iter().map(|strategy| strategy.results[position as usize]).collect(),
                    phase: setting.graph.nodes[node].phase,
                    is_state: false,
                    is_view: row.is_some_and(|row| matches!(row.work, aten::Work::View)),
                })
            }
        }
    }

    fn uses(&mut self, setting: &Setting<'_>) -> SecondaryMap<ValueId, Vec<Use>> {
        let mut uses: SecondaryMap<ValueId, Vec<Use>> = SecondaryMap::default();
        for id in &setting.graph.order {
            let call = Call::new(setting.graph, *id);
            let (variable, strategies) = &self.nodes[id];
            let mut seen: SmallVec<[ValueId; 4]> = SmallVec::new();
            for value in &call.operands {
                if seen.contains(value) {
                    continue;
                }
                seen.push(*value);
                let slots: SmallVec<[usize; 2]> =
                    call.operands.iter().enumerate().filter(|(_, v)| *v == value).map(|(i, _)| i).collect();
                let required =
                    strategies.iter().map(|s| slots.iter().map(|slot| s.operands[*slot]).collect()).collect();
                let phase = call.node.phase;
                uses[*value].push(Use { variable: *variable, required, phase });
            }
        }
        for (input, value) in &setting.graph.updates {
            let (variable, placements) = &self.inputs[input];
            let required = placements.iter().map(|placement| smallvec::smallvec![*placement]).collect();
            let own = setting.graph.inputs[*input].value == *value;
            if !own {
                uses[*value].push(Use { variable: *variable, required, phase: Phase::Optimizer });
            }
        }
        for value in &setting.graph.returns {
            let variable = self.problem.variable(&[Cost::ZERO]);
            let required = vec![smallvec::smallvec![Placement::Replicate]];
            uses[*value].push(Use { variable, required, phase: Phase::Optimizer });
        }
        uses
    }

    /// Adds the tables between the source of a value and its uses.
    fn connect(&mut self, setting: &Setting<'_>, value: ValueId, source: &Source, uses: &[Use]) {
        if let [only] = uses
            && only.variable != source.variable
        {
            self.connect_directly(setting, value, source, only);
            return;
        }
        let mut phases: Vec<Phase> = uses.iter().map(|u| u.phase).collect();
        phases.sort_unstable();
        phases.dedup();
        let mut before: Option<(VariableId, Vec<CopySet>)> = None;
        for phase in phases {
            let here: Vec<&Use> = uses.iter().filter(|u| u.phase == phase).collect();
            let sets = self.copies_of(setting, value, source, before.as_ref(), &here);
            let variable =
                self.problem.variable(&self.set_costs(setting, value, &sets, source.company(phase)));
            self.enter(setting, value, source, before.as_ref(), (variable, &sets), phase);
            for use_ in here {
                self.serve(variable, &sets, use_);
            }
            let crosses = before.is_some() || phase != source.phase;
            self.copies.push((value, phase, variable, sets.clone(), crosses));
            before = Some((variable, sets));
        }
    }

    fn connect_directly(&mut self, setting: &Setting<'_>, value: ValueId, source: &Source, only: &Use) {
        let ty = setting.graph.ty(value);
        let crossing = only.phase != source.phase && !source.is_state && !source.is_view;
        let company = source.company(only.phase);
        let mut costs = Vec::with_capacity(source.provided.len() * only.required.len());
        for provided in &source.provided {
            let kept =
                if crossing { priced(setting, local_bytes(ty, *provided, setting.space.ranks)) } else { 0 };
            for required in &only.required {
                let changes = required.iter().map(|to| change(setting, ty, *provided, *to, company));
                costs.push(changes.fold(Cost::new(kept, 0), std::ops::Add::add));
            }
        }
        let table = self.problem.table(source.provided.len(), only.required.len(), &costs);
        self.problem.pair(source.variable, only.variable, table);
    }

    fn copies_of(
        &self,
        setting: &Setting<'_>,
        value: ValueId,
        source: &Source,
        before: Option<&(VariableId, Vec<CopySet>)>,
        here: &[&Use],
    ) -> Vec<CopySet> {
        let mut sources: Vec<Placement> = Vec::new();
        let from_before = before
            .iter()
            .flat_map(|(_, sets)| sets.iter().flat_map(|s| s.extras.iter().copied().chain([s.source])));
        for placement in source.provided.iter().copied().chain(from_before) {
            if !sources.contains(&placement) {
                sources.push(placement);
            }
        }
        let mut required: Vec<Placement> = Vec::new();
        for placement in here.iter().flat_map(|u| u.required.iter().flatten()) {
            if !required.contains(placement) {
                required.push(*placement);
            }
        }
        copy_sets(setting.graph.ty(value), &sources, &required, setting.space.ranks)
    }

    /// The time to make the further placements of each copy set, in the cheapest order.
    fn set_costs(
        &self,
        setting: &Setting<'_>,
        value: ValueId,
        sets: &[CopySet],
        company: Company,
    ) -> Vec<Cost> {
        let ty = setting.graph.ty(value);
        let cost = |set: &CopySet| match set.extras.as_slice() {
            [] => Cost::ZERO,
            [one] => change(setting, ty, set.source, *one, company),
            [a, b, ..] => {
                let both = |first: Placement, second: Placement| {
                    let direct = change(setting, ty, set.source, second, company);
                    change(setting, ty, set.source, first, company)
                        + direct.min(change(setting, ty, first, second, company))
                };
                both(*a, *b).min(both(*b, *a))
            }
        };
        sets.iter().map(cost).collect()
    }

    /// Ties the copy sets of one part of the step to where the value comes from: its source, or the copy set of the part before.
    fn enter(
        &mut self,
        setting: &Setting<'_>,
        value: ValueId,
        source: &Source,
        before: Option<&(VariableId, Vec<CopySet>)>,
        (variable, sets): (VariableId, &[CopySet]),
        phase: Phase,
    ) {
        let ty = setting.graph.ty(value);
        let kept = |placement: Placement| priced(setting, local_bytes(ty, placement, setting.space.ranks));
        let allowed = |possible: bool, cost: i64| if possible { Cost::new(cost, 0) } else { Cost::INFINITE };
        match before {
            None => {
                let crosses = phase != source.phase && !source.is_state && !source.is_view;
                let costs: Vec<Cost> = source
                    .provided
                    .iter()
                    .flat_map(|provided| sets.iter().map(move |set| (*provided, set.source)))
                    .map(|(provided, entered)| {
                        allowed(provided == entered, if crosses { kept(entered) } else { 0 })
                    })
                    .collect();
                let table = self.problem.table(source.provided.len(), sets.len(), &costs);
                self.problem.pair(source.variable, variable, table);
            }
            Some((earlier, earlier_sets)) => {
                // Where the value is stored, it is there in its own placement at any time, for nothing.
                let free = |placement: Placement| source.is_state && source.provided.contains(&placement);
                let costs: Vec<Cost> = earlier_sets
                    .iter()
                    .flat_map(|set| sets.iter().map(move |now| (set, now.source)))
                    .map(|(set, entered)| {
                        let owned = set.source == entered && (free(entered) || source.is_view);
                        let cost = if owned { Cost::ZERO } else { Cost::new(kept(entered), 1) };
                        if set.serves(entered) { cost } else { Cost::INFINITE }
                    })
                    .collect();
                let table = self.problem.table(earlier_sets.len(), sets.len(), &costs);
                self.problem.pair(*earlier, variable, table);
            }
        }
    }

    /// Allows the states of a use that a copy set serves.
    fn serve(&mut self, variable: VariableId, sets: &[CopySet], use_: &Use) {
        let costs: Vec<Cost> = sets
            .iter()
            .flat_map(|set| {
                use_.required.iter().map(move |required| required.iter().all(|to| set.serves(*to)))
            })
            .map(|served| if served { Cost::ZERO } else { Cost::INFINITE })
            .collect();
        let table = self.problem.table(sets.len(), use_.required.len(), &costs);
        self.problem.pair(variable, use_.variable, table);
    }

    /// What the choices mean.
    pub fn assignment(&self, choices: &Choices) -> Assignment {
        let state = |variable: VariableId| choices[variable] as usize;
        Assignment {
            nodes: self.nodes.iter().map(|(id, (variable, s))| (*id, s[state(*variable)].clone())).collect(),
            inputs: self.inputs.iter().map(|(id, (variable, p))| (*id, p[state(*variable)])).collect(),
            kept: self
                .copies
                .iter()
                .filter(|(.., crosses)| *crosses)
                .map(|(value, phase, variable, sets, _)| ((*value, *phase), sets[state(*variable)].source))
                .collect(),
        }
    }
}

/// The placement that is demanded of a value, if it is a part of the batch.
fn demanded_batch(setting: &Setting<'_>, value: ValueId) -> Option<Placement> {
    let ValueDef::Input(id) = setting.graph.values[value].def else { return None };
    let Demand::At { placement, .. } = setting.pins.get(&id)? else { return None };
    let possible = match placement {
        Placement::Shard { dim, blocks } => setting.space.offers[value].contains(&(*dim, *blocks)),
        _ => true,
    };
    (setting.graph.inputs[id].class == InputClass::Batch && possible).then_some(*placement)
}

/// What a change of placement costs that a demand on the batch speaks against: a second, in picoseconds.
const AGAINST_A_DEMAND: i64 = 1_000_000_000_000;

/// Whether a change of placement undoes what is demanded of the batch: with the batch cut, putting activations together; with the batch
/// whole, putting state together.
fn against_demand(setting: &Setting<'_>, from: Placement, to: Placement, company: Company) -> bool {
    let puts_together = matches!(from, Placement::Shard { .. }) && from != to;
    puts_together
        && match setting.batch {
            Some(Placement::Shard { .. }) => company == Company::Alone,
            Some(Placement::Replicate) => company == Company::Bucketed,
            _ => false,
        }
}

/// The cost of a change of placement: its time, then its number of collectives.
fn change(setting: &Setting<'_>, ty: &TensorType, from: Placement, to: Placement, company: Company) -> Cost {
    let reshard = Reshard { from, to };
    let ranks = setting.space.ranks;
    let penalty = if against_demand(setting, from, to, company) { AGAINST_A_DEMAND } else { 0 };
    match (reshard_time(setting.cluster, ty, reshard, ranks, company), reshard_steps(ty, reshard, ranks)) {
        (Some(time), Some(steps)) => Cost::new(time + penalty, steps.len() as u32),
        _ => Cost::INFINITE,
    }
}

fn local_bytes(ty: &TensorType, placement: Placement, ranks: u32) -> i64 {
    local_shape(&ty.shape, placement, ranks).iter().product::<i64>() * ty.dtype.bytes() as i64
}

/// The price of keeping bytes, in picoseconds.
fn priced(setting: &Setting<'_>, bytes: i64) -> i64 {
    (i128::from(bytes) * i128::from(setting.price) / 1_000_000) as i64
}

fn impossible_pin(setting: &Setting<'_>, id: InputId, pin: Placement) -> Box<Diagnostic> {
    let input = &setting.graph.inputs[id];
    let shape = &setting.graph.ty(input.value).shape;
    Diagnostic::new(
        Code::BAD_PIN,
        format!("`{}` of shape {shape:?} cannot be `{pin}` over {} ranks", input.name, setting.space.ranks),
    )
    .because("a dimension is cut evenly or not at all")
    .hint("pin another dimension, or `replicate`")
}

/// Whether each value depends on parameters, optimizer state or the batch.
fn depends_on_inputs(graph: &Graph) -> SecondaryMap<ValueId, bool> {
    let mut depends = SecondaryMap::with_default(false);
    for input in graph.inputs.values() {
        depends[input.value] =
            matches!(input.class, InputClass::Parameter | InputClass::Optimizer | InputClass::Batch);
    }
    for id in &graph.order {
        let node = &graph.nodes[*id];
        if node.operands().any(|value| depends[value]) {
            for value in node.results() {
                depends[value] = true;
            }
        }
    }
    depends
}
