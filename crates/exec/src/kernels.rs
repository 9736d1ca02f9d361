//! Groups of operations as one instruction each: how they stand in a program, and how they run.

use std::{cell::OnceCell, sync::Arc};

use ir::{Graph, PartKind};
use jit::Module;
use loops::{Item, Kernel, OperandId, Partition};
use memory::{Lifetimes, Once, Steps};
use smallvec::SmallVec;
use torch_sys::{Arg, Cells, Failure, Output, Schema, Slot, Slots, Tensor};

use crate::{OpCall, ProgramSpec, Shape};

/// The operator that stands for a kernel in a program.
const SCHEMA: &str = "unisono::kernel(Tensor[] reads, int kernel) -> Tensor[]";

/// Whether a call is one of a kernel.
pub(crate) fn is_kernel(schema: &Schema) -> bool {
    ir::is_kernel(&schema.name)
}

/// The same program with groups of operations as kernels. `spec` is that of `graph`, call by call, and `partition` too.
pub fn fuse(spec: &ProgramSpec, graph: &Graph, partition: &Partition) -> ProgramSpec {
    let mut spec = spec.clone();
    let calls = std::mem::take(&mut spec.calls);
    let op = spec.schemas.len() as u32;
    spec.schemas.push(SCHEMA.to_owned());
    let positions = graph.positions();
    for item in &partition.order {
        spec.calls.push(match item {
            Item::Node(position) => calls[*position].clone(),
            Item::Group(number) => {
                let group = &partition.groups[*number];
                let last = *group.nodes.last().expect("a group has operations");
                let slots =
                    |values: &[ir::ValueId]| values.iter().map(|value| Slot(value.0)).collect::<Vec<_>>();
                OpCall {
                    op,
                    args: vec![
                        Arg::Tensors(slots(&group.reads)),
                        Arg::Int(number_of(&mut spec.kernels, &group.kernel)),
                    ],
                    outputs: vec![Output::Tensors(slots(&group.writes).into_iter().map(Some).collect())],
                    place: calls[positions[last]].place,
                    node: Some(positions[last] as u32),
                    writes_state: graph.part_kind(last) == PartKind::Update,
                }
            }
        });
    }
    spec
}

/// The number of a kernel; equal ones are one.
fn number_of(kernels: &mut Vec<Kernel>, kernel: &Kernel) -> i64 {
    let known = kernels.iter().position(|known| known == kernel);
    known.unwrap_or_else(|| {
        kernels.push(kernel.clone());
        kernels.len() - 1
    }) as i64
}

/// A result of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where it goes.
    pub slot: Slot,
    /// Its element type, sizes and strides.
    pub shape: Shape,
    /// Which of the tensors that the kernel reads gives its memory, being read by nothing afterwards.
    pub over: Option<usize>,
    /// Whether memory that it has of its own is kept when it ends.
    pub kept: bool,
}

/// What decides whether a kernel may write over what it reads.
pub(crate) struct Ends<'a> {
    pub(crate) steps: &'a Steps,
    pub(crate) lifetimes: &'a Lifetimes,
    pub(crate) once: &'a [Once],
}

impl Ends<'_> {
    /// For each result of the kernel at `index` the operand whose memory it takes: one of its type whose elements lie side by side, that ends
    /// here, that this run has made and that the kernel walks through in the same way.
    pub(crate) fn taken(&self, index: usize, kernel: &Kernel) -> Vec<Option<usize>> {
        let step = &self.steps.steps[index];
        let mut free: Vec<bool> = step.reads.iter().map(|read| self.ends(index, *read)).collect();
        let writes = (step.reads.len()..kernel.operands.len()).map(|index| OperandId(index as u32));
        let taken = step.makes.iter().zip(writes).map(|(made, write)| {
            let made = self.steps.values[*made as usize];
            let fits = |read: u32| {
                let read = self.steps.values[read as usize];
                read.dense && made.dense && read.alike.is_some() && read.alike == made.alike
            };
            let found = (0..free.len()).find(|read| {
                free[*read] && kernel.may_lie_alike(write, OperandId(*read as u32)) && fits(step.reads[*read])
            })?;
            free[found] = false;
            Some(found)
        });
        taken.collect()
    }

    fn ends(&self, index: usize, read: u32) -> bool {
        let root = self.lifetimes.root(read);
        let alone =
            self.steps.steps[index].reads.iter().filter(|other| self.lifetimes.root(**other) == root).count()
                == 1;
        let made = self.steps.steps[..index].iter().position(|step| step.makes.contains(&root));
        let made_each_time = made.is_some_and(|made| self.once[made] == Once::No);
        alone && made_each_time && self.lifetimes.last_read(root).is_none_or(|last| last <= index)
    }
}

