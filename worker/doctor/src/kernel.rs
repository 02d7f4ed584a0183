//! The kernel: IOMMU, cgroups, device nodes, namespaces, the view of processes, the clock.

use super::finding::Finding;
use super::host::Host;

const IOMMU: &str = "kernel.iommu";
const CGROUPS: &str = "kernel.cgroups";
const DEVICES: &str = "kernel.devices";
const NAMESPACES: &str = "kernel.namespaces";
const APPARMOR: &str = "kernel.apparmor";
const HIDEPID: &str = "kernel.hidepid";
const CLOCK: &str = "kernel.clock";

/// The controllers that limit jobs.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// The checks of the kernel.
pub(crate) fn findings(host: &Host) -> Vec<Finding> {
    let is_root = host.is_root();
    vec![
        iommu(host),
        cgroups(host, is_root),
        devices(host, is_root),
        namespaces(host, is_root),
        apparmor(host, is_root),
        hidepid(host, is_root),
        clock(host),
    ]
}

fn iommu(host: &Host) -> Finding {
    if host.names("/sys/class/iommu").is_empty() {
        return Finding::ok(IOMMU, "The IOMMU is off. Jobs do not need it.");
    }
    let line = host.read("/proc/cmdline").unwrap_or_default();
    if line.split_whitespace().any(|word| word == "iommu=pt" || word == "iommu.passthrough=1") {
        return Finding::ok(IOMMU, "The IOMMU is on, without translation for the host's devices.");
    }
    Finding::warning(
        IOMMU,
        "The IOMMU can translate the traffic between boards and network cards, which then is slow. ACS of PCIe switches has the same effect.",
        "Add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot. lspci -vvv shows ACS as ACSCtl",
    )
}

