//! Random numbers at positions, drawn by a device of CUDA.

use base::Result;
use cuda::{DeviceMemory, Draw, Stream};
use loops::Element;
use smallvec::SmallVec;
use torch_sys::{Arg, Dtype, Failure, Output, Schema, Slot, Slots, Tensor};

use crate::{
    DeviceKernels, ProgramSpec, Shape,
    device_kernels::memory,
    kernels::failed,
    random::{Asked, is_random_at},
};

/// What the random operations of a program draw, each once; none where one of them draws what a kernel cannot.
pub fn draws_of(spec: &ProgramSpec) -> Result<Option<Vec<Draw>>> {
    let mut draws: Vec<Draw> = Vec::new();
    for call in &spec.calls {
        if !is_random_at(&Schema::parse(&spec.schemas[call.op as usize])?) {
            continue;
        }
        let Some(asked) = Asked::of(&call.args, &call.outputs)? else { continue };
        let Some(draw) = draw_of(&asked, &spec.shapes) else { return Ok(None) };
        if !draws.contains(&draw) {
            draws.push(draw);
        }
    }
    Ok(Some(draws))
}

fn draw_of(asked: &Asked, shapes: &[Option<Shape>]) -> Option<Draw> {
    let element = match asked.dtype {
        Dtype::Float32 => Element::F32,
        Dtype::Bfloat16 => Element::Bf16,
        Dtype::Float16 => Element::F16,
        Dtype::Int64 => Element::I64,
        _ => return None,
    };
    let size = |slot: &Slot| match shapes.get(slot.0 as usize)?.as_ref()?.sizes[..] {
        [size] => Some(size),
        _ => None,
    };
    let part = asked.index.iter().map(size).collect::<Option<Vec<i64>>>()?;
    Some(Draw { sizes: asked.sizes.clone(), part, operation: asked.operation, drawn: asked.drawn, element })
}

/// A call, ready to run.
pub(crate) struct DeviceRandomCall {
    kernels: DeviceKernels,
    draw: usize,
    part: Vec<i64>,
    asked: Asked,
}

impl DeviceRandomCall {
    /// Reads the arguments; none where nothing uses the result, or where the device has no kernel for it.
    pub(crate) fn new(
        kernels: &DeviceKernels,
        args: &[Arg],
        outputs: &[Output],
        shapes: &[Option<Shape>],
    ) -> Result<Option<Self>> {
        let Some(asked) = Asked::of(args, outputs)? else { return Ok(None) };
        let found =
            draw_of(&asked, shapes).and_then(|draw| Some((kernels.module.drawing(&draw)?, draw.part)));
        let (draw, part) = found
            .ok_or_else(|| base::Diagnostic::bug("random numbers that were not compiled for the device"))?;
        Ok(Some(Self { kernels: kernels.clone(), draw, part, asked }))
    }

    /// Allocates the result and has it drawn.
    pub(crate) fn run(&self, slots: &mut Slots, stream: Option<Stream>) -> std::result::Result<(), Failure> {
        let stream = stream.ok_or_else(|| Failure("a kernel has no stream to run on".to_owned()))?;
        let Asked { key, index, target, dtype, .. } = &self.asked;
        let DeviceKernels { module, numbers } = &self.kernels;
        let strides = ir::contiguous_strides(&self.part);
        slots.put(*target, Tensor::empty(slots.library(), *dtype, &self.part, &strides, *numbers)?);
        let there = |slot: &Slot| memory(slots.on_device(*slot, *numbers)?);
        let positions = index.iter().map(|slot| side_by_side(slots, *slot, *numbers));
        let positions: SmallVec<[DeviceMemory<'_>; 6]> =
            positions.collect::<std::result::Result<_, Failure>>()?;
        let key = side_by_side(slots, *key, *numbers)?;
        module.draw(self.draw, key, &positions, there(target)?, stream).map_err(failed)
    }
}

/// The elements of a tensor in one dimension, which lie side by side.
fn side_by_side(
    slots: &Slots,
    slot: Slot,
    device: (i32, i32),
) -> std::result::Result<DeviceMemory<'_>, Failure> {
    let found = slots.on_device(slot, device)?;
    match (found.sizes(), found.strides()) {
        ([size], [stride]) if *stride == 1 || *size <= 1 => memory(found),
        _ => Err(Failure(format!("{slot} is no row of positions"))),
    }
}
