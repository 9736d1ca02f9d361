//! Kernels as instructions on a device of CUDA.

use std::{cell::OnceCell, sync::Arc};

use cuda::{DeviceMemory, Module, Stream};
use smallvec::SmallVec;
use torch_sys::{Dtype, Failure, OnDevice, Slot, Slots, Tensor};

use crate::{
    Shape, Write,
    kernels::{failed, moved_kernel},
};

/// Kernels of a program on a device, and PyTorch's numbers of its type and of itself.
#[derive(Clone)]
pub struct DeviceKernels {
    /// The kernels.
    pub module: Arc<Module>,
    /// PyTorch's number of its type, and its index.
    pub numbers: (i32, i32),
}

/// A kernel, ready to be launched.
pub(crate) struct DeviceKernelCall {
    module: Arc<Module>,
    kernel: usize,
    reads: Vec<(Slot, Shape)>,
    writes: Vec<Write>,
    numbers: (i32, i32),
    /// The kernel for operands that lie otherwise than the graph says, and how they lie.
    other: OnceCell<(Vec<Vec<i64>>, Module)>,
}

type Found<T> = std::result::Result<T, Failure>;

impl DeviceKernelCall {
    pub(crate) fn new(
        module: Arc<Module>,
        kernel: usize,
        reads: Vec<(Slot, Shape)>,
        writes: Vec<Write>,
        numbers: (i32, i32),
    ) -> Self {
        Self { module, kernel, reads, writes, numbers, other: OnceCell::new() }
    }

    /// Allocates the results and launches the kernel.
    pub(crate) fn run(&self, slots: &mut Slots, stream: Option<Stream>) -> Found<()> {
        let stream = stream.ok_or_else(|| Failure("a kernel has no stream to run on".to_owned()))?;
        let strides = self.strides(slots)?;
        for write in &self.writes {
            let tensor = self.result(slots, write, strides.is_none())?;
            slots.put(write.slot, tensor);
        }
        let Some(strides) = strides else { return self.launch(&self.module, self.kernel, slots, stream) };
        if self.other.get().is_none() {
            let _ = self.other.set((strides.clone(), self.module_for(&strides)?));
        }
        match self.other.get() {
            Some((known, module)) if *known == strides => self.launch(module, 0, slots, stream),
            _ => self.launch(&self.module_for(&strides)?, 0, slots, stream),
        }
    }

    fn launch(&self, module: &Module, kernel: usize, slots: &mut Slots, stream: Stream) -> Found<()> {
        // What is kept is given back as soon as the kernel is launched: its memory is used again only by what comes later on the stream.
        let kept = module.kept(kernel);
        let kept =
            if kept == 0 { None } else { Some(self.empty(slots, Dtype::Float32, &[kept as i64], &[1])?) };
        let kept = match &kept {
            Some(tensor) => Some(memory(slots.borrowed(tensor, self.numbers)?)?),
            None => None,
        };
        let all = self.reads.iter().map(|(slot, _)| *slot).chain(self.writes.iter().map(|write| write.slot));
        let memory = all.map(|slot| memory(slots.on_device(slot, self.numbers)?));
        let memory: SmallVec<[DeviceMemory<'_>; 12]> = memory.collect::<Found<_>>()?;
        module.launch(kernel, &memory, kept, stream).map_err(failed)
    }

    /// The tensor of a result: over what the kernel reads where that may be, and `expected` says that it lies as the graph says.
    fn result(&self, slots: &Slots, write: &Write, expected: bool) -> Found<Tensor> {
        if let Some(read) = write.over.filter(|_| expected) {
            return slots.share(self.reads[read].0);
        }
        let Shape { dtype, sizes, strides } = &write.shape;
        self.empty(slots, *dtype, sizes, strides.as_deref().unwrap_or_default())
    }

    fn empty(&self, slots: &Slots, dtype: Dtype, sizes: &[i64], strides: &[i64]) -> Found<Tensor> {
        Tensor::empty(slots.library(), dtype, sizes, strides, self.numbers)
    }

    /// The strides of all that is read, where one lies otherwise than the graph says.
    fn strides(&self, slots: &Slots) -> Found<Option<Vec<Vec<i64>>>> {
        let mut strides = Vec::new();
        let mut expected = true;
        for (slot, shape) in &self.reads {
            let found = slots.on_device(*slot, self.numbers)?;
            if found.sizes() != shape.sizes {
                return Err(Failure(format!("{slot} has sizes {:?}, not {:?}", found.sizes(), shape.sizes)));
            }
            expected &= Some(found.strides()) == shape.strides.as_deref();
            strides.push(found.strides().to_vec());
        }
        Ok((!expected).then_some(strides))
    }

    /// The kernel for operands with these strides.
    fn module_for(&self, strides: &[Vec<i64>]) -> Found<Module> {
        let kernel = moved_kernel(self.module.kernel(self.kernel), &self.reads, strides)?;
        Module::new(self.module.device(), &[kernel]).map_err(failed)
    }
}

pub(crate) fn memory(found: OnDevice<'_>) -> Found<DeviceMemory<'_>> {
    DeviceMemory::of(found)
        .ok_or_else(|| Failure(format!("a kernel takes no elements of {:?}", found.dtype())))
}
