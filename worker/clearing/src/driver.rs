//! The driver API of CUDA for one device, loaded at run time.

#![expect(unsafe_code, reason = "the driver API of CUDA is only there as C symbols")]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use libloading::Library;

use super::overwrite::DeviceMemory;

/// The library of the driver. The loader finds it by this name after the fixed directories.
const LIBRARY: &str = "libcuda.so.1";
/// The fixed directories of the library, which only the host's root can change.
const LIBRARY_DIRS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
];

/// Codes of the driver API.
const SUCCESS: c_int = 0;
const OUT_OF_MEMORY: c_int = 2;

/// The bytes of a UUID.
pub(crate) type UuidBytes = [u8; 16];
/// A `CUcontext`.
type Context = *mut c_void;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
type DeviceGetCount = unsafe extern "C" fn(*mut c_int) -> c_int;
type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
type DeviceGetUuid = unsafe extern "C" fn(*mut UuidBytes, c_int) -> c_int;
type DeviceTotalMem = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
type CtxCreate = unsafe extern "C" fn(*mut Context, c_uint, c_int) -> c_int;
type CtxDestroy = unsafe extern "C" fn(Context) -> c_int;
type CtxSynchronize = unsafe extern "C" fn() -> c_int;
type MemAlloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type MemFree = unsafe extern "C" fn(u64) -> c_int;
type MemsetD32 = unsafe extern "C" fn(u64, c_uint, usize) -> c_int;
type MemcpyDtoH = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;

/// The calls of the library, which is never unloaded: its threads may run until the end of the process.
pub(crate) struct Driver {
    init: Init,
    get_error_name: GetErrorName,
    device_get_count: DeviceGetCount,
    device_get: DeviceGet,
    device_get_uuid: DeviceGetUuid,
    device_total_mem: DeviceTotalMem,
    ctx_create: CtxCreate,
    ctx_destroy: CtxDestroy,
    ctx_synchronize: CtxSynchronize,
    mem_alloc: MemAlloc,
    mem_free: MemFree,
    memset_d32: MemsetD32,
    memcpy_dtoh: MemcpyDtoH,
}

fn load(path: &OsStr) -> Result<Library, libloading::Error> {
    // SAFETY: the library is the driver's own, from a directory of the host, or the simulated one beside the worker.
    unsafe { Library::new(path) }
}

/// The library at `path`, or the driver's in the fixed directories and in those of the loader.
fn open_library(path: Option<&Path>) -> Result<Library, String> {
    if let Some(path) = path {
        return load(path.as_os_str())
            .map_err(|error| format!("{} cannot be loaded: {error}", path.display()));
    }
    let fixed = LIBRARY_DIRS.iter().map(|dir| PathBuf::from(dir).join(LIBRARY));
    let found = fixed.filter(|path| path.exists()).find_map(|path| load(path.as_os_str()).ok());
    match found {
        Some(library) => Ok(library),
        None => load(OsStr::new(LIBRARY)).map_err(|_| "no CUDA driver library".to_owned()),
    }
}

/// Finds a call by its name.
///
/// # Safety
/// `T` is the type of the C function with this name, and the library is never unloaded.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: by the promise of the caller.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|symbol| *symbol).map_err(|_| format!("the CUDA driver library has no {name}"))
}

impl Driver {
    /// Loads the library at `path`, or the library of the driver.
    ///
    /// # Errors
    /// There is no library, or it lacks a call.
    pub fn load(path: Option<&Path>) -> Result<Self, String> {
        let library = open_library(path)?;
        // SAFETY: the types are those of cuda.h, and the library is never unloaded.
        let driver = unsafe {
            Self {
                init: symbol(&library, "cuInit")?,
                get_error_name: symbol(&library, "cuGetErrorName")?,
                device_get_count: symbol(&library, "cuDeviceGetCount")?,
                device_get: symbol(&library, "cuDeviceGet")?,
                // The first version has the UUID of the board for each of its instances.
                device_get_uuid: symbol(&library, "cuDeviceGetUuid_v2")?,
                device_total_mem: symbol(&library, "cuDeviceTotalMem_v2")?,
                ctx_create: symbol(&library, "cuCtxCreate_v2")?,
                ctx_destroy: symbol(&library, "cuCtxDestroy_v2")?,
                ctx_synchronize: symbol(&library, "cuCtxSynchronize")?,
                mem_alloc: symbol(&library, "cuMemAlloc_v2")?,
                mem_free: symbol(&library, "cuMemFree_v2")?,
                memset_d32: symbol(&library, "cuMemsetD32_v2")?,
                memcpy_dtoh: symbol(&library, "cuMemcpyDtoH_v2")?,
            }
        };
        std::mem::forget(library);
        Ok(driver)
    }

