//! The page of a plan: what it is, what a step of it does when, where time and memory go, and what it was chosen over. It needs no script.

use askama::Template;
use base::{Diagnostic, Nanos, Result};

use crate::{
    charts::{Area, Considered, HEIGHT, Memory, Scatter, scatter, time_ticks},
    strips::{Boxed, Paint, Strip, UNITS, boxes},
};

/// A part of a bar.
#[derive(Clone, PartialEq, Debug)]
pub struct Share {
    /// Its colour.
    pub paint: Paint,
    /// How much of the bar it is.
    pub percent: f64,
    /// What it is, for people.
    pub text: String,
}

/// A row of a table, with a bar at its end if there is anything in it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Row {
    /// The cells; the first one is a name.
    pub cells: Vec<String>,
    /// The bar.
    pub bar: Vec<Share>,
}

/// A section of the page with a table.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// The heading.
    pub heading: String,
    /// What the table says.
    pub note: String,
    /// What is in the columns.
    pub heads: Vec<String>,
    /// The rows, what matters most first.
    pub rows: Vec<Row>,
}

/// Rows that are shown at once; further ones appear on demand.
const FIRST: usize = 16;

impl Table {
    fn first(&self) -> &[Row] {
        &self.rows[..self.rows.len().min(FIRST)]
    }

    fn others(&self) -> &[Row] {
        &self.rows[self.first().len()..]
    }
}

/// The lanes of a step, as it was predicted or measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// Which of them.
    pub heading: String,
    /// The lanes.
    pub strips: Vec<Strip>,
}

/// What the page says.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanPage {
    /// What the plan is, in the field's words.
    pub label: String,
    /// What it is for and what it takes, in sentences.
    pub lead: Vec<String>,
    /// What the reader should know before using it.
    pub warnings: Vec<String>,
    /// What the time of a step is made of.
    pub shares: Vec<Share>,
    /// Whose step is shown.
    pub rank: u32,
    /// The same step, predicted and perhaps measured.
    pub steps: Vec<Step>,
    /// Predicted memory over the step.
    pub memory: Memory,
    /// What is in memory at the peak.
    pub at_peak: Table,
    /// Who has made that.
    pub held: Table,
    /// Time by module.
    pub modules: Table,
    /// Collectives.
    pub collectives: Table,
    /// Why these exist.
    pub causes: Table,
    /// State with its layout.
    pub state: Table,
    /// The plans that were considered, the chosen one first.
    pub plans: Vec<Considered>,
}

/// A step as it is drawn.
struct Drawn<'a> {
    heading: &'a str,
    lanes: Vec<Lane<'a>>,
}

struct Lane<'a> {
    name: &'a str,
    boxes: Vec<Boxed>,
}

#[derive(Template)]
#[template(path = "plan.html", escape = "html")]
struct Drawing<'a> {
    page: &'a PlanPage,
    steps: Vec<Drawn<'a>>,
    area: Area,
    memory_note: String,
    scatter: Scatter,
    ticks: Vec<(f64, String)>,
    /// The end of the time axis, in nanoseconds.
    end: i64,
    units: u32,
    height: u32,
}

impl PlanPage {
    /// The page as HTML.
    pub fn html(&self) -> Result<String> {
        let end = self.end();
        let area = self.memory.area(end);
        let limit = self.memory.limit;
        let drawing = Drawing {
            page: self,
            steps: self.steps.iter().map(|step| drawn(step, end)).collect(),
            memory_note: self.memory_note(&area),
            area,
            scatter: scatter(&self.plans, limit),
            ticks: time_ticks(end),
            end: end.0,
            units: UNITS,
            height: HEIGHT,
        };
        drawing.render().map_err(|error| Diagnostic::bug(format!("cannot render a page: {error}")))
    }

    /// When the last thing ends, on any lane.
    fn end(&self) -> Nanos {
        let strips = self.steps.iter().flat_map(|step| &step.strips);
        strips.flat_map(|strip| &strip.activities).map(|activity| activity.end).max().unwrap_or_default()
    }

    fn memory_note(&self, area: &Area) -> String {
        let state = self.memory.state;
        let held = format!("{} at the peak after {}; {state} of it are state.", area.peak, area.peak_time);
        match (self.memory.limit, area.limit) {
            (Some(limit), Some(_)) => format!("{held} The broken line is the limit, {limit}."),
            (Some(limit), None) => format!("{held} The limit, {limit}, is far above the picture."),
            (None, _) => format!("{held} There is no limit."),
        }
    }
}

fn drawn(step: &Step, end: Nanos) -> Drawn<'_> {
    let lanes = step.strips.iter().map(|strip| Lane { name: &strip.name, boxes: boxes(strip, end) });
    Drawn { heading: &step.heading, lanes: lanes.collect() }
}

#[cfg(test)]
mod tests {
    use base::Bytes;

    use super::*;
    use crate::Activity;

    fn page(name: &str) -> PlanPage {
        let activity =
            Activity { begin: Nanos(0), end: Nanos(1000), paint: Paint::Forward, text: name.into() };
        let row = |number: u32| Row { cells: vec![format!("{name}{number}")], bar: Vec::new() };
        PlanPage {
            label: name.into(),
            lead: vec![name.into()],
            warnings: vec![name.into()],
            shares: vec![Share { paint: Paint::Wait, percent: 50.0, text: name.into() }],
            rank: 0,
            steps: vec![Step {
                heading: name.into(),
                strips: vec![Strip { name: name.into(), activities: vec![activity] }],
            }],
            memory: Memory {
                held: vec![(Nanos(0), Bytes(1 << 30))],
                limit: Some(Bytes(2 << 30)),
                ..Memory::default()
            },
            at_peak: Table::default(),
            held: Table::default(),
            modules: Table {
                heading: name.into(),
                heads: vec![name.into()],
                rows: (0..20).map(row).collect(),
                ..Table::default()
            },
            collectives: Table::default(),
            causes: Table::default(),
            state: Table::default(),
            plans: vec![Considered {
                label: name.into(),
                step: Nanos(1000),
                waiting: Some(Nanos(10)),
                memory: Bytes(1 << 30),
                fits: true,
            }],
        }
    }

    #[test]
    fn a_page_needs_nothing_else_and_names_cannot_break_out_of_it() {
        let html = page("</script><b onclick=\"x\">").html().expect("a page");
        assert!(!html.contains("http") && !html.contains("src=") && !html.contains("<link"));
        assert_eq!(html.matches("</script>").count(), 1);
        assert!(!html.contains("<b ") && !html.contains("onclick=\""));
    }

    #[test]
    fn rows_beyond_the_first_appear_on_demand() {
        let html = page("row").html().expect("a page");
        let (shown, hidden) = html.split_once("<summary>4 more</summary>").expect("more rows");
        assert!(shown.contains(">row15<") && !shown.contains(">row16<") && hidden.contains(">row19<"));
    }

    #[test]
    fn memory_is_told_beside_its_limit() {
        let html = page("plan").html().expect("a page");
        assert!(
            html.contains("1 GiB at the peak after 0 ns")
                && html.contains("The broken line is the limit, 2 GiB.")
        );
    }
}
