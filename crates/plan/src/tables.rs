//! The search space as variables and cost tables.
//!
//! A variable for each operation (its strategy), for each input (its placement), and for each value with several uses, in each part of the
//! program where it is used (its copy set). Costs are times. Weights are bytes: of state, and of what else is alive at the
//! [moments](crate::moments) that count.

use std::{ops::Range, rc::Rc};

use aten::{Call, Strategy};
use base::{Code, Diagnostic, PrimaryMap, Result, SecondaryMap, define_id};
use cost::{adding_up_time, operation_time};
use ir::{AxisKind, Graph, InputClass, InputId, NodeId, PartId, Placement, ValueDef, ValueId, local_bytes};
use rustc_hash::FxHashMap;
use shard::{Assignment, ClassId};
use smallvec::SmallVec;
use solve::{Cells, Choices, Cost, Problem, VariableId};

use crate::{
    fewer::Places,
    folded::Folded,
    links::{Link, Links, PartCopies, ProvidedId, RequiredId, Signature, Source},
    moments::Charge,
    pins::{Demand, can_be},
    roles::{Role, roles},
    setting::Setting,
};

define_id!(
    /// The strategies that are left to a node.
    MenuId, "menu"
);

/// The problem and what its variables stand for.
pub struct Tables<'a> {
    /// The problem.
    pub problem: Problem,
    setting: &'a Setting<'a>,
    menus: Menus,
    nodes: FxHashMap<NodeId, (VariableId, MenuId)>,
    inputs: PrimaryMap<InputId, (VariableId, Vec<Placement>)>,
    links: Links,
    copies: Vec<Kept>,
    roles: SecondaryMap<ValueId, Role>,
}

/// Strategies and their costs, for each class of nodes and what demands on operands leave of it.
#[derive(Default)]
struct Menus {
    all: PrimaryMap<MenuId, (Vec<Strategy>, Vec<Cost>)>,
    known: FxHashMap<MenuKey, MenuId>,
    required: FxHashMap<(MenuId, SmallVec<[usize; 2]>), RequiredId>,
    provided: FxHashMap<(MenuId, u32), ProvidedId>,
}

/// The class, whether only the replicated strategy is left, the only one that is where it is decided, the placement that each operand must have, and
/// how often the result is added to a sum.
type MenuKey = (ClassId, bool, Option<usize>, SmallVec<[Option<Placement>; 4]>, u32);

/// What uses each value.
type Uses = SecondaryMap<ValueId, SmallVec<[Use; 2]>>;

/// What provides a value, as which result, and what uses it.
type Key = ((VariableId, u32), SmallVec<[Use; 2]>);

/// A graph that is seen as that of the tables.
struct Seen<'a> {
    graph: &'a Graph,
    /// What stands for its operations and inputs, where it is another one.
    places: Option<&'a Places>,
    positions: SecondaryMap<NodeId, usize>,
}

impl<'a> Seen<'a> {
    fn of(graph: &'a Graph) -> Self {
        Self { graph, places: None, positions: graph.positions() }
    }

    /// The operation of `own` that one of its is.
    fn node(&self, own: &Graph, id: NodeId) -> NodeId {
        self.places.map_or(id, |places| own.order[places.nodes[self.positions[id]]])
    }

    fn input(&self, id: InputId) -> InputId {
        self.places.map_or(id, |places| places.input(id))
    }

    /// The values that are used.
    fn used<'u>(&self, uses: &'u Uses) -> impl Iterator<Item = ValueId> + use<'u, 'a> {
        self.graph.values.ids().filter(|value| !uses[*value].is_empty())
    }
}

/// Something that requires a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Use {
    variable: VariableId,
    required: RequiredId,
    part: PartId,
}

/// The copy set of a value in a part of the program.
#[derive(Clone)]
struct Kept {
    value: ValueId,
    variable: VariableId,
    copies: Rc<PartCopies>,
}

