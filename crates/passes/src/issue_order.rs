//! What ranks compare before they run: whether all issue the same collectives in the same order.

use std::collections::BTreeMap;

use base::{Fingerprint, Fingerprinter};
use ir::{Arg, Graph};

use crate::{bucket_collectives, direct_collectives, facts::Facts};

/// What is equal for ranks that issue the same collectives in the same order, by group: under the name of a group the fingerprint of its
/// collectives' operators, types and sizes, which is equal for all that are in it together; under no name that of all collectives with what
/// they are for, which is equal for those at one place of the innermost axis. Along that ranks may have more and less of a tensor.
pub fn issue_order(graph: &Graph) -> BTreeMap<String, Fingerprint> {
    let facts = Facts::new(graph);
    let says_size = |reason: &str| {
        [bucket_collectives::LABEL, direct_collectives::LABEL].iter().any(|label| reason.contains(label))
    };
    let mut prints = BTreeMap::from([(String::new(), Fingerprinter::new())]);
    for id in &graph.order {
        let node = &graph.nodes[*id];
        if !facts.is_collective(node) {
            continue;
        }
        let group = graph.group_name(*id).unwrap_or_default();
        for (name, has_sizes) in [("", false), (group, true)] {
            let print = prints.entry(name.to_owned()).or_default();
            // Of rows of groups each rank sends as many as it has.
            let has_sizes = has_sizes && graph.row_operator(*id).is_none();
            print.part(graph.ops[node.op].name.as_bytes());
            let reasons = node.label.map_or("", |label| &graph.labels[label]).split("; ");
            for reason in reasons.filter(|reason| !says_size(reason)) {
                print.part(reason.as_bytes());
            }
            for arg in &node.args {
                match arg {
                    Arg::Str(text) => drop(print.part(text.as_bytes())),
                    _ => arg.values().for_each(|value| {
                        let ty = graph.ty(value);
                        print.part(ty.dtype.text().as_bytes());
                        if has_sizes {
                            print.number(ty.bytes().0);
                        }
                    }),
                }
            }
        }
    }
    prints.into_iter().map(|(name, print)| (name, print.finish())).collect()
}
