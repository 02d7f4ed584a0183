//! The checks on recorded hosts.

mod trees;

use std::collections::BTreeSet;
use std::path::Path;

use self::trees::{LIBRARIES, Recorded};
use crate::FindingState::{Problem, Unknown, Warning};
use crate::{CODES, FindingState, MAX_TEXT_CHARS, NvmlStart, has_problem};

/// The faults of a host without faults.
const NONE: [(&str, FindingState); 0] = [];

#[test]
fn an_hgx_host_with_everything_has_no_fault() {
    let host = Recorded::hgx();
    let findings = host.findings();
    assert_eq!(host.faults(), NONE, "{findings:?}");
    let codes: Vec<&str> = findings.iter().map(|finding| finding.code).collect();
    let expected: Vec<&str> = CODES.into_iter().filter(|code| *code != "network.portal").collect();
    assert_eq!(codes, expected);
    assert!(!has_problem(&findings));
    assert!(findings.iter().all(|finding| finding.next.is_none()), "{findings:?}");
}

#[test]
fn missing_nodes_have_the_command_that_makes_them() {
    let mut host = Recorded::hgx();
    host.remove("dev/nvidia-uvm");
    host.remove("dev/nvidia-uvm-tools");
    assert_eq!(host.faults(), [("driver.nodes", Warning)]);
    host.remove("usr/bin/nvidia-modprobe");
    assert_eq!(host.faults(), [("driver.nodes", Problem), ("driver.modprobe", Warning)]);
    host.install("nvidia-modprobe", "");
    let (found, next) = host.texts("driver.nodes");
    assert!(found.ends_with("nvidia-uvm, nvidia-uvm-tools."), "{found}");
    assert_eq!(next, "nvidia-modprobe -u -c 0");
    host.remove("dev/nvidia3");
    host.remove("dev/nvidia5");
    assert_eq!(host.texts("driver.nodes").1, "nvidia-modprobe -u -c 3 -c 5");
    host.remove("dev/nvidia-caps");
    assert_eq!(host.faults(), [("driver.nodes", Warning), ("driver.caps", Warning)]);
    host.remove("proc/driver/nvidia/gpus");
    assert_eq!(host.texts("driver.nodes").0, "The driver has no board.");
}

#[test]
fn nouveau_is_a_problem() {
    let host = Recorded::hgx();
    host.write("sys/module/nouveau/refcnt", "8\n");
    assert_eq!(host.faults(), [("driver.nouveau", Problem)]);
    assert!(host.texts("driver.nouveau").1.contains("/etc/modprobe.d/nouveau.conf"));
}

#[test]
fn nvswitch_needs_the_fabric_manager() {
    let mut host = Recorded::hgx();
    host.unregistered_boards = 8;
    assert_eq!(host.faults(), [("boards.fabric", Problem)]);
    assert!(host.texts("boards.fabric").1.starts_with("systemctl status nvidia-fabricmanager"));
    host.unregistered_boards = 0;
    host.remove("proc/812");
    assert_eq!(host.faults(), [("boards.fabric", Problem)]);
    host.remove("proc/driver/nvidia-nvswitch");
    assert_eq!(host.faults(), NONE);
}

#[test]
fn a_library_of_another_version_is_a_problem() {
    let mut host = Recorded::hgx();
    host.set_library("535.183.01");
    host.nvml = NvmlStart::Failed("NVML: driver and library have different versions".to_owned());
    assert_eq!(host.faults(), [("driver.library", Problem)]);
    let (found, next) = host.texts("driver.library");
    assert!(found.contains("535.183.01") && found.contains("570.86.15"), "{found}");
    assert!(next.starts_with("reboot"), "{next}");
    // A failure of another cause has NVML's text.
    host.set_library("570.86.15");
    assert!(host.texts("driver.library").0.contains("different versions"));
    host.nvml = NvmlStart::Untried;
    host.remove(LIBRARIES);
    assert_eq!(host.faults(), [("driver.library", Problem), ("driver.cuda", Warning)]);
    host.write("etc/berth/worker.env", "BERTH_CLEAR_MEMORY=never\n");
    assert_eq!(host.faults(), [("driver.library", Problem)], "the operator clears no memory");
}

