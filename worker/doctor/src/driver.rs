//! The driver of NVIDIA: its kernel module, its library and its device nodes.

use std::fs;
use std::path::Path;

use super::finding::Finding;
use super::host::{Host, NvmlStart};
use super::settings::Settings;

const MODULE: &str = "driver.module";
const NOUVEAU: &str = "driver.nouveau";
const LIBRARY: &str = "driver.library";
const CUDA: &str = "driver.cuda";
const NODES: &str = "driver.nodes";
const CAPS: &str = "driver.caps";
const MODPROBE: &str = "driver.modprobe";
const MODPROBE_PROGRAM: &str = "nvidia-modprobe";

/// The directories of libraries.
const LIBRARY_DIRS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/lib64",
];
/// The nodes of all boards together.
const COMMON_NODES: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];
/// The right to change MIG instances, as a file of the driver.
const MIG_RIGHT: &str = "/proc/driver/nvidia/capabilities/mig/config";

/// The checks of the driver.
pub(crate) fn findings(host: &Host) -> Vec<Finding> {
    let text = host.read("/proc/driver/nvidia/version");
    let version = text.as_deref().and_then(version_in);
    let loaded = text.is_some();
    vec![
        module(loaded, version),
        nouveau(host),
        library(host, version),
        cuda(host),
        nodes(host, loaded),
        caps(host, loaded),
        modprobe(host),
    ]
}

/// The first version in the first line of a text, such as 570.86.15.
fn version_in(text: &str) -> Option<&str> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(is_number);
    text.lines().next()?.split_whitespace().find(is_version)
}

fn module(loaded: bool, version: Option<&str>) -> Finding {
    match (loaded, version) {
        (true, Some(version)) => {
            Finding::ok(MODULE, format!("The kernel module nvidia {version} is loaded."))
        }
        (true, None) => Finding::unknown(
            MODULE,
            "The kernel module nvidia is loaded, without a readable version.",
            "cat /proc/driver/nvidia/version",
        ),
        (false, _) => Finding::problem(
            MODULE,
            "The kernel module nvidia is not loaded, so no job gets a board.",
            "modprobe nvidia. If there is no such module: install the driver of NVIDIA for data center boards, with the headers of this kernel",
        ),
    }
}

fn nouveau(host: &Host) -> Finding {
    if host.exists("/sys/module/nouveau") {
        Finding::problem(
            NOUVEAU,
            "The kernel module nouveau is loaded and holds the boards.",
            "Write the lines \"blacklist nouveau\" and \"options nouveau modeset=0\" to /etc/modprobe.d/nouveau.conf, then: update-initramfs -u && reboot",
        )
    } else {
        Finding::ok(NOUVEAU, "The kernel module nouveau is not loaded.")
    }
}

/// The installed library of NVML.
enum InstalledLibrary {
    Missing,
    /// Its file name has no version.
    Unversioned,
    Version(String),
}

fn installed_library(host: &Host) -> InstalledLibrary {
    let mut found = InstalledLibrary::Missing;
    for dir in LIBRARY_DIRS {
        let Ok(file) = fs::canonicalize(host.place(dir).join("libnvidia-ml.so.1")) else { continue };
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.strip_prefix("libnvidia-ml.so.").filter(|version| version.contains('.')) {
            Some(version) => return InstalledLibrary::Version(version.to_owned()),
            None => found = InstalledLibrary::Unversioned,
        }
    }
    found
}

fn library(host: &Host, module: Option<&str>) -> Finding {
    let reload = "reboot. Without a reboot, and without a process on a board: rmmod nvidia_drm nvidia_modeset nvidia_uvm nvidia && modprobe nvidia && nvidia-modprobe -u -c 0";
    let installed = installed_library(host);
    if let (InstalledLibrary::Version(library), Some(module)) = (&installed, module)
        && library != module
    {
        let text = format!(
            "NVML has the version {library} and the kernel module {module}, so NVML does not start and no job gets a board."
        );
        return Finding::problem(LIBRARY, text, reload);
    }
    match (&host.nvml, installed) {
        (NvmlStart::Failed(why), _) => {
            let text = format!("NVML does not start, so no job gets a board: {why}.");
            let next = "nvidia-smi; journalctl -k -g NVRM. If libnvidia-ml.so.1 is missing: install the libraries of the driver, such as the package libnvidia-ml1";
            Finding::problem(LIBRARY, text, next)
        }
        (NvmlStart::Started(version), _) => Finding::ok(LIBRARY, format!("NVML {version} starts.")),
        (NvmlStart::Untried, InstalledLibrary::Version(version)) => {
            Finding::ok(LIBRARY, format!("NVML {version} is installed."))
        }
        (NvmlStart::Untried, InstalledLibrary::Unversioned) => {
            Finding::unknown(LIBRARY, "NVML is installed, without a version in its name.", "nvidia-smi")
        }
        (NvmlStart::Untried, InstalledLibrary::Missing) => Finding::problem(
            LIBRARY,
            "libnvidia-ml.so.1 is in no directory of libraries, so no job gets a board.",
            "Install the libraries of the driver, such as the package libnvidia-ml1",
        ),
    }
}

