//! Alternatives to a plan by their names, and what is tried to get them.

use std::{fmt, str::FromStr};

use base::{Code, Diagnostic, Result, unknown_name_hint};
use indexmap::IndexMap;
use ir::Placement;

use crate::{
    pins::Pins,
    plan::{Plan, RunnerUp},
    runners_up::CLASSES,
    settings::PlanSettings,
};

/// Another plan than the one that was chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Alternative {
    /// One that keeps these pins too.
    Pins(Pins),
    /// One on another mesh.
    Mesh(IndexMap<String, u32>),
    /// One of the runners-up, counted from 1.
    RunnerUp(usize),
    /// One that is called so, along an axis or along any.
    Called {
        /// The name, or the label of a runner-up.
        name: String,
        /// The axis.
        axis: Option<String>,
    },
}

impl FromStr for Alternative {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let text = text.trim();
        if let Ok(number) = text.parse() {
            return Ok(Self::RunnerUp(number));
        }
        let axes = text.split(',').map(|part| {
            let (name, size) = part.split_once('=')?;
            Some((name.trim().to_owned(), size.trim().parse().ok()?))
        });
        if let Some(mesh) = axes.collect::<Option<_>>() {
            return Ok(Self::Mesh(mesh));
        }
        let (name, axis) = text.rsplit_once(" on ").map_or((text, None), |(name, axis)| (name, Some(axis)));
        Ok(Self::Called { name: name.trim().to_owned(), axis: axis.map(|axis| axis.trim().to_owned()) })
    }
}

impl fmt::Display for Alternative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pins(_) => f.write_str("the pins"),
            Self::RunnerUp(number) => write!(f, "runner-up {number}"),
            Self::Mesh(mesh) => {
                let axes: Vec<String> = mesh.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
                f.write_str(&axes.join(","))
            }
            Self::Called { name, axis: None } => f.write_str(name),
            Self::Called { name, axis: Some(axis) } => write!(f, "{name} on {axis}"),
        }
    }
}

/// A family of plans, as the field calls it.
struct Family {
    /// What it is called; the first name is how labels begin that are meant.
    names: &'static [&'static str],
    /// What else their phrase says.
    with: &'static str,
    /// Pins under which the search comes to it: placements of each of the [`CLASSES`] of inputs, where they are demanded.
    pins: &'static [[Option<Placement>; 3]],
}

const WHOLE: Option<Placement> = Some(Placement::Replicate);
const FIRST: Option<Placement> = Some(Placement::shard(0));
const SECOND: Option<Placement> = Some(Placement::shard(1));

const FAMILIES: &[Family] = &[
    Family { names: &["data parallel", "data", "ddp", "dp"], with: "", pins: &[[FIRST, WHOLE, WHOLE]] },
    Family {
        names: &["data parallel", "zero-1", "zero-2", "optimizer state sharded"],
        with: "optimizer state sharded",
        pins: &[[FIRST, WHOLE, FIRST]],
    },
    Family {
        names: &["data parallel", "zero-3", "fsdp", "state sharded"],
        with: "state sharded",
        pins: &[[FIRST, FIRST, FIRST]],
    },
    Family {
        names: &["tensor parallel", "tensor", "tp"],
        with: "",
        pins: &[[WHOLE, None, None], [WHOLE, FIRST, FIRST], [WHOLE, SECOND, SECOND]],
    },
    Family {
        names: &["sequence parallel", "sequence", "context parallel", "context", "sp", "cp"],
        with: "",
        pins: &[[SECOND, None, None], [SECOND, WHOLE, WHOLE]],
    },
    Family {
        names: &["expert parallel", "expert", "ep"],
        with: "",
        pins: &[[None, FIRST, None], [None, FIRST, FIRST]],
    },
    Family { names: &["replicated"], with: "", pins: &[[WHOLE, WHOLE, WHOLE]] },
];

/// More memory than any plan needs, in bytes.
const ENOUGH: u64 = 1 << 50;

/// Which plan is meant.
#[derive(Clone, Debug)]
pub enum Meant {
    /// Any that keeps the settings.
    Any,
    /// One that is called so.
    Label(String),
    /// One of whose axes the phrase begins so, and contains more.
    Phrase(&'static str, &'static str),
}

impl fmt::Display for Meant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Label(label) => f.write_str(label),
            Self::Phrase(begin, "") => f.write_str(begin),
            Self::Phrase(begin, with) => write!(f, "{begin}, {with}"),
        }
    }
}

/// How far a plan is from what is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Distance {
    /// It is what is meant.
    None,
    /// In part.
    Near,
    /// It is something else.
    Far,
}

impl Meant {
    /// How far a plan of this name is from what is meant.
    pub fn distance(&self, label: &str) -> Distance {
        let (begin, with) = match self {
            Self::Any => return Distance::None,
            // Runners-up of one name are told apart by what stands behind it.
            Self::Label(meant) => {
                return if meant.starts_with(label) { Distance::None } else { Distance::Far };
            }
            Self::Phrase(begin, with) => (*begin, *with),
        };
        let phrases = || label.split("; ").filter(|phrase| phrase.contains(with));
        if phrases().any(|phrase| phrase.starts_with(begin)) {
            Distance::None
        } else if phrases().any(|phrase| phrase.contains(begin)) {
            Distance::Near
        } else {
            Distance::Far
        }
    }
}

