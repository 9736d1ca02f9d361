//! The cost tables between the operation or input that provides a value and the uses of the value, or copy sets between them.
//!
//! They follow from the kind of the value and from what is provided and required, so that values that agree in these (in the layers of a
//! model) share one [`Link`].

use std::{cell::RefCell, rc::Rc};

use base::define_id;
use cost::{Company, reshard_time};
use indexmap::IndexSet;
use ir::{AxisKind, PartId, PartKind, Placement, Reshard, TensorType, ValueId, local_bytes, reshard_steps};
use rustc_hash::{FxBuildHasher, FxHashMap};
use shard::{Gathers, KindId};
use smallvec::SmallVec;
use solve::{Cells, ClassId, Cost, Problem, TableId};

use crate::{
    copies::{CopySet, copy_sets},
    moments::Charge,
    prices::{AWAITED, WINDOWED},
    roles::Role,
    setting::Setting,
};

define_id!(
    /// The placements that the states of a source provide.
    ProvidedId, "provided"
);
define_id!(
    /// The placements that the states of a use require; several where a value is several operands.
    RequiredId, "required"
);

/// The placements that each state of a use requires.
type Required = Vec<SmallVec<[Placement; 1]>>;

/// What provides a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    /// The value's type and offers.
    pub kind: KindId,
    /// What each of its states provides.
    pub provided: ProvidedId,
    /// Where it does.
    pub part: PartId,
    /// What it is in the step. State takes no additional memory in its own placement.
    pub role: Role,
    /// Whether the value is a view.
    pub is_view: bool,
    /// Whether a collective along another axis still writes it: it can only be waited for.
    pub in_flight: bool,
}

impl Source {
    /// Whether collectives on the value go in buckets where it is used in a part of this kind: parameters and gradients do.
    fn company(&self, kind: PartKind) -> Company {
        let bucketed = self.role != Role::Other || kind == PartKind::Update;
        if bucketed { Company::Bucketed } else { Company::Alone }
    }

    /// What times of collectives on the value count as, where it is used in a part of kind `to` and made in one of kind `from`: a gather
    /// of stored state has all operations before it to hide behind, and a gradient those that come after it; a new parameter that is
    /// gathered at the end of the step has none.
    fn class(&self, from: PartKind, to: PartKind) -> ClassId {
        let made_late = from == PartKind::Update;
        let is_gradient = self.role == Role::Gradient || to == PartKind::Update;
        let has_window = self.role.is_of_state() || (is_gradient && !made_late);
        match self.company(to) {
            Company::Bucketed if has_window => WINDOWED,
            Company::Bucketed => ClassId::default(),
            Company::Alone => AWAITED,
        }
    }

    /// Whether what enters `part` is held beside state from an earlier part of the program on.
    fn crosses_to(&self, part: PartId) -> bool {
        part != self.part && self.role != Role::Stored
    }
}

/// Everything that the tables of a value depend on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Signature {
    /// What provides it.
    pub source: Source,
    /// What each use requires, and where.
    pub uses: SmallVec<[(RequiredId, PartId); 2]>,
    /// How much of its memory counts.
    pub charge: Charge,
    /// How many times changes of its placement count.
    pub times: u32,
}

/// The tables of a value.
pub enum Link {
    /// Between the source and the only use.
    Direct(TableId),
    /// Through copy sets, one for each part of the program with a use, in their order.
    Parts(Vec<Rc<PartCopies>>),
}

/// The copy sets of a value in one part of the program.
pub struct PartCopies {
    /// Which part.
    pub part: PartId,
    /// The states of its variable.
    pub sets: Vec<CopySet>,
    /// The time to make the further placements of each.
    pub costs: Vec<Cost>,
    /// What these times count as.
    pub class: ClassId,
    /// Between the source, or the part before, and the sets.
    pub enter: TableId,
    /// Between each use in this part, in their order, and the sets.
    pub serves: Vec<TableId>,
    /// Whether the value is kept for this part from an earlier one.
    pub crosses: bool,
}

