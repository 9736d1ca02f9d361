//! The C functions of an `AOTInductor` model, through which torch hands its proxy executor to us.
//!
//! torch loads a "model" (a link to this very library), reads the JSON beside it, makes the proxy executor and passes it to
//! the model's `Run`. Ours keeps the pointer and does nothing else. Functions that torch looks up but that we do not need
//! fail with status 1; old model files must keep loading, so the set is stable.

use std::{
    cell::Cell,
    ffi::{c_char, c_void},
    ptr::NonNull,
};

use crate::Proxy;

thread_local! {
    static CAPTURED: Cell<*mut c_void> = const { Cell::new(std::ptr::null_mut()) };
}

/// The proxy executor that torch has passed to this thread's latest model run, once.
///
/// # Safety
/// The runner object that made it outlives all use of the result.
pub unsafe fn captured_proxy() -> Option<Proxy> {
    let raw = CAPTURED.with(|captured| captured.replace(std::ptr::null_mut()));
    // SAFETY: the pointer is the one that torch has passed, and the caller keeps its owner.
    NonNull::new(raw).map(|raw| unsafe { Proxy::new(raw) })
}

const OK: i32 = 0;
const NOT_OFFERED: i32 = 1;

/// Makes a "model": any pointer that is not null will do.
#[unsafe(no_mangle)]
extern "C" fn AOTInductorModelContainerCreateWithDevice(
    container: *mut *mut c_void,
    _models: usize,
    _device: *const c_char,
    _cubin_directory: *const c_char,
) -> i32 {
    // SAFETY: torch passes a place for the pointer.
    unsafe { container.write(NonNull::<u64>::dangling().as_ptr().cast()) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn AOTInductorModelContainerDelete(_container: *mut c_void) -> i32 {
    OK
}

#[unsafe(no_mangle)]
extern "C" fn AOTInductorModelContainerGetNumOutputs(_container: *mut c_void, count: *mut usize) -> i32 {
    // SAFETY: torch passes a place for the number.
    unsafe { count.write(0) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn AOTInductorModelContainerGetNumConstants(_container: *mut c_void, count: *mut usize) -> i32 {
    // SAFETY: torch passes a place for the number.
    unsafe { count.write(0) };
    OK
}

/// Whether constants have been loaded from the model, which has none. torch asks from 2.14 on.
#[unsafe(no_mangle)]
extern "C" fn AOTInductorModelContainerDidCallLoadConstants(
    _container: *mut c_void,
    loaded: *mut bool,
) -> i32 {
    // SAFETY: torch passes a place for the answer.
    unsafe { loaded.write(true) };
    OK
}

#[unsafe(no_mangle)]
extern "C" fn AOTInductorModelContainerRun(
    _container: *mut c_void,
    _inputs: *mut *mut c_void,
    _input_count: usize,
    _outputs: *mut *mut c_void,
    _output_count: usize,
    _stream: *mut c_void,
    proxy: *mut c_void,
) -> i32 {
    CAPTURED.with(|captured| captured.set(proxy));
    OK
}

#[unsafe(no_mangle)]
extern "C" fn AOTInductorModelContainerRunSingleThreaded(
    container: *mut c_void,
    inputs: *mut *mut c_void,
    input_count: usize,
    outputs: *mut *mut c_void,
    output_count: usize,
    stream: *mut c_void,
    proxy: *mut c_void,
) -> i32 {
    AOTInductorModelContainerRun(container, inputs, input_count, outputs, output_count, stream, proxy)
}

/// torch asks for the text after a failure only.
#[unsafe(no_mangle)]
extern "C" fn AOTInductorGetLastError(text: *mut *const c_char) -> i32 {
    // SAFETY: torch passes a place for the pointer.
    unsafe { text.write(c"not offered by Unisono's proxy model".as_ptr()) };
    OK
}

macro_rules! not_offered {
    ($($name:ident),* $(,)?) => {
        $(
            // Never reads an argument, so that the number of them does not matter in the C calling convention.
            #[unsafe(no_mangle)]
            extern "C" fn $name() -> i32 {
                NOT_OFFERED
            }
        )*
    };
}

not_offered!(
    AOTInductorModelContainerGetConstantName,
    AOTInductorModelContainerGetConstantOriginalFQN,
    AOTInductorModelContainerGetConstantDtype,
    AOTInductorModelContainerUpdateConstantBuffer,
    AOTInductorModelContainerUpdateConstantBufferFromCpu,
    AOTInductorModelContainerUpdateInactiveConstantBuffer,
    AOTInductorModelContainerRunConstantFolding,
    AOTInductorModelContainerSwapConstantBuffer,
    AOTInductorModelContainerGetCallSpec,
    AOTInductorModelContainerExtractConstantsMap,
    AOTInductorModelContainerUpdateUserManagedConstantBuffer,
    AOTInductorModelContainerFreeInactiveConstantBuffer,
    AOTInductorModelContainerGetConstantsBlobSize,
    AOTInductorModelUpdateConstantsFromBlob,
    AOTInductorModelContainerCreateWithExternalConstants,
);