type Done = std::result::Result<(), Failure>;

#[allow(clippy::boxed_local, clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn failed(diagnostic: Box<base::Diagnostic>) -> Failure {
    Failure(match diagnostic.cause {
        Some(cause) => format!("{}: {cause}", diagnostic.message),
        None => diagnostic.message,
    })
}

/// What a kernel reads and writes, and where.
pub(crate) struct Operands {
    pub(crate) reads: Vec<(Slot, Shape)>,
    pub(crate) writes: Vec<Write>,
    /// PyTorch's number of the type of device, and its index.
    pub(crate) device: (i32, i32),
}

impl Operands {
    /// Allocates the results: over what the kernel reads where that may be, and `expected` says that it lies as the graph says.
    #[inline]
    pub(crate) fn allocate(&self, slots: &mut Slots, expected: bool) -> Done {
        for write in &self.writes {
            let tensor = match write.over.filter(|_| expected) {
                Some(read) => slots.share(self.reads[read].0)?,
                None => self.own(slots, write)?,
            };
            slots.put(write.slot, tensor);
        }
        Ok(())
    }

    /// Allocates what was to be written over something that is read.
    fn allocate_apart(&self, slots: &mut Slots) -> Done {
        for write in self.writes.iter().filter(|write| write.over.is_some()) {
            let tensor = self.own(slots, write)?;
            slots.put(write.slot, tensor);
        }
        Ok(())
    }

    fn own(&self, slots: &Slots, write: &Write) -> std::result::Result<Tensor, Failure> {
        let Shape { dtype, sizes, strides } = &write.shape;
        let make = if write.kept { Tensor::kept } else { Tensor::empty };
        make(slots.library(), *dtype, sizes, strides.as_deref().unwrap_or_default(), self.device)
    }

    /// All of them, in the order in which kernels take them.
    #[inline]
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.reads.iter().map(|(slot, _)| *slot).chain(self.writes.iter().map(|write| write.slot))
    }
}

/// A compiled kernel for operands that lie otherwise than the graph says, kept for the first way in which they do.
pub(crate) struct Moved<M>(OnceCell<(Vec<Vec<i64>>, M)>);

impl<M> Moved<M> {
    pub(crate) const fn new() -> Self {
        Self(OnceCell::new())
    }

    /// Runs the kernel for operands with these strides.
    pub(crate) fn run(
        &self,
        strides: &[Vec<i64>],
        make: impl Fn() -> std::result::Result<M, Failure>,
        run: impl Fn(&M) -> Done,
    ) -> Done {
        if self.0.get().is_none() {
            let _ = self.0.set((strides.to_vec(), make()?));
        }
        match self.0.get() {
            Some((known, module)) if *known == strides => run(module),
            _ => run(&make()?),
        }
    }
}

/// The memory of a kernel's operands, in their order.
type Operand<'a> = SmallVec<[loops::Memory<'a>; 12]>;

