//! Simulated boards beside recorded answers of real boards: `data/recorded.json` has them with their sources.

#![expect(clippy::unwrap_used, unsafe_code, reason = "a test fails loudly, and drives a C interface")]

use std::path::PathBuf;

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};
use serde::Deserialize;

/// The answers of one real board, by the names of `nvidia-smi -q`.
#[derive(Debug, PartialEq, Deserialize)]
struct BoardAnswers {
    model: String,
    name: String,
    architecture: String,
    vbios: String,
    device_id: String,
    subsystem_id: String,
    memory_mib: u64,
    reserved_mib: u64,
    bar1_mib: Option<u64>,
    power_default_watts: u32,
    power_min_watts: u32,
    power_max_watts: u32,
    graphics_mhz: u32,
    sm_mhz: u32,
    memory_mhz: u32,
    video_mhz: u32,
    pcie_generation: u32,
    pcie_width: u32,
    shutdown_celsius: Option<u32>,
    slowdown_celsius: Option<u32>,
    max_memory_celsius: Option<u32>,
    max_gpu_celsius: Option<u32>,
    ecc: bool,
    fan: bool,
    mig: bool,
    rows_replaced: bool,
    pages_retired: bool,
    display_active: bool,
    compute_mode: String,
}

/// A row of `nvidia-smi mig -lgip` with its row of `-lgipp`.
#[derive(Debug, Deserialize)]
struct ProfileAnswers {
    name: String,
    id: u32,
    total: u32,
    /// Two digits after the point; absent where records differ.
    memory_gib: Option<f64>,
    sm: u32,
    copy_engines: u32,
    decoders: u32,
    encoders: u32,
    jpeg: u32,
    ofa: u32,
    size: u32,
    /// Empty where no record has them.
    starts: Vec<u32>,
}

/// A row of `nvidia-smi mig -lgi`.
#[derive(Debug, Deserialize)]
struct InstanceAnswers {
    profile: u32,
    start: u32,
    id: u32,
}

#[derive(Debug, Deserialize)]
struct MigAnswers {
    model: String,
    profiles: Vec<ProfileAnswers>,
    instances: Vec<InstanceAnswers>,
}

#[derive(Debug, Deserialize)]
struct Recorded {
    boards: Vec<BoardAnswers>,
    mig: Vec<MigAnswers>,
}

/// The library that cargo built with this test.
fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let places = [beside.join("libberth_nvml_sim.so"), beside.join("../libberth_nvml_sim.so")];
    places.into_iter().find(|p| p.exists()).unwrap()
}

/// False for "not supported". Another error fails the test.
fn is_supported(code: u32) -> bool {
    assert!(code == 0 || code == 3, "error {code}");
    code == 0
}

fn number(call: impl FnOnce(*mut u32) -> u32) -> Option<u32> {
    let mut out = 0;
    let supported = is_supported(call(&raw mut out));
    supported.then_some(out)
}

fn architecture(number: u32) -> &'static str {
    match number {
        5 => "Volta",
        6 => "Turing",
        7 => "Ampere",
        8 => "Ada Lovelace",
        9 => "Hopper",
        10 => "Blackwell",
        _ => "another",
    }
}

fn board_answers(nvml: &Nvml, model: &str, index: u32) -> BoardAnswers {
    let device = nvml.device_by_index(index).unwrap();
    let lib = nvml.lib();
    let memory = device.memory_info().unwrap();
    let pci = device.pci_info().unwrap();
    let mut bar1 = nvmlBAR1Memory_t { bar1Total: 0, bar1Free: 0, bar1Used: 0 };
    let (mut least, mut most, mut ignored) = (0_u32, 0_u32, [0_u32; 4]);
    let [a, b, c, d] = &mut ignored;
    // SAFETY: the handle comes from this library, and out-pointers are to locals.
    unsafe {
        let handle = device.handle();
        let clock = |kind| number(|out| lib.nvmlDeviceGetMaxClockInfo(handle, kind, out)).unwrap();
        let threshold = |kind| number(|out| lib.nvmlDeviceGetTemperatureThreshold(handle, kind, out));
        let bar1_supported = is_supported(lib.nvmlDeviceGetBAR1MemoryInfo(handle, &raw mut bar1));
        let limits = lib.nvmlDeviceGetPowerManagementLimitConstraints(handle, &raw mut least, &raw mut most);
        assert_eq!(limits, 0);
        let default = number(|out| lib.nvmlDeviceGetPowerManagementDefaultLimit(handle, out)).unwrap();
        BoardAnswers {
            model: model.to_owned(),
            name: device.name().unwrap(),
            architecture: architecture(number(|out| lib.nvmlDeviceGetArchitecture(handle, out)).unwrap())
                .to_owned(),
            vbios: device.vbios_version().unwrap(),
            device_id: format!("{:08x}", pci.pci_device_id),
            subsystem_id: format!("{:08x}", pci.pci_sub_system_id.unwrap()),
            memory_mib: memory.total >> 20,
            reserved_mib: memory.reserved >> 20,
            bar1_mib: bar1_supported.then_some(bar1.bar1Total >> 20),
            power_default_watts: default / 1_000,
            power_min_watts: least / 1_000,
            power_max_watts: most / 1_000,
            graphics_mhz: clock(0),
            sm_mhz: clock(1),
            memory_mhz: clock(2),
            video_mhz: clock(3),
            pcie_generation: number(|out| lib.nvmlDeviceGetMaxPcieLinkGeneration(handle, out)).unwrap(),
            pcie_width: number(|out| lib.nvmlDeviceGetMaxPcieLinkWidth(handle, out)).unwrap(),
            shutdown_celsius: threshold(0),
            slowdown_celsius: threshold(1),
            max_memory_celsius: threshold(2),
            max_gpu_celsius: threshold(3),
            ecc: device.is_ecc_enabled().unwrap().currently_enabled,
            fan: number(|out| lib.nvmlDeviceGetFanSpeed(handle, out)).is_some(),
            mig: device.mig_mode().is_ok(),
            rows_replaced: is_supported(lib.nvmlDeviceGetRemappedRows(handle, a, b, c, d)),
            pages_retired: device.are_pages_pending_retired().is_ok(),
            display_active: number(|out| lib.nvmlDeviceGetDisplayActive(handle, out)) == Some(1),
            compute_mode: match number(|out| lib.nvmlDeviceGetComputeMode(handle, out)) {
                Some(0) => "Default".to_owned(),
                other => format!("{other:?}"),
            },
        }
    }
}

