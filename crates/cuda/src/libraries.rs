//! Libraries of CUDA, loaded at run time: the compiler (NVRTC) and the driver.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    path::Path,
};

use base::{Code, Diagnostic, Result};
use libloading::Library;

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident = $symbol:literal: fn($($argument:ty),*);)* }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            // The functions live as long as it does.
            _library: Library,
        }

        impl $table {
            /// # Safety
            /// In the library of this file these names have these types, and what loading it does is allowed.
            pub(crate) unsafe fn load(file: &Path) -> Result<Self> {
                // SAFETY: as the caller says.
                let library = unsafe { Library::new(file) }.map_err(|error| absent(file, &error))?;
                // SAFETY: the types are those of nvrtc.h and cuda.h, which keep them from release to release.
                unsafe {
                    Ok(Self {
                        $($name: *library
                            .get::<unsafe extern "C" fn($($argument),*) -> c_int>(concat!($symbol, "\0").as_bytes())
                            .map_err(|error| absent(file, &error))?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    /// NVRTC; programs are handles.
    CompilerFunctions {
        create = "nvrtcCreateProgram": fn(*mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        compile = "nvrtcCompileProgram": fn(*mut c_void, c_int, *const *const c_char);
        log_size = "nvrtcGetProgramLogSize": fn(*mut c_void, *mut usize);
        log = "nvrtcGetProgramLog": fn(*mut c_void, *mut c_char);
        image_size = "nvrtcGetCUBINSize": fn(*mut c_void, *mut usize);
        image = "nvrtcGetCUBIN": fn(*mut c_void, *mut c_char);
        destroy = "nvrtcDestroyProgram": fn(*mut *mut c_void);
    }
}

functions! {
    /// The driver; contexts, modules and functions are handles.
    DriverFunctions {
        init = "cuInit": fn(c_uint);
        error = "cuGetErrorString": fn(c_int, *mut *const c_char);
        device = "cuDeviceGet": fn(*mut c_int, c_int);
        retain = "cuDevicePrimaryCtxRetain": fn(*mut *mut c_void, c_int);
        push = "cuCtxPushCurrent_v2": fn(*mut c_void);
        pop = "cuCtxPopCurrent_v2": fn(*mut *mut c_void);
        load = "cuModuleLoadData": fn(*mut *mut c_void, *const c_void);
        unload = "cuModuleUnload": fn(*mut c_void);
        function = "cuModuleGetFunction": fn(*mut *mut c_void, *mut c_void, *const c_char);
        launch = "cuLaunchKernel": fn(*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void, *mut *mut c_void, *mut *mut c_void);
    }
}

fn absent(file: &Path, error: &libloading::Error) -> Box<Diagnostic> {
    Diagnostic::new(Code::NO_CUDA_LIBRARY, format!("`{}` is not there, or lacks a function", file.display()))
        .because(error.to_string())
        .hint("PyTorch's CUDA wheels bring it: pip install nvidia-cuda-nvrtc for the compiler; the driver belongs to the machine")
}

/// The text of a C string that lives long enough to be copied.
///
/// # Safety
/// `text` is null or ends with a zero.
pub(crate) unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_a_hint() {
        // SAFETY: there is no such library, so that nothing is called.
        let error = unsafe { CompilerFunctions::load(Path::new("/nonexistent/libnvrtc.so")) }.err().unwrap();
        assert_eq!(error.code, Code::NO_CUDA_LIBRARY);
        assert!(error.message.contains("/nonexistent/libnvrtc.so") && error.hint.is_some(), "{error}");
    }
}
