//! `unisono plan`: find the plan of a captured step for a cluster.

mod other;

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use base::{Bytes, Code, Diagnostic, Nanos, Result};
use clap::{Args, ValueEnum};
use cluster::Cluster;
use indexmap::IndexMap;
use ir::{Dtype, Mesh, STAGES};
use plan::{
    Candidate, Cut, Effort, Forbid, Offloading, Pins, PlanSettings, Recomputation, ScheduleWish, Sensitivity,
    WhyNot,
};
use serde::Serialize;

use crate::files;

/// What is computed again in backward.
#[derive(Clone, Copy, ValueEnum)]
enum Recompute {
    /// Nothing
    None,
    /// Everything that can be, but what crosses from one segment of forward to the next
    Full,
}

impl Recompute {
    const fn setting(self) -> Recomputation {
        match self {
            Self::None => Recomputation::None,
            Self::Full => Recomputation::Full,
        }
    }
}

/// The real element type of that name, ours or PyTorch's.
fn element_type(name: &str) -> std::result::Result<Dtype, String> {
    let real = |dtype: &&Dtype| dtype.is_floating() && !dtype.is_complex() && dtype.bytes() > 1;
    let mut all = Dtype::ALL.iter().filter(real);
    let found = all.clone().find(|dtype| [dtype.text(), dtype.torch_name()].contains(&name));
    found.copied().ok_or_else(|| {
        let names: Vec<&str> = all.by_ref().map(|dtype| dtype.text()).collect();
        format!("give one of {}", names.join(", "))
    })
}

/// The element type of 16 bits of that name, ours or PyTorch's.
fn narrow_type(name: &str) -> std::result::Result<Dtype, String> {
    let found = element_type(name).ok().filter(|dtype| dtype.bytes() == 2);
    found.ok_or_else(|| "give bf16, f16 or both".to_owned())
}

/// What is on the host while the device does not need it.
#[derive(Clone, Copy, ValueEnum)]
enum Offload {
    /// Nothing
    None,
    /// What the memory limit asks for of what forward leaves for backward
    Activations,
    /// All state that only the update reads
    Optimizer,
    /// All of both that can be
    Full,
}

impl Offload {
    const fn setting(self) -> Offloading {
        match self {
            Self::None => Offloading::None,
            Self::Activations => Offloading::Activations,
            Self::Optimizer => Offloading::Optimizer,
            Self::Full => Offloading::Full,
        }
    }
}