/// The profile of an id with its placements.
///
/// # Safety
/// The handle comes from the library.
unsafe fn profile(
    nvml: &Nvml,
    handle: nvmlDevice_t,
    id: u32,
) -> (nvmlGpuInstanceProfileInfo_v2_t, Vec<(u32, u32)>) {
    let lib = nvml.lib();
    // SAFETY: plain C structs, for which zeroes are a value; out-pointers are to locals.
    unsafe {
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = std::mem::zeroed();
        info.version = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as u32 | 2 << 24;
        let is_wanted = |index: u32| {
            let code = lib.nvmlDeviceGetGpuInstanceProfileInfoV(handle, index, &raw mut info);
            is_supported(code) && info.id == id
        };
        assert!((0..=16).any(is_wanted), "no profile {id}");
        let mut rows = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; 8];
        let mut count = 8;
        let code =
            lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, id, rows.as_mut_ptr(), &raw mut count);
        assert_eq!(code, 0);
        let placements = rows.iter().take(count as usize).map(|row| (row.start, row.size)).collect();
        (info, placements)
    }
}

/// The id of a new instance at a start.
///
/// # Safety
/// The handle comes from the library.
unsafe fn id_of_new(nvml: &Nvml, handle: nvmlDevice_t, profile: u32, start: u32, size: u32) -> u32 {
    // SAFETY: plain C structs, for which zeroes are a value; out-pointers are to locals.
    unsafe {
        let mut instance: nvmlGpuInstance_t = std::ptr::null_mut();
        let at = nvmlGpuInstancePlacement_t { start, size };
        let made =
            nvml.lib().nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, &at, &raw mut instance);
        assert_eq!(made, 0, "profile {profile} at {start}");
        let mut info: nvmlGpuInstanceInfo_t = std::mem::zeroed();
        assert_eq!(nvml.lib().nvmlGpuInstanceGetInfo(instance, &raw mut info), 0);
        info.id
    }
}

fn compare_mig(nvml: &Nvml, recorded: &MigAnswers, index: u32) {
    let device = nvml.device_by_index(index).unwrap();
    if device.mig_mode().unwrap().current == 0 {
        device.set_mig_mode(true).unwrap();
    }
    // SAFETY: the handle comes from this library.
    let handle = unsafe { device.handle() };
    for wanted in &recorded.profiles {
        // SAFETY: the handle comes from this library.
        let (info, placements) = unsafe { profile(nvml, handle, wanted.id) };
        let what = format!("{} {}", recorded.model, wanted.name);
        let name: String =
            info.name.iter().map(|c| char::from(c.cast_unsigned())).take_while(|c| *c != '\0').collect();
        assert_eq!(name, format!("MIG {}", wanted.name), "{what}");
        assert_eq!((info.instanceCount, info.multiprocessorCount), (wanted.total, wanted.sm), "{what}");
        assert_eq!(
            (info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount),
            (wanted.copy_engines, wanted.decoders, wanted.encoders, wanted.jpeg, wanted.ofa),
            "{what}"
        );
        if let Some(memory_gib) = wanted.memory_gib {
            let found_gib = info.memorySizeMB as f64 / 1_024.0;
            assert!((found_gib - memory_gib).abs() < 0.0051, "{what}: {found_gib}");
        }
        let places: Vec<(u32, u32)> = wanted.starts.iter().map(|start| (*start, wanted.size)).collect();
        assert!(places.is_empty() || placements == places, "{what}: {placements:?}");
    }
    for wanted in &recorded.instances {
        let of = recorded.profiles.iter().find(|profile| profile.id == wanted.profile).unwrap();
        // SAFETY: the handle comes from this library.
        let id = unsafe { id_of_new(nvml, handle, wanted.profile, wanted.start, of.size) };
        assert_eq!(id, wanted.id, "{} {} at {}", recorded.model, of.name, wanted.start);
    }
}

#[test]
fn boards_answer_as_recorded_boards_did() {
    let recorded: Recorded = serde_json::from_str(include_str!("data/recorded.json")).unwrap();
    let boards = recorded.boards.iter().map(|board| &board.model);
    let fleet: Vec<String> =
        boards.chain(recorded.mig.iter().map(|mig| &mig.model)).map(|model| format!("1x{model}")).collect();
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: this test is the only one of its process and has started no thread.
    unsafe {
        std::env::set_var("BERTH_NVML_SIM_DIR", dir.path());
        std::env::set_var("BERTH_NVML_SIM_FLEET", fleet.join(","));
    }
    let nvml = Nvml::builder().lib_path(library().as_os_str()).init().unwrap();
    assert!(!recorded.boards.is_empty() && !recorded.mig.is_empty());
    let first_of_mig = u32::try_from(recorded.boards.len()).unwrap();
    for (index, board) in (0..).zip(&recorded.boards) {
        assert_eq!(&board_answers(&nvml, &board.model, index), board);
    }
    for (index, mig) in (first_of_mig..).zip(&recorded.mig) {
        compare_mig(&nvml, mig, index);
    }
}
