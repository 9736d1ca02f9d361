//! A device with the libraries that kernels for it need.

use std::{
    ffi::{CString, c_void},
    path::Path,
};

use base::{Code, Diagnostic, Result};

use crate::{
    Compiler,
    libraries::{DriverFunctions, text_of},
};

/// A device that kernels run on.
pub struct Device {
    pub(crate) compiler: Compiler,
    pub(crate) architecture: String,
    driver: DriverFunctions,
    /// The context that PyTorch has there.
    context: *mut c_void,
}

// SAFETY: the driver may be called from any thread; the context is made the current one around each call.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// A stream of a device, by the driver's handle.
#[derive(Clone, Copy, Debug)]
pub struct Stream(usize);

impl Stream {
    /// # Safety
    /// It is the handle of a stream of the device that kernels are launched on, for which their operands are allocated, as long as it is used.
    pub const unsafe fn of(handle: usize) -> Self {
        Self(handle)
    }
}

/// A module of the driver, unloaded when dropped.
pub(crate) struct Loaded {
    device: std::sync::Arc<Device>,
    handle: *mut c_void,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

/// A function of a module.
#[derive(Clone, Copy)]
pub(crate) struct Handle(*mut c_void);

// SAFETY: functions may be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Device {
    /// The device of this number, for the architecture that it has, with the driver from a file.
    ///
    /// # Safety
    /// The file is the driver's library, in which its functions have the types of cuda.h.
    pub unsafe fn open(driver: &Path, number: i32, architecture: &str, compiler: Compiler) -> Result<Self> {
        // SAFETY: handed on to the caller.
        let driver = unsafe { DriverFunctions::load(driver)? };
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: a number and a handle are written. The context is kept as long as the process, as PyTorch does.
        unsafe {
            check(&driver, (driver.init)(0), "begin")?;
            check(&driver, (driver.device)(&raw mut device, number), "find the device")?;
            check(&driver, (driver.retain)(&raw mut context, device), "use the device")?;
        }
        Ok(Self { compiler, architecture: architecture.to_owned(), driver, context })
    }

    /// Calls the driver with this device's context as the current one of the thread.
    fn within<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut before = std::ptr::null_mut();
        // SAFETY: the context is alive; what was current is so again afterwards.
        unsafe {
            check(&self.driver, (self.driver.push)(self.context), "take turns")?;
            let result = act();
            check(&self.driver, (self.driver.pop)(&raw mut before), "take turns")?;
            result
        }
    }
}

fn check(driver: &DriverFunctions, status: i32, what: &str) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: a pointer to a text that lives as long as the library is written, or none.
    let text = unsafe {
        (driver.error)(status, &raw mut text);
        text_of(text)
    };
    let message = format!("the driver of CUDA refuses to {what} (status {status})");
    Err(Diagnostic::new(Code::CUDA_FAILED, message).because(text))
}

impl Loaded {
    /// Loads what the compiler has made.
    pub(crate) fn new(device: std::sync::Arc<Device>, image: &[u8]) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the image is one of the compiler's, which says itself how long it is; a handle is written.
        let load = || unsafe {
            let status = (device.driver.load)(&raw mut handle, image.as_ptr().cast());
            check(&device.driver, status, "load kernels")
        };
        device.within(load)?;
        Ok(Self { device, handle })
    }

    pub(crate) fn function(&self, name: &str) -> Result<Handle> {
        let name = CString::new(name).map_err(|_| Diagnostic::bug("a name with a zero in it"))?;
        let mut function = std::ptr::null_mut();
        let driver = &self.device.driver;
        // SAFETY: the module is alive and the name ends with a zero; a handle is written.
        let find = || {
            check(
                driver,
                unsafe { (driver.function)(&raw mut function, self.handle, name.as_ptr()) },
                "find a kernel",
            )
        };
        self.device.within(find)?;
        Ok(Handle(function))
    }

    /// Launches a function of this module, which takes these addresses.
    ///
    /// # Safety
    /// The function takes as many addresses, and touches only memory of the device that is there, and stays so for what comes later on the stream.
    pub(crate) unsafe fn launch(
        &self,
        function: Handle,
        (blocks, threads): (usize, usize),
        addresses: &[usize],
        stream: Stream,
    ) -> Result<()> {
        let blocks = u32::try_from(blocks).map_err(|_| Diagnostic::bug("a kernel of too many blocks"))?;
        let mut values = addresses.to_vec();
        let mut list: Vec<*mut c_void> =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let driver = &self.device.driver;
        // SAFETY: as the caller says; the driver copies the values that the list points to.
        self.device.within(|| unsafe {
            let stream = stream.0 as *mut c_void;
            let none = std::ptr::null_mut();
            let status = (driver.launch)(
                function.0,
                blocks,
                1,
                1,
                threads as u32,
                1,
                1,
                0,
                stream,
                list.as_mut_ptr(),
                none,
            );
            check(driver, status, "launch a kernel")
        })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let driver = &self.device.driver;
        // SAFETY: the module is owned; the driver keeps what a running kernel needs.
        let unload = || check(driver, unsafe { (driver.unload)(self.handle) }, "unload kernels");
        drop(self.device.within(unload));
    }
}