/// What is tried to get an alternative.
pub struct Tried {
    /// What is asked of the planner.
    pub settings: PlanSettings,
    /// What is to come of it.
    pub meant: Meant,
}

impl Tried {
    /// The same without a memory limit.
    pub fn unlimited(&self) -> Self {
        let settings = PlanSettings { memory_limit: Some(ENOUGH), ..self.settings.clone() };
        Self { settings, meant: self.meant.clone() }
    }
}

impl Alternative {
    /// The settings under which it is searched for.
    pub fn tried(&self, plan: &Plan, settings: &PlanSettings) -> Result<Vec<Tried>> {
        // Pins name axes, and another plan is held against this one's.
        let same = PlanSettings { mesh: plan.mesh.clone(), ranks: None, stages: None, ..settings.clone() };
        let with = |pins: &Pins, meant: Meant| {
            let settings = PlanSettings { pins: joined(&same.pins, pins), ..same.clone() };
            Ok(vec![Tried { settings, meant }])
        };
        let of = |other: &RunnerUp| with(&other.pins, Meant::Label(other.name.clone()));
        match self {
            Self::Pins(pins) => with(pins, Meant::Any),
            Self::Mesh(mesh) => {
                let mut settings = PlanSettings { mesh: mesh.clone(), ..same };
                // Without stages there is nothing to cut.
                if settings.mesh().stages() == 1 {
                    (settings.schedule, settings.chunks, settings.cuts) = (None, None, None);
                }
                Ok(vec![Tried { settings, meant: Meant::Any }])
            }
            Self::RunnerUp(number) => {
                let other = number.checked_sub(1).and_then(|at| plan.runners_up.get(at));
                let other = other.ok_or_else(|| {
                    let message = format!(
                        "the plan has {} runners-up, and no runner-up {number}",
                        plan.runners_up.len()
                    );
                    Diagnostic::new(Code::UNKNOWN_KEY, message).hint("they are counted from 1")
                })?;
                of(other)
            }
            Self::Called { name, axis } => {
                let asked = self.to_string();
                if let Some(other) = plan.runners_up.iter().find(|other| other.name == asked) {
                    return of(other);
                }
                of_family(family(name)?, axis.as_deref(), &same)
            }
        }
    }
}

/// A family by one of its names.
fn family(name: &str) -> Result<&'static Family> {
    let asked = name.to_lowercase();
    let own = |family: &&Family| {
        family.names.iter().skip(usize::from(!family.with.is_empty())).any(|known| *known == asked)
    };
    FAMILIES.iter().find(own).ok_or_else(|| {
        let names = FAMILIES.iter().flat_map(|family| family.names).copied();
        let message = format!("no plan is called `{name}`");
        let hint = format!(
            "{}; a number is one of the runners-up, and `data=4,tensor=2` another mesh",
            unknown_name_hint(name, names)
        );
        Diagnostic::new(Code::UNKNOWN_KEY, message).hint(hint)
    })
}

fn of_family(family: &Family, axis: Option<&str>, same: &PlanSettings) -> Result<Vec<Tried>> {
    let mesh = same.mesh();
    let axes = mesh.sharding_axes().filter(|axis| axis.rank_count() > 1).map(|axis| axis.name.as_str());
    let axes: Vec<&str> = axes.collect();
    if let Some(unknown) = axis.filter(|asked| !axes.contains(asked)) {
        let message = format!("the mesh has no axis `{unknown}` of several ranks");
        return Err(Diagnostic::new(Code::BAD_MESH, message).hint(unknown_name_hint(unknown, axes)));
    }
    let mut tried = Vec::new();
    for axis in axes.into_iter().filter(|known| axis.is_none_or(|asked| asked == *known)) {
        for placements in family.pins {
            let demanded = CLASSES.iter().zip(placements).filter_map(|((_, pattern), placement)| {
                Some(((*pattern).to_owned(), IndexMap::from([(axis.to_owned(), (*placement)?)])))
            });
            let pins = joined(&same.pins, &demanded.collect());
            let settings = PlanSettings { pins, ..same.clone() };
            tried.push(Tried { settings, meant: Meant::Phrase(family.names[0], family.with) });
        }
    }
    if tried.is_empty() {
        let message = "there are no alternatives on one rank";
        return Err(Diagnostic::new(Code::BAD_MESH, message).hint("plan for more ranks"));
    }
    Ok(tried)
}

/// Pins with others behind them, which decide where both match.
fn joined(pins: &Pins, others: &Pins) -> Pins {
    let mut all = pins.clone();
    for (pattern, placements) in others {
        let mut known = all.shift_remove(pattern).unwrap_or_default();
        known.extend(placements.iter().map(|(axis, placement)| (axis.clone(), *placement)));
        all.insert(pattern.clone(), known);
    }
    all
}
