//! A host that forbids executable memory. Alone in its process, which cannot take that back.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "a setting of the process")]

use std::cell::Cell;

use loops::{Kernel, Memory};
use unisono_jit::{Module, Tier};

const SET_MEMORY_DENY: libc::c_int = 65;
const REFUSE_TO_BECOME_EXECUTABLE: libc::c_ulong = 1;

#[test]
fn where_executable_memory_is_forbidden_kernels_are_interpreted_and_say_so() {
    let kernel: Kernel = "\
        kernel [100]\nread a0: f32 {1}\nwrite a1: f32 {1}\n%0 = load a0\n%1 = mul %0 %0\nstore a1 %1\n"
        .parse()
        .unwrap();
    let before = Module::new(std::slice::from_ref(&kernel)).unwrap();
    assert!(!before.refused());
    // SAFETY: it changes only what this process may do.
    let status = unsafe { libc::prctl(SET_MEMORY_DENY, REFUSE_TO_BECOME_EXECUTABLE, 0, 0, 0) };
    if status != 0 || Tier::best() == Tier::Interpreter {
        return; // Linux before 6.3, or no machine code at all
    }
    let module = Module::new(&[kernel]).unwrap();
    assert!(module.refused());
    assert_eq!(module.tier(0), Tier::Interpreter);
    let (x, y) = (vec![Cell::new(3.0_f32); 100], vec![Cell::new(0.0_f32); 100]);
    module.run(0, &[Memory::F32(&x), Memory::F32(&y)]).unwrap();
    assert!(y.iter().all(|cell| cell.get().to_bits() == 9.0_f32.to_bits()));
    before.run(0, &[Memory::F32(&y), Memory::F32(&x)]).unwrap();
    assert_eq!(x[99].get().to_bits(), 81.0_f32.to_bits());
}