impl<'a> Tables<'a> {
    /// Lays out the problem.
    pub fn new(setting: &'a Setting<'a>) -> Result<Self> {
        let mut tables = Self {
            problem: Problem::new(),
            setting,
            menus: Menus::default(),
            nodes: FxHashMap::default(),
            inputs: PrimaryMap::new(),
            links: Links::default(),
            copies: Vec::new(),
            roles: roles(setting.graph),
        };
        let depends = depends_on_inputs(setting.graph);
        let times = setting.folded.map(Folded::times_of_inputs);
        for id in setting.graph.inputs.ids() {
            let times = times.as_ref().map_or(1, |times| times[id.0 as usize]);
            tables.input(id, times)?;
        }
        let times = setting.folded.map(Folded::times_of_nodes);
        let own = setting.charges.own(setting.folded);
        for (at, id) in setting.graph.order.iter().enumerate() {
            let times = times.as_ref().map_or(1, |times| times[at]);
            tables.node((at, *id), times, &own, &depends);
        }
        let returned: Vec<VariableId> =
            setting.graph.returns.iter().map(|_| tables.problem.variable(&[Cost::ZERO])).collect();
        let own = Seen::of(setting.graph);
        let uses = tables.uses(&own, &returned);
        match setting.folded {
            Some(folded) => tables.connect_folded(folded, (&own, &uses), &returned),
            None => {
                for value in own.used(&uses) {
                    tables.connect(value, &uses[value], 1, setting.charges.of(value));
                }
            }
        }
        Ok(tables)
    }

    fn input(&mut self, id: InputId, times: u32) -> Result<()> {
        let setting = self.setting;
        let input = &setting.graph.inputs[id];
        let mut placements = vec![Placement::Replicate];
        let may_be_cut =
            input.class.is_state() && input.class != InputClass::Constant || input.class == InputClass::Batch;
        if may_be_cut {
            let offers = &setting.space.offers[input.value];
            placements.extend_from_slice(offers);
        }
        let intended = setting.intent.and_then(|(intent, _)| intent.input(id));
        if let Some(intended) = intended.filter(|intended| placements.contains(intended)) {
            placements = vec![intended];
        }
        match setting.pins.inputs.get(&id) {
            Some(Demand { placement, .. }) if placements.contains(placement) => {
                placements = vec![*placement];
            }
            Some(Demand { placement, soft: false }) => {
                return Err(impossible_pin(setting, id, *placement));
            }
            // Every rank is given the global batch; slicing it costs nothing. What a loop begins and ends with is whole.
            None if input.class == InputClass::Batch || setting.space.axis.kind == AxisKind::Time => {
                placements.truncate(1);
            }
            Some(_) | None => {}
        }
        let ty = setting.graph.ty(input.value);
        let bytes = |placement: &Placement| {
            let counted = if input.class.is_state() { setting.charges.moments } else { 0 };
            counted * u64::from(times) * local_bytes(ty, *placement, setting.space.axis.size)
        };
        let first = setting.folded.map_or(id, |folded| folded.pair.alike.inputs[id.0 as usize]);
        if let Some((variable, known)) = self.inputs.get(first).filter(|(_, known)| *known == placements) {
            self.inputs.push((*variable, known.clone()));
            return Ok(());
        }
        let weights: Vec<u64> = placements.iter().map(bytes).collect();
        let variable = self.problem.weighted_variable(&vec![Cost::ZERO; weights.len()], &weights);
        self.inputs.push((variable, placements));
        Ok(())
    }

    fn node(
        &mut self,
        (at, id): (usize, NodeId),
        times: u32,
        own: &FxHashMap<ValueId, u64>,
        depends: &SecondaryMap<ValueId, bool>,
    ) {
        let setting = self.setting;
        let node = &setting.graph.nodes[id];
        // What comes from constants alone (masks, positions, angles) is small and stays replicated: slicing it is free afterwards.
        let replicated = node.operands().next().is_some() && !node.operands().any(|value| depends[value]);
        let demanded = node.operands().map(|value| demanded(setting, id, value)).collect();
        let intended = setting.intent.and_then(|(intent, origins)| intent.node(origins, at));
        let intended = intended
            .and_then(|intended| setting.space.strategies(id).iter().position(|known| known == intended));
        let is_gradient = node.results().all(|value| self.roles[value] == Role::Gradient);
        let added_up = if is_gradient { setting.space.added_up(setting.graph, id) } else { 0 };
        let key = (setting.space.class(id), replicated, intended, demanded, added_up);
        let menu = self.menus.of(setting, id, key);
        let first = setting.folded.map_or(id, |folded| setting.graph.order[folded.pair.alike.nodes[at]]);
        if let Some(known) = self.nodes.get(&first).filter(|(_, known)| *known == menu) {
            self.nodes.insert(id, *known);
            return;
        }
        let (strategies, costs) = &self.menus.all[menu];
        let costs: Vec<Cost> = costs.iter().map(|cost| cost.times(times)).collect();
        let variable = self.problem.weighted_variable(&costs, &own_weights(setting, id, own, strategies));
        self.nodes.insert(id, (variable, menu));
    }

