//! The loaded libtorch: its symbols, its version and its codes.

use std::{
    ffi::{CStr, c_char, c_void},
    fmt,
    marker::PhantomData,
    path::Path,
    sync::OnceLock,
};

use base::{Code, Diagnostic, Result};
use libloading::os::unix;

use crate::{
    raw::{Failure, RawTensor},
    value::{Dtype, Layout, MemoryFormat},
};

/// The status that all functions return: 0 is success.
pub(crate) type Status = i32;
/// What is called with the memory of a tensor, and what was given beside it, when its storage ends.
pub(crate) type End = unsafe extern "C" fn(*mut c_void, *mut c_void);
/// An element of a dispatcher call's stack.
pub(crate) type Word = u64;

/// Find the library among the loaded ones only: a second copy of libtorch must never be started.
#[cfg(target_os = "macos")]
const ONLY_IF_LOADED: i32 = 0x10;
#[cfg(not(target_os = "macos"))]
const ONLY_IF_LOADED: i32 = 0x4;

#[cfg(target_os = "macos")]
const FILE: &str = "libtorch_cpu.dylib";
#[cfg(not(target_os = "macos"))]
const FILE: &str = "libtorch_cpu.so";

/// The library that rests on those of all devices, so that their functions are found from it.
#[cfg(target_os = "macos")]
const ALL: &str = "libtorch.dylib";
#[cfg(not(target_os = "macos"))]
const ALL: &str = "libtorch.so";

/// What to install where a function is missing: 2.11 is the oldest release with everything that is needed.
const NEEDED: &str = "install PyTorch 2.11 or newer (2.13 is recommended): pip install 'torch>=2.13'";

macro_rules! symbols {
    (
        required { $($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $returned:ty)?;)* }
        optional { $($oname:ident = $osymbol:literal: fn($($oargument:ty),*) $(-> $oreturned:ty)?;)* }
    ) => {
        /// Functions of libtorch, by what they do.
        pub(crate) struct Symbols {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $returned)?,)*
            $(pub(crate) $oname: Option<unsafe extern "C" fn($($oargument),*) $(-> $oreturned)?>,)*
        }

        impl Symbols {
            const COUNT: usize = [$($symbol,)* $($osymbol,)*].len();

            /// The functions that this libtorch lacks; all are optional.
            fn absent(&self) -> Vec<&'static str> {
                [$((self.$oname.is_none(), $osymbol),)*]
                    .into_iter()
                    .filter_map(|(absent, symbol)| absent.then_some(symbol))
                    .collect()
            }

            /// # Safety
            /// `library` is a libtorch, in which these names have these types.
            unsafe fn find(library: &unix::Library) -> std::result::Result<Self, &'static str> {
                // SAFETY: the types are those of torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h,
                // which keep them from release to release.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(concat!($symbol, "\0").as_bytes()).map_err(|_| $symbol)?,)*
                        $($oname: library.get(concat!($osymbol, "\0").as_bytes()).ok().map(|symbol| *symbol),)*
                    })
                }
            }
        }
    };
}

