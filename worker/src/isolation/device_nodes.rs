//! The device nodes of a board, or of one MIG instance of it, as the driver offers them. Blocking.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The directories with nodes and with the driver's tables of them.
#[derive(Debug, Clone)]
pub struct DeviceTree {
    pub dev: PathBuf,
    pub proc: PathBuf,
    /// The driver's helper that makes nodes; the driver makes none itself.
    pub modprobe: Option<PathBuf>,
}

impl Default for DeviceTree {
    fn default() -> Self {
        let helper = ["/usr/bin/nvidia-modprobe", "/usr/local/bin/nvidia-modprobe"].map(PathBuf::from);
        Self {
            dev: PathBuf::from("/dev"),
            proc: PathBuf::from("/proc"),
            modprobe: helper.into_iter().find(|p| p.exists()),
        }
    }
}

/// The value of a line `DeviceFileMinor: 30`.
fn file_minor(access: &str) -> Option<u32> {
    access.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:")?.trim().parse().ok())
}

/// The number in a line `gpu0/gi3/access 30` of the table of all capabilities.
fn listed_minor(table: &str, capability: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let (name, number) = line.split_once(' ')?;
        (name == capability).then(|| number.trim().parse().ok())?
    })
}

impl DeviceTree {
    /// The nodes of the board with this minor number, or of a GPU instance on it, without nodes of other devices.
    pub fn nodes(&self, minor: u32, gpu_instance: Option<u32>) -> Result<Vec<PathBuf>, String> {
        let mut out = vec![self.dev.join("nvidiactl"), self.dev.join("nvidia-uvm")];
        out.push(self.dev.join(format!("nvidia{minor}")));
        if let Some(gi) = gpu_instance {
            let gi = format!("gpu{minor}/mig/gi{gi}");
            out.push(self.capability(&gi)?);
            for ci in self.compute_instances(&gi) {
                out.push(self.capability(&format!("{gi}/{ci}"))?);
            }
        }
        match out.iter().find(|node| !node.exists()) {
            None => Ok(out),
            Some(node) => Err(format!("the device node {} is missing", node.display())),
        }
    }

    fn capabilities(&self) -> PathBuf {
        self.proc.join("driver/nvidia/capabilities")
    }

    /// The compute instances of a GPU instance. A driver without a list has the first.
    fn compute_instances(&self, gi: &str) -> Vec<String> {
        let entries = fs::read_dir(self.capabilities().join(gi)).into_iter().flatten().flatten();
        let names = entries.filter_map(|e| e.file_name().into_string().ok());
        let mut all: Vec<String> = names.filter(|n| n.starts_with("ci")).collect();
        all.sort_unstable();
        if all.is_empty() { vec!["ci0".to_owned()] } else { all }
    }

    /// The node that grants the use of an instance. A missing node is made.
    fn capability(&self, instance: &str) -> Result<PathBuf, String> {
        let access = self.capabilities().join(instance).join("access");
        let stated = fs::read_to_string(&access).ok().and_then(|text| file_minor(&text));
        let listed = || {
            let table = fs::read_to_string(self.proc.join("driver/nvidia-caps/mig-minors")).ok()?;
            // The table has no `mig` between board and instance.
            listed_minor(&table, &format!("{}/access", instance.replace("/mig/", "/")))
        };
        let number =
            stated.or_else(listed).ok_or_else(|| format!("the driver has no device node for {instance}"))?;
        let node = self.dev.join("nvidia-caps").join(format!("nvidia-cap{number}"));
        if !node.exists()
            && let Some(helper) = &self.modprobe
        {
            run_helper(helper, &access);
        }
        Ok(node)
    }
}

/// Runs the helper. The caller checks for the node afterwards.
fn run_helper(helper: &Path, access: &Path) {
    let mut command = Command::new(helper);
    command.arg("-f").arg(access).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = command.status() {
        tracing::warn!(%error, helper = %helper.display(), "the helper program cannot be started");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with two boards; the second has two instances.
    fn host() -> (tempfile::TempDir, DeviceTree) {
        let dir = tempfile::tempdir().unwrap();
        let places =
            DeviceTree { dev: dir.path().join("dev"), proc: dir.path().join("proc"), modprobe: None };
        fs::create_dir_all(places.dev.join("nvidia-caps")).unwrap();
        for node in ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1"] {
            fs::write(places.dev.join(node), "").unwrap();
        }
        for (gi, number) in [(3, 30), (5, 48)] {
            let at = places.capabilities().join(format!("gpu1/mig/gi{gi}"));
            for (sub, number) in [("", number), ("ci0", number + 1)] {
                fs::create_dir_all(at.join(sub)).unwrap();
                let text = format!("DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
                fs::write(at.join(sub).join("access"), text).unwrap();
                fs::write(places.dev.join(format!("nvidia-caps/nvidia-cap{number}")), "").unwrap();
            }
        }
        (dir, places)
    }

    fn names(places: &DeviceTree, (minor, gi): (u32, Option<u32>)) -> Result<Vec<String>, String> {
        let short = |p: PathBuf| p.strip_prefix(&places.dev).unwrap().display().to_string();
        Ok(places.nodes(minor, gi)?.into_iter().map(short).collect())
    }

    #[test]
    fn a_board_has_its_own_node_and_the_common_ones() {
        let (_dir, places) = host();
        let board = names(&places, (1, None)).unwrap();
        assert_eq!(board, ["nvidiactl", "nvidia-uvm", "nvidia1"]);
        let gone = names(&places, (7, None)).unwrap_err();
        assert!(gone.contains("nvidia7 is missing"), "{gone}");
    }

    #[test]
    fn an_instance_has_two_more_and_not_its_neighbours() {
        let (_dir, places) = host();
        let slice = (1, Some(5));
        let expected =
            ["nvidiactl", "nvidia-uvm", "nvidia1", "nvidia-caps/nvidia-cap48", "nvidia-caps/nvidia-cap49"];
        assert_eq!(names(&places, slice).unwrap(), expected);
        // The older table with the same numbers.
        fs::create_dir_all(places.proc.join("driver/nvidia-caps")).unwrap();
        let table = "config 1\nmonitor 2\ngpu1/gi5/access 48\ngpu1/gi5/ci0/access 49\ngpu1/gi55/access 9\n";
        fs::write(places.proc.join("driver/nvidia-caps/mig-minors"), table).unwrap();
        fs::remove_dir_all(places.capabilities()).unwrap();
        assert_eq!(names(&places, slice).unwrap(), expected);
        let unknown = names(&places, (1, Some(4))).unwrap_err();
        assert!(unknown.contains("gpu1/mig/gi4"), "{unknown}");
    }

    #[test]
    fn a_missing_node_is_asked_for_once() {
        use std::os::unix::fs::PermissionsExt;
        let (dir, mut places) = host();
        let missing = places.dev.join("nvidia-caps/nvidia-cap48");
        fs::remove_file(&missing).unwrap();
        let slice = (1, Some(5));
        assert!(names(&places, slice).unwrap_err().contains("nvidia-cap48 is missing"));
        let helper = dir.path().join("helper");
        let text =
            format!("#!/bin/sh\necho \"$@\" >> {}/asked\n: > {}\n", dir.path().display(), missing.display());
        fs::write(&helper, text).unwrap();
        fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
        places.modprobe = Some(helper);
        assert_eq!(names(&places, slice).unwrap().len(), 5);
        let asked = fs::read_to_string(dir.path().join("asked")).unwrap();
        let access = places.capabilities().join("gpu1/mig/gi5/access");
        assert_eq!(asked, format!("-f {}\n", access.display()));
    }
}
