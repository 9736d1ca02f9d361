//! A rank's graph as its streams see it.

use base::{Code, Diagnostic, Id, Result, SecondaryMap};
use cluster::Bound;
use cost::{Late, Wires};
use indexmap::IndexMap;
use ir::{AxisKind, Graph, HostCopy, Mesh, NodeId, ValueId, transfer_stages};

use crate::{
    Machine,
    prices::{Work, work},
};

/// No single operation counts for more, in picoseconds: sums of all that a graph has stay far from the largest number.
const LONGEST: i64 = 1 << 50;

/// A step that takes no time.
const NOTHING: Step = Step::Operation(0, Bound::Bytes);

/// One node of the program order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Runs for so many picoseconds, limited by this.
    Operation(i64, Bound),
    /// Starts a collective of a group, or a copy between device and host.
    Start {
        /// The group.
        group: usize,
        /// Which of the group's ranks this one is.
        member: usize,
        /// What the collective takes, in picoseconds.
        time: i64,
        /// How much of the wires it uses for that long.
        wires: Wires,
    },
    /// Waits for one of the collectives that the rank starts, counted from 0; for nothing where it is of no collective.
    Wait(Option<usize>),
    /// The same for a copy between device and host, which counts among the collectives there.
    WaitCopy(usize),
}

/// One rank's program.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Program {
    /// A step for each node, in program order.
    pub steps: Vec<Step>,
}

/// Ranks that have collectives with each other; or one rank, whose copies in one direction between device and host follow each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// What it is called: `axis:a`, with the number of the group where the axis has several.
    pub name: String,
    /// How many ranks it has.
    pub size: u32,
    /// How far apart in number they are; 0 where simulated ranks have other numbers.
    pub stride: u32,
    /// How much later than those that are simulated the last one comes to a collective.
    pub late: Late,
    /// Whether it is of copies between device and host: engines of their own make them, which disturb nothing.
    pub copies: bool,
    /// Those of them that are simulated, ascending.
    pub members: Vec<usize>,
}

/// The programs of the simulated ranks.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Programs {
    /// One for each rank.
    pub ranks: Vec<Program>,
    /// The groups that they name.
    pub groups: Vec<Group>,
}

impl Programs {
    /// Of the graphs of all ranks of a mesh, in their order, or of one that stands for all.
    pub fn new(graphs: &[&Graph], machine: Machine<'_>) -> Result<Self> {
        let count = machine.mesh.ranks() as usize;
        if graphs.len() != 1 && graphs.len() != count {
            let message = format!("{} graphs for a mesh of {count} ranks", graphs.len());
            return Err(
                Diagnostic::new(Code::BAD_MESH, message).hint("pass one graph, or that of every rank")
            );
        }
        let who = if graphs.len() == 1 { Who::One } else { Who::All };
        Self::of(graphs, machine, who)
    }

    /// Of one rank of each pipeline stage, which stands for all of that stage.
    pub fn of_stages(graphs: &[&Graph], machine: Machine<'_>) -> Result<Self> {
        Self::of(graphs, machine, Who::Stages)
    }

    fn of(graphs: &[&Graph], machine: Machine<'_>, who: Who) -> Result<Self> {
        let mut groups = Groups { machine, who, found: IndexMap::new() };
        let ranks = graphs.iter().enumerate().map(|(rank, graph)| program(graph, rank, &mut groups));
        let ranks = ranks.collect::<Result<_>>()?;
        let programs = Self { ranks, groups: groups.found.into_values().collect() };
        programs.check(graphs)?;
        Ok(programs)
    }

    /// Refuses ranks that start other collectives than the first rank of a group.
    fn check(&self, graphs: &[&Graph]) -> Result<()> {
        for (number, group) in self.groups.iter().enumerate() {
            let Some((first, others)) = group.members.split_first() else { continue };
            let expected = self.started(graphs[*first], *first, number);
            for rank in others {
                let found = self.started(graphs[*rank], *rank, number);
                if let Some(at) = different(graphs[*first], &expected, graphs[*rank], &found) {
                    let node = found.get(at).or(expected.get(at)).copied();
                    return Err(mismatch(graphs[*rank], *rank, *first, &group.name, at, node));
                }
            }
        }
        Ok(())
    }