symbols! {
    required {
        abi_version = "aoti_torch_abi_version": fn() -> u64;
        call_dispatcher = "aoti_torch_call_dispatcher": fn(*const c_char, *const c_char, *mut Word) -> Status;
        call_proxy = "aoti_torch_proxy_executor_call_function": fn(*mut c_void, i32, i32, *const i64, i32, *const RawTensor) -> Status;
        new_handle = "aoti_torch_new_tensor_handle": fn(RawTensor, *mut RawTensor) -> Status;
        new_empty_handle = "aoti_torch_new_uninitialized_tensor": fn(*mut RawTensor) -> Status;
        delete_tensor = "aoti_torch_delete_tensor_object": fn(RawTensor) -> Status;
        reinterpret = "aoti_torch__reinterpret_tensor": fn(RawTensor, i64, *const i64, *const i64, i64, *mut RawTensor) -> Status;
        copy = "aoti_torch_copy_": fn(RawTensor, RawTensor, i32) -> Status;
        empty_strided = "aoti_torch_empty_strided": fn(i64, *const i64, *const i64, i32, i32, i32, *mut RawTensor) -> Status;
        is_defined = "aoti_torch_is_defined": fn(RawTensor, *mut bool) -> Status;
        data_ptr = "aoti_torch_get_data_ptr": fn(RawTensor, *mut *mut c_void) -> Status;
        dim = "aoti_torch_get_dim": fn(RawTensor, *mut i64) -> Status;
        numel = "aoti_torch_get_numel": fn(RawTensor, *mut i64) -> Status;
        sizes = "aoti_torch_get_sizes": fn(RawTensor, *mut *mut i64) -> Status;
        strides = "aoti_torch_get_strides": fn(RawTensor, *mut *mut i64) -> Status;
        dtype = "aoti_torch_get_dtype": fn(RawTensor, *mut i32) -> Status;
        layout = "aoti_torch_get_layout": fn(RawTensor, *mut i32) -> Status;
        storage_offset = "aoti_torch_get_storage_offset": fn(RawTensor, *mut i64) -> Status;
        device_type = "aoti_torch_get_device_type": fn(RawTensor, *mut i32) -> Status;
        device_index = "aoti_torch_get_device_index": fn(RawTensor, *mut i32) -> Status;
        element_size = "aoti_torch_dtype_element_size": fn(i32) -> usize;
        parse_device = "torch_parse_device_string": fn(*const c_char, *mut u32, *mut i32) -> Status;
        scalar_f64 = "aoti_torch_scalar_to_tensor_float64": fn(f64, *mut RawTensor) -> Status;
        scalar_f32 = "aoti_torch_scalar_to_tensor_float32": fn(f32, *mut RawTensor) -> Status;
        scalar_i64 = "aoti_torch_scalar_to_tensor_int64": fn(i64, *mut RawTensor) -> Status;
        scalar_bool = "aoti_torch_scalar_to_tensor_bool": fn(bool, *mut RawTensor) -> Status;
        new_list = "torch_new_list_reserve_size": fn(usize, *mut *mut c_void) -> Status;
        list_push = "torch_list_push_back": fn(*mut c_void, Word) -> Status;
        list_size = "torch_list_size": fn(*mut c_void, *mut usize) -> Status;
        list_get = "torch_list_get_item": fn(*mut c_void, usize, *mut Word) -> Status;
        delete_list = "torch_delete_list": fn(*mut c_void) -> Status;
        new_string = "torch_new_string_handle": fn(*const c_char, usize, *mut *mut c_void) -> Status;
        delete_string = "torch_delete_string": fn(*mut c_void) -> Status;
        grad_is_enabled = "aoti_torch_grad_mode_is_enabled": fn() -> bool;
        grad_set_enabled = "aoti_torch_grad_mode_set_enabled": fn(bool);
    }
    optional {
        new_cell = "torch_new_stable_ivalue": fn(*mut *mut Word) -> Status;
        delete_cell = "torch_delete_stable_ivalue": fn(*mut Word) -> Status;
        error_text = "torch_exception_get_what_without_backtrace": fn() -> *const c_char;
        from_blob = "torch_from_blob": fn(*mut c_void, i64, *const i64, *const i64, i64, i32, i32, i32, *mut RawTensor, i32, *const u8, i64, Option<End>, *mut c_void) -> Status;
    }
}

/// A release of PyTorch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    /// As in 2.x.
    pub major: u8,
    /// As in x.13.
    pub minor: u8,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// This PyTorch's numbers for element types, layouts and memory formats.
pub(crate) struct Codes {
    dtypes: Vec<i32>,
    layouts: Vec<i32>,
    formats: Vec<i32>,
}

impl Codes {
    pub(crate) fn dtype(&self, dtype: Dtype) -> i32 {
        self.dtypes[dtype as usize]
    }

    pub(crate) fn layout(&self, layout: Layout) -> i32 {
        self.layouts[layout as usize]
    }

    pub(crate) fn format(&self, format: MemoryFormat) -> i32 {
        self.formats[format as usize]
    }

    pub(crate) fn dtype_of(&self, code: i32) -> Option<Dtype> {
        Dtype::ALL.iter().copied().find(|dtype| self.dtype(*dtype) == code)
    }

    /// # Safety
    /// `library` is a libtorch.
    unsafe fn read(library: &unix::Library) -> std::result::Result<Self, String> {
        let code = |symbol: String| {
            let name = format!("{symbol}\0");
            // SAFETY: all of these getters have the type `int32_t()`.
            unsafe {
                let getter: unix::Symbol<unsafe extern "C" fn() -> i32> =
                    library.get(name.as_bytes()).map_err(|_| symbol)?;
                Ok(getter())
            }
        };
        let all = |kind: &str, names: &mut dyn Iterator<Item = &'static str>| {
            names
                .map(|name| code(format!("aoti_torch_{kind}_{name}")))
                .collect::<std::result::Result<Vec<_>, String>>()
        };
        Ok(Self {
            dtypes: all("dtype", &mut Dtype::ALL.iter().map(|dtype| dtype.name()))?,
            layouts: all("layout", &mut Layout::ALL.iter().map(|layout| layout.name()))?,
            formats: all("memory_format", &mut MemoryFormat::ALL.iter().map(|format| format.name()))?,
        })
    }
}

/// The libtorch of this process, loaded once and never unloaded.
pub struct Library {
    pub(crate) symbols: Symbols,
    pub(crate) codes: Codes,
    pub(crate) abi: u64,
    /// Where functions of devices are looked up.
    pub(crate) all: Option<unix::Library>,
}

static LIBRARY: OnceLock<Library> = OnceLock::new();

