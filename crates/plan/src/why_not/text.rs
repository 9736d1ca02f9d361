//! Why a plan is not another one, for people.

use std::{
    fmt,
    fmt::{Display, Formatter},
};

use base::Bytes;
use indexmap::IndexMap;

use super::{Difference, FirstDifference, PlacedOtherwise, Priced, WhyNot};
use crate::{
    explain::{module_name, short},
    summary::nanos,
};

/// Maximum number of differences listed that cost time, and of those that save it.
const MOST: usize = 4;
/// What is less than this share of all that costs is not listed.
const LISTED: f64 = 0.01;

impl Display for WhyNot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.plan {
            Some(plan) => writeln!(f, "why not {}: {}", self.asked, plan.label)?,
            None => writeln!(f, "why not {}:", self.asked)?,
        }
        if let Some(refused) = &self.refused {
            writeln!(f, "  there is no such plan: {}", refused.message)?;
            if let Some(because) = &refused.because {
                writeln!(f, "  because {because}")?;
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "  {note}"))?;
        if let Some(plan) = &self.plan {
            writeln!(f, "  {plan}")?;
        }
        if let Some(placed) = &self.placed_otherwise {
            writeln!(f, "  {placed}")?;
        }
        if let Some(first) = &self.first {
            writeln!(f, "  first difference that costs: {first}")?;
        }
        self.list(f)
    }
}

impl WhyNot {
    /// The largest differences.
    fn list(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sum = |sign: f64| self.differences.iter().map(|one| (one.ms * sign).max(0.0)).sum::<f64>();
        let least = sum(1.0).max(sum(-1.0)) * LISTED;
        let costs = self.differences.iter().filter(|one| one.ms >= least);
        costs.take(MOST).try_for_each(|one| writeln!(f, "  costs {one}"))?;
        let saves = self.differences.iter().rev().filter(|one| -one.ms >= least);
        saves.take(MOST).try_for_each(|one| writeln!(f, "  saves {one}"))
    }
}

/// More or less of something, in words.
fn change<T: Display>(by: f64, amount: impl Fn(f64) -> T) -> String {
    if by < 0.0 {
        format!("{} less", amount(-by))
    } else if by > 0.0 {
        format!("{} more", amount(by))
    } else {
        "as much".to_owned()
    }
}

impl Display for Priced {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}: {} of operations, {} of waiting; {}, {}{}",
            nanos(self.step_ms),
            change(self.slower_ms, nanos),
            change(self.slower_compute_ms, nanos),
            change(self.slower_exposed_ms, nanos),
            Bytes(self.peak_bytes),
            change(self.more_bytes as f64, |bytes| Bytes(bytes as u64)),
            if self.fits { "" } else { ", over the memory limit" }
        )
    }
}

impl Display for PlacedOtherwise {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let said = |layout: &IndexMap<String, String>| {
            let each: Vec<String> =
                layout.iter().map(|(axis, placement)| format!("{placement} on {axis}")).collect();
            if each.is_empty() { "replicate".to_owned() } else { each.join(", ") }
        };
        let Self { name, chosen, alternative, inputs } = self;
        write!(
            f,
            "places {inputs} inputs otherwise, first `{name}`: {}, not {}",
            said(alternative),
            said(chosen)
        )
    }
}

impl Display for FirstDifference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { part, module, place, ms, what, .. } = self;
        let module = module_name(module);
        let place = place.as_ref().map_or_else(String::new, |place| format!(", {}", short(place)));
        write!(f, "{} more in {part} of {module}{place}, most of it {what}", nanos(*ms))
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: {}", nanos(self.ms.abs()), self.of, self.what)
    }
}