/// The library that clears the memory of GPUs.
fn cuda(host: &Host) -> Finding {
    if Settings::read(&host.root).clear_memory.as_deref() == Some("never") {
        return Finding::ok(CUDA, "BERTH_CLEAR_MEMORY=never leaves the memory of GPUs to the next job.");
    }
    if LIBRARY_DIRS.iter().any(|dir| host.exists(Path::new(dir).join("libcuda.so.1"))) {
        return Finding::ok(CUDA, "libcuda.so.1 is installed, which clears the memory of GPUs between jobs.");
    }
    Finding::warning(
        CUDA,
        "libcuda.so.1 is in no directory of libraries, so the memory of GPUs is not cleared between jobs of different organizations.",
        "Install the CUDA library of the driver, such as the package libcuda1, then: systemctl restart berth-worker",
    )
}

/// The minor numbers of all boards that the driver has.
fn minors(host: &Host) -> Vec<u32> {
    const BOARDS: &str = "/proc/driver/nvidia/gpus";
    let minor = |board: &String| {
        let text = host.read(format!("{BOARDS}/{board}/information"))?;
        text.lines().find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse::<u32>().ok())
    };
    let mut minors: Vec<u32> = host.names(BOARDS).iter().filter_map(minor).collect();
    minors.sort_unstable();
    minors
}

fn nodes(host: &Host, loaded: bool) -> Finding {
    if !loaded {
        return Finding::unknown(
            NODES,
            "The nodes of the boards are unknown without the kernel module.",
            "modprobe nvidia",
        );
    }
    let minors = minors(host);
    if minors.is_empty() {
        return Finding::problem(
            NODES,
            "The driver has no board.",
            "lspci -d 10de: shows the boards of the host, and journalctl -k -g NVRM the reasons of the driver",
        );
    }
    let is_missing = |name: &String| !host.exists(format!("/dev/{name}"));
    let mut missing: Vec<String> =
        COMMON_NODES.iter().map(|name| (*name).to_owned()).filter(is_missing).collect();
    let boards: Vec<u32> =
        minors.iter().copied().filter(|minor| is_missing(&format!("nvidia{minor}"))).collect();
    missing.extend(boards.iter().map(|minor| format!("nvidia{minor}")));
    if missing.is_empty() {
        let text = format!("/dev has the nodes of {} and the common nodes.", count_boards(minors.len()));
        return Finding::ok(NODES, text);
    }
    let mut next = "nvidia-modprobe -u".to_owned();
    // Without a missing board the common nodes come with any board.
    let named = if boards.is_empty() { minors.get(..1).unwrap_or_default() } else { boards.as_slice() };
    for minor in named {
        next.push_str(&format!(" -c {minor}"));
    }
    let missing = missing.join(", ");
    if host.find_program(MODPROBE_PROGRAM).is_some() {
        let text = format!("Nodes are missing in /dev; the worker makes them at its start: {missing}.");
        return Finding::warning(NODES, text, next);
    }
    let text = format!("Nodes are missing in /dev, so jobs cannot use CUDA: {missing}.");
    Finding::problem(NODES, text, next)
}

fn count_boards(count: usize) -> String {
    if count == 1 { "1 board".to_owned() } else { format!("{count} boards") }
}

fn caps(host: &Host, loaded: bool) -> Finding {
    if !loaded {
        return Finding::unknown(
            CAPS,
            "The nodes of MIG are unknown without the kernel module.",
            "modprobe nvidia",
        );
    }
    if !host.exists(MIG_RIGHT) {
        return Finding::ok(CAPS, "The driver has no rights for MIG, so the boards are used whole.");
    }
    if host.names("/dev/nvidia-caps").iter().any(|name| name.starts_with("nvidia-cap")) {
        return Finding::ok(CAPS, "/dev/nvidia-caps has the nodes for MIG.");
    }
    Finding::warning(
        CAPS,
        "/dev/nvidia-caps has no node. The worker makes the nodes of a slice before its job.",
        format!("nvidia-modprobe -f {MIG_RIGHT}"),
    )
}

fn modprobe(host: &Host) -> Finding {
    match host.find_program(MODPROBE_PROGRAM) {
        Some(_) => Finding::ok(MODPROBE, "nvidia-modprobe is installed."),
        None => Finding::warning(
            MODPROBE,
            "nvidia-modprobe is not installed, so nothing makes the device nodes after a start of the host.",
            "Install the package nvidia-modprobe of the driver's version",
        ),
    }
}
