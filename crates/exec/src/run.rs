//! Running a program.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use base::{Code, Diagnostic, Nanos, Result};
use cuda::Stream;
use torch_sys::{
    Dtype, Failure, GradModeOff, Keeping, Library, Proxy, Slot, Slots, Tensor, TensorLayout, View,
};

use crate::{
    DeviceKernels, Instruction, Program, Record,
    link::{Linked, Linker, Step},
};

/// Where a running step is, for other threads to read. It orders nothing: whoever reads it sees an instruction of a moment ago.
#[derive(Clone, Debug)]
pub struct Progress(Arc<AtomicU32>);

impl Progress {
    const BETWEEN: u32 = u32::MAX;

    fn new() -> Self {
        Self(Arc::new(AtomicU32::new(Self::BETWEEN)))
    }

    #[inline]
    fn set(&self, index: u32) {
        self.0.store(index, Ordering::Relaxed);
    }

    /// The position of the instruction that runs; none between steps.
    pub fn get(&self) -> Option<u32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|index| *index != Self::BETWEEN)
    }
}

/// A program with its tensors, ready to run.
pub struct Executor {
    program: Program,
    prologue: Vec<Linked>,
    body: Vec<Linked>,
    slots: Slots,
    library: &'static Library,
    proxy: Option<Proxy>,
    /// How the inputs of the first step lay in memory; empty before it.
    inputs: Vec<TensorLayout>,
    prepared: bool,
    refused: bool,
    progress: Progress,
    /// Where kernels of a device run.
    stream: Option<Stream>,
    /// Dropped behind the slots, so that what they hold goes too.
    _keeping: Option<Keeping>,
}

impl Executor {
    /// Links `program`. `proxy` is the proxy executor that torch has made of [`proxy_document`](crate::proxy_document);
    /// `prefix` is that of [`python_calls`](crate::python_calls), which must be registered before the first step. Kernels are those of
    /// `device`, where there are such.
    pub fn new(
        program: Program,
        library: &'static Library,
        proxy: Option<Proxy>,
        prefix: &str,
        device: Option<&DeviceKernels>,
    ) -> Result<Self> {
        let mut linker = Linker::new(library, &program, prefix, device)?;
        let prologue = linker.link(&program.prologue)?;
        let body = linker.link(&program.body)?;
        let refused = linker.refused();
        let slots = Slots::new(library, program.slots as usize);
        let keeping = program.keeps_memory().then(Keeping::begin);
        Ok(Self {
            program,
            prologue,
            body,
            slots,
            library,
            proxy,
            inputs: Vec::new(),
            prepared: false,
            refused,
            progress: Progress::new(),
            stream: None,
            _keeping: keeping,
        })
    }

    /// The program.
    pub const fn program(&self) -> &Program {
        &self.program
    }

    /// Whether the host forbids executable memory, so that kernels are interpreted.
    pub const fn refused(&self) -> bool {
        self.refused
    }

    /// The stream that kernels of a device run on from now on: PyTorch's current one.
    pub const fn set_stream(&mut self, stream: Stream) {
        self.stream = Some(stream);
    }

    /// Where a step of it is, from now on.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Binds state, in the order of [`Program::state`]; the tensors are kept and written into by each step.
    pub fn bind_state(&mut self, state: Vec<Tensor>) -> Result<()> {
        self.release_all();
        self.prepared = false;
        let count = self.program.state.len();
        if state.len() != count {
            return Err(mismatch(format!(
                "{} tensors of state are bound where the program has {count}",
                state.len()
            )));
        }
        for (index, (slot, tensor)) in self.program.state.iter().zip(state).enumerate() {
            let layout = tensor.layout(self.library).map_err(|failure| mismatch(failure.0))?;
            self.check_shape("tensor of state", index, *slot, &layout)?;
            self.check_strides(index, *slot, &layout)?;
            self.slots.put(*slot, tensor);
        }
        Ok(())
    }

    /// The state as it is bound, in the order of [`Program::state`].
    pub fn state(&self) -> Result<Vec<Tensor>> {
        let state = self.program.state.iter().map(|slot| self.slots.share(*slot));
        state.collect::<Result<_, Failure>>().map_err(|_| mismatch("no state is bound".to_owned()))
    }

    /// How many tensors are held; between steps only those of state and of the prologue.
    pub fn live(&self) -> usize {
        self.slots.live()
    }

