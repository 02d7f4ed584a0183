//! The calls of CUDA, each over the file of the device of the current context.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null_mut, without_provenance_mut};

use crate::boards::{self, VisibleDevice};
use crate::device_file::DeviceFile;
use crate::fault::Fault;

/// The attribute of a device with the major number of its compute capability.
const CAPABILITY_MAJOR: c_int = 75;

thread_local! {
    /// The ordinals of the devices of the contexts on this thread; the last one is current.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Runs a call; a panic becomes the unknown error.
fn answer(call: impl FnOnce() -> Result<(), Fault>) -> c_int {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(fault)) => fault.code(),
        Err(_) => Fault::Unknown.code(),
    }
}

/// Writes through a caller's pointer.
///
/// # Safety
/// `out` is null or valid for writing a `T`, as CUDA asks of its callers.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), Fault> {
    if out.is_null() {
        return Err(Fault::InvalidValue);
    }
    // SAFETY: not null, and valid by the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

fn device(ordinal: c_int) -> Result<VisibleDevice, Fault> {
    let ordinal = usize::try_from(ordinal).map_err(|_| Fault::InvalidDevice)?;
    boards::visible()?.into_iter().nth(ordinal).ok_or(Fault::InvalidDevice)
}

/// The memory of the device of the current context.
fn current() -> Result<DeviceFile, Fault> {
    let ordinal = current_ordinal().ok_or(Fault::InvalidContext)?;
    let device = boards::visible()?.into_iter().nth(ordinal).ok_or(Fault::InvalidContext)?;
    DeviceFile::of_device(&device)
}

/// The context of a device: a pointer with its ordinal plus one, so that null is none.
fn context_of(ordinal: usize) -> *mut c_void {
    without_provenance_mut(ordinal + 1)
}

/// The ordinal of the device of a context.
fn ordinal_of(context: *mut c_void) -> Result<usize, Fault> {
    context.addr().checked_sub(1).ok_or(Fault::InvalidContext)
}

/// The ordinal of the device of the current context of this thread.
fn current_ordinal() -> Option<usize> {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied())
}

macro_rules! cuda {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
            answer(|| $body)
        }
    )*};
}