/// All links of a problem.
#[derive(Default)]
pub struct Links {
    provided: IndexSet<Vec<Placement>, FxBuildHasher>,
    required: IndexSet<Required, FxBuildHasher>,
    by_signature: FxHashMap<Signature, Rc<Link>>,
}

impl Links {
    /// The id of a list of provided placements.
    pub fn provided(&mut self, placements: Vec<Placement>) -> ProvidedId {
        ProvidedId(self.provided.insert_full(placements).0 as u32)
    }

    /// The id of a list of required placements.
    pub fn required(&mut self, placements: Required) -> RequiredId {
        RequiredId(self.required.insert_full(placements).0 as u32)
    }

    /// The link of a signature, which `value` has.
    pub fn link(
        &mut self,
        setting: &Setting<'_>,
        value: ValueId,
        signature: &Signature,
        problem: &mut Problem,
    ) -> Rc<Link> {
        if let Some(known) = self.by_signature.get(signature) {
            return known.clone();
        }
        let required = |id: &RequiredId| &self.required[id.0 as usize];
        let uses: Vec<Use<'_>> = signature.uses.iter().map(|(id, part)| (required(id), *part)).collect();
        let provided = &self.provided[signature.source.provided.0 as usize];
        let (ty, source) = (setting.graph.ty(value), signature.source);
        let inevitable = inevitable(setting, source, provided, &uses);
        let charge = &signature.charge;
        let times = signature.times;
        let changes = RefCell::default();
        let mut maker = Maker { setting, ty, source, provided, charge, times, inevitable, changes, problem };
        let link = match uses.as_slice() {
            [(only, part)] => Link::Direct(maker.direct(only, *part)),
            uses => Link::Parts(maker.parts(uses)),
        };
        let link = Rc::new(link);
        self.by_signature.insert(signature.clone(), link.clone());
        link
    }
}

/// What a use requires, and the part of the program that it stands in.
type Use<'a> = (&'a Required, PartId);

fn kind_of(setting: &Setting<'_>, part: PartId) -> PartKind {
    setting.graph.parts.get(part).map_or(PartKind::Forward, |part| part.kind)
}

/// Whether collectives on a value go in buckets where it is used in a part.
fn company(setting: &Setting<'_>, source: Source, part: PartId) -> Company {
    let kind = kind_of(setting, part);
    match setting.gathers {
        // Sums beside a loop are held while it runs: where memory is short they cost what they hold.
        Gathers::Each => Company::Alone,
        // What iterations read is no sum beside their loop, but ends one before it.
        Gathers::Once
            if setting.space.axis.kind == AxisKind::Time
                && source.role.is_of_state()
                && kind != PartKind::Update =>
        {
            Company::Alone
        }
        Gathers::Once => source.company(kind),
    }
}

/// Makes one link.
struct Maker<'a> {
    setting: &'a Setting<'a>,
    ty: &'a TensorType,
    source: Source,
    provided: &'a [Placement],
    charge: &'a Charge,
    times: u32,
    inevitable: Vec<(Placement, Placement, Company)>,
    /// The changes of placement that were asked for.
    changes: RefCell<FxHashMap<(Placement, Placement, Company), Cost>>,
    problem: &'a mut Problem,
}