    /// What provides a value: its variable, and all else that tables depend on.
    fn source(&mut self, value: ValueId) -> (VariableId, Source) {
        let graph = self.setting.graph;
        let kind = self.setting.space.kinds[value];
        match graph.values[value].def {
            ValueDef::Input(id) => {
                let (variable, placements) = &self.inputs[id];
                let provided = self.links.provided(placements.clone());
                let role = self.roles[value];
                let source =
                    Source { kind, provided, part: PartId(0), role, is_view: false, in_flight: false };
                (*variable, source)
            }
            ValueDef::Result(node, position) => {
                let (variable, menu) = self.nodes[&node];
                let (menus, links) = (&mut self.menus, &mut self.links);
                let provided = *menus.provided.entry((menu, position)).or_insert_with(|| {
                    let strategies = menus.all[menu].0.iter();
                    links.provided(strategies.map(|s| s.results[position as usize]).collect())
                });
                let row = aten::row(graph.op_name(node));
                let is_view = row.is_some_and(|row| matches!(row.work, aten::Work::View));
                let in_flight = graph.collective(node).is_some();
                let part = graph.nodes[node].part;
                let source = Source { kind, provided, part, role: self.roles[value], is_view, in_flight };
                (variable, source)
            }
        }
    }

    fn uses(&mut self, seen: &Seen<'_>, returned: &[VariableId]) -> Uses {
        let graph = seen.graph;
        let mut uses = Uses::default();
        for id in &graph.order {
            let node = &graph.nodes[*id];
            let (variable, menu) = self.nodes[&seen.node(self.setting.graph, *id)];
            let mut slots: Vec<(ValueId, usize)> =
                node.operands().enumerate().map(|(slot, value)| (value, slot)).collect();
            slots.sort_unstable();
            for group in slots.chunk_by(|a, b| a.0 == b.0) {
                let slots: SmallVec<[usize; 2]> = group.iter().map(|(_, slot)| *slot).collect();
                let required = self.menus.required(&mut self.links, menu, slots);
                uses[group[0].0].push(Use { variable, required, part: node.part });
            }
        }
        for (input, value) in &graph.updates {
            let (variable, placements) = &self.inputs[seen.input(*input)];
            let required = placements.iter().map(|placement| smallvec::smallvec![*placement]).collect();
            if graph.inputs[*input].value != *value {
                let required = self.links.required(required);
                uses[*value].push(Use { variable: *variable, required, part: graph.last_part() });
            }
        }
        for (value, variable) in graph.returns.iter().zip(returned) {
            let variable = *variable;
            let required = self.links.required(vec![smallvec::smallvec![Placement::Replicate]]);
            uses[*value].push(Use { variable, required, part: graph.last_part() });
        }
        uses
    }

    /// Adds the tables between the source of a value and its uses.
    fn connect(&mut self, value: ValueId, uses: &[Use], times: u32, charge: Charge) {
        let (provider, source) = self.source(value);
        let signature =
            Signature { source, uses: uses.iter().map(|u| (u.required, u.part)).collect(), charge, times };
        let link = self.links.link(self.setting, value, &signature, &mut self.problem);
        let parts = match &*link {
            Link::Direct(table) if provider == uses[0].variable => {
                let table = self.problem.diagonal(*table);
                return self.problem.factor(&[provider], table);
            }
            Link::Direct(table) => return self.problem.pair(provider, uses[0].variable, *table),
            Link::Parts(parts) => parts,
        };
        let mut before = provider;
        for part in parts {
            let cells = Cells { costs: &part.costs, class: part.class, ..Cells::default() };
            let variable = self.problem.variable_of(cells);
            self.problem.pair(before, variable, part.enter);
            for (here, serve) in uses.iter().filter(|u| u.part == part.part).zip(&part.serves) {
                self.problem.pair(here.variable, variable, *serve);
            }
            if part.crosses {
                self.copies.push(Kept { value, variable, copies: part.clone() });
            }
            before = variable;
        }
    }

