//! What a partition is, for people.

use std::{collections::BTreeMap, fmt::Write};

use ir::Graph;

use super::partition::{Group, Partition};

impl Partition {
    /// A text of the groups of `graph`, equal kernels once, what they save, and why all else stays as it is.
    pub fn describe(&self, graph: &Graph) -> String {
        let operations: usize = self.groups.iter().map(|group| group.nodes.len()).sum();
        let mut text = format!(
            "{} kernels for {operations} operations, which move {} less; they read and write {}% of what all do that kernels can compute\n",
            self.groups.len(),
            self.saved(),
            self.coverage.percent()
        );
        for (number, (kernel, groups)) in self.alike().iter().enumerate() {
            let ops: Vec<&str> = groups[0].nodes.iter().map(|id| graph.op_name(*id)).collect();
            let (times, saved) = (groups.len(), groups[0].saved);
            let _ = writeln!(text, "\n{number}: {times} times, {saved} less each, for {}", ops.join(", "));
            kernel.lines().for_each(|line| text.extend(["  ", line, "\n"]));
        }
        text.push_str("\nas they are\n");
        for left in &self.left {
            let _ = writeln!(text, "  {} of {}: {}", left.count, left.op, left.reason);
        }
        text
    }

    /// The groups of each kernel, those with most groups first.
    fn alike(&self) -> Vec<(String, Vec<&Group>)> {
        let mut alike: BTreeMap<String, Vec<&Group>> = BTreeMap::new();
        for group in &self.groups {
            alike.entry(group.kernel.to_string()).or_default().push(group);
        }
        let mut alike: Vec<_> = alike.into_iter().collect();
        alike.sort_by_key(|(_, groups)| std::cmp::Reverse(groups.len()));
        alike
    }
}