#[test]
fn a_host_without_a_driver_has_unknown_nodes() {
    let mut host = Recorded::hgx();
    host.nvml = NvmlStart::Failed("NVML: the library does not exist".to_owned());
    host.remove("proc/driver");
    host.remove("usr/bin/nvidia-modprobe");
    let expected = [
        ("driver.module", Problem),
        ("driver.library", Problem),
        ("driver.nodes", Unknown),
        ("driver.caps", Unknown),
        ("driver.modprobe", Warning),
    ];
    assert_eq!(host.faults(), expected);
}

#[test]
fn missing_programs_are_named() {
    let host = Recorded::hgx();
    for name in ["bwrap", "podman", "nvidia-ctk", "nft"] {
        host.remove(&format!("usr/bin/{name}"));
    }
    let expected =
        [("programs.bubblewrap", Problem), ("programs.network", Problem), ("programs.podman", Warning)];
    assert_eq!(host.faults(), expected);
    let (found, next) = host.texts("programs.network");
    assert!(found.ends_with(": nft.") && next.starts_with("apt-get install nftables."), "{found} {next}");
    host.write("etc/berth/worker.env", "BERTH_JOB_NETWORK=host\n");
    assert!(host.faults().iter().all(|(code, _)| *code != "programs.network"));
}

#[test]
fn services_beside_the_boards_are_checked() {
    let mut host = Recorded::hgx();
    host.remove("proc/813");
    assert_eq!(host.faults(), NONE, "the persistence mode of the boards is on");
    host.install("nvidia-smi", "Enabled\nDisabled\n");
    host.write("proc/77/comm", "nv-hostengine\n");
    assert_eq!(host.faults(), [("boards.persistence", Warning), ("boards.monitors", Warning)]);
    let (found, next) = host.texts("boards.monitors");
    assert!(found.contains("nv-hostengine (process 77)"), "{found}");
    assert_eq!(next, "systemctl stop nvidia-dcgm");
    host.remove("usr/bin/nvidia-smi");
    assert!(host.faults().contains(&("boards.persistence", Unknown)));
    // A daemon has the answer of NVML and runs no nvidia-smi.
    host.persistence = Some(false);
    assert!(host.faults().contains(&("boards.persistence", Warning)));
    host.persistence = Some(true);
    assert_eq!(host.faults(), [("boards.monitors", Warning)]);
}

#[test]
fn a_worker_without_root_needs_namespaces_and_processes() {
    let host = Recorded::hgx();
    host.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");
    host.write("proc/sys/user/max_user_namespaces", "0\n");
    host.write("proc/self/mounts", "proc /proc proc rw,relatime,hidepid=invisible 0 0\n");
    assert_eq!(host.faults(), NONE, "root needs none of them");
    host.write("proc/self/status", "Uid:\t1000\t1000\t1000\t1000\n");
    let expected = [
        ("kernel.cgroups", Warning),
        ("kernel.namespaces", Problem),
        ("kernel.apparmor", Problem),
        ("kernel.hidepid", Problem),
    ];
    assert_eq!(host.faults(), expected);
    let own = "sys/fs/cgroup/system.slice/berth-worker.service/cgroup.controllers";
    host.write(own, "cpu memory pids\n");
    assert!(host.faults().iter().all(|(code, _)| *code != "kernel.cgroups"), "the controllers are delegated");
}

#[test]
fn cgroups_of_version_1_and_missing_controllers_are_told_apart() {
    let host = Recorded::hgx();
    host.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io\n");
    assert_eq!(host.texts("kernel.cgroups").0, "cgroups do not limit these for jobs: memory, pids.");
    host.remove("sys/fs/cgroup");
    assert_eq!(host.faults(), [("kernel.cgroups", Warning), ("kernel.devices", Warning)]);
    for name in ["memory", "cpu", "pids", "devices"] {
        host.write(&format!("sys/fs/cgroup/{name}/tasks"), "");
    }
    assert_eq!(host.faults(), NONE);
}