    /// Runs one step on `inputs`, in the order of [`Program::inputs`], and gives what the step returns.
    pub fn run(&mut self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        self.step(inputs, |executor, _| executor.run_body())
    }

    /// Runs one step as [`run`](Self::run) does, and notes when each instruction ran.
    pub fn run_recorded(&mut self, inputs: Vec<Tensor>, records: &mut Vec<Record>) -> Result<Vec<Tensor>> {
        self.step(inputs, |executor, start| executor.run_body_recorded(start, records))
    }

    /// Runs one step as [`run`](Self::run) does, and calls `after` with the position of each instruction that has been issued; what it fails
    /// with is the failure of that instruction.
    pub fn run_watched(
        &mut self,
        inputs: Vec<Tensor>,
        after: &mut dyn FnMut(usize) -> std::result::Result<(), Failure>,
    ) -> Result<Vec<Tensor>> {
        self.step(inputs, |executor, _| executor.run_body_watched(after))
    }

    fn step(
        &mut self,
        inputs: Vec<Tensor>,
        body: impl FnOnce(&mut Self, Instant) -> Result<()>,
    ) -> Result<Vec<Tensor>> {
        let start = Instant::now();
        let _grad = GradModeOff::new(self.library);
        self.put_inputs(inputs)?;
        let result = self.prepare().and_then(|()| body(self, start)).and_then(|()| self.outputs());
        self.progress.set(Progress::BETWEEN);
        if result.is_err() {
            self.release_step();
        }
        result
    }

    /// Runs the prologue where it has not been run for the bound state.
    fn prepare(&mut self) -> Result<()> {
        if self.prepared {
            return Ok(());
        }
        if self.program.state.iter().any(|slot| self.slots.is_empty(*slot)) {
            return Err(mismatch("no state is bound".to_owned()));
        }
        for (linked, instruction) in self.prologue.iter().zip(&self.program.prologue) {
            let result = run(&linked.step, &mut self.slots, self.proxy, self.stream);
            result.map_err(|failure| failed(&self.program, instruction, &failure))?;
        }
        self.prepared = true;
        Ok(())
    }

    fn run_body(&mut self) -> Result<()> {
        for index in 0..self.body.len() {
            self.run_one(index)?;
        }
        self.write_updates()
    }

    fn run_body_recorded(&mut self, start: Instant, records: &mut Vec<Record>) -> Result<()> {
        for index in 0..self.body.len() {
            let before = start.elapsed();
            self.run_one(index)?;
            let duration = start.elapsed().saturating_sub(before);
            let nanos = |time: std::time::Duration| Nanos(time.as_nanos() as i64);
            records.push(Record {
                instruction: index as u32,
                start: nanos(before),
                duration: nanos(duration),
            });
        }
        self.write_updates()
    }

    fn run_body_watched(
        &mut self,
        after: &mut dyn FnMut(usize) -> std::result::Result<(), Failure>,
    ) -> Result<()> {
        for index in 0..self.body.len() {
            self.run_one(index)?;
            after(index).map_err(|failure| failed(&self.program, &self.program.body[index], &failure))?;
        }
        self.write_updates()
    }

    #[inline]
    fn run_one(&mut self, index: usize) -> Result<()> {
        self.progress.set(index as u32);
        let linked = &mut self.body[index];
        let mut result = run(&linked.step, &mut self.slots, self.proxy, self.stream);
        if result.is_ok() && matches!(linked.step, Step::UnseenView { .. }) {
            result = see_view(&mut linked.step, &self.slots);
        }
        for slot in &linked.release {
            self.slots.release(*slot);
        }
        result.map_err(|failure| failed(&self.program, &self.program.body[index], &failure))
    }

    fn write_updates(&mut self) -> Result<()> {
        for update in &self.program.updates {
            let copied = self.slots.copy(update.state, update.value);
            copied.map_err(|failure| {
                let what = format!("the new value of state {} cannot be written", update.state);
                Diagnostic::new(Code::OPERATION_FAILED, what).because(failure.0)
            })?;
        }
        Ok(())
    }

    /// Shares what the step returns, and releases it with the new values of state.
    fn outputs(&mut self) -> Result<Vec<Tensor>> {
        let returns = self.program.returns.iter().map(|slot| self.slots.share(*slot));
        let returns =
            returns.collect::<Result<Vec<_>, Failure>>().map_err(|failure| Diagnostic::bug(failure.0))?;
        let updates = self.program.updates.iter().map(|update| update.value);
        for slot in
            self.program.returns.iter().copied().chain(updates).chain(self.program.inputs.iter().copied())
        {
            if !self.program.is_pinned(slot) {
                self.slots.release(slot);
            }
        }
        Ok(returns)
    }

