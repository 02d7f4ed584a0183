//! Recorded hosts in temporary directories.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{CommandError, Commands, Finding, FindingState, Host, NvmlStart, examine};

pub const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
pub const DATA: &str = "/var/lib/berth-worker";
const VERSION: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan  9 22:35:04 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
    Max open files            1048576              1048576              files     \n\
    Max locked memory         unlimited            unlimited            bytes     \n";
const MOUNTS: &str = "25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n\
    30 25 259:3 / /var/lib rw,relatime shared:2 - xfs /dev/nvme1n1 rw,attr2,prjquota\n";

/// The recorded answers of programs by their names. Other programs do not answer.
#[derive(Clone)]
struct Answers(HashMap<&'static str, String>);

impl Commands for Answers {
    fn run(&self, program: &Path, _: &[&str]) -> Result<String, CommandError> {
        let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        self.0.get(name).cloned().ok_or(CommandError::TimedOut)
    }
}

/// A recorded host.
pub struct Recorded {
    dir: TempDir,
    answers: Answers,
    pub nvml: NvmlStart,
    pub persistence: Option<bool>,
    pub unregistered_boards: usize,
    pub device_filter_refusal: Option<String>,
    pub portal: Option<String>,
    pub simulated: bool,
    pub host_mounts: Vec<(String, PathBuf)>,
}

impl Recorded {
    /// A host without anything.
    pub fn empty() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            answers: Answers(HashMap::new()),
            nvml: NvmlStart::Untried,
            persistence: None,
            unregistered_boards: 0,
            device_filter_refusal: None,
            portal: None,
            simulated: false,
            host_mounts: Vec::new(),
        }
    }

    /// A host with eight H100 boards and NVSwitch that has everything.
    pub fn hgx() -> Self {
        let mut host = Self::empty();
        host.nvml = NvmlStart::Started("570.86.15".to_owned());
        host.write("proc/driver/nvidia/version", VERSION);
        host.write("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\n");
        for minor in 0..8 {
            let text =
                format!("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 191\nDevice Minor: \t {minor}\n");
            host.write(&format!("proc/driver/nvidia/gpus/0000:{minor}b:00.0/information"), &text);
            host.write(&format!("dev/nvidia{minor}"), "");
        }
        for name in ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1"] {
            host.write(&format!("dev/{name}"), "");
        }
        for switch in 3..7 {
            host.write(&format!("proc/driver/nvidia-nvswitch/devices/0000:0{switch}:00.0"), "");
        }
        host.set_library("570.86.15");
        host.write(&format!("{LIBRARIES}/libcuda.so.1"), "");
        for (id, name) in
            [(1, "systemd"), (812, "nv-fabricmanage"), (813, "nvidia-persiste"), (900, "berth-worker")]
        {
            host.write(&format!("proc/{id}/comm"), &format!("{name}\n"));
        }
        host.write("proc/900/limits", LIMITS);
        host.write("proc/self/status", "Name:\tberth-worker\nUid:\t0\t0\t0\t0\n");
        host.write("proc/self/cgroup", "0::/system.slice/berth-worker.service\n");
        host.write("proc/self/mounts", "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n");
        host.write("proc/self/mountinfo", MOUNTS);
        host.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p2 ro intel_iommu=on iommu=pt\n");
        host.write("sys/class/iommu/dmar0/uevent", "");
        host.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory hugetlb pids rdma misc\n");
        host.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        host.write("sys/module/nvidia_peermem/refcnt", "0\n");
        host.write("sys/module/wireguard/version", "1.0.0\n");
        host.write("proc/sys/kernel/osrelease", "6.1.0-28-amd64\n");
        host.write("boot/config-6.1.0-28-amd64", "CONFIG_BPF_SYSCALL=y\nCONFIG_CGROUP_BPF=y\n");
        host.write("var/lib/berth-worker/boards.json", "{}");
        for (name, answer) in [
            ("bwrap", "bubblewrap 0.8.0\n"),
            ("ip", ""),
            ("nft", ""),
            ("wg", ""),
            ("ib_write_bw", ""),
            ("podman", "podman version 4.9.3\n"),
            ("nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.17.4\ncommit: 9b69590\n"),
            ("nvidia-smi", "Enabled\n"),
            ("nvidia-modprobe", ""),
            ("timedatectl", "yes\n"),
            ("df", "       Avail\n900000000000\n"),
        ] {
            host.install(name, answer);
        }
        host
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Removes a file, or a directory with all in it.
    pub fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    /// Installs the library of NVML in one version.
    pub fn set_library(&self, version: &str) {
        let (file, link) =
            (format!("libnvidia-ml.so.{version}"), self.path(LIBRARIES).join("libnvidia-ml.so.1"));
        self.write(&format!("{LIBRARIES}/{file}"), "");
        if link.exists() {
            fs::remove_file(&link).unwrap();
        }
        symlink(file, link).unwrap();
    }

    /// Installs a program with its answer.
    pub fn install(&mut self, name: &'static str, answer: &str) {
        let file = format!("usr/bin/{name}");
        self.write(&file, "");
        fs::set_permissions(self.path(&file), fs::Permissions::from_mode(0o755)).unwrap();
        self.answers.0.insert(name, answer.to_owned());
    }

    pub fn findings(&self) -> Vec<Finding> {
        examine(&Host {
            root: self.dir.path().to_owned(),
            data: PathBuf::from(DATA),
            portal: self.portal.clone(),
            simulated: self.simulated,
            host_mounts: self.host_mounts.clone(),
            nvml: self.nvml.clone(),
            persistence: self.persistence,
            unregistered_boards: self.unregistered_boards,
            device_filter_refusal: self.device_filter_refusal.clone(),
            commands: Box::new(self.answers.clone()),
        })
    }

    /// The codes and states of all findings other than `ok`.
    pub fn faults(&self) -> Vec<(&'static str, FindingState)> {
        let found = self.findings().into_iter().filter(|finding| finding.state != FindingState::Ok);
        found.map(|finding| (finding.code, finding.state)).collect()
    }

    /// The text and the next step of a finding.
    pub fn texts(&self, code: &str) -> (String, String) {
        let finding = self.findings().into_iter().find(|finding| finding.code == code).unwrap();
        (finding.found, finding.next.unwrap_or_default())
    }
}