/// Find the plan of a captured training step: who holds and computes what
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct Plan {
    /// The captured step, as `unisono capture` prints it or as a message (`-` reads stdin)
    #[arg(required_unless_present = "schema")]
    graph: Option<PathBuf>,
    /// Print the JSON schema of what `--json` prints
    #[arg(long, exclusive = true)]
    schema: bool,
    /// How many ranks there are, along the axes that suit best. All of the
    /// cluster's, where neither this nor a mesh is given and it says how many it has
    #[arg(long)]
    ranks: Option<u32>,
    /// The mesh: axes with their sizes, the outer one first, such as `data=2,tensor=4`. Unless given, or with `auto`, the best of all ways to make one axis,
    /// `ranks`, or two, `outer` and `inner`, and pipeline stages where these are faster
    #[arg(long)]
    mesh: Option<String>,
    /// The cluster description, as `unisono profile` measures it, or a preset such as `h100:8x8`, 8 nodes of 8 (`unisono cluster` lists them)
    #[arg(long)]
    cluster: Option<String>,
    /// Most memory of one rank: bytes, or an amount such as `4GiB`; that of a preset's device unless given
    #[arg(long)]
    memory_limit: Option<String>,
    /// A TOML file with placements by axis and by name pattern of inputs, such as `"batch.*".ranks = "shard(0)"`, or of modules, for what they
    /// give: `"outputs.layers.*".ranks = "shard(1)"`
    #[arg(long)]
    pins: Option<PathBuf>,
    /// Kinds of collectives to do without, of `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` and `permute`: `all_to_all` along all axes,
    /// `data=all_gather,all_reduce` along one, `data=*` to have nothing sent along it. May be given several times
    #[arg(long, value_name = "[AXIS=]KINDS")]
    forbid: Vec<String>,
    /// Have each rank compute its batch in so many slices, one after the other: gradients are added up, activations take that much less
    /// memory. Unless given, the whole batch at once, or as many slices as keep the memory limit or are faster under it
    #[arg(long)]
    micro_batches: Option<u32>,
    /// Predict the plan with groups of operations as kernels, as `fuse=True` runs them
    #[arg(long)]
    fuse: bool,
    /// Element types of 16 bits, such as `bf16,f16`, that the ranks' processors have no instructions for products in: kernels compute these in
    /// `f32`. `unisono.parallelize` asks PyTorch for them
    #[arg(long, value_delimiter = ',', value_parser = narrow_type, requires = "fuse")]
    narrow: Vec<Dtype>,
    /// Take the program apart into so many pipeline stages: each on its share of the ranks, where no mesh is given, and otherwise as an axis `stages` before
    /// the mesh's
    #[arg(long)]
    stages: Option<u32>,
    /// In which order each stage runs its micro-batches: `gpipe`, `1f1b`, `interleaved`, `zb-h1`, `zb-h2`, `zb-v`, `dualpipe-v`, `searched`,
    /// or a CSV file of actions as torch's schedules write it; the one that takes least time unless given
    #[arg(long)]
    schedule: Option<String>,
    /// How many chunks of the program each stage has; what suits the schedule unless given
    #[arg(long)]
    chunks: Option<u32>,
    /// Write what each stage does to this CSV file, a line for each, as torch's schedules read it
    #[arg(long)]
    actions: Option<PathBuf>,
    /// Where chunks of stages begin, one for each but the first: names of modules, or numbers of operations of forward; where the slowest stage takes
    /// least unless given
    #[arg(long, value_delimiter = ',')]
    cuts: Option<Vec<Cut>>,
    /// What of forward is computed again in backward instead of being held until then; what the memory limit asks for unless given
    #[arg(long)]
    recompute: Option<Recompute>,
    /// Sum gradients between ranks in this element type, such as `f32` or `bfloat16`; in their own unless given
    #[arg(long, value_parser = element_type)]
    reduce_dtype: Option<Dtype>,
    /// What is on the host while the device does not need it; what the memory limit asks for, where the cluster has a link to the host, unless given
    #[arg(long)]
    offload: Option<Offload>,
    /// Take the first solution of the search instead of the best of several
    #[arg(long)]
    quick: bool,
    /// Write the plan to this file and print what it does, instead of printing the plan
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Plan again with more memory, faster links and a faster device, and say what each gives
    #[arg(long)]
    sensitivity: bool,
    /// Say also why the plan is not another one, which is planned under the same settings and priced alike: `data`, `zero-1`, `zero-3`,
    /// `tensor`, `sequence`, `expert` or `replicated` parallel, along any axis or as in `tensor on data`; `2`, the second runner-up; another
    /// mesh such as `data=4,tensor=2`; a file with pins. May be given several times
    #[arg(long, value_name = "OTHER")]
    why_not: Vec<String>,
    /// Print the plan's figures as JSON instead: what it is, what it takes, where time and memory go, what it was chosen over
    #[arg(long)]
    json: bool,
    /// Write a page to this file that shows the plan: lanes of a rank's step, memory over time, where time goes, what was considered
    #[arg(long)]
    html: Option<PathBuf>,
}

