//! Steps whose forward is a chain with branches, and what is asked of the search for them.

use cluster::{
    Cluster,
    testing::{link, uniform},
};
use ir::{
    Arg, Dims, Dtype, Graph, InputClass, Mesh, PartKind, TensorType, ValueId, contiguous_strides,
    testing::Random,
};
use std::collections::BTreeSet;

use unisono_plan::{Effort, Forbid, Pins, Plan, Request, search};

/// A tensor of so many elements.
pub fn tensor(size: i64) -> TensorType {
    let shape: Dims = [size].into_iter().collect();
    TensorType {
        dtype: Dtype::F32,
        strides: contiguous_strides(&shape),
        shape,
        device: ir::Device::default(),
    }
}

/// On which an operation takes what its bytes do.
pub fn machine() -> Cluster {
    let mut cluster = uniform(1e6, 1e9, link(0.0, 1e6));
    cluster.device.operation_ns = 10.0;
    cluster
}

const MUL: &str = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";
const EXP: &str = "aten::exp(Tensor self) -> Tensor";

/// A step whose forward is a chain with branches, of which backward reads some of the results in reverse order.
pub fn random_step(random: &mut Random, operations: usize) -> Graph {
    let mut graph = Graph::default();
    // Larger than what stays in buffers.
    let ty = tensor(1 << 22);
    let mut values: Vec<ValueId> = vec![
        graph.input(InputClass::Parameter, "params.a", ty.clone()),
        graph.input(InputClass::Batch, "batch.0", ty.clone()),
    ];
    let value = |graph: &mut Graph, op: &str, operands: &[ValueId]| {
        graph.push_value(op, operands.iter().map(|value| Arg::Value(*value)).collect(), ty.clone())
    };
    graph.begin_part(PartKind::Forward);
    for _ in 0..operations {
        let last = *values.last().unwrap();
        let other = values[values.len().saturating_sub(4).max(random.below(values.len()))];
        let made = if random.below(3) == 0 {
            value(&mut graph, MUL, &[last, other])
        } else {
            value(&mut graph, EXP, &[last])
        };
        values.push(made);
    }
    graph.begin_part(PartKind::Backward);
    let mut gradient = *values.last().unwrap();
    for read in values[2..].iter().copied().rev() {
        if random.below(3) > 0 {
            gradient = value(&mut graph, MUL, &[gradient, read]);
        }
    }
    graph.begin_part(PartKind::Update);
    let updated = value(&mut graph, MUL, &[values[0], gradient]);
    graph.updates.push((ir::InputId(0), updated));
    graph
}

/// What nobody pins and forbids.
#[derive(Default)]
pub struct Free {
    /// Placements.
    pub pins: Pins,
    /// Collectives.
    pub forbid: Forbid,
}

/// The request for a step without a limit.
pub fn request<'a>(graph: &'a Graph, cluster: &'a Cluster, mesh: &'a Mesh, free: &'a Free) -> Request<'a> {
    Request {
        graph,
        captured: graph,
        shorter: None,
        cluster,
        mesh,
        memory_limit: None,
        pins: &free.pins,
        forbid: &free.forbid,
        effort: Effort::Full,
        expected: None,
        recompute: None,
        reduce_dtype: None,
        offload: None,
        known_ns: None,
        elsewhere: None,
        telling: None,
    }
}

/// How a search does under limits, beside everything that could be chosen.
#[derive(Default)]
pub struct Compared {
    /// How many limits were asked for.
    pub asked: u32,
    /// Under how many of them something faster could be chosen.
    pub slower: u32,
    /// By how much it is faster at most.
    pub loss: f64,
}

impl Compared {
    /// Searches under every limit that is the peak of one of `all`, which have times and peaks. No plan is faster than the fastest of them that
    /// keeps the limit, where it `is_among` them.
    pub fn under_any_limit(
        &mut self,
        all: &[(i64, u64)],
        unlimited: &Request<'_>,
        is_among: impl Fn(&Plan) -> bool,
    ) {
        let peaks: BTreeSet<u64> = all.iter().map(|(_, peak)| *peak).collect();
        for limit in peaks {
            let best = all.iter().filter(|(_, peak)| *peak <= limit).map(|(time, _)| *time).min().unwrap();
            let found = search(&Request { memory_limit: Some(limit), ..*unlimited });
            let plan = found.unwrap_or_else(|error| panic!("limit {limit}: {error}")).plan().unwrap();
            let prediction = plan.prediction;
            assert!(prediction.peak_bytes <= limit, "{prediction:?} under {limit}");
            assert!(prediction.step_ns >= best || !is_among(&plan), "{limit}: everything was not everything");
            self.asked += 1;
            self.slower += u32::from(prediction.step_ns > best);
            self.loss = self.loss.max(prediction.step_ns as f64 / best as f64 - 1.0);
        }
    }
}