    /// The error of a call, as a part of a sentence.
    fn error(&self, call: &str, code: c_int) -> String {
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the pointer is to a local.
        let named = unsafe { (self.get_error_name)(code, &raw mut name) } == SUCCESS && !name.is_null();
        if !named {
            return format!("{call} fails with the code {code}");
        }
        // SAFETY: the driver's names of errors are texts that it never frees.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        format!("{call} fails with {name}")
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), String> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(call, code)) }
    }

    /// Opens the only visible device, if it has this UUID.
    ///
    /// # Errors
    /// A call fails, several devices are visible, or the device is another one.
    pub fn open(&self, uuid: UuidBytes) -> Result<OpenDevice<'_>, String> {
        // SAFETY: 0 is the only flag.
        self.check("cuInit", unsafe { (self.init)(0) })?;
        let mut count = 0;
        // SAFETY: the pointer is to a local, here and in the calls below.
        self.check("cuDeviceGetCount", unsafe { (self.device_get_count)(&raw mut count) })?;
        if count != 1 {
            return Err(format!("CUDA shows {count} devices in place of one"));
        }
        let mut device = 0;
        // SAFETY: as above.
        self.check("cuDeviceGet", unsafe { (self.device_get)(&raw mut device, 0) })?;
        let mut found: UuidBytes = [0; 16];
        // SAFETY: as above; a UUID has 16 bytes.
        self.check("cuDeviceGetUuid_v2", unsafe { (self.device_get_uuid)(&raw mut found, device) })?;
        if found != uuid {
            return Err("CUDA shows another device".to_owned());
        }
        let mut total = 0_usize;
        // SAFETY: as above.
        self.check("cuDeviceTotalMem_v2", unsafe { (self.device_total_mem)(&raw mut total, device) })?;
        let mut context: Context = null_mut();
        // SAFETY: as above; 0 is the default of the flags.
        self.check("cuCtxCreate_v2", unsafe { (self.ctx_create)(&raw mut context, 0, device) })?;
        let total_bytes = u64::try_from(total).unwrap_or(u64::MAX);
        Ok(OpenDevice { driver: self, context, total_bytes })
    }
}

/// A device with a context on this thread, which owns all allocations.
pub(crate) struct OpenDevice<'a> {
    driver: &'a Driver,
    context: Context,
    /// The memory of the device.
    pub total_bytes: u64,
}

/// A length for the driver.
fn length(n: u64) -> Result<usize, String> {
    usize::try_from(n).map_err(|_| "a length is too large".to_owned())
}

impl DeviceMemory for OpenDevice<'_> {
    fn allocate(&self, bytes: u64) -> Result<Option<u64>, String> {
        let mut at = 0;
        // SAFETY: the pointer is to a local, and the context is current on this thread.
        let code = unsafe { (self.driver.mem_alloc)(&raw mut at, length(bytes)?) };
        if code == OUT_OF_MEMORY {
            return Ok(None);
        }
        self.driver.check("cuMemAlloc_v2", code).map(|()| Some(at))
    }

    fn fill(&self, at: u64, word: u32, words: u64) -> Result<(), String> {
        // SAFETY: the driver checks the range on the device, and the context is current on this thread.
        let code = unsafe { (self.driver.memset_d32)(at, word, length(words)?) };
        self.driver.check("cuMemsetD32_v2", code)
    }

    fn synchronize(&self) -> Result<(), String> {
        // SAFETY: the context is current on this thread.
        self.driver.check("cuCtxSynchronize", unsafe { (self.driver.ctx_synchronize)() })
    }

    fn read_word(&self, at: u64) -> Result<u32, String> {
        let mut word = 0_u32;
        // SAFETY: the pointer is to a local of the length of the copy.
        let code = unsafe { (self.driver.memcpy_dtoh)((&raw mut word).cast(), at, size_of::<u32>()) };
        self.driver.check("cuMemcpyDtoH_v2", code).map(|()| word)
    }

    fn free(&self, at: u64) -> Result<(), String> {
        // SAFETY: the driver checks the address.
        self.driver.check("cuMemFree_v2", unsafe { (self.driver.mem_free)(at) })
    }
}

impl Drop for OpenDevice<'_> {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own. An error has no consequence: the process ends next.
        let _ = unsafe { (self.driver.ctx_destroy)(self.context) };
    }
}

/// The bytes of a UUID with its prefix, such as `GPU-…` or `MIG-…`.
pub(crate) fn parse_uuid(text: &str) -> Option<UuidBytes> {
    let digits: String = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?.replace('-', "");
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_or_refused() {
        let uuid = parse_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!((uuid[0], uuid[1], uuid[15]), (0x00, 0x11, 0xff));
        assert_eq!(parse_uuid("MIG-00112233-4455-6677-8899-aabbccddeeff"), Some(uuid));
        for bad in ["", "GPU-", "00112233-4455-6677-8899-aabbccddeeff", "GPU-é", "MIG-GPU-1/7/0"] {
            assert_eq!(parse_uuid(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_absent_library_is_an_error() {
        let failure = Driver::load(Some(Path::new("/nowhere/libcuda.so.1"))).err().unwrap();
        assert!(failure.starts_with("/nowhere/libcuda.so.1 cannot be loaded"), "{failure}");
        // A library without the calls.
        let failure = Driver::load(Some(Path::new("libc.so.6"))).err().unwrap();
        assert_eq!(failure, "the CUDA driver library has no cuInit");
    }
}