impl Maker<'_> {
    fn company(&self, part: PartId) -> Company {
        company(self.setting, self.source, part)
    }

    fn class(&self, part: PartId) -> ClassId {
        self.source.class(kind_of(self.setting, self.source.part), kind_of(self.setting, part))
    }

    fn direct(&mut self, required: &Required, part: PartId) -> TableId {
        let company = self.company(part);
        let charged = if self.source.crosses_to(part) { self.charged(part) } else { 0 };
        let (mut costs, mut weights) = (Vec::new(), Vec::new());
        for provided in self.provided {
            let kept = self.charge_of(charged, *provided);
            for required in required {
                let changes = required.iter().map(|to| self.change(*provided, *to, company));
                costs.push(changes.fold(Cost::ZERO, std::ops::Add::add));
                weights.push(kept);
            }
        }
        let cells = Cells { costs: &costs, weights: &weights, class: self.class(part) };
        self.problem.table_of(&[self.provided.len(), required.len()], cells)
    }

    fn parts(&mut self, uses: &[Use<'_>]) -> Vec<Rc<PartCopies>> {
        let mut places: Vec<PartId> = uses.iter().map(|(_, part)| *part).collect();
        places.sort_unstable();
        places.dedup();
        let mut parts: Vec<Rc<PartCopies>> = Vec::new();
        for part in places {
            let here: Vec<&Required> =
                uses.iter().filter(|(_, other)| *other == part).map(|(required, _)| *required).collect();
            let before = parts.last().map(Rc::as_ref);
            let sets = self.sets(before, &here);
            let costs = self.making(&sets, self.company(part));
            let class = self.class(part);
            let crosses = before.is_some() || part != self.source.part;
            let enter = match parts.last() {
                None => self.enter_first(&sets, part),
                Some(before) => self.enter_later(&before.sets, &sets, part),
            };
            let serves = here.iter().map(|required| self.serve(&sets, required)).collect();
            parts.push(Rc::new(PartCopies { part, sets, costs, class, enter, serves, crosses }));
        }
        parts
    }

    fn sets(&self, before: Option<&PartCopies>, here: &[&Required]) -> Vec<CopySet> {
        let mut sources: Vec<Placement> = Vec::new();
        let from_before = before
            .iter()
            .flat_map(|part| part.sets.iter().flat_map(|s| s.extras.iter().copied().chain([s.source])));
        for placement in self.provided.iter().copied().chain(from_before) {
            if !sources.contains(&placement) {
                sources.push(placement);
            }
        }
        let mut required: Vec<Placement> = Vec::new();
        for placement in here.iter().flat_map(|required| required.iter().flatten()) {
            if !required.contains(placement) {
                required.push(*placement);
            }
        }
        copy_sets(self.ty, &sources, &required, &self.setting.space.axis)
    }

    /// The time to make the further placements of each copy set, in the cheapest order.
    fn making(&self, sets: &[CopySet], company: Company) -> Vec<Cost> {
        let cost = |set: &CopySet| match set.extras.as_slice() {
            [] => Cost::ZERO,
            [one] => self.change(set.source, *one, company),
            [a, b, ..] => {
                let both = |first: Placement, second: Placement| {
                    let direct = self.change(set.source, second, company);
                    self.change(set.source, first, company) + direct.min(self.change(first, second, company))
                };
                both(*a, *b).min(both(*b, *a))
            }
        };
        sets.iter().map(cost).collect()
    }

    /// Ties the first copy sets to the source.
    fn enter_first(&mut self, sets: &[CopySet], part: PartId) -> TableId {
        let charged = if self.source.crosses_to(part) { self.charged(part) } else { 0 };
        let (mut costs, mut weights) = (Vec::new(), Vec::new());
        for provided in self.provided {
            for set in sets {
                costs.push(if *provided == set.source { Cost::ZERO } else { Cost::INFINITE });
                weights.push(self.charge_of(charged, set.source));
            }
        }
        self.problem.weighted_table(&[self.provided.len(), sets.len()], &costs, &weights)
    }

    /// Ties later copy sets to those of the part before.
    fn enter_later(&mut self, before: &[CopySet], sets: &[CopySet], part: PartId) -> TableId {
        let charged = self.charged(part);
        // A stored value is available in its own placement at any time, at no cost.
        let free =
            |placement: Placement| self.source.role == Role::Stored && self.provided.contains(&placement);
        let (mut costs, mut weights) = (Vec::new(), Vec::new());
        for earlier in before {
            for entered in sets.iter().map(|set| set.source) {
                let owned = earlier.source == entered && (free(entered) || self.source.is_view);
                let cost = if owned { Cost::ZERO } else { Cost::new(0, 1) };
                costs.push(if earlier.serves(entered) { cost } else { Cost::INFINITE });
                let stored = earlier.source == entered && free(entered);
                weights.push(if stored { 0 } else { self.charge_of(charged, entered) });
            }
        }
        self.problem.weighted_table(&[before.len(), sets.len()], &costs, &weights)
    }

    /// Allows the states of a use that a copy set serves.
    fn serve(&mut self, sets: &[CopySet], required: &Required) -> TableId {
        let served = |required: &SmallVec<[Placement; 1]>, set: &CopySet| {
            if required.iter().all(|to| set.serves(*to)) { Cost::ZERO } else { Cost::INFINITE }
        };
        let costs: Vec<Cost> =
            required.iter().flat_map(|required| sets.iter().map(move |set| served(required, set))).collect();
        self.problem.table(required.len(), sets.len(), &costs)
    }

    /// The cost of a change of placement.
    fn change(&self, from: Placement, to: Placement, company: Company) -> Cost {
        let mut known = self.changes.borrow_mut();
        *known.entry((from, to, company)).or_insert_with(|| self.cost_of_change(from, to, company))
    }

    /// Its time, then its number of collectives.
    fn cost_of_change(&self, from: Placement, to: Placement, company: Company) -> Cost {
        let reshard = Reshard { from, to };
        let Setting { machine, space, batch, strict, .. } = *self.setting;
        if self.source.in_flight && from != to {
            return Cost::INFINITE;
        }
        let part = kind_of(self.setting, self.source.part);
        let sent = self.setting.sent(self.ty, self.source.role, part, from);
        let ty = sent.as_ref().unwrap_or(self.ty);
        let (Some(time), Some(steps)) = (
            reshard_time(machine, ty, reshard, &space.axis, company),
            reshard_steps(ty, reshard, &space.axis),
        ) else {
            return Cost::INFINITE;
        };
        if self.setting.forbidden.forbids(&steps) {
            return Cost::INFINITE;
        }
        let against =
            against_demand(batch, from, to, company) && !self.inevitable.contains(&(from, to, company));
        match (against, strict) {
            (true, true) => Cost::INFINITE,
            (true, false) => Cost::new(time + AGAINST_A_DEMAND, steps.len() as u32),
            (false, _) => Cost::new(time, steps.len() as u32).times(self.times),
        }
    }

    /// At how many moments the memory of what enters a part counts.
    fn charged(&self, part: PartId) -> u64 {
        self.charge.entering(part)
    }

    /// What a copy weighs that counts at so many moments.
    fn charge_of(&self, moments: u64, placement: Placement) -> u64 {
        if moments == 0 { 0 } else { moments * local_bytes(self.ty, placement, self.setting.space.axis.size) }
    }
}

