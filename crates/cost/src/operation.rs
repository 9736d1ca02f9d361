//! What an operation takes on a device, from what it does and nothing else.

use aten::{Call, Row, Strategy, Work};
use cluster::{Amounts, Bound, Cluster, Device, Fit};
use ir::{Chunks, Dtype, Placement, TensorType, local_bytes};

use crate::machine::{PICOS, traffic};

/// One operation as the cost model sees it: of a graph, or of a trace that says as much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Operation<'a> {
    /// The operator, overload included.
    pub name: &'a str,
    /// The element type that it computes in.
    pub dtype: Dtype,
    /// The element type that it reads.
    pub reads: Dtype,
    /// How much it does.
    pub amounts: Amounts,
    /// Whether all its tensors but single numbers have one shape and order.
    pub is_even: bool,
}

impl<'a> Operation<'a> {
    /// A call of a rank's graph; nothing where it has no tensors, or takes no time.
    pub fn of(call: &Call<'a>) -> Option<Self> {
        let row = aten::row(call.name());
        if row.is_some_and(|row| matches!(row.work, Work::View | Work::Nothing)) {
            return None;
        }
        let alone = aten::replicated(call);
        Some(Self {
            name: call.name(),
            dtype: main_dtype(call)?,
            reads: reads(call),
            amounts: amounts(call, row, &alone, 1),
            is_even: is_even(call),
        })
    }

    /// Whether its time is told by what was measured of its operator, and not by the rates of the device.
    pub fn is_measured(&self, device: &Device) -> bool {
        aten::row(self.name).is_some() && device.fit(self.name, self.dtype).is_some()
    }

    /// Its time where nothing runs beside it, in picoseconds.
    pub fn picos(&self, cluster: &Cluster) -> i64 {
        match aten::row(self.name) {
            Some(row) => {
                let fit = cluster.device.fit(self.name, self.dtype);
                priced(cluster, row, fit, self.amounts, self.reads, || self.is_even)
            }
            None => traffic(cluster, self.amounts.bytes),
        }
    }
}

/// The time of an operation that does so much: what was fitted to its operator, or what the rates say.
pub(crate) fn priced(
    cluster: &Cluster,
    row: &Row,
    fit: Option<&Fit>,
    amounts: Amounts,
    reads: Dtype,
    is_even: impl Fn() -> bool,
) -> i64 {
    let device = &cluster.device;
    match (row.work, fit) {
        (Work::View | Work::Nothing, _) => 0,
        (Work::Traffic | Work::Flops(_), Some(fit)) => fit.picos(amounts).round() as i64,
        (Work::Traffic, None) => match device.uneven_bandwidth {
            Some(bandwidth) if row.is_elementwise() && !is_even() => {
                (amounts.bytes as f64 / bandwidth * PICOS + device.operation_ns * 1e3).round() as i64
            }
            _ => traffic(cluster, amounts.bytes),
        },
        (Work::Flops(_), None) => {
            let rate = rate(device, row, reads, None);
            let computing = (amounts.flops / rate * PICOS + device.operation_ns * 1e3).round() as i64;
            computing.max(traffic(cluster, amounts.bytes))
        }
    }
}

/// Floating-point operations per second of an operation that is mostly computation: those of the element type that it reads, or what was
/// fitted, if that is more.
pub fn compute_rate(cluster: &Cluster, row: &Row, call: &Call<'_>) -> f64 {
    if !cluster.kinds.is_empty() {
        let rates = cluster.kinds.iter().map(|kind| compute_rate(&kind.cluster, row, call));
        return rates.fold(f64::INFINITY, f64::min);
    }
    let fit = main_dtype(call).and_then(|dtype| cluster.device.fit(call.name(), dtype));
    rate(&cluster.device, row, reads(call), fit)
}

fn rate(device: &Device, row: &Row, reads: Dtype, fit: Option<&Fit>) -> f64 {
    let rate = if row.is_attention() { device.attention_rate(reads) } else { device.matmul_rate(reads) };
    fit.filter(|fit| fit.flop_ps > 0.0).map_or(rate, |fit| rate.max(PICOS / fit.flop_ps))
}

