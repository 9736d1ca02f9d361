//! Arguments that only some events have: side tables, sorted by row.

use crate::{NameId, Renaming};

/// Values for some rows of a table, in ascending order of the rows.
#[derive(Clone, PartialEq, Debug)]
pub struct Sparse<T> {
    /// The rows that have a value.
    pub rows: Vec<u32>,
    /// Their values.
    pub values: Vec<T>,
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), values: Vec::new() }
    }
}

impl<T> Sparse<T> {
    /// Gives `row`, which is greater than all rows so far, a value.
    pub fn push(&mut self, row: u32, value: T) {
        debug_assert!(self.rows.last().is_none_or(|&last| last < row), "rows of a side table ascend");
        self.rows.push(row);
        self.values.push(value);
    }

    /// The value of `row`.
    pub fn get(&self, row: u32) -> Option<&T> {
        self.rows.binary_search(&row).ok().map(|position| &self.values[position])
    }

    /// All rows with their values.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.rows.iter().copied().zip(&self.values)
    }

    /// How many rows have a value.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether no row has a value.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn append(&mut self, other: Self, offset: u32, change: impl Fn(T) -> T) {
        self.rows.extend(other.rows.into_iter().map(|row| row + offset));
        self.values.extend(other.values.into_iter().map(change));
    }
}

/// What events of a device say.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeviceArgs {
    /// Bytes copied or filled, -1 where absent.
    pub bytes: i64,
    /// Bandwidth as the profiler gives it, in GB/s; 0 where absent.
    pub bandwidth: f64,
    /// For a wait: the stream waited for, -1 where absent.
    pub wait_stream: i64,
    /// For a wait: correlation of the call that recorded the event waited for, -1 where absent.
    pub wait_event: i64,
    /// Node of the device graph that launched it, -1 where absent.
    pub graph_node: i64,
}

/// What operators say of their inputs, each as the JSON text of the trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InputArgs {
    /// Dimensions of each input.
    pub dims: NameId,
    /// Element type of each input.
    pub types: NameId,
    /// Strides of each input.
    pub strides: NameId,
    /// Values of scalar inputs.
    pub concrete: NameId,
}

/// What joins a forward operator and its backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceArgs {
    /// Autograd's sequence number.
    pub number: i64,
    /// The forward thread, on backward operators; 0 or -1 where absent.
    pub forward_thread: i64,
}

/// What joins Python functions to a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonArgs {
    /// Number of this call.
    pub id: i64,
    /// Number of the calling call, -1 for a root.
    pub parent: i64,
    /// Number of the module instance, -1 where it is no module's call.
    pub module: i64,
}

/// What a collective says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CollectiveArgs {
    /// Which operation.
    pub operation: NameId,
    /// Name of the process group.
    pub group: NameId,
    /// Ranks of the group as the JSON text of the trace.
    pub ranks: NameId,
    /// Element type.
    pub dtype: NameId,
    /// Elements that go in, -1 where absent.
    pub elements_in: i64,
    /// Elements that come out, -1 where absent.
    pub elements_out: i64,
    /// Ranks in the group, -1 where absent.
    pub group_size: i64,
    /// Position in the group's order, -1 where absent.
    pub sequence: i64,
}

/// What an event of one of our own programs says of the operation that it is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeArgs {
    /// Position of the operation in the program order of the rank's graph.
    pub node: u32,
    /// The place in the user's code, as `file:line`.
    pub place: NameId,
    /// What put the operation into the graph, where it was not captured.
    pub cause: NameId,
    /// How much it does, as the JSON text of a [`Work`](crate::step::Work).
    pub work: NameId,
}

/// All side tables of a rank.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Sides {
    /// Of device events.
    pub device: Sparse<DeviceArgs>,
    /// Of operators.
    pub inputs: Sparse<InputArgs>,
    /// Of forward and backward operators.
    pub sequence: Sparse<SequenceArgs>,
    /// Of Python functions.
    pub python: Sparse<PythonArgs>,
    /// Of collectives.
    pub collective: Sparse<CollectiveArgs>,
    /// Hardware counters, by name.
    pub counters: Sparse<Vec<(NameId, f64)>>,
    /// Of operations of our own programs.
    pub node: Sparse<NodeArgs>,
}

impl Sides {
    /// Appends the side tables of rows that come after `offset`.
    pub fn append(&mut self, other: Self, offset: u32, renaming: &Renaming) {
        let name = |id| renaming.apply(id);
        self.device.append(other.device, offset, |args| args);
        self.inputs.append(other.inputs, offset, |args| InputArgs {
            dims: name(args.dims),
            types: name(args.types),
            strides: name(args.strides),
            concrete: name(args.concrete),
        });
        self.sequence.append(other.sequence, offset, |args| args);
        self.python.append(other.python, offset, |args| args);
        self.collective.append(other.collective, offset, |args| CollectiveArgs {
            operation: name(args.operation),
            group: name(args.group),
            ranks: name(args.ranks),
            dtype: name(args.dtype),
            ..args
        });
        self.counters.append(other.counters, offset, |values| {
            values.into_iter().map(|(id, value)| (name(id), value)).collect()
        });
        self.node.append(other.node, offset, |args| NodeArgs {
            place: name(args.place),
            cause: name(args.cause),
            work: name(args.work),
            ..args
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_column_answers_for_its_rows_only() {
        let mut column = Sparse::default();
        column.push(3, 'a');
        column.push(7, 'b');
        assert_eq!((column.get(3), column.get(4), column.get(7)), (Some(&'a'), None, Some(&'b')));
    }
}