/// Penalty of a change of placement against the demand on the batch: a second, in picoseconds.
const AGAINST_A_DEMAND: i64 = 1_000_000_000_000;

/// Whether a change of placement undoes the demand on the batch: with the batch sharded, gathering activations; with the batch replicated,
/// gathering state.
fn against_demand(batch: Option<Placement>, from: Placement, to: Placement, company: Company) -> bool {
    let puts_together = matches!(from, Placement::Shard { .. }) && from != to;
    puts_together
        && match batch {
            Some(Placement::Shard { .. }) => company == Company::Alone,
            Some(Placement::Replicate) => company == Company::Bucketed,
            _ => false,
        }
}

/// The changes against the demand on the batch that a use needs whatever it does, because none of its states takes what is provided.
fn inevitable(
    setting: &Setting<'_>,
    source: Source,
    provided: &[Placement],
    uses: &[Use<'_>],
) -> Vec<(Placement, Placement, Company)> {
    let mut changes = Vec::new();
    let batch = setting.batch;
    for (required, part) in uses {
        let company = company(setting, source, *part);
        for from in provided {
            let against = |to: &Placement| against_demand(batch, *from, *to, company);
            if required.iter().all(|placements| placements.iter().any(against)) {
                let needed = required.iter().flatten().filter(|to| against(to));
                changes.extend(needed.map(|to| (*from, *to, company)));
            }
        }
    }
    changes
}