impl Plan {
    /// Reads, searches, prints.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        let Some(path) = &self.graph else { return print(out, SCHEMA) };
        let cluster = self.cluster()?;
        let graph = files::graph(path)?;
        let ranks = self.ranks(&cluster)?;
        let (mesh, stages) = self.in_stages(self.mesh()?)?;
        let settings = PlanSettings {
            pins: self.pins()?,
            forbid: self.forbid(),
            mesh,
            ranks,
            stages,
            schedule: self.schedule()?,
            chunks: self.chunks,
            cuts: self.cuts.clone(),
            micro_batches: self.micro_batches,
            recompute: self.recompute.map(Recompute::setting),
            reduce_dtype: self.reduce_dtype,
            offload: self.offload.map(Offload::setting),
            memory_limit: self.memory_limit()?,
            fuse: self.fuse,
            narrow: self.narrow.clone(),
            effort: if self.quick { Effort::Quick } else { Effort::Full },
        };
        let before = cpu_seconds();
        let progress = plan::Progress::new(None);
        let telling = |mesh: &Mesh, effort| {
            if let Some(line) = progress.line(mesh, effort) {
                drop(writeln!(std::io::stderr(), "{line}"));
            }
        };
        let plan = plan::plan_telling(&graph, &cluster, &settings, Some(&telling), tell)?;
        let searched = before.zip(cpu_seconds()).map(|(before, after)| after - before);
        if let Some(path) = &self.output {
            files::write(path, &plan.text())?;
        }
        if let (Some(path), Some(stages)) = (&self.actions, &plan.stages) {
            let lines = stages.schedule(plan.micro_batches)?.lines();
            files::write(path, &(lines.join("\n") + "\n"))?;
        }
        let answer = |asked: &String| {
            let alternative = other::named(asked)?;
            let answer = plan::why_not(&graph, &plan, &cluster, &settings, &alternative)?;
            Ok(WhyNot { asked: asked.clone(), ..answer })
        };
        let why_not = self.why_not.iter().map(answer).collect::<Result<Vec<_>>>()?;
        let mut others = Vec::new();
        if self.json || self.html.is_some() || self.sensitivity {
            let limit = settings.memory_limit(&cluster);
            let summary = plan::summary(&graph, None, &plan, &cluster, limit)?;
            if let Some(path) = &self.html {
                let local = plan::program(&graph, &plan, 0, |_| {})?;
                let timeline = plan::simulate_rank(&local, &plan, &cluster, 0)?;
                let pipeline = plan::pipeline(&graph, &plan, &cluster)?;
                files::write(path, &plan::page(&summary, &local, &timeline, None, pipeline.as_ref())?)?;
            }
            if self.sensitivity {
                others = plan::sensitivities(&graph, &plan, &cluster, &settings)?;
            }
            if self.json {
                let figures = Figures { search_cpu_s: searched, summary, sensitivity: others, why_not };
                let text = serde_json::to_string_pretty(&figures);
                let text = text.map_err(|error| Diagnostic::bug(error.to_string()))?;
                return print(out, &format!("{text}\n"));
            }
        }
        // A plan with comments is a plan.
        let (text, indent) = match &self.output {
            Some(_) => {
                let limit = settings.memory_limit(&cluster);
                (plan::explain_plan(&graph, &plan, Some(&cluster), limit)?, "  ")
            }
            None => (plan.text(), "# "),
        };
        print(out, &text)?;
        others.iter().try_for_each(|other| print(out, &format!("{indent}{other}\n")))?;
        let answers: String = why_not.iter().map(ToString::to_string).collect();
        answers.lines().try_for_each(|line| print(out, &format!("{indent}{line}\n")))
    }

    /// How many ranks there are, where no mesh says so.
    fn ranks(&self, cluster: &Cluster) -> Result<Option<u32>> {
        let is_open = self.mesh.as_deref().is_none_or(|mesh| mesh == "auto");
        let ranks = self.ranks.or_else(|| cluster.ranks().filter(|_| is_open));
        if is_open && ranks.is_none() {
            let message =
                "how many ranks a plan is for is not given, and the description of the cluster does not say";
            return Err(
                Diagnostic::new(Code::BAD_MESH, message).hint("add `--ranks 8` or `--mesh data=2,tensor=4`")
            );
        }
        Ok(ranks)
    }

    fn cluster(&self) -> Result<Cluster> {
        let Some(name) = &self.cluster else {
            let message = "a plan needs a description of the cluster that it is for";
            let hint = format!(
                "`unisono profile --ranks {} -o cluster.toml` measures this machine; then pass `--cluster cluster.toml`; `unisono cluster` \
                 lists machines that you do not have",
                self.ranks.unwrap_or(1)
            );
            return Err(Diagnostic::new(Code::BAD_CLUSTER, message).hint(hint));
        };
        files::cluster(name)
    }

    fn memory_limit(&self) -> Result<Option<u64>> {
        Ok(self.memory_limit.as_deref().map(Bytes::parse).transpose()?.map(|limit| limit.0))
    }

    /// The schedule: by name, or what is in a file.
    fn schedule(&self) -> Result<Option<ScheduleWish>> {
        let Some(name) = &self.schedule else { return Ok(None) };
        match name.parse() {
            Ok(wish) => Ok(Some(wish)),
            Err(_) if Path::new(name).extension().is_some_and(|kind| kind == "csv") => {
                let text = files::text(Path::new(name))?;
                Ok(Some(ScheduleWish::File { file: name.clone(), text }))
            }
            Err(unknown) => {
                Err(Diagnostic::new(Code::BAD_SCHEDULE, unknown).hint("give one of these, or a file `*.csv`"))
            }
        }
    }

    /// A mesh with the stages that are asked for, and how many these are where the mesh is searched for.
    fn in_stages(&self, mesh: IndexMap<String, u32>) -> Result<(IndexMap<String, u32>, Option<u32>)> {
        let Some(stages) = self.stages.filter(|_| !mesh.is_empty()) else { return Ok((mesh, self.stages)) };
        if mesh.contains_key(STAGES) {
            let message = "the mesh has an axis of stages already";
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint("leave `--stages` out"));
        }
        Ok((std::iter::once((STAGES.to_owned(), stages)).chain(mesh).collect(), None))
    }

    /// The axes of the mesh; none where they are searched for.
    fn mesh(&self) -> Result<IndexMap<String, u32>> {
        let Some(text) = self.mesh.as_deref().filter(|mesh| *mesh != "auto") else {
            return Ok(IndexMap::new());
        };
        let mut mesh = IndexMap::new();
        for part in text.split(',') {
            let axis =
                part.split_once('=').and_then(|(name, size)| Some((name.trim(), size.trim().parse().ok()?)));
            let Some((name, size)) = axis.filter(|(name, _)| !name.is_empty()) else {
                let message = format!("`{part}` is no mesh axis with its size");
                return Err(Diagnostic::new(Code::BAD_MESH, message).hint("write `--mesh data=2,tensor=4`"));
            };
            if mesh.insert(name.to_owned(), size).is_some() {
                let message = format!("two mesh axes are called `{name}`");
                return Err(Diagnostic::new(Code::BAD_MESH, message).hint("give each axis a name of its own"));
            }
        }
        Ok(mesh)
    }

    fn pins(&self) -> Result<Pins> {
        self.pins.as_deref().map_or_else(|| Ok(Pins::default()), other::pins)
    }

    fn forbid(&self) -> Forbid {
        let mut forbid = Forbid::default();
        for text in &self.forbid {
            let (axis, kinds) = text.split_once('=').unwrap_or(("*", text));
            let kinds = kinds.split(',').map(|kind| kind.trim().to_owned());
            forbid.entry(axis.trim().to_owned()).or_default().extend(kinds);
        }
        forbid
    }
}