const fn cells(cells: Cells<'_>) -> loops::Memory<'_> {
    match cells {
        Cells::Float32(cells) => loops::Memory::F32(cells),
        Cells::Bfloat16(cells) => loops::Memory::Bf16(cells),
        Cells::Bool(cells) => loops::Memory::Bool(cells),
        Cells::Int64(cells) => loops::Memory::I64(cells),
    }
}

/// A kernel, ready to run.
pub(crate) struct KernelCall {
    module: Arc<Module>,
    kernel: usize,
    operands: Operands,
    moved: Moved<Module>,
}

impl KernelCall {
    pub(crate) const fn new(module: Arc<Module>, kernel: usize, operands: Operands) -> Self {
        Self { module, kernel, operands, moved: Moved::new() }
    }

    /// Allocates the results and runs the kernel.
    pub(crate) fn run(&self, slots: &mut Slots) -> Done {
        self.operands.allocate(slots, true)?;
        let (memory, expected) = self.memory(slots)?;
        if expected {
            return self.module.run(self.kernel, &memory).map_err(failed);
        }
        drop(memory);
        self.operands.allocate_apart(slots)?;
        let (memory, _) = self.memory(slots)?;
        let strides = self.strides(slots)?;
        let run = |module: &Module| module.run(0, &memory).map_err(failed);
        self.moved.run(&strides, || self.module_for(&strides), run)
    }

    /// The memory of all operands, and whether what is read lies as the graph says.
    fn memory<'a>(&self, slots: &'a Slots) -> std::result::Result<(Operand<'a>, bool), Failure> {
        let (mut memory, mut expected) = (SmallVec::new(), true);
        for (slot, shape) in &self.operands.reads {
            let elements = slots.elements(*slot)?;
            if elements.sizes != shape.sizes {
                return Err(Failure(format!("{slot} has sizes {:?}, not {:?}", elements.sizes, shape.sizes)));
            }
            expected &= Some(elements.strides) == shape.strides.as_deref();
            memory.push(cells(elements.cells));
        }
        for write in &self.operands.writes {
            memory.push(cells(slots.elements(write.slot)?.cells));
        }
        Ok((memory, expected))
    }

    /// The strides of all that is read.
    fn strides(&self, slots: &Slots) -> std::result::Result<Vec<Vec<i64>>, Failure> {
        let strides = |(slot, _): &(Slot, Shape)| Ok(slots.elements(*slot)?.strides.to_vec());
        self.operands.reads.iter().map(strides).collect()
    }

    /// The kernel for operands with these strides.
    fn module_for(&self, strides: &[Vec<i64>]) -> std::result::Result<Module, Failure> {
        let kernel = moved_kernel(self.module.kernel(self.kernel), &self.operands.reads, strides)?;
        Module::new(&[kernel]).map_err(failed)
    }
}

/// A kernel for operands that lie with other strides than they were said to.
pub(crate) fn moved_kernel(
    kernel: &Kernel,
    reads: &[(Slot, Shape)],
    strides: &[Vec<i64>],
) -> std::result::Result<Kernel, Failure> {
    let mut kernel = kernel.clone();
    for (index, ((slot, shape), found)) in reads.iter().zip(strides).enumerate() {
        let moved = |distance| moved(shape, found, distance);
        kernel = kernel
            .with_moved(OperandId(index as u32), moved)
            .ok_or_else(|| Failure(format!("{slot} has strides {found:?}, which no kernel can follow")))?;
    }
    Ok(kernel)
}

/// How far apart elements lie in a tensor with strides `found` that are so far apart in one of `shape`. The distance is along one dimension.
fn moved(shape: &Shape, found: &[i64], distance: i64) -> Option<i64> {
    let expected = shape.strides.as_deref()?;
    let mut dims = shape.sizes.iter().zip(expected).zip(found).filter(|((size, _), _)| **size > 1);
    if distance == 0 {
        return dims.all(|((_, old), new)| *old > 0 || *new == 0).then_some(0);
    }
    let along =
        |((size, old), _): &((&i64, &i64), &i64)| **old > 0 && **old <= distance && distance < **old * **size;
    let mut matching = dims.filter(along);
    let ((_, old), new) = matching.next()?;
    (matching.next().is_none() && distance % old == 0).then(|| distance / old * new)
}