/// The element type of an operation's first tensor.
pub(crate) fn reads(call: &Call<'_>) -> Dtype {
    call.operands.first().map_or(call.result(0).dtype, |first| call.graph.ty(*first).dtype)
}

/// What limits an operation: computing, where it is mostly that.
pub fn bound(call: &Call<'_>) -> Bound {
    match aten::row(call.name()).map(|row| row.work) {
        Some(Work::Flops(_)) => Bound::Products,
        _ => Bound::Bytes,
    }
}

/// Whether all tensors of an operation but single numbers have one shape and order.
pub(crate) fn is_even(call: &Call<'_>) -> bool {
    let types = call.operands.iter().chain(&call.results).map(|value| call.graph.ty(*value));
    let mut types = types.filter(|ty| ty.elements() > 1);
    let Some(first) = types.next() else { return true };
    first.is_dense() && types.all(|ty| ty.shape == first.shape && ty.strides == first.strides)
}

/// What an operation does on one rank under a strategy; nothing is computed by what has no row, and by views.
pub(crate) fn amounts(call: &Call<'_>, row: Option<&Row>, strategy: &Strategy, ranks: u32) -> Amounts {
    let flops = match row.map(|row| (row, row.work)) {
        Some((row, Work::Flops(flops))) => {
            flops(call).0 as f64 / divisor(call, strategy, ranks) * unused(call, row)
        }
        _ => 0.0,
    };
    let tensors = strategy.operands.len() + strategy.results.len();
    Amounts { flops, bytes: bytes(call, strategy, ranks), tensors }
}

/// Positions at which causal attention on an accelerator reaches half of its rate on long sequences: blocks on the diagonal are computed whole,
/// and short rows leave cores idle. That of FlashAttention-2 and cuDNN on an H100, as FlashAttention-3 (2407.08608, figure 5) has them from 512
/// to 16,384 positions, within 7 %, but for FlashAttention-2 at 512.
const HALF_RATE: f64 = 320.0;

/// How many times as much an operation takes for what its kernel computes and nobody uses.
fn unused(call: &Call<'_>, row: &Row) -> f64 {
    let is_set = |name: &str| call.argument(name).and_then(|argument| call.flag(argument)) == Some(true);
    let keys = call.argument("key").and_then(|key| call.arg_type(key));
    match keys.and_then(|keys| keys.shape.get(2)) {
        Some(keys) if row.is_attention() && is_set("is_causal") && !call.result(0).device.kind.is_cpu() => {
            1.0 + HALF_RATE / (*keys).max(1) as f64
        }
        _ => 1.0,
    }
}

/// Who computes what of an operation under a strategy that shards it.
pub fn shares(call: &Call<'_>, strategy: &Strategy, ranks: u32) -> Option<Chunks> {
    let of = |(placement, ty): (Placement, &TensorType)| match placement {
        // As many as where all groups are equally large.
        Placement::Groups { dim } => Chunks::new(ty.shape[usize::from(dim)], 1, 0, ranks),
        _ => placement.chunks(&ty.shape, ranks).map(|(_, chunks)| chunks),
    };
    strategy.placed(call).find_map(of)
}

/// How many times as much an operation is than what the first rank, which has the most, computes of it.
pub(crate) fn divisor(call: &Call<'_>, strategy: &Strategy, ranks: u32) -> f64 {
    shares(call, strategy, ranks).map_or(1.0, |chunks| chunks.block as f64 / chunks.chunk as f64)
}

/// The element type that an operation computes in: that of its first result, or of its first operand.
pub fn main_dtype(call: &Call<'_>) -> Option<Dtype> {
    let first = call.results.first().or(call.operands.first());
    first.map(|value| call.graph.ty(*value).dtype)
}

/// Bytes that an operation reads and writes on one rank.
pub(crate) fn bytes(call: &Call<'_>, strategy: &Strategy, ranks: u32) -> u64 {
    strategy.placed(call).map(|(placement, ty)| local_bytes(ty, placement, ranks)).sum()
}