impl Library {
    /// The library, if it has been loaded.
    pub fn get() -> Option<&'static Self> {
        LIBRARY.get()
    }

    /// Finds libtorch in `directory` among the loaded libraries and looks up its symbols; `release` is PyTorch's own
    /// word for its version, for messages.
    ///
    /// # Safety
    /// `directory` holds the libtorch that this process runs, and every [`Schema`](crate::Schema) that calls are made
    /// from is one that this libtorch has registered.
    pub unsafe fn load(directory: &Path, release: &str) -> Result<&'static Self> {
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        // SAFETY: handed on to the caller.
        let library = unsafe { Self::open(&directory.join(FILE), release)? };
        Ok(LIBRARY.get_or_init(|| library))
    }

    /// # Safety
    /// `path` is a libtorch.
    unsafe fn open(path: &Path, release: &str) -> Result<Self> {
        let flags = unix::RTLD_NOW | ONLY_IF_LOADED;
        // SAFETY: the library is loaded already, so that no initialiser runs.
        let library = unsafe { unix::Library::open(Some(path), flags) }.map_err(|error| {
            Diagnostic::new(Code::TORCH_NOT_LOADED, format!("`{}` is not loaded", path.display()))
                .because(error.to_string())
                .hint("import torch before Unisono's executor is used")
        })?;
        // SAFETY: the library is libtorch, says the caller.
        let symbols = unsafe { Symbols::find(&library) }.map_err(|symbol| missing(symbol, release))?;
        // SAFETY: as above.
        let codes = unsafe { Codes::read(&library) }.map_err(|symbol| missing(&symbol, release))?;
        // SAFETY: the function takes nothing and only returns a number.
        let abi = unsafe { (symbols.abi_version)() };
        // Function pointers into it live as long as the process.
        std::mem::forget(library);
        // SAFETY: as for the first one.
        let all = unsafe { unix::Library::open(Some(path.with_file_name(ALL)), flags) }.ok();
        Ok(Self { symbols, codes, abi, all })
    }

    /// The release, by libtorch itself.
    pub const fn version(&self) -> Version {
        Version { major: (self.abi >> 56) as u8, minor: (self.abi >> 48) as u8 }
    }

    /// How many functions are looked up, and which of those that can be done without this release lacks.
    pub fn functions(&self) -> (usize, Vec<&'static str>) {
        (Symbols::COUNT, self.symbols.absent())
    }

    /// Turns a status into a result with torch's own message.
    pub(crate) fn check(&self, status: Status) -> std::result::Result<(), Failure> {
        if status == 0 { Ok(()) } else { Err(self.failure()) }
    }

    #[cold]
    fn failure(&self) -> Failure {
        let Some(error_text) = self.symbols.error_text else {
            return Failure("PyTorch has printed the reason to stderr".to_owned());
        };
        // SAFETY: the function returns null or a zero-terminated string that lives until the next error of this thread.
        let text = unsafe {
            let text = error_text();
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        };
        Failure(text.map_or_else(|| "PyTorch gives no reason".to_owned(), |text| text.trim().to_owned()))
    }
}

fn missing(symbol: &str, release: &str) -> Box<Diagnostic> {
    Diagnostic::new(Code::TORCH_SYMBOL, format!("PyTorch {release} does not offer the function `{symbol}`"))
        .because("the executor calls operations through PyTorch's stable C interface, which is younger than this release")
        .hint(NEEDED)
}

/// Switches gradient recording off in this thread, until dropped.
pub struct GradModeOff {
    library: &'static Library,
    before: bool,
    /// The flag is this thread's, so that the guard must stay in it.
    here: PhantomData<*const ()>,
}

impl GradModeOff {
    /// Switches gradient recording off.
    pub fn new(library: &'static Library) -> Self {
        // SAFETY: both functions only read and write a thread-local flag.
        let before = unsafe {
            let before = (library.symbols.grad_is_enabled)();
            (library.symbols.grad_set_enabled)(false);
            before
        };
        Self { library, before, here: PhantomData }
    }
}

impl Drop for GradModeOff {
    fn drop(&mut self) {
        // SAFETY: only writes a thread-local flag.
        unsafe { (self.library.symbols.grad_set_enabled)(self.before) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_libtorch_that_is_not_loaded_is_named_with_a_hint() {
        // SAFETY: there is no such library, so that nothing is called.
        let error = unsafe { Library::load(Path::new("/nonexistent"), "2.13") }.err().unwrap();
        assert_eq!(error.code, Code::TORCH_NOT_LOADED);
        assert!(error.message.contains("/nonexistent/libtorch_cpu"), "{error}");
        assert!(error.hint.is_some());
    }

    #[test]
    fn a_library_without_the_symbols_is_refused_by_the_first_one_missing() {
        // SAFETY: the program itself has none of the symbols, so that nothing is called.
        let error = unsafe { Symbols::find(&unix::Library::this()) }.err().unwrap();
        let error = missing(error, "2.9.1");
        assert_eq!(error.code, Code::TORCH_SYMBOL);
        assert!(
            error.message.contains("2.9.1") && error.message.contains("aoti_torch_abi_version"),
            "{error}"
        );
        assert!(error.hint.as_ref().unwrap().contains("2.13"), "{error}");
    }
}