/// The JSON schema of [`Figures`].
const SCHEMA: &str = include_str!("plan/figures.schema.json");

/// What `--json` prints.
#[derive(Serialize)]
struct Figures {
    /// Processor time of the search, in seconds, where the system says it.
    search_cpu_s: Option<f64>,
    #[serde(flatten)]
    summary: plan::Summary,
    /// What more of something would give, where it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sensitivity: Vec<Sensitivity>,
    /// What was asked for instead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    why_not: Vec<WhyNot>,
}

/// Ticks of the clock that Linux counts processor time in, per second.
const TICKS: f64 = 100.0;

/// Processor time of this process so far, in seconds, where Linux says it.
fn cpu_seconds() -> Option<f64> {
    let line = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may have spaces, user and system time are the 12th and 13th fields.
    let fields = line.rsplit_once(')')?.1;
    let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().ok());
    Some(ticks.sum::<Option<f64>>()? / TICKS)
}

/// Says what a quick search predicts for each mesh.
fn tell(candidates: &[Candidate]) {
    for Candidate { mesh, prediction, .. } in candidates {
        let took = prediction.as_ref().map_or_else(
            || "no faster plan within the memory limit by a quick search".into(),
            |found| format!("{} and {} by a quick search", Nanos(found.step_ns), Bytes(found.peak_bytes)),
        );
        drop(writeln!(std::io::stderr(), "mesh {}: {took}", mesh.text()));
    }
}

/// Prints a text as it is.
pub fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    out.write_all(text.as_bytes())
        .map_err(|error| Diagnostic::new(Code::UNREADABLE_FILE, format!("cannot write to stdout: {error}")))
}
