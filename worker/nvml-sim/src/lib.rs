//! `libnvidia-ml.so.1` of simulated GPUs: the C interface of NVML over boards that live in a file.
//!
//! It stands in for the driver at the outermost edge, so that everything above the C interface is
//! the code that runs on real boards. It is as strict as a board about profiles, placements, counts
//! and live neighbours. Load follows the real processes whose `CUDA_VISIBLE_DEVICES` names a device.
//!
//! Two variables configure it: `BERTH_NVML_SIM_DIR`, where the boards are kept, and
//! `BERTH_NVML_SIM_FLEET`, such as `2xH100-80GB,1xA30`, with which an empty directory is filled. A file
//! `faults.json` in that directory, such as `{"lost": ["GPU-…"]}`, says what goes wrong for as long as it
//! says so: see `faults`.
//! It must not know anything of Berth above `berth-mig`.

#![expect(unsafe_code, reason = "the C interface of NVML is made of raw pointers")]

mod boards;
mod clients;
mod details;
mod events;
mod fabric;
mod fault;
mod faults;
mod gpm;
mod health;
mod instances;
mod load;
mod models;
mod monitors;
mod nvlink;
mod processes;
mod reset;
mod sheets;
mod world;

use std::ffi::{c_char, c_uint};
use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use fault::Fault;
pub use reset::reset_boards;
pub use world::parse_fleet;

/// Runs a call; a fault becomes its NVML code, a panic the unknown error.
fn answer(call: impl FnOnce() -> Result<(), Fault>) -> c_uint {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(fault)) => fault.code(),
        Err(_) => Fault::Unknown.code(),
    }
}

/// Reads a file in as few calls as can be: a buffer serves many files, and what is read short is at its end.
fn read_whole<'a>(mut file: &File, buffer: &'a mut Vec<u8>) -> std::io::Result<&'a [u8]> {
    const BLOCK: usize = 16 << 10;
    let mut length = 0;
    loop {
        buffer.resize(buffer.len().max(length + BLOCK), 0);
        let room = buffer.get_mut(length..).unwrap_or_default();
        let wanted = room.len();
        let read = file.read(room)?;
        length += read;
        if read < wanted {
            return Ok(buffer.get(..length).unwrap_or_default());
        }
    }
}

/// Writes through a caller's pointer.
///
/// # Safety
/// `out` is null or valid for writing a `T`, as NVML asks of its callers.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Fault> {
    if out.is_null() {
        return Err(Fault::InvalidArgument);
    }
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes rows as NVML does: with no buffer only the count; with too small a one the count and an
/// error.
///
/// # Safety
/// `count` is not null; `out` is null or valid for `*count` rows.
unsafe fn put_rows<T: Copy>(count: *mut c_uint, out: *mut T, rows: &[T]) -> Result<(), Fault> {
    let have = c_uint::try_from(rows.len()).map_err(|_| Fault::Unknown)?;
    // SAFETY: not null, by this function's contract.
    let room = unsafe { count.replace(have) };
    if room < have || (out.is_null() && have > 0) {
        return Err(Fault::InsufficientSize);
    }
    for (i, row) in rows.iter().enumerate() {
        // SAFETY: i < have <= room.
        unsafe { out.add(i).write(*row) };
    }
    Ok(())
}

/// Writes a text with its NUL into a caller's buffer of `length` bytes.
///
/// # Safety
/// `out` is null or valid for writing `length` bytes.
unsafe fn put_text(out: *mut c_char, length: c_uint, text: &str) -> Result<(), Fault> {
    if out.is_null() {
        return Err(Fault::InvalidArgument);
    }
    if text.len() >= length as usize {
        return Err(Fault::InsufficientSize);
    }
    for (i, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: i <= text.len() < length.
        unsafe { out.add(i).write(byte.cast_signed()) };
    }
    Ok(())
}
