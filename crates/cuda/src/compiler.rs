//! The compiler: a program of CUDA C becomes an image that the driver loads.

use std::{
    ffi::{CString, c_char, c_void},
    path::{Path, PathBuf},
};

use base::{Code, Diagnostic, Result};

use crate::libraries::{CompilerFunctions, text_of};

/// NVRTC.
pub struct Compiler {
    functions: CompilerFunctions,
    /// What it rests on, loaded before it.
    _before: Vec<libloading::Library>,
}

/// A compiled program.
pub struct Image {
    /// What the driver loads.
    pub bytes: Vec<u8>,
    /// What each function takes, as far as the compiler says.
    pub resources: Vec<Resources>,
}

/// What a function takes of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resources {
    /// The function.
    pub function: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes that a thread keeps in memory for want of registers.
    pub spilled: u32,
    /// Bytes of shared memory of a block.
    pub shared: u32,
}

impl Compiler {
    /// Loads NVRTC from a file; `before` are the files that it rests on, which it does not find by itself.
    ///
    /// # Safety
    /// The files are those of NVRTC, in which its functions have the types of nvrtc.h.
    pub unsafe fn load(file: &Path, before: &[PathBuf]) -> Result<Self> {
        // SAFETY: handed on to the caller. What is not there shows when a program is compiled.
        let before =
            before.iter().filter_map(|file| unsafe { libloading::Library::new(file) }.ok()).collect();
        // SAFETY: as above.
        let functions = unsafe { CompilerFunctions::load(file)? };
        Ok(Self { functions, _before: before })
    }

    /// Compiles a program for an architecture such as `sm_90`.
    pub fn compile(&self, text: &str, architecture: &str) -> Result<Image> {
        let options = [
            format!("--gpu-architecture={architecture}"),
            "--std=c++17".to_owned(),
            "--fmad=false".to_owned(),
            "--ptxas-options=-v".to_owned(),
        ];
        let options: Vec<CString> = options.into_iter().map(zero_ended).collect::<Result<_>>()?;
        let program = Program::new(&self.functions, &zero_ended(text.to_owned())?)?;
        let list: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, and so are as many options as are counted.
        let status = unsafe { (self.functions.compile)(program.handle, list.len() as i32, list.as_ptr()) };
        let log = program.log()?;
        if status != 0 {
            return Err(failed("a program", status).because(log));
        }
        Ok(Image { bytes: program.image()?, resources: resources(&log) })
    }
}

fn zero_ended(text: String) -> Result<CString> {
    CString::new(text).map_err(|_| Diagnostic::bug("a program with a zero in it"))
}

fn failed(what: &str, status: i32) -> Box<Diagnostic> {
    Diagnostic::new(Code::CUDA_FAILED, format!("the compiler of CUDA refuses {what} (status {status})"))
}

/// A program, destroyed when dropped.
struct Program<'a> {
    functions: &'a CompilerFunctions,
    handle: *mut c_void,
}

impl<'a> Program<'a> {
    fn new(functions: &'a CompilerFunctions, text: &CString) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: the text ends with a zero and is copied; a handle is written. There are no headers.
        let status = unsafe {
            (functions.create)(&raw mut handle, text.as_ptr(), c"kernels.cu".as_ptr(), 0, none, none)
        };
        if status == 0 { Ok(Self { functions, handle }) } else { Err(failed("a text", status)) }
    }

    fn log(&self) -> Result<String> {
        let bytes = self.bytes(self.functions.log_size, self.functions.log)?;
        // SAFETY: a zero is behind it in any case.
        Ok(unsafe { text_of([bytes.as_slice(), &[0]].concat().as_ptr().cast()) })
    }

    fn image(&self) -> Result<Vec<u8>> {
        self.bytes(self.functions.image_size, self.functions.image)
    }

    fn bytes(
        &self,
        size: unsafe extern "C" fn(*mut c_void, *mut usize) -> i32,
        get: unsafe extern "C" fn(*mut c_void, *mut c_char) -> i32,
    ) -> Result<Vec<u8>> {
        let mut count = 0;
        // SAFETY: the program is alive; a number is written.
        let status = unsafe { size(self.handle, &raw mut count) };
        if status != 0 {
            return Err(failed("to say how long its result is", status));
        }
        let mut bytes = vec![0_u8; count];
        // SAFETY: as many bytes as it said are written.
        let status = unsafe { get(self.handle, bytes.as_mut_ptr().cast()) };
        if status == 0 { Ok(bytes) } else { Err(failed("to give its result", status)) }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is owned, and not used after.
        unsafe { (self.functions.destroy)(&raw mut self.handle) };
    }
}

/// What the compiler's log says of each function.
fn resources(log: &str) -> Vec<Resources> {
    let mut found: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some(function) = line.split("Compiling entry function '").nth(1) {
            let function = function.split('\'').next().unwrap_or_default().to_owned();
            found.push(Resources { function, ..Resources::default() });
        }
        let Some(last) = found.last_mut() else { continue };
        let before = |unit: &str| {
            let (before, _) = line.split_once(unit)?;
            before.rsplit(' ').next()?.parse().ok()
        };
        last.registers = before(" registers").unwrap_or(last.registers);
        last.spilled = before(" bytes spill stores").unwrap_or(last.spilled);
        last.shared = before(" bytes smem").unwrap_or(last.shared);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_says_what_functions_take() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k0' for 'sm_90'
ptxas info    : Function properties for k0
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 512 bytes smem, 552 bytes cmem[0]
ptxas info    : Compiling entry function 'k1' for 'sm_90'
ptxas info    : Used 8 registers, 400 bytes cmem[0]
";
        let made = |function: &str, registers, spilled, shared| Resources {
            function: function.to_owned(),
            registers,
            spilled,
            shared,
        };
        assert_eq!(resources(log), [made("k0", 24, 4, 512), made("k1", 8, 0, 0)]);
    }
}
