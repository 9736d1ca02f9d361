//! Kernels as instructions on a device of CUDA.

use std::sync::Arc;

use cuda::{DeviceMemory, Module, Stream};
use smallvec::SmallVec;
use torch_sys::{Dtype, Failure, OnDevice, Slots, Tensor};

use crate::kernels::{Moved, Operands, failed, moved_kernel};

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
    operands: Operands,
    moved: Moved<Module>,
}

type Found<T> = std::result::Result<T, Failure>;

impl DeviceKernelCall {
    pub(crate) const fn new(module: Arc<Module>, kernel: usize, operands: Operands) -> Self {
        Self { module, kernel, operands, moved: Moved::new() }
    }

    /// Allocates the results and launches the kernel.
    pub(crate) fn run(&self, slots: &mut Slots, stream: Option<Stream>) -> Found<()> {
        let stream = stream.ok_or_else(|| Failure("a kernel has no stream to run on".to_owned()))?;
        let strides = self.strides(slots)?;
        self.operands.allocate(slots, strides.is_none())?;
        let Some(strides) = strides else { return self.launch(&self.module, self.kernel, slots, stream) };
        let launch = |module: &Module| self.launch(module, 0, slots, stream);
        self.moved.run(&strides, || self.module_for(&strides), launch)
    }

    fn launch(&self, module: &Module, kernel: usize, slots: &Slots, stream: Stream) -> Found<()> {
        let device = self.operands.device;
        // What is kept is given back as soon as the kernel is launched: its memory is used again only by what comes later on the stream.
        let kept = module.kept(kernel);
        let empty =
            |count: usize| Tensor::empty(slots.library(), Dtype::Float32, &[count as i64], &[1], device);
        let kept = if kept == 0 { None } else { Some(empty(kept)?) };
        let kept = match &kept {
            Some(tensor) => Some(memory(slots.borrowed(tensor, device)?)?),
            None => None,
        };
        let memory = self.operands.slots().map(|slot| memory(slots.on_device(slot, device)?));
        let memory: SmallVec<[DeviceMemory<'_>; 12]> = memory.collect::<Found<_>>()?;
        module.launch(kernel, &memory, kept, stream).map_err(failed)
    }

    /// The strides of all that is read, where one lies otherwise than the graph says.
    fn strides(&self, slots: &Slots) -> Found<Option<Vec<Vec<i64>>>> {
        let mut strides = Vec::new();
        let mut expected = true;
        for (slot, shape) in &self.operands.reads {
            let found = slots.on_device(*slot, self.operands.device)?;
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
        let kernel = moved_kernel(self.module.kernel(self.kernel), &self.operands.reads, strides)?;
        Module::new(self.module.device(), &[kernel]).map_err(failed)
    }
}

pub(crate) fn memory(found: OnDevice<'_>) -> Found<DeviceMemory<'_>> {
    DeviceMemory::of(found)
        .ok_or_else(|| Failure(format!("a kernel takes no elements of {:?}", found.dtype())))
}