    /// The nodes that start a group's collectives on a rank.
    fn started(&self, graph: &Graph, rank: usize, number: usize) -> Vec<NodeId> {
        let steps = graph.order.iter().zip(&self.ranks[rank].steps);
        let of_group = |step: &Step| matches!(step, Step::Start { group, .. } if *group == number);
        steps.filter(|(_, step)| of_group(step)).map(|(id, _)| *id).collect()
    }
}

/// The first position at which two ranks start different collectives.
fn different(one: &Graph, expected: &[NodeId], other: &Graph, found: &[NodeId]) -> Option<usize> {
    let same = |(a, b): (&NodeId, &NodeId)| {
        let bytes = |graph: &Graph, id: NodeId| -> u64 {
            graph.nodes[id].operands().map(|value| graph.ty(value).bytes().0).sum()
        };
        let alike = one.op_name(*a) == other.op_name(*b) && bytes(one, *a) == bytes(other, *b);
        alike && transferred(one, *a) == transferred(other, *b)
    };
    let alike = expected.iter().zip(found).take_while(|pair| same(*pair)).count();
    (alike < expected.len().max(found.len())).then_some(alike)
}

/// What a transfer between stages carries, in words that are the same on both sides; none for other collectives.
fn transferred(graph: &Graph, id: NodeId) -> Option<&str> {
    graph.group_name(id).and_then(transfer_stages)?;
    graph.nodes[id].label.map(|label| graph.labels[label].as_str())
}

fn mismatch(
    graph: &Graph,
    rank: usize,
    first: usize,
    group: &str,
    at: usize,
    node: Option<NodeId>,
) -> Box<Diagnostic> {
    let message = format!("collective {at} of `{group}` on rank {rank} is not that of rank {first}");
    let diagnostic = Diagnostic::new(Code::BAD_GRAPH, message)
        .because("ranks of a group must start the same collectives in the same order");
    match node.filter(|id| id.index() < graph.nodes.len()).and_then(|id| graph.place(id)) {
        Some(place) => diagnostic.at(place.clone()),
        None => diagnostic,
    }
}

/// Which ranks are simulated.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// One, which stands for all.
    One,
    /// One of each pipeline stage, which stands for all of that stage.
    Stages,
    /// All.
    All,
}

/// The groups that programs name.
struct Groups<'a> {
    machine: Machine<'a>,
    who: Who,
    found: IndexMap<(String, usize), Group>,
}

