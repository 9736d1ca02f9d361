//! Why collectives exist: the changes of placement that their labels name, in words without numbers of values.

use ir::{Graph, NodeId, UNEVEN};

use crate::text::patterns::folded;

/// What begins a change of placement in a label.
const RESHARD: &str = "reshard ";
/// What begins a step of attention over a sharded sequence.
const SEQUENCE: &str = "sequence ";
/// What begins a transfer between pipeline stages.
const TRANSFER: &str = "transfer ";

/// What a node's collective does, and whether it does so by a direct exchange; nothing of a node that is none.
pub fn meant(graph: &Graph, id: NodeId) -> (String, bool) {
    let label = graph.nodes[id].label.map(|label| graph.labels[label].as_str());
    match (label.and_then(passes::direct_form_of), graph.collective(id)) {
        (Some(kind), _) => (kind.to_owned(), true),
        (None, collective) => (collective.map_or_else(String::new, |one| one.kind.to_string()), false),
    }
}

/// The changes that a collective serves, with `*` for numbers in paths, each once; several where it is a bucket.
pub fn changes(graph: &Graph, id: NodeId) -> Vec<String> {
    let node = &graph.nodes[id];
    let label = node.label.map_or("", |label| graph.labels[label].as_str());
    let mut found: Vec<String> = Vec::new();
    for change in label.split("; ").filter_map(change) {
        if !found.contains(&change) {
            found.push(change);
        }
    }
    if found.is_empty() {
        let module = node.module.map_or("", |module| graph.modules[module].as_str());
        found.push(format!("within an operation of `{}`", folded(module)));
    }
    found
}

/// One part of a label: what changes from which placement to which.
fn change(text: &str) -> Option<String> {
    if let Some(sent) = text.strip_prefix(TRANSFER) {
        let (what, route) = sent.rsplit_once(" from stage ")?;
        let what = what.split(" of micro-batch ").next().unwrap_or(what);
        return Some(format!("{}: from stage {route}", named(what)));
    }
    if let Some(sent) = text.strip_prefix(SEQUENCE) {
        let (what, moved) = sent.rsplit_once(": ")?;
        let (what, _) = what.rsplit_once(" on ")?;
        let moved = moved.split(", step ").next().unwrap_or(moved);
        return Some(format!("{}: {moved}", named(what)));
    }
    let text = text.strip_prefix(RESHARD)?;
    let (what, change) = text.rsplit_once(": ")?;
    let (what, _) = what.rsplit_once(" on ")?;
    Some(format!("{}: {}", named(what), change.strip_suffix(UNEVEN).unwrap_or(change)))
}

/// A value's name: that of an input, or the operation and the module that made it.
fn named(what: &str) -> String {
    let made = what.split_once(" of ").filter(|(value, _)| {
        value.strip_prefix('v').is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let Some((_, made)) = made else { return folded(what) };
    let (operation, module) = made.split_once(" in `").unwrap_or((made, "`"));
    // Of what an outer axis put together.
    let operation = if operation.ends_with("::wait_tensor") { "a collective's result" } else { operation };
    match module.trim_end_matches('`') {
        "" => operation.to_owned(),
        module => format!("{operation} in `{}`", folded(module)),
    }
}

#[cfg(test)]
mod tests {
    use super::change;

    #[test]
    fn changes_are_read_off_labels_without_numbers() {
        let texts = [
            "reshard params.blocks.3.up.weight on data: shard(0) -> replicate",
            "reshard v648 of aten::mm in `blocks.2.down` on tensor: partial(sum) -> shard(0, 4)",
            "reshard v7 of _c10d_functional::wait_tensor in `o` on a: shard(1) -> replicate, uneven",
            "reshard v7 of aten::sum in `` on a: partial(sum) -> replicate",
            "transfer v77 of aten::mm of micro-batch 3 from stage 0 to stage 1",
            "sequence v9 of aten::attend in `blocks.3` on a: ring of keys and values, step 2, uneven",
            "bucket_collectives: 2 all_gather of 8 MiB",
        ];
        let expected = [
            Some("params.blocks.*.up.weight: shard(0) -> replicate"),
            Some("aten::mm in `blocks.*.down`: partial(sum) -> shard(0, 4)"),
            Some("a collective's result in `o`: shard(1) -> replicate"),
            Some("aten::sum: partial(sum) -> replicate"),
            Some("aten::mm: from stage 0 to stage 1"),
            Some("aten::attend in `blocks.*`: ring of keys and values"),
            None,
        ];
        assert_eq!(texts.map(change), expected.map(|text| text.map(str::to_owned)));
    }
}
