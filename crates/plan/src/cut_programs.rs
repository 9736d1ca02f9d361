//! Programs cut for pipeline stages: where, what their chunks cost by the first micro-batch, and the program of all micro-batches once it is needed.

use std::collections::BTreeSet;

use base::{Code, Diagnostic, Result};
use ir::{AxisKind, Graph, Mesh, MeshAxis, RankGraph};
use schedule::{Kind, Placement, Schedule};
use shard::{Assignment, partition, partition_mesh, partition_mesh_in_part, stages::forward_end};

use crate::{
    beyond::Known,
    candidates::{candidates, first_of_each_placement},
    cuts::Profile,
    in_part::{InPart, Written, has_one_loop},
    pipelines::Pipelines,
    stage_costs::costs,
    stages::Stages,
    tried::Cut,
};

impl Pipelines<'_> {
    /// The program cut for each way to put chunks on stages. Of a large program the best cuts of each way are made first, and others for the
    /// one of these that takes least.
    pub fn cuts(&self, schedules: &[(Kind, Schedule)]) -> Result<Vec<Cut>> {
        let first = self.first_micro_batch()?;
        let placements = first_of_each_placement(schedules, |(_, schedule)| schedule);
        let is_thrifty = self.extent.is_thrifty && self.has_room();
        let (mut cuts, mut left, mut refused) = (Vec::new(), Vec::new(), None);
        for (kind, schedule) in placements {
            let mut ways = match self.ways(&self.searched.canonical, &schedule.placement) {
                Ok(ways) => ways,
                Err(reason) => {
                    refused = refused.or(Some(reason));
                    continue;
                }
            };
            let others = if is_thrifty {
                ways.split_off(1)
            } else {
                ways.sort();
                Vec::new()
            };
            for way in ways {
                cuts.push(self.cut((&way, &first), *kind, schedule)?);
            }
            left.push((kind, schedule, others));
        }
        if is_thrifty {
            let best = candidates(&cuts, schedules, 1).first().map(|one| &one.schedule.placement);
            let same = left.into_iter().filter(|(_, schedule, _)| best == Some(&schedule.placement));
            for (kind, schedule, others) in same {
                for way in others {
                    cuts.push(self.cut((&way, &first), *kind, schedule)?);
                }
            }
        }
        match refused.filter(|_| cuts.is_empty()) {
            Some(refused) => Err(refused),
            None => Ok(cuts),
        }
    }

    /// The program cut at these operations, with what that costs by its first micro-batch.
    fn cut(&self, (way, first): (&[usize], &RankGraph), kind: Kind, schedule: &Schedule) -> Result<Cut> {
        let (stages, staged) = Stages::of(&self.searched.canonical, way, kind, schedule)?;
        let costs = costs(&in_chunks(first, &staged.graph), &schedule.placement, self.machine);
        Ok(Cut { stages, staged, written: None, costs, recomputed_ns: 0 })
    }

    /// The step in canonical form, each operation in a chunk of its own, so that those of a rank's graph say which one they are of.
    fn numbered(&self) -> Graph {
        let mut graph = self.searched.canonical.clone();
        for (at, id) in graph.order.iter().enumerate() {
            graph.nodes[*id].stage = Some(at as u32);
        }
        graph
    }

    /// What a rank of all stages computes of the first micro-batch, with what is computed once: a small part of the whole program.
    fn first_micro_batch(&self) -> Result<RankGraph> {
        let mut next = self.decisions();
        let (time, ranks): (Vec<MeshAxis>, Vec<MeshAxis>) =
            self.request.mesh.axes.iter().cloned().partition(|axis| axis.kind == AxisKind::Time);
        let mut first = partition_mesh(&self.numbered(), &Mesh { axes: ranks }, 0, &mut next)?;
        if let Some(axis) = time.first() {
            first = partition(&first, &next(&first, axis)?, axis, 0)?.into_renumbered();
        }
        self.cleaned(&first)
    }

    /// What the search has decided along one axis after the other.
    fn decisions(&self) -> impl FnMut(&Graph, &MeshAxis) -> Result<Assignment> {
        let mut decisions = self.searched.best.assignments.iter();
        move |_, _| Ok(decisions.next().cloned().unwrap_or_default())
    }

    fn cleaned(&self, graph: &RankGraph) -> Result<RankGraph> {
        passes::run(&passes::cleaned(self.searched.best.passes.without_checkpoints), graph, |_| {})
    }

    /// Writes out the program of a cut, with all micro-batches or as many as say what all take, and what its chunks cost in it.
    pub fn write_out(&self, cut: &mut Cut) -> Result<()> {
        if cut.written.is_some() {
            return Ok(());
        }
        let whole = if let Some(whole) = self.whole.get() {
            whole
        } else {
            let whole = self.written_out()?;
            self.whole.get_or_init(|| whole)
        };
        let written =
            whole.map(|one| Ok(Written { program: in_chunks(&one.program, &cut.staged.graph), ..*one }))?;
        cut.costs = costs(&written.longer.program, &cut.costs.placement, self.machine);
        cut.written = Some(written);
        Ok(())
    }

    /// The program of all stages, its operations numbered.
    fn written_out(&self) -> Result<Known<Written>> {
        let (step, mesh) = (self.numbered(), self.request.mesh);
        let written = |program: &RankGraph, micro_batches| -> Result<Written> {
            Ok(Written { program: self.cleaned(program)?, micro_batches })
        };
        if let Some(InPart { few, more, left_out }) = self.part {
            let of = |count| partition_mesh_in_part(&step, mesh, (0, count), self.decisions());
            if let (Some(shorter), Some(longer)) = (of(few)?, of(more)?) {
                let longer = written(&longer, more)?;
                if has_one_loop(&longer) {
                    return Ok(Known { longer, shorter: Some((written(&shorter, few)?, left_out)) });
                }
            }
        }
        let whole = partition_mesh(&step, mesh, 0, self.decisions())?;
        Ok(Known::of_all(written(&whole, mesh.micro_batches())?))
    }

    /// Where to cut for chunks on stages, each once, those at which the slowest chunk takes least first.
    fn ways(&self, canonical: &Graph, placement: &Placement) -> Result<Vec<Vec<usize>>> {
        let (stages, chunks) = (placement.stages, placement.chunks());
        let mut ways: Vec<Vec<usize>> = if let Some(cuts) = self.wanted.cuts {
            vec![cuts.iter().map(|cut| cut.position(canonical)).collect::<Result<_>>()?]
        } else {
            let most = self.extent.cuts;
            let ways = Profile::of(canonical, self.machine).ways(chunks, most).into_iter();
            let lighter = self.request.memory_limit.map(|_| {
                let micro_batches = self.request.mesh.micro_batches();
                Profile::of_memory(canonical, stages, micro_batches).ways(chunks, most)
            });
            ways.chain(lighter.into_iter().flatten()).collect()
        };
        let mut seen = BTreeSet::new();
        ways.retain(|way| seen.insert(way.clone()));
        if ways.is_empty() {
            return Err(too_many(canonical, chunks));
        }
        if let Some(cuts) = ways.iter().find(|cuts| cuts.len() as u32 + 1 != chunks) {
            let of = if chunks == stages { String::new() } else { format!(" with {chunks} chunks in all") };
            let message = format!("{} cuts for {stages} stages{of}", cuts.len());
            return Err(Diagnostic::new(Code::BAD_MESH, message)
                .hint("give one position for each chunk but the first; a stage has one chunk unless its schedule has more"));
        }
        Ok(ways)
    }
}

/// A rank's graph whose operations say which of a step's they are of, with the chunks that those are in.
fn in_chunks(numbered: &RankGraph, staged: &Graph) -> RankGraph {
    let mut graph = numbered.clone();
    for (_, node) in graph.nodes.iter_mut() {
        node.stage = node.stage.and_then(|at| staged.nodes[staged.order[at as usize]].stage);
    }
    graph
}

fn too_many(graph: &Graph, chunks: u32) -> Box<Diagnostic> {
    let operations = forward_end(graph);
    let message =
        format!("a step whose forward part has {operations} operations cannot be cut into {chunks} stages");
    Diagnostic::new(Code::BAD_MESH, message).hint("use fewer stages, or fewer chunks on each")
}
