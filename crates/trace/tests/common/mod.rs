//! A generator of multi-rank Kineto traces with known answers.
//!
//! Each rank runs steps of layers. A layer is a Python function of a module that calls an operator, which launches a kernel: the
//! kernel begins a fixed delay after its launch, or when the one before has ended. Each step ends with an all-reduce that begins
//! on each rank after its last kernel and ends on all ranks a transfer time after the last one has arrived; the host waits for it.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fmt::Write;

use timeline::{Timeline, kineto};

/// From a launch to its kernel, in nanoseconds.
pub const DELAY: i64 = 5_000;
/// The time of a launch.
pub const LAUNCH: i64 = 2_000;
/// The time of an operator around its launch.
pub const OPERATOR: i64 = 4_000;
/// The time of a transfer.
pub const TRANSFER: i64 = 50_000;

/// What to generate.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Ranks.
    pub ranks: usize,
    /// Steps.
    pub steps: usize,
    /// Kernel times of the layers, in nanoseconds.
    pub layers: Vec<i64>,
    /// Extra host time of a layer on a rank, in nanoseconds: rank, layer, time.
    pub late: Option<(usize, usize, i64)>,
    /// Clock offset of each rank in nanoseconds.
    pub offsets: Vec<i64>,
    /// Clock drift of each rank in parts per million.
    pub drifts: Vec<i64>,
    /// From a launch to its kernel, in nanoseconds.
    pub delay: i64,
    /// Relative noise of kernel times in per mille, uniform to both sides.
    pub noise: i64,
    /// Seed of the noise.
    pub seed: u64,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            ranks: 2,
            steps: 3,
            layers: vec![20_000, 30_000, 10_000],
            late: None,
            offsets: Vec::new(),
            drifts: Vec::new(),
            delay: DELAY,
            noise: 0,
            seed: 1,
        }
    }
}

/// A small generator of random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    /// A number of `-range..=range`.
    pub fn around(&mut self, range: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).rem_euclid(2 * range as u64 + 1) as i64 - range
    }
}

/// The events of one rank, as JSON.
#[derive(Default)]
struct Rank {
    json: String,
    correlation: i64,
    python: i64,
}

impl Rank {
    fn event(&mut self, category: &str, name: &str, lane: (i64, i64), (begin, end): (i64, i64), args: &str) {
        if !self.json.is_empty() {
            self.json.push_str(",\n");
        }
        let micros = |nanos: i64| format!("{}.{:03}", nanos.div_euclid(1000), nanos.rem_euclid(1000));
        write!(
            self.json,
            r#"{{"ph":"X","cat":"{category}","name":"{name}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{args}}}}}"#,
            lane.0,
            lane.1,
            micros(begin),
            micros(end - begin)
        )
        .unwrap();
    }

    fn kernel(&mut self, name: &str, stream: i64, launch: (i64, i64), kernel: (i64, i64), args: &str) {
        self.correlation += 1;
        let correlation = self.correlation;
        self.event(
            "cuda_runtime",
            "cudaLaunchKernel",
            (1, 1),
            launch,
            &format!(r#""correlation":{correlation}"#),
        );
        let args = format!(r#""stream":{stream},"correlation":{correlation}{args}"#);
        self.event("kernel", name, (0, stream), kernel, &args);
    }
}

/// The true time of the last step's end, without clock errors, and the traces.
pub struct Generated {
    /// Traces of all ranks.
    pub timeline: Timeline,
    /// How long the first step takes, in nanoseconds.
    pub first_step: i64,
}

/// Generates traces.
pub fn generate(setting: &Setting) -> Generated {
    let mut ranks: Vec<Rank> = (0..setting.ranks).map(|_| Rank::default()).collect();
    let mut random = Random(setting.seed);
    let clock = |rank: usize, time: i64| {
        let drift = setting.drifts.get(rank).copied().unwrap_or(0);
        time + setting.offsets.get(rank).copied().unwrap_or(0) + time * drift / 1_000_000
    };
    let mut now = 1_000_000_i64;
    let mut first_step = 0;
    for step in 0..setting.steps {
        let mut arrivals = Vec::new();
        let mut issues = Vec::new();
        for (number, rank) in ranks.iter_mut().enumerate() {
            let at = |time: i64| clock(number, time);
            let (mut host, mut device) = (now + 1000, now);
            for (layer, &time) in setting.layers.iter().enumerate() {
                let late =
                    setting.late.filter(|late| (late.0, late.1) == (number, layer)).map_or(0, |late| late.2);
                let begin = host;
                let launch = begin + late + 1000;
                let end = begin + late + OPERATOR;
                let kernel = device.max(launch + setting.delay);
                let time = time + time * random.around(setting.noise.max(0)) / 1000;
                device = kernel + time;
                rank.python += 2;
                let python = rank.python;
                let args = |id: i64| format!(r#""Python id":{id},"Python parent id":null"#);
                rank.event(
                    "python_function",
                    &format!("nn.Module: Layer_{layer}"),
                    (1, 1),
                    (at(begin - 200), at(end + 200)),
                    &args(python),
                );
                rank.event(
                    "python_function",
                    &format!("model.py({}): forward", 10 + layer),
                    (1, 1),
                    (at(begin - 100), at(end + 100)),
                    &args(python + 1),
                );
                let shape = r#""Input Dims":[[8,8],[8,8]],"Input type":["float","float"]"#;
                rank.event("cpu_op", "aten::mm", (1, 1), (at(begin + late), at(end)), shape);
                rank.kernel(
                    &format!("gemm_{layer}"),
                    7,
                    (at(launch), at(launch + LAUNCH)),
                    (at(kernel), at(device)),
                    "",
                );
                host = end + 1000;
            }
            issues.push(host);
            arrivals.push(device.max(host + setting.delay));
        }
        let end = arrivals.iter().max().unwrap() + TRANSFER;
        for (number, rank) in ranks.iter_mut().enumerate() {
            let at = |time: i64| clock(number, time);
            let (issue, arrival) = (issues[number], arrivals[number]);
            let args = format!(
                r#","Collective name":"allreduce","Process Group Name":"0","Seq":{step},"In msg nelems":1000,"Out msg nelems":1000,"dtype":"Float","Group size":{},"Process Group Ranks":"[0]""#,
                setting.ranks
            );
            rank.kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                7,
                (at(issue), at(issue + LAUNCH)),
                (at(arrival), at(end)),
                &args,
            );
            rank.event(
                "cuda_runtime",
                "cudaStreamSynchronize",
                (1, 1),
                (at(issue + LAUNCH + 500), at(end + 1000)),
                r#""correlation":0"#,
            );
            rank.event(
                "user_annotation",
                &format!("ProfilerStep#{step}"),
                (1, 1),
                (at(now), at(end + 2000)),
                "",
            );
        }
        if step == 0 {
            first_step = end + 2000 - now;
        }
        now = end + 3000;
    }
    let mut timeline = Timeline::default();
    for (number, rank) in ranks.into_iter().enumerate() {
        let json = format!(
            r#"{{"distributedInfo":{{"rank":{number},"world_size":{}}},"traceEvents":[{}]}}"#,
            setting.ranks, rank.json
        );
        let (names, rank) = kineto::read_bytes(json.into_bytes(), "generated").unwrap();
        timeline.add(names, rank);
    }
    Generated { timeline, first_step }
}