/// The fields of a file between spaces; none if it cannot be read.
fn fields(host: &Host, path: &str) -> Vec<String> {
    host.read(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

fn cgroups(host: &Host, is_root: bool) -> Finding {
    const ROOT: &str = "/sys/fs/cgroup";
    let delegate = "systemctl edit berth-worker, with the lines \"[Service]\" and \"Delegate=yes\", then: systemctl restart berth-worker";
    // A worker without root has only the cgroups below its own.
    let own = host.read("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::")).filter(|_| !is_root);
    let dir = own.map_or_else(|| ROOT.to_owned(), |own| format!("{ROOT}{own}"));
    let mut second = fields(host, &format!("{dir}/cgroup.controllers"));
    let is_second = host.exists(format!("{ROOT}/cgroup.controllers"));
    if !is_second {
        second = fields(host, &format!("{ROOT}/unified/cgroup.controllers"));
    }
    let has = |name: &&&str| {
        second.iter().map(String::as_str).any(|known| known == **name)
            || (!is_second && host.exists(format!("{ROOT}/{name}")))
    };
    let missing: Vec<&str> = CONTROLLERS.iter().filter(|name| !has(name)).copied().collect();
    if missing.is_empty() {
        let version = if is_second { "version 2" } else { "version 1" };
        return Finding::ok(CGROUPS, format!("cgroups of {version} limit memory, processors and processes."));
    }
    let next = match (is_second, is_root) {
        (true, false) => delegate,
        (true, true) => {
            "cat /sys/fs/cgroup/cgroup.controllers. Remove cgroup_disable= from GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot"
        }
        (false, _) => {
            "Add systemd.unified_cgroup_hierarchy=1 to GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot. In a container: give it a writable /sys/fs/cgroup"
        }
    };
    let text = format!("cgroups do not limit these for jobs: {}.", missing.join(", "));
    Finding::warning(CGROUPS, text, next)
}

/// The second barrier between a job and the device nodes of others, behind its mount namespace.
fn devices(host: &Host, is_root: bool) -> Finding {
    const ROOT: &str = "/sys/fs/cgroup";
    const ALONE: &str = "only the mount namespace separates the device nodes of jobs";
    if !is_root {
        return Finding::ok(DEVICES, format!("With a worker without root {ALONE}."));
    }
    if host.exists(format!("{ROOT}/devices")) {
        return Finding::ok(DEVICES, "cgroups of version 1 also separate the device nodes of jobs.");
    }
    if let Some(why) = &host.device_filter_refusal {
        return Finding::warning(
            DEVICES,
            format!("The kernel refuses the filter of device nodes (BPF), so {ALONE}: {why}."),
            "Boot a kernel with CONFIG_CGROUP_BPF=y. In a container: give it CAP_SYS_ADMIN and the call bpf",
        );
    }
    let is_second = [ROOT, "/sys/fs/cgroup/unified"]
        .into_iter()
        .any(|dir| host.exists(format!("{dir}/cgroup.controllers")));
    if !is_second {
        return Finding::warning(
            DEVICES,
            format!("The host has no cgroups for device nodes, so {ALONE}."),
            "Add systemd.unified_cgroup_hierarchy=1 to GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot. In a container: give it a writable /sys/fs/cgroup",
        );
    }
    let release = host.read_line("/proc/sys/kernel/osrelease").unwrap_or_default();
    let config = host.read(format!("/boot/config-{release}"));
    if config.is_some_and(|text| !text.lines().any(|line| line == "CONFIG_CGROUP_BPF=y")) {
        return Finding::warning(
            DEVICES,
            format!("The kernel has no BPF programs for cgroups, so {ALONE}."),
            format!("Boot a kernel with CONFIG_CGROUP_BPF=y in /boot/config-{release}"),
        );
    }
    Finding::ok(DEVICES, "cgroups of version 2 take a filter of device nodes (BPF) for each job.")
}

fn namespaces(host: &Host, is_root: bool) -> Finding {
    if is_root {
        return Finding::ok(NAMESPACES, "The worker is root and needs no user namespaces.");
    }
    let is_zero = |path: &str| host.read_line(path).as_deref() == Some("0");
    let switches = ["/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/unprivileged_userns_clone"];
    match switches.into_iter().find(|path| is_zero(path)) {
        None => Finding::ok(NAMESPACES, "User namespaces are permitted."),
        Some(path) => Finding::problem(
            NAMESPACES,
            format!("{path} is 0, so a worker without root has no sandbox and does not start."),
            "Run the worker as root. Otherwise: sysctl user.max_user_namespaces=100000 kernel.unprivileged_userns_clone=1",
        ),
    }
}

fn apparmor(host: &Host, is_root: bool) -> Finding {
    let switch = host.read_line("/proc/sys/kernel/apparmor_restrict_unprivileged_userns");
    match (switch.as_deref(), is_root) {
        (None | Some("0"), _) => Finding::ok(APPARMOR, "AppArmor does not restrict user namespaces."),
        (Some(_), true) => Finding::ok(APPARMOR, "AppArmor restricts user namespaces, except for root."),
        (Some(_), false) => Finding::problem(
            APPARMOR,
            "AppArmor restricts user namespaces, so a worker without root has no sandbox and does not start.",
            "Run the worker as root. Otherwise add a profile with userns for /usr/bin/bwrap to /etc/apparmor.d",
        ),
    }
}

fn hidepid(host: &Host, is_root: bool) -> Finding {
    let mounts = host.read("/proc/self/mounts").unwrap_or_default();
    let options = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (fields.next() == Some("/proc")).then(|| fields.nth(1).unwrap_or_default().to_owned())
    });
    let Some(options) = options else {
        return Finding::unknown(HIDEPID, "The mount of /proc is unknown.", "findmnt /proc");
    };
    let mode = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
    match mode {
        None | Some("0" | "off") => Finding::ok(HIDEPID, "/proc shows the processes of all users."),
        Some(_) if is_root => Finding::ok(HIDEPID, "/proc hides processes from all users but root."),
        Some(mode) => Finding::problem(
            HIDEPID,
            format!(
                "/proc hides the processes of other users (hidepid={mode}), so the worker cannot prove boards clean."
            ),
            "Run the worker as root. Otherwise remove hidepid from /etc/fstab, then: mount -o remount,hidepid=0 /proc",
        ),
    }
}

fn clock(host: &Host) -> Finding {
    let next = "systemctl enable --now systemd-timesyncd, or install chrony";
    match host.ask("timedatectl", &["show", "--property=NTPSynchronized", "--value"]) {
        Ok(answer) if answer.trim() == "yes" => Finding::ok(CLOCK, "The clock is synchronized."),
        Ok(answer) if answer.trim() == "no" => Finding::warning(
            CLOCK,
            "The clock is not synchronized. A host whose clock is weeks ahead cannot connect to the portal.",
            next,
        ),
        _ if host.exists("/run/systemd/timesync/synchronized") => {
            Finding::ok(CLOCK, "The clock was synchronized by systemd-timesyncd.")
        }
        _ => Finding::unknown(CLOCK, "The synchronization of the clock is unknown.", next),
    }
}