impl Groups<'_> {
    /// The axis of a symbolic name such as `axis:a`, with its number.
    fn axis(&self, name: &str) -> Option<usize> {
        let axis = name.strip_prefix("axis:")?;
        self.machine.mesh.axes.iter().position(|known| known.name == axis && known.kind == AxisKind::Ranks)
    }

    /// The simulated ranks of the group of that name which `rank` is in, and how many ranks the group has.
    fn members(&self, name: &str, rank: usize) -> Option<(Vec<usize>, u32)> {
        let mesh = self.machine.mesh;
        if let Some((from, to)) = transfer_stages(name) {
            let (number, _) = mesh.stage_axis()?;
            let (low, high) = (from.min(to) as usize, from.max(to) as usize);
            let members = match self.who {
                Who::One => vec![rank],
                Who::Stages => vec![low, high],
                Who::All => {
                    let all = along(mesh, rank, number);
                    vec![*all.get(low)?, *all.get(high)?]
                }
            };
            return Some((members, 2));
        }
        let axis = self.axis(name)?;
        let members = if self.who == Who::All { along(mesh, rank, axis) } else { vec![rank] };
        Some((members, mesh.axes[axis].size))
    }

    /// The group of that name which `rank` is in, and which of its members the rank is.
    fn of(&mut self, name: &str, rank: usize) -> Option<(usize, usize)> {
        let (members, size) = self.members(name, rank)?;
        let member = members.iter().position(|member| *member == rank)?;
        let first = members[0];
        let several = self.who != Who::One && self.machine.mesh.ranks() > size;
        let key = (name.to_owned(), first);
        let shown = if several { format!("{name} of rank {first}") } else { name.to_owned() };
        let axis = self.axis(name).filter(|_| self.who != Who::Stages);
        let mesh = self.machine.mesh;
        let stride_of = |axis: usize| mesh.stride_of(&mesh.axes[axis].name);
        let stride = axis.map_or(0, stride_of);
        let late =
            |axis| Late::of(self.machine.cluster, cost::Group { ranks: size, stride: stride_of(axis) });
        let late = self.axis(name).map_or_else(Late::default, late);
        let entry = self.found.entry(key);
        let index = entry.index();
        entry.or_insert(Group { name: shown, size, stride, late, copies: false, members });
        Some((index, member))
    }

    /// The stream of a rank's copies in one direction.
    fn copies(&mut self, copy: HostCopy, rank: usize) -> usize {
        let name = if copy.is_out() { "to host" } else { "from host" };
        let shown = if self.who == Who::One { name.to_owned() } else { format!("{name} of rank {rank}") };
        let entry = self.found.entry((name.to_owned(), rank));
        let index = entry.index();
        entry.or_insert(Group {
            name: shown,
            size: 1,
            stride: 0,
            late: Late::default(),
            copies: true,
            members: vec![rank],
        });
        index
    }
}

/// The ranks with the coordinates of `rank` on all axes but `axis`.
fn along(mesh: &Mesh, rank: usize, axis: usize) -> Vec<usize> {
    let axis_of = &mesh.axes[axis];
    let inner = mesh.stride_of(&axis_of.name);
    let first = rank - (mesh.coordinate(rank as u32, axis) * inner) as usize;
    (0..axis_of.rank_count() as usize).map(|at| first + at * inner as usize).collect()
}

fn program(graph: &Graph, rank: usize, groups: &mut Groups<'_>) -> Result<Program> {
    let mut started: SecondaryMap<ValueId, Option<usize>> = SecondaryMap::with_default(None);
    let mut count = 0;
    let mut steps = Vec::with_capacity(graph.order.len());
    for id in &graph.order {
        let step = match work(graph, *id, groups.machine) {
            Work::Operation(time, bound) => Step::Operation(time.clamp(0, LONGEST), bound),
            Work::Wait(value) => Step::Wait(started[value]),
            Work::WaitCopy(value) => started[value].map_or(NOTHING, Step::WaitCopy),
            Work::Copy(copy, time) => {
                graph.nodes[*id].results().for_each(|value| started[value] = Some(count));
                count += 1;
                let group = groups.copies(copy, rank);
                Step::Start { group, member: 0, time: time.clamp(0, LONGEST), wires: Wires::default() }
            }
            Work::Collective(time, wires) => {
                let name = graph.group_name(*id).unwrap_or_default();
                let (group, member) = groups.of(name, rank).ok_or_else(|| unknown(graph, *id, name))?;
                graph.nodes[*id].results().for_each(|value| started[value] = Some(count));
                count += 1;
                Step::Start { group, member, time: time.clamp(0, LONGEST), wires }
            }
        };
        steps.push(step);
    }
    Ok(Program { steps })
}

fn unknown(graph: &Graph, id: NodeId, name: &str) -> Box<Diagnostic> {
    let message = format!("`{}` is on the group `{name}`, which the mesh does not have", graph.op_name(id));
    Diagnostic::new(Code::BAD_MESH, message).hint("groups are called `axis:` and the name of a mesh axis")
}
