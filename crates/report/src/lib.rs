//! What analyses say, as one self-contained HTML page: no script, style or picture comes from elsewhere.

mod charts;
mod lanes;
mod plan_page;
mod strips;

use askama::Template;
use base::{Diagnostic, Result};
use serde::Serialize;
use trace::{Frames, breakdown, causal, findings, memory, summary, waiting};

pub use charts::{Considered, Memory};
pub use lanes::{Lane, lanes};
pub use plan_page::{PlanPage, Row, Share, Step, Table};
pub use strips::{Activity, Paint, Strip};

/// The page of a run.
#[derive(Template)]
#[template(path = "trace.html", escape = "html")]
struct Page<'a> {
    title: &'a str,
    notes: Vec<String>,
    findings: Vec<findings::Finding>,
    /// All data of the pictures as JSON, safe inside a script element.
    data: String,
}

/// What the pictures are drawn from. Times are microseconds since the first event.
#[derive(Serialize)]
struct Data<'a> {
    lanes: Vec<Lane>,
    temporal: Vec<breakdown::Temporal>,
    waiting: &'a waiting::Waiting,
    memory: &'a [memory::DeviceMemory],
    path: Option<&'a causal::CriticalPath>,
}

/// The page of `frames`, as HTML.
pub fn trace_page(frames: &Frames<'_>, title: &str, options: &summary::Options) -> Result<String> {
    let answers = summary::Answers::new(frames, options);
    let found = findings::findings(&answers);
    let data = Data {
        lanes: lanes(frames),
        temporal: breakdown::temporal(frames),
        waiting: answers.waiting(),
        memory: answers.memory(),
        path: answers.path(),
    };
    let data = serde_json::to_string(&data)
        .map_err(|error| Diagnostic::bug(format!("cannot encode a page: {error}")))?;
    let notes = summary::notes(frames).iter().map(ToString::to_string).collect();
    // a script element ends at the first `</`, even inside a string
    let page = Page { title, notes, findings: found, data: data.replace("</", "<\\/") };
    page.render().map_err(|error| Diagnostic::bug(format!("cannot render a page: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use timeline::{Timeline, kineto};

    #[test]
    fn a_page_needs_nothing_else_and_names_cannot_break_out_of_it() {
        let json = r#"[{"ph":"X","cat":"kernel","name":"</script><b>","pid":0,"tid":7,"ts":1,"dur":2,"args":{"stream":7,"correlation":1}}]"#;
        let mut timeline = Timeline::default();
        let (names, rank) = kineto::read_bytes(json.as_bytes().to_vec(), "x").expect("a trace");
        timeline.add(names, rank);
        let frames = Frames::new(&timeline, trace::Mode::Exact, trace::Selection::default());
        let page = trace_page(&frames, "<title>", &summary::Options::default()).expect("a page");
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="));
        assert_eq!(page.matches("</script>").count(), 1);
        assert!(page.contains("&#60;title&#62;") || page.contains("&lt;title&gt;"));
    }
}