    fn release_step(&mut self) {
        for index in 0..self.slots.count() {
            let slot = Slot(index as u32);
            if !self.program.is_pinned(slot) {
                self.slots.release(slot);
            }
        }
    }

    fn release_all(&mut self) {
        for index in 0..self.slots.count() {
            self.slots.release(Slot(index as u32));
        }
    }

    /// Puts inputs into their slots; they must be like those of the first step.
    fn put_inputs(&mut self, inputs: Vec<Tensor>) -> Result<()> {
        let count = self.program.inputs.len();
        if inputs.len() != count {
            return Err(mismatch(format!(
                "{} inputs are passed where the program has {count}",
                inputs.len()
            )));
        }
        let first = self.inputs.is_empty();
        let mut layouts = Vec::with_capacity(if first { count } else { 0 });
        for (index, tensor) in inputs.into_iter().enumerate() {
            let slot = self.program.inputs[index];
            let known = self.inputs.get(index);
            if known
                .map(|known| tensor.lies_as(self.library, known))
                .transpose()
                .map_err(|f| mismatch(f.0))?
                == Some(true)
            {
                self.slots.put(slot, tensor);
                continue;
            }
            let layout = tensor.layout(self.library).map_err(|failure| mismatch(failure.0))?;
            let tensor = if first {
                self.check_shape("input", index, slot, &layout)?;
                layouts.push(layout);
                tensor
            } else {
                like_first(self.library, index, tensor, &layout, &self.inputs[index])?
            };
            self.slots.put(slot, tensor);
        }
        if first {
            self.inputs = layouts;
        }
        Ok(())
    }

    /// State is written where it is, by kernels too that walk through memory: it must lie there as the program was told.
    fn check_strides(&self, index: usize, slot: Slot, found: &TensorLayout) -> Result<()> {
        let Some(Some(shape)) = self.program.shapes.get(slot.0 as usize) else { return Ok(()) };
        let Some(strides) = &shape.strides else { return Ok(()) };
        let differs = |dim: usize| found.sizes[dim] > 1 && strides[dim] != found.strides[dim];
        // A tensor that repeats itself is a constant, which nothing writes into.
        let repeats = (0..strides.len()).any(|dim| found.sizes[dim] > 1 && strides[dim] == 0);
        if !found.strided || repeats || !(0..strides.len()).any(differs) {
            return Ok(());
        }
        Err(mismatch(format!(
            "tensor of state {index} has strides {:?}, but the step was captured with {strides:?}",
            found.strides
        )))
    }

    fn check_shape(&self, what: &str, index: usize, slot: Slot, found: &TensorLayout) -> Result<()> {
        let Some(Some(expected)) = self.program.shapes.get(slot.0 as usize) else { return Ok(()) };
        if found.dtype == Some(expected.dtype) && found.sizes == expected.sizes {
            return Ok(());
        }
        Err(other_shape(what, index, Some(expected.dtype), &expected.sizes, found))
    }
}

#[inline]
fn run(step: &Step, slots: &mut Slots, proxy: Option<Proxy>, stream: Option<Stream>) -> Result<(), Failure> {
    match step {
        Step::View(view) => slots.view(view),
        Step::Views(views) => views.iter().try_for_each(|view| slots.view(view)),
        Step::Kernel(call) => call.run(slots),
        Step::DeviceKernel(call) => call.run(slots, stream),
        Step::DeviceRandom(call) => call.as_ref().map_or(Ok(()), |call| call.run(slots, stream)),
        Step::Move { call, device } => call.as_ref().map_or(Ok(()), |call| call.run(slots, *device)),
        Step::Attention { call, device } => call.run(slots, *device),
        Step::Lists { call, device } => call.run(slots, *device),
        Step::Random(call) => call.as_ref().map_or(Ok(()), |call| call.run(slots)),
        Step::Dispatcher(call) | Step::UnseenView { call, .. } => call.run(slots),
        Step::Proxy(call) => match proxy {
            Some(proxy) => call.run(proxy, slots),
            None => Err(Failure("there is no proxy executor".to_owned())),
        },
        Step::Shim(call) => call.run(slots),
        Step::Number { value, dtype, target } => {
            slots.put(*target, Tensor::scalar(slots.library(), *value, *dtype)?);
            Ok(())
        }
        Step::Buffer { shape, device, target } => {
            let strides = shape.strides.as_deref().unwrap_or_default();
            let library = slots.library();
            let device = library.device_numbers(device)?;
            let tensor = Tensor::empty(library, shape.dtype, &shape.sizes, strides, device)?;
            slots.put(*target, tensor);
            Ok(())
        }
        Step::Kept { shape, device, target } => {
            let strides = shape.strides.as_deref().unwrap_or_default();
            let tensor = Tensor::kept(slots.library(), shape.dtype, &shape.sizes, strides, *device)?;
            slots.put(*target, tensor);
            Ok(())
        }
    }
}

