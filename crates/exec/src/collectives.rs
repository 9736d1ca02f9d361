//! Where a rank's graph communicates: for the error of a rank whose collective failed because another rank is gone.

use ir::{Graph, NodeId, ValueDef};

/// Maximum number of reasons for a collective in a message.
const MOST_REASONS: usize = 3;

/// The collectives that a line of the user's code, `file:line`, issues or waits for, with their reasons, and the line that issues the first
/// of them. `None` for `place` means collectives that are waited for at no line, such as those of values that are only returned.
pub fn collective_at(graph: &Graph, place: Option<&str>) -> Option<(String, Option<String>)> {
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for id in &graph.order {
        if place_of(graph, *id).as_deref() != place {
            continue;
        }
        let Some(text) = collective_of(graph, *id) else { continue };
        let issued = awaited(graph, *id);
        if found.iter().all(|(known, _)| *known != text) {
            found.push((text, place_of(graph, issued)));
        }
    }
    let others = found.len().saturating_sub(1);
    let (text, issued) = found.into_iter().next()?;
    let text = if others == 0 { text } else { format!("{text} or one of {others} others of this line") };
    Some((text, issued))
}

/// The collective that a node issues or waits for, with the reasons for it.
pub fn collective_of(graph: &Graph, id: NodeId) -> Option<String> {
    let issued = awaited(graph, id);
    let collective = graph.collective(issued)?;
    let label = graph.nodes[issued].label.map_or("", |label| graph.labels[label].as_str());
    Some(format!("{}{}", collective.kind, reasons(label)))
}

fn place_of(graph: &Graph, id: NodeId) -> Option<String> {
    graph.place(id).map(ToString::to_string)
}

/// The collective that a node waits for; the node itself where it waits for none.
fn awaited(graph: &Graph, id: NodeId) -> NodeId {
    let operand = graph.nodes[id].operands().next().filter(|_| graph.is_wait(id));
    match operand.map(|value| graph.values[value].def) {
        Some(ValueDef::Result(maker, _)) => maker,
        _ => id,
    }
}

/// The reasons for a collective, in parentheses; at most the first few.
fn reasons(label: &str) -> String {
    let reasons: Vec<&str> = label.split("; ").filter(|reason| !reason.is_empty()).collect();
    if reasons.is_empty() {
        return String::new();
    }
    let mut named: Vec<String> =
        reasons.iter().take(MOST_REASONS).map(|reason| (*reason).to_owned()).collect();
    if reasons.len() > MOST_REASONS {
        named.push(format!("{} more", reasons.len() - MOST_REASONS));
    }
    format!(" ({})", named.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAPH: &str = "unisono graph 2\n\
        op _c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor\n\
        op _c10d_functional::wait_tensor(Tensor tensor) -> Tensor\n\
        input v0: f32[4] = batch \"batch.0\"\n\
        v1: f32[4] = _c10d_functional::all_reduce(v0, \"sum\", \"axis:a\") @p0 l0\n\
        v2: f32[4] = _c10d_functional::wait_tensor(v1) @p1\n\
        return v2\n\
        place p0 \"train.py\":3\n\
        place p1 \"train.py\":7\n\
        label l0 \"one; two; three; four; five\"\n";

    #[test]
    fn a_line_that_issues_or_waits_names_the_collective_and_where_it_is_issued() {
        let graph = Graph::from_text("test", GRAPH).expect("the text is a graph");
        let expected = "all_reduce (one; two; three; 2 more)".to_owned();
        let issued = Some("train.py:3".to_owned());
        assert_eq!(collective_at(&graph, Some("train.py:7")), Some((expected.clone(), issued.clone())));
        assert_eq!(collective_at(&graph, Some("train.py:3")), Some((expected, issued)));
        assert_eq!(collective_at(&graph, Some("train.py:4")), None);
        assert_eq!(collective_at(&graph, None), None);
    }
}