#[test]
fn a_kernel_without_the_filter_of_device_nodes_is_named() {
    let mut host = Recorded::hgx();
    host.write("boot/config-6.1.0-28-amd64", "CONFIG_BPF_SYSCALL=y\n# CONFIG_CGROUP_BPF is not set\n");
    assert_eq!(host.faults(), [("kernel.devices", Warning)]);
    host.remove("boot");
    assert_eq!(host.faults(), NONE, "a host may have no file with the settings of its kernel");
    host.device_filter_refusal = Some("Operation not permitted (os error 1)".to_owned());
    assert_eq!(host.faults(), [("kernel.devices", Warning)]);
    assert!(host.texts("kernel.devices").0.ends_with(": Operation not permitted (os error 1)."));
    host.write("sys/fs/cgroup/devices/tasks", "");
    assert_eq!(host.faults(), NONE, "version 1 needs no filter");
}

#[test]
fn the_means_of_networks_between_ranks_are_checked() {
    let mut host = Recorded::hgx();
    host.remove("usr/bin/wg");
    assert_eq!(host.faults(), [("network.gangs", Problem)]);
    assert!(host.texts("network.gangs").1.starts_with("apt-get install wireguard-tools,"));
    host.remove("sys/module/wireguard");
    assert!(
        host.texts("network.gangs").1.starts_with("modprobe wireguard; apt-get install wireguard-tools,")
    );
    host.install("wg", "");
    assert!(host.texts("network.gangs").1.starts_with("modprobe wireguard,"));
    host.install("modinfo", "filename: wireguard.ko\n");
    assert_eq!(host.faults(), NONE, "the kernel loads the module at its first use");
    host.remove("usr/bin/modinfo");
    assert_eq!(host.faults(), [("network.gangs", Problem)]);
    host.write("dev/net/tun", "");
    assert_eq!(host.faults(), NONE, "a process of the worker encrypts");
    host.write("etc/berth/worker.env", "BERTH_GANG_NETWORK=vxlan\n");
    assert_eq!(host.faults(), [("network.gangs", Problem)]);
    assert_eq!(host.texts("network.gangs").1, "apt-get install iproute2");
    host.install("bridge", "");
    assert_eq!(host.faults(), NONE);
    for setting in ["BERTH_GANG_NETWORK", "BERTH_JOB_NETWORK"] {
        let host = Recorded::hgx();
        host.remove("usr/bin/wg");
        host.write("etc/berth/worker.env", &format!("{setting}=host\n"));
        assert_eq!(host.faults(), NONE, "{setting}");
    }
}

#[test]
fn disks_clocks_and_networks_are_checked() {
    let mut host = Recorded::hgx();
    host.install("df", "Avail\n1000\n");
    host.install("timedatectl", "no\n");
    host.write("proc/cmdline", "ro intel_iommu=on\n");
    host.write("proc/self/mountinfo", "25 1 0:5 / / rw - tmpfs tmpfs rw\n");
    host.write(
        "proc/900/limits",
        "Max open files 1024 4096 files\nMax locked memory 8388608 8388608 bytes\n",
    );
    host.write("sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    let expected = [
        ("kernel.iommu", Warning),
        ("kernel.clock", Warning),
        ("limits.files", Warning),
        ("limits.memlock", Warning),
        ("disk.space", Problem),
        ("disk.filesystem", Warning),
        ("network.infiniband", Warning),
    ];
    assert_eq!(host.faults(), expected);
    assert!(host.texts("network.infiniband").0.ends_with("1 of 2 ports are not active: mlx5_1 port 1 DOWN."));
    let is_warned = || host.faults().iter().any(|(code, _)| *code == "limits.memlock");
    for (rights, warned) in [("000001ffffffffff", false), ("000001fffeffffff", true)] {
        host.write("proc/self/status", &format!("Uid:\t0\t0\t0\t0\nCapEff:\t{rights}\n"));
        assert_eq!(is_warned(), warned, "the worker raises the limits of jobs: {rights}");
    }
    host.remove("sys/module/nvidia_peermem");
    assert!(host.faults().contains(&("network.peermem", Warning)));
    host.remove("usr/bin/ib_write_bw");
    assert!(host.faults().contains(&("network.perftest", Warning)));
    host.remove("sys/class/infiniband");
    let needs_adapter = |code: &str| matches!(code, "network.peermem" | "network.perftest");
    assert!(host.faults().iter().all(|(code, _)| !needs_adapter(code)), "without an adapter");
    assert!(host.faults().iter().all(|(code, _)| !matches!(*code, "limits.memlock" | "network.infiniband")));
    host.install("df", "Avail\n2147483648\n");
    assert!(host.faults().contains(&("disk.space", Warning)));
    host.remove("usr/bin/timedatectl");
    assert!(host.faults().contains(&("kernel.clock", Unknown)));
}