/// Replaces the call of a view by its metadata, where what it made does share its argument's memory.
fn see_view(step: &mut Step, slots: &Slots) -> Result<(), Failure> {
    let Step::UnseenView { source, targets, .. } = step else { return Ok(()) };
    let Some(from) = slots.layout(*source)? else { return Ok(()) };
    let mut views = Vec::with_capacity(targets.len());
    for target in targets.iter() {
        let Some(to) = slots.layout(*target)? else { return Ok(()) };
        match view_of(slots.library(), *source, &from, *target, &to) {
            Some(view) => views.push(view),
            None => return Ok(()),
        }
    }
    *step = match views.pop() {
        Some(view) if views.is_empty() => Step::View(view),
        last => Step::Views(views.into_iter().chain(last).collect()),
    };
    Ok(())
}

fn view_of(
    library: &Library,
    source: Slot,
    from: &TensorLayout,
    target: Slot,
    to: &TensorLayout,
) -> Option<View> {
    let dtype = from.dtype?;
    let advance = to.offset - from.offset;
    let bytes = advance * library.element_size(dtype) as i64;
    let shares = from.address != 0 && to.address as i64 == from.address as i64 + bytes;
    let plain = from.strided && to.strided && to.dtype == Some(dtype) && !dtype.is_complex();
    (shares && plain).then(|| View::new(source, target, &to.sizes, &to.strides, advance))
}

/// `tensor` as the first step's input lay in memory: views have been fixed by that.
fn like_first(
    library: &'static Library,
    index: usize,
    tensor: Tensor,
    found: &TensorLayout,
    first: &TensorLayout,
) -> Result<Tensor> {
    if found.dtype != first.dtype || found.sizes != first.sizes {
        return Err(other_shape("input", index, first.dtype, &first.sizes, found));
    }
    if found.strides == first.strides {
        return Ok(tensor);
    }
    let copy = || {
        let dtype = first.dtype.ok_or_else(|| Failure("an element type that is not known".to_owned()))?;
        let device = tensor.device(library)?;
        let copy = Tensor::empty(library, dtype, &first.sizes, &first.strides, device)?;
        copy.copy_from(library, &tensor)?;
        Ok(copy)
    };
    copy().map_err(|failure: Failure| mismatch(failure.0))
}

fn other_shape(
    what: &str,
    index: usize,
    dtype: Option<Dtype>,
    sizes: &[i64],
    found: &TensorLayout,
) -> Box<Diagnostic> {
    let text = |dtype: Option<Dtype>, sizes: &[i64]| {
        format!("{} {sizes:?}", dtype.map_or("an unknown type", Dtype::name))
    };
    let (found, expected) = (text(found.dtype, &found.sizes), text(dtype, sizes));
    mismatch(format!("{what} {index} is {found}, but the step was captured with {expected}"))
}

fn mismatch(message: String) -> Box<Diagnostic> {
    Diagnostic::new(Code::BAD_BINDING, message)
}

#[cold]
fn failed(program: &Program, instruction: &Instruction, failure: &Failure) -> Box<Diagnostic> {
    let what = format!("`{}` failed", program.name(instruction));
    // PyTorch's C interface gives the words of an error, not its kind: those of a device's allocator, and of the host's.
    let without_memory = ["out of memory", "can't allocate memory", "not enough memory"];
    let found_none = without_memory.iter().any(|words| failure.0.contains(words));
    let code = if found_none { Code::OUT_OF_MEMORY } else { Code::OPERATION_FAILED };
    let diagnostic = Diagnostic::new(code, what).because(failure.0.clone());
    match program.place(instruction) {
        Some(place) => diagnostic.at(place.clone()),
        None => diagnostic,
    }
}
