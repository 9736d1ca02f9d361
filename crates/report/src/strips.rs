//! Lanes of one step for a page without a script: no more boxes than a screen can show, each with what it stands for.

use std::{collections::BTreeMap, fmt};

use base::Nanos;

/// Width of a drawing whose horizontal axis is time, in units of the picture. Nothing narrower than one of them is drawn.
pub const UNITS: u32 = 4000;

/// What a box stands for, which its colour shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Paint {
    /// An operation of the forward part.
    Forward,
    /// An operation of the backward part.
    Backward,
    /// An operation of the update.
    Update,
    /// A collective.
    Collective,
    /// Waiting for a collective.
    Wait,
    /// What no operation of the graph stands for.
    Other,
}

impl Paint {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        ["forward", "backward", "update", "collectives", "waiting for collectives", "other"][self as usize]
    }

    /// Its class in the style sheet.
    pub fn class(self) -> &'static str {
        ["forward", "backward", "update", "collective", "wait", "other"][self as usize]
    }
}

/// Something that a rank does for a while, from the start of the step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Activity {
    /// Begin.
    pub begin: Nanos,
    /// End.
    pub end: Nanos,
    /// What it is.
    pub paint: Paint,
    /// What it is, for people.
    pub text: String,
}

impl Activity {
    fn duration(&self) -> Nanos {
        self.end - self.begin
    }
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.text, self.duration())
    }
}

/// A lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Strip {
    /// What to call it.
    pub name: String,
    /// What happens on it, in the order of its begin.
    pub activities: Vec<Activity>,
}

/// A box of a drawing, in units of the picture.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Boxed {
    pub x: u32,
    pub width: u32,
    pub class: &'static str,
    pub title: String,
}

/// The boxes of a lane, on a time axis that ends at `end`. Of what is narrower than a unit, each unit has one box: in the paint that takes
/// the most time of it.
pub fn boxes(strip: &Strip, end: Nanos) -> Vec<Boxed> {
    let mut narrow: BTreeMap<u32, Vec<&Activity>> = BTreeMap::new();
    let mut found = Vec::new();
    for activity in strip.activities.iter().filter(|activity| activity.duration().0 > 0) {
        let (x, until) = (unit(activity.begin, end), unit(activity.end, end));
        if until > x + 1 {
            let (class, title) = (activity.paint.class(), activity.to_string());
            found.push(Boxed { x, width: until - x, class, title });
        } else {
            narrow.entry(x).or_default().push(activity);
        }
    }
    found.extend(narrow.into_iter().map(|(x, activities)| together(x, &activities)));
    found.sort_by_key(|boxed| boxed.x);
    found
}

/// One box for what begins in the unit at `x`.
fn together(x: u32, activities: &[&Activity]) -> Boxed {
    let mut times: BTreeMap<Paint, i64> = BTreeMap::new();
    for activity in activities {
        *times.entry(activity.paint).or_default() += activity.duration().0;
    }
    let class = times.iter().max_by_key(|(_, time)| **time).map_or("", |(paint, _)| paint.class());
    let longest = activities.iter().max_by_key(|activity| activity.duration());
    let longest = longest.map(ToString::to_string).unwrap_or_default();
    let title = match activities {
        [_] => longest,
        _ => format!("{} in {}; the longest: {longest}", activities.len(), Nanos(times.values().sum())),
    };
    Boxed { x, width: 1, class, title }
}

/// Where a time is on an axis that ends at `end`.
pub fn unit(at: Nanos, end: Nanos) -> u32 {
    let share = at.0 as f64 / end.0.max(1) as f64;
    (share * f64::from(UNITS)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(begin: i64, end: i64, paint: Paint, text: &str) -> Activity {
        Activity { begin: Nanos(begin), end: Nanos(end), paint, text: text.to_owned() }
    }

    #[test]
    fn what_is_too_narrow_to_be_seen_shares_boxes() {
        let many = (0..100_000).map(|at| activity(at, at + 1, Paint::Forward, "aten::mm"));
        let strip = Strip { name: "operations".into(), activities: many.collect() };
        let found = boxes(&strip, Nanos(100_000));
        assert_eq!(found.len(), UNITS as usize);
        assert_eq!(found[0].title, "25 in 25 ns; the longest: aten::mm, 1 ns");
    }

    #[test]
    fn a_shared_box_has_the_paint_of_most_of_its_time() {
        let activities = vec![
            activity(0, 2, Paint::Forward, "aten::mm"),
            activity(2, 5, Paint::Wait, "wait"),
            activity(5, 7, Paint::Forward, "aten::add"),
            activity(8000, 16000, Paint::Update, "aten::sub"),
        ];
        let found = boxes(&Strip { name: String::new(), activities }, Nanos(8 * i64::from(UNITS)));
        let shown: Vec<_> = found.iter().map(|one| (one.x, one.width, one.class)).collect();
        assert_eq!(shown, [(0, 1, "forward"), (1000, 1000, "update")]);
    }
}
