//! Kinds of collectives that a plan has to do without.

use aten::Strategy;
use base::{Code, Diagnostic, Result, unknown_name_hint};
use indexmap::IndexMap;
use ir::{Collective, CollectiveKind, Mesh};

/// Names of kinds, by axis; `*` stands for every axis, and for every kind.
pub type Forbid = IndexMap<String, Vec<String>>;

/// What stands for every axis, and for every kind.
pub const ALL: &str = "*";

/// The kinds that plans are made of along an axis of ranks.
const KINDS: [CollectiveKind; 5] = [
    CollectiveKind::AllReduce,
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllToAll,
    CollectiveKind::Permute,
];

/// What a plan does without along one axis.
#[derive(Clone, Default, Debug)]
pub struct Forbidden(Vec<CollectiveKind>);

impl Forbidden {
    /// What is forbidden along an axis.
    pub fn along(axis: &str, forbid: &Forbid) -> Self {
        let here = forbid.iter().filter(|(name, _)| *name == axis || *name == ALL);
        let names: Vec<&String> = here.flat_map(|(_, kinds)| kinds).collect();
        let is_named = |kind: &CollectiveKind| names.iter().any(|name| *name == ALL || *name == kind.text());
        Self(KINDS.into_iter().filter(is_named).collect())
    }

    /// The kinds.
    pub fn kinds(&self) -> &[CollectiveKind] {
        &self.0
    }

    /// Whether one of these collectives is forbidden.
    pub fn forbids(&self, steps: &[Collective<'_>]) -> bool {
        steps.iter().any(|step| self.0.contains(&step.kind))
    }

    /// Whether an operation makes a collective inside, under a strategy, that is forbidden.
    pub fn forbids_within(&self, strategy: &Strategy) -> bool {
        strategy.realise.reductions() > 0 && self.0.contains(&CollectiveKind::AllReduce)
            || strategy.realise.permutes() && self.0.contains(&CollectiveKind::Permute)
    }

    /// What is forbidden, in words; nothing where nothing is.
    pub fn text(&self) -> Option<String> {
        let names: Vec<String> = self.0.iter().map(|kind| format!("`{kind}`")).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// Refuses axes and kinds that there are none of. An axis is not looked for where the mesh is searched.
pub fn check(forbid: &Forbid, mesh: Option<&Mesh>) -> Result<()> {
    for (axis, kinds) in forbid {
        if let Some(mesh) = mesh.filter(|mesh| axis != ALL && mesh.axis(axis).is_none()) {
            let message = format!("`forbid` names an axis `{axis}` that the mesh does not have");
            let names = mesh.axes.iter().map(|axis| axis.name.as_str());
            return Err(Diagnostic::new(Code::BAD_PIN, message).hint(unknown_name_hint(axis, names)));
        }
        let is_known = |kind: &&String| *kind == ALL || KINDS.iter().any(|known| known.text() == *kind);
        if let Some(unknown) = kinds.iter().find(|kind| !is_known(kind)) {
            let message = format!("`forbid` names `{unknown}`, which is no kind of collective");
            let names = KINDS.iter().map(|kind| kind.text());
            return Err(Diagnostic::new(Code::BAD_PIN, message).hint(unknown_name_hint(unknown, names)));
        }
    }
    Ok(())
}