    /// Adds the tables of a program with few layers: for values that are made and used alike those of the first, as often as the whole program has
    /// such.
    fn connect_folded(&mut self, folded: &Folded, (own, uses): (&Seen<'_>, &Uses), returned: &[VariableId]) {
        let longer =
            Seen { graph: &folded.pair.to, places: Some(&folded.pair.places), ..Seen::of(&folded.pair.to) };
        let of_longer = self.uses(&longer, returned);
        let mut counts: FxHashMap<Key, [(i64, Charge); 2]> = FxHashMap::default();
        let charges = self.setting.charges;
        for value in own.used(uses) {
            let [(count, charge), _] = counts.entry(self.key(own, value, &uses[value])).or_default();
            *count += 1;
            charge.add(&charges.of(value));
        }
        for value in longer.used(&of_longer) {
            let [_, (count, charge)] = counts.entry(self.key(&longer, value, &of_longer[value])).or_default();
            *count += 1;
            charge.add(&charges.of_longer(value));
        }
        let mut known: FxHashMap<Key, Range<usize>> = FxHashMap::default();
        for value in own.used(uses) {
            let key = self.key(own, value, &uses[value]);
            if let Some(copies) = known.get(&key) {
                let of_first = self.copies[copies.clone()].iter();
                let alike: Vec<Kept> = of_first.map(|kept| Kept { value, ..kept.clone() }).collect();
                self.copies.extend(alike);
                continue;
            }
            let [(few, charge), (more, of_longer)] = counts[&key].clone();
            let charge = Charge::of_whole(folded, &charge, &of_longer);
            let mut distinct: SmallVec<[Use; 2]> = SmallVec::new();
            for one in &uses[value] {
                if !distinct.contains(one) {
                    distinct.push(*one);
                }
            }
            let begin = self.copies.len();
            self.connect(value, &distinct, folded.times(few, more), charge);
            known.insert(key, begin..self.copies.len());
        }
    }

    /// What provides a value, and what uses it.
    fn key(&self, seen: &Seen<'_>, value: ValueId, uses: &[Use]) -> Key {
        let provider = match seen.graph.values[value].def {
            ValueDef::Input(input) => (self.inputs[seen.input(input)].0, u32::MAX),
            ValueDef::Result(node, position) => {
                (self.nodes[&seen.node(self.setting.graph, node)].0, position)
            }
        };
        let mut uses: SmallVec<[Use; 2]> = uses.iter().copied().collect();
        uses.sort_unstable();
        uses.dedup();
        (provider, uses)
    }

    /// What the choices mean.
    pub fn assignment(&self, choices: &Choices) -> Assignment {
        let state = |variable: VariableId| choices[variable] as usize;
        let strategy = |(variable, menu): (VariableId, MenuId)| &self.menus.all[menu].0[state(variable)];
        let kept = self.copies.iter().map(|Kept { value, variable, copies }| {
            ((*value, copies.part), copies.sets[state(*variable)].source)
        });
        Assignment {
            nodes: self.nodes.iter().map(|(id, of)| (*id, strategy(*of).clone())).collect(),
            inputs: self.inputs.iter().map(|(id, (variable, p))| (id, p[state(*variable)])).collect(),
            kept: kept.collect(),
            gathers: self.setting.gathers,
            without: self.setting.forbidden.kinds().to_vec(),
        }
    }

    /// The states of all but copies under a decision; none where one of these is not among those of the problem.
    pub fn fixed(&self, assignment: &Assignment) -> Option<Vec<(VariableId, u32)>> {
        let of_node = |id: &NodeId| {
            let (variable, menu) = self.nodes[id];
            let decided = assignment.nodes.get(id)?;
            Some((variable, self.menus.all[menu].0.iter().position(|one| one == decided)? as u32))
        };
        let of_input = |(id, (variable, placements)): (InputId, &(VariableId, Vec<Placement>))| {
            let decided = assignment.inputs.get(&id)?;
            Some((*variable, placements.iter().position(|one| one == decided)? as u32))
        };
        let nodes = self.setting.graph.order.iter().map(of_node);
        let mut fixed: Vec<(VariableId, u32)> =
            nodes.chain(self.inputs.iter().map(of_input)).collect::<Option<_>>()?;
        // Those that are alike share a variable.
        fixed.sort_unstable();
        fixed.dedup();
        Some(fixed)
    }

    /// The inputs and operations that some variables stand for.
    pub fn meaning(&self, variables: &[VariableId]) -> (Vec<InputId>, Vec<NodeId>) {
        let inputs = self.inputs.iter().filter(|(_, (variable, _))| variables.contains(variable));
        let order = self.setting.graph.order.iter();
        let nodes = order.filter(|id| variables.contains(&self.nodes[id].0));
        (inputs.map(|(id, _)| id).collect(), nodes.copied().collect())
    }
}

impl Menus {
    fn of(&mut self, setting: &Setting<'_>, node: NodeId, key: MenuKey) -> MenuId {
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let (class, replicated, intended, demanded, added_up) = &key;
        let all = &setting.space.classes[*class];
        let all = match intended {
            _ if *replicated => &all[..1],
            Some(only) => &all[*only..=*only],
            None => &all[..],
        };
        let all = all.iter().filter(|one| !setting.forbidden.forbids_within(one));
        let as_demanded = |strategy: &&Strategy| {
            let mut operands = demanded.iter().zip(&strategy.operands);
            operands.all(|(demanded, placement)| demanded.is_none_or(|demanded| demanded == *placement))
        };
        let mut strategies: Vec<Strategy> = all.clone().filter(as_demanded).cloned().collect();
        if strategies.is_empty() {
            strategies = all.cloned().collect();
        }
        let call = Call::new(setting.graph, node);
        let axis = &setting.space.axis;
        let time = |s: &Strategy| {
            let alone = operation_time(setting.machine, &call, s, axis);
            let adds = if *added_up > 0 { adding_up_time(setting.machine, &call, s, axis) } else { 0 };
            Cost::new(alone + i64::from(*added_up) * adds, 0)
        };
        let costs = strategies.iter().map(time).collect();
        let menu = self.all.push((strategies, costs));
        self.known.insert(key, menu);
        menu
    }

