//! How much memory is alive when.

use base::Bytes;

use crate::{Buffers, Effect, Info, Lifetimes, Once, Step, Steps, buffers, in_place, once};

/// What a run of a program holds.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What stays from run to run for small results.
    pub buffers: Bytes,
    /// What stays because it is the same at every run.
    pub constants: Bytes,
    /// For each step the values that have memory of their own while it runs, in the order in which they were made: an index into
    /// [`spans`](Self::spans) is alive from the step that makes it to its last reader.
    pub spans: Vec<Span>,
    /// For each step the bytes that its kernel takes for itself, and collectives that run beside it.
    pub workspaces: Vec<u64>,
}

/// Memory that a run allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The value that owns it.
    pub value: u32,
    /// The step that makes it.
    pub from: usize,
    /// The last step that reads it; `usize::MAX` where it goes out.
    pub to: usize,
    /// Its size.
    pub bytes: u64,
    /// Whether it is on the host, beside the memory of the device.
    pub on_host: bool,
}

/// The memory of a program whose buffers take at most `limit`, as the executor runs it.
pub fn curve(program: &Steps, limit: Bytes) -> Curve {
    let program = program.written_in_place(&in_place(program));
    let found = buffers(&program, limit);
    let program = program.with_buffers(&found);
    let stays: Vec<u32> =
        (program.values.len() - found.like.len()..program.values.len()).map(|v| v as u32).collect();
    let once = once(&program, &stays);
    let lifetimes = Lifetimes::of(&program);
    let mut constants = 0;
    let mut spans = Vec::new();
    for (index, step) in program.steps.iter().enumerate() {
        let own = step.makes.iter().filter(|_| step.shares.is_none());
        for value in own {
            let Info { bytes, on_host, .. } = program.values[*value as usize];
            if once[index] == Once::Constant {
                constants += bytes;
            } else {
                let to = lifetimes.last_read(*value).unwrap_or(index);
                spans.push(Span { value: *value, from: index, to, bytes, on_host });
            }
        }
    }
    let alone = |step: &Step, once: Once| once == Once::No && step.effect != Effect::Collective;
    let workspaces = program.steps.iter().zip(&once).zip(in_flight(&program));
    let workspaces = workspaces
        .map(|((step, once), in_flight)| in_flight + if alone(step, *once) { step.workspace } else { 0 });
    Curve { buffers: found.bytes, constants: Bytes(constants), spans, workspaces: workspaces.collect() }
}

/// How many collectives of a process group run at once, those that were started first: gloo's threads, of which a group has one. What a
/// collective allocates for itself it allocates when it runs.
const RUNNING: usize = 1;

/// For each step, what collectives that run beside it allocate for themselves: at most those in flight that take most. Groups are not
/// told apart.
fn in_flight(program: &Steps) -> Vec<u64> {
    let mut flying: Vec<(u32, u64)> = Vec::new();
    let mut taken = 0;
    let most = |flying: &[(u32, u64)]| {
        let mut bytes: Vec<u64> = flying.iter().map(|(_, bytes)| *bytes).collect();
        bytes.sort_unstable_by_key(|bytes| std::cmp::Reverse(*bytes));
        bytes.iter().take(RUNNING).sum()
    };
    let mut beside = |step: &Step| {
        if step.effect == Effect::Collective && step.workspace > 0 {
            flying.extend(step.makes.first().map(|value| (*value, step.workspace)));
            taken = most(&flying);
        }
        let now = taken;
        if step.effect == Effect::Wait {
            flying.retain(|(value, _)| !step.reads.contains(value));
            taken = most(&flying);
        }
        now
    };
    program.steps.iter().map(&mut beside).collect()
}

impl Steps {
    /// The same program with results in `buffers`, which are values behind all others.
    #[must_use]
    pub fn with_buffers(self, buffers: &Buffers) -> Self {
        if buffers.like.is_empty() {
            return self;
        }
        let first = self.values.len() as u32;
        let mut now: Vec<u32> = (0..first).collect();
        let steps = self.steps.into_iter().zip(&buffers.of).map(|(mut step, buffer)| {
            step.map(|value| now[value as usize]);
            if let Some(buffer) = buffer {
                step.makes.iter().for_each(|made| now[*made as usize] = first + buffer);
                step.makes.clear();
                step.writes.push(first + buffer);
                step.pure = false;
            }
            step
        });
        let steps = steps.collect();
        let mut values = self.values;
        let like: Vec<Info> = buffers.like.iter().map(|like| values[*like as usize]).collect();
        values.extend(like);
        let updates = self.updates.iter().map(|(state, value)| (*state, now[*value as usize])).collect();
        Self { values, steps, updates, state: self.state, inputs: self.inputs, returns: self.returns }
    }
}

impl Curve {
    /// The bytes that stay from run to run beside state.
    pub fn kept(&self) -> Bytes {
        Bytes(self.buffers.0 + self.constants.0)
    }

    /// The first step at which the bytes of spans alive on the device, and of workspaces, are most; `None` where there are never any.
    pub fn worst(&self) -> Option<usize> {
        let (mut most, mut worst) = (0, None);
        for (index, now) in self.on_device().enumerate() {
            if now > most {
                (most, worst) = (now, Some(index));
            }
        }
        worst
    }

    /// The bytes of spans alive on the device, and of workspaces, at each step.
    pub(crate) fn on_device(&self) -> impl Iterator<Item = u64> {
        let alive = self.alive(|span| !span.on_host);
        alive.zip(&self.workspaces).map(|(alive, workspace)| alive + workspace)
    }

    /// The most that copies on the host take at once.
    pub fn most_on_host(&self) -> Bytes {
        Bytes(self.alive(|span| span.on_host).max().unwrap_or(0))
    }

    /// The bytes of such spans that are alive at each step.
    fn alive(&self, counts: impl Fn(&Span) -> bool) -> impl Iterator<Item = u64> {
        let steps = self.workspaces.len();
        let mut change = vec![0_i64; steps + 1];
        for span in self.spans.iter().filter(|span| counts(span)) {
            change[span.from] += span.bytes as i64;
            if span.to < steps {
                change[span.to + 1] -= span.bytes as i64;
            }
        }
        let mut alive = 0;
        change.into_iter().take(steps).map(move |change| {
            alive += change;
            alive as u64
        })
    }
}