#[test]
fn host_mounts_are_there_and_are_mount_points() {
    let mut host = Recorded::hgx();
    host.host_mounts = vec![("scratch".to_owned(), "/mnt/scratch".into())];
    assert_eq!(host.faults(), [("disk.mounts", Problem)]);
    assert!(host.texts("disk.mounts").0.contains("scratch (/mnt/scratch)"));
    host.write("mnt/scratch/file", "");
    assert_eq!(host.faults(), [("disk.mounts", Warning)]);
    let text = "25 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n\
        30 25 259:3 / /var/lib rw - xfs /dev/nvme1n1 rw,prjquota\n\
        31 25 0:50 / /mnt/scratch rw - lustre 10.0.0.1@tcp:/fs rw\n";
    host.write("proc/self/mountinfo", text);
    assert_eq!(host.faults(), NONE);
}

#[test]
fn simulated_boards_need_no_driver() {
    let mut host = Recorded::empty();
    host.simulated = true;
    let codes: Vec<&str> = host.findings().iter().map(|finding| finding.code).collect();
    let of_boards = |code: &&str| code.starts_with("driver.") || code.starts_with("boards.");
    assert!(!codes.iter().any(of_boards) && !codes.contains(&"programs.toolkit"), "{codes:?}");
    assert!(codes.contains(&"kernel.cgroups"));
}

#[test]
fn an_unreadable_host_has_bounded_answers_for_all_checks() {
    let mut host = Recorded::empty();
    host.nvml = NvmlStart::Failed("x\n\u{1b}[31m".repeat(1_000));
    host.portal = Some("no address".to_owned());
    let findings = host.findings();
    assert_eq!(findings.iter().map(|finding| finding.code).collect::<Vec<&str>>(), CODES);
    for finding in &findings {
        let next = finding.next.clone().unwrap_or_default();
        for text in [&finding.found, &next] {
            assert!(
                text.chars().count() <= MAX_TEXT_CHARS && !text.contains(char::is_control),
                "{finding:?}"
            );
        }
        assert_eq!(finding.next.is_none(), finding.state == FindingState::Ok, "{finding:?}");
    }
}

#[test]
fn the_json_has_all_documented_codes() {
    let mut host = Recorded::empty();
    host.portal = Some("no address".to_owned());
    let json = serde_json::to_value(host.findings()).unwrap();
    let codes: BTreeSet<&str> =
        json.as_array().unwrap().iter().map(|finding| finding["code"].as_str().unwrap()).collect();
    for finding in json.as_array().unwrap() {
        let keys: BTreeSet<&str> = finding.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, BTreeSet::from(["code", "found", "next", "state"]), "{finding}");
        assert!(["problem", "warning", "unknown", "ok"].contains(&finding["state"].as_str().unwrap()));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/workers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("The checks of a host")).unwrap();
    // The rows of the table of codes.
    let code = |line: &str| line.strip_prefix("| `")?.split_once("` |").map(|(code, _)| code.to_owned());
    let documented: BTreeSet<String> =
        section.lines().filter_map(code).filter(|code| code.contains('.')).collect();
    assert_eq!(codes, documented.iter().map(String::as_str).collect::<BTreeSet<&str>>());
}