    /// What each strategy requires of the value that is in the operand positions `slots`.
    fn required(&mut self, links: &mut Links, menu: MenuId, slots: SmallVec<[usize; 2]>) -> RequiredId {
        let key = (menu, slots);
        if let Some(known) = self.required.get(&key) {
            return *known;
        }
        let placements = |s: &Strategy| key.1.iter().map(|slot| s.operands[*slot]).collect();
        let required = links.required(self.all[menu].0.iter().map(placements).collect());
        self.required.insert(key, required);
        required
    }
}

/// What the results of a node weigh under each strategy, where they are alive at a moment that counts; none where nothing is.
fn own_weights(
    setting: &Setting<'_>,
    node: NodeId,
    own: &FxHashMap<ValueId, u64>,
    strategies: &[Strategy],
) -> Vec<u64> {
    let charged = |(position, value): (usize, ValueId)| {
        let count = own.get(&value).copied().filter(|count| *count > 0)?;
        Some((position, setting.graph.ty(value), count))
    };
    let results: SmallVec<[_; 1]> =
        setting.graph.nodes[node].results().enumerate().filter_map(charged).collect();
    if results.is_empty() {
        return Vec::new();
    }
    let weight = |strategy: &Strategy| {
        let bytes =
            |position: &usize, ty| local_bytes(ty, strategy.results[*position], setting.space.axis.size);
        results.iter().map(|(position, ty, count)| count * bytes(position, ty)).sum()
    };
    strategies.iter().map(weight).collect()
}

/// The placement in which an operation has to read a value: a part of the batch, or what a module gives.
fn demanded(setting: &Setting<'_>, node: NodeId, value: ValueId) -> Option<Placement> {
    let of_output = || setting.pins.outputs.demanded(setting.graph, node, value);
    demanded_batch(setting, value).or_else(of_output)
}

/// The placement that is demanded of a value, if it is a part of the batch.
fn demanded_batch(setting: &Setting<'_>, value: ValueId) -> Option<Placement> {
    let ValueDef::Input(id) = setting.graph.values[value].def else { return None };
    let placement = setting.pins.inputs.get(&id)?.placement;
    let possible = can_be(setting.graph, setting.space, id, placement);
    (setting.graph.inputs[id].class == InputClass::Batch && possible).then_some(placement)
}

fn impossible_pin(setting: &Setting<'_>, id: InputId, pin: Placement) -> Box<Diagnostic> {
    let input = &setting.graph.inputs[id];
    let shape = &setting.graph.ty(input.value).shape;
    Diagnostic::new(
        Code::BAD_PIN,
        format!(
            "`{}` of shape {shape:?} cannot be `{pin}` over {} ranks",
            input.name, setting.space.axis.size
        ),
    )
    .because(
        "a dimension with too few elements for so many ranks, or for ranks of several axes, is not sharded",
    )
    .hint("pin another dimension, or `replicate`")
}

/// Whether each value depends on parameters, optimizer state, the batch or the key of random numbers, of which each rank can draw its part.
fn depends_on_inputs(graph: &Graph) -> SecondaryMap<ValueId, bool> {
    let mut depends = SecondaryMap::with_default(false);
    for input in graph.inputs.values() {
        let class = matches!(input.class, InputClass::Parameter | InputClass::Optimizer | InputClass::Batch);
        depends[input.value] = class || input.name == passes::KEY;
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