cuda! {
    fn cuInit(flags: c_uint) {
        if flags == 0 { boards::visible().map(|_| ()) } else { Err(Fault::InvalidValue) }
    }
    fn cuDriverGetVersion(out: *mut c_int) {
        // SAFETY: null or valid, by CUDA's contract; so too below.
        unsafe { put(out, 13_000) }
    }
    fn cuGetErrorName(code: c_int, out: *mut *const c_char) {
        let name = Fault::name(code).ok_or(Fault::InvalidValue)?;
        // SAFETY: as above.
        unsafe { put(out, name.as_ptr()) }
    }
    fn cuDeviceGetCount(out: *mut c_int) {
        let count = c_int::try_from(boards::visible()?.len()).map_err(|_| Fault::Unknown)?;
        // SAFETY: as above.
        unsafe { put(out, count) }
    }
    fn cuDeviceGet(out: *mut c_int, ordinal: c_int) {
        device(ordinal)?;
        // SAFETY: as above.
        unsafe { put(out, ordinal) }
    }
    fn cuDeviceGetUuid_v2(out: *mut [u8; 16], ordinal: c_int) {
        let uuid = device(ordinal)?.uuid_bytes()?;
        // SAFETY: as above.
        unsafe { put(out, uuid) }
    }
    fn cuDeviceGetName(out: *mut c_char, length: c_int, ordinal: c_int) {
        device(ordinal)?;
        let name = c"Simulated GPU".to_bytes_with_nul();
        if out.is_null() || usize::try_from(length).unwrap_or(0) < name.len() {
            return Err(Fault::InvalidValue);
        }
        // SAFETY: not null, and valid for `length` bytes, which are enough.
        unsafe { out.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), name.len()) };
        Ok(())
    }
    fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, ordinal: c_int) {
        device(ordinal)?;
        // The compute capability is 9.0; nothing else is there.
        // SAFETY: as above.
        unsafe { put(out, if attribute == CAPABILITY_MAJOR { 9 } else { 0 }) }
    }
    fn cuDeviceTotalMem_v2(out: *mut usize, ordinal: c_int) {
        let total = usize::try_from(device(ordinal)?.total_bytes).map_err(|_| Fault::Unknown)?;
        // SAFETY: as above.
        unsafe { put(out, total) }
    }
    fn cuCtxCreate_v2(out: *mut *mut c_void, _flags: c_uint, ordinal: c_int) {
        device(ordinal)?;
        let ordinal = usize::try_from(ordinal).map_err(|_| Fault::InvalidDevice)?;
        // SAFETY: as above.
        unsafe { put(out, context_of(ordinal)) }?;
        CONTEXTS.with_borrow_mut(|contexts| contexts.push(ordinal));
        Ok(())
    }
    fn cuCtxDestroy_v2(context: *mut c_void) {
        let found = CONTEXTS.with_borrow_mut(|contexts| {
            let at = contexts.iter().rposition(|ordinal| context_of(*ordinal) == context)?;
            Some(contexts.remove(at))
        });
        let ordinal = found.ok_or(Fault::InvalidContext)?;
        let device = boards::visible()?.into_iter().nth(ordinal).ok_or(Fault::InvalidContext)?;
        DeviceFile::of_device(&device)?.change(|memory| {
            memory.free_all(std::process::id());
            Ok(())
        })
    }
    fn cuDevicePrimaryCtxRetain(out: *mut *mut c_void, ordinal: c_int) {
        device(ordinal)?;
        let ordinal = usize::try_from(ordinal).map_err(|_| Fault::InvalidDevice)?;
        // SAFETY: as above.
        unsafe { put(out, context_of(ordinal)) }
    }
    fn cuDevicePrimaryCtxRelease_v2(ordinal: c_int) {
        device(ordinal).map(|_| ())
    }
    fn cuCtxGetCurrent(out: *mut *mut c_void) {
        // SAFETY: as above.
        unsafe { put(out, current_ordinal().map_or(null_mut(), context_of)) }
    }
    fn cuCtxGetDevice(out: *mut c_int) {
        let ordinal = current_ordinal().ok_or(Fault::InvalidContext)?;
        // SAFETY: as above.
        unsafe { put(out, c_int::try_from(ordinal).map_err(|_| Fault::Unknown)?) }
    }
    fn cuCtxPushCurrent_v2(context: *mut c_void) {
        let ordinal = ordinal_of(context)?;
        CONTEXTS.with_borrow_mut(|contexts| contexts.push(ordinal));
        Ok(())
    }
    fn cuCtxPopCurrent_v2(out: *mut *mut c_void) {
        let ordinal = CONTEXTS.with_borrow_mut(Vec::pop).ok_or(Fault::InvalidContext)?;
        if out.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { put(out, context_of(ordinal)) }
    }
    // Bindings look for it at their start.
    fn cuIpcOpenMemHandle(_out: *mut u64, _handle: *const c_void, _flags: c_uint) {
        Err(Fault::NotSupported)
    }
    fn cuCtxSynchronize() {
        current().map(|_| ())
    }
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let file = current()?;
        let bytes = file.look(|memory| Ok(memory.free_bytes()))?;
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| Fault::Unknown);
        // SAFETY: as above.
        unsafe {
            put(free, size(bytes)?)?;
            put(total, size(file.total_bytes)?)
        }
    }
    fn cuMemAlloc_v2(out: *mut u64, bytes: usize) {
        let file = current()?;
        if file.faults.hangs {
            loop {
                std::thread::park();
            }
        }
        let at = file.change(|memory| memory.allocate(bytes as u64, std::process::id()))?;
        // SAFETY: as above.
        unsafe { put(out, at) }
    }
    fn cuMemFree_v2(at: u64) {
        current()?.change(|memory| memory.free(at, std::process::id()))
    }
    fn cuMemsetD32_v2(at: u64, word: c_uint, words: usize) {
        let bytes = (words as u64).checked_mul(4).ok_or(Fault::InvalidValue)?;
        let file = current()?;
        if file.faults.without_effect {
            return Ok(());
        }
        file.change(|memory| memory.fill(at, word.to_le_bytes(), bytes, std::process::id()))
    }
    fn cuMemsetD8_v2(at: u64, byte: u8, bytes: usize) {
        current()?.change(|memory| memory.fill(at, [byte; 4], bytes as u64, std::process::id()))
    }
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) {
        if from.is_null() {
            return Err(Fault::InvalidValue);
        }
        // SAFETY: not null, and valid for the length by CUDA's contract.
        let data = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) };
        current()?.change(|memory| memory.write(to, data, std::process::id()))
    }
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) {
        if to.is_null() {
            return Err(Fault::InvalidValue);
        }
        let data = current()?.look(|memory| memory.read(from, bytes as u64, std::process::id()))?;
        // SAFETY: not null, and valid for the length by CUDA's contract; the data has that length.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }
}
