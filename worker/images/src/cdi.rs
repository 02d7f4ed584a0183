//! The specification of the Container Device Interface for one attempt: its device nodes, the driver's files and the
//! names of its boards. podman reads it at the start of the container.
//!
//! It has no hooks: they run on the host as root, and some of them with variables of the image.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use berth_isolation::sandbox::BindMount;
use nix::sys::stat::{major, minor};
use serde::Serialize;

/// The standard directory of generated specifications. podman before 5.5 reads no other one beside `/etc/cdi`.
pub const SPECIFICATION_DIR: &str = "/var/run/cdi";
/// The kind of the one device of a specification.
const KIND: &str = "berth.dev/gpu";
/// The lowest version of the standard with all used fields; podman 4.1 knows none above 0.4.0.
const VERSION: &str = "0.3.0";
/// The rights on a node. A job makes no nodes.
const PERMISSIONS: &str = "rw";
const MOUNT_OPTIONS: [&str; 4] = ["ro", "nosuid", "nodev", "bind"];
/// The longest name of an attempt in the name of a file.
const MOST_NAME: usize = 128;

/// The boards and slices of one attempt on this host.
#[derive(Debug, Clone, Copy)]
pub struct AttemptDevices<'a> {
    /// Their UUIDs, in the order of the assignment.
    pub uuids: &'a [&'a str],
    pub nodes: &'a [PathBuf],
    /// The driver's files of the host, read-only.
    pub driver: &'a [BindMount],
}

impl AttemptDevices<'_> {
    /// True for simulated boards, which have neither nodes nor a driver.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.driver.is_empty()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Specification<'a> {
    cdi_version: &'static str,
    kind: &'static str,
    devices: [Device<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device<'a> {
    name: &'a str,
    container_edits: ContainerEdits<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerEdits<'a> {
    env: Vec<String>,
    device_nodes: &'a [DeviceNode],
    mounts: Vec<Mount<'a>>,
}

/// A node with the numbers and the rights that it has on the host.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceNode {
    path: PathBuf,
    #[serde(rename = "type")]
    file_type: &'static str,
    major: u64,
    minor: u64,
    file_mode: u32,
    permissions: &'static str,
    uid: u32,
    gid: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount<'a> {
    host_path: &'a Path,
    container_path: &'a Path,
    options: [&'static str; 4],
}

impl DeviceNode {
    fn read(path: &Path) -> Result<Self, String> {
        let found = fs::metadata(path).map_err(|e| format!("{} is unreadable: {e}", path.display()))?;
        if !found.file_type().is_char_device() {
            return Err(format!("{} is no device node", path.display()));
        }
        Ok(Self {
            path: path.to_owned(),
            file_type: "c",
            major: major(found.rdev()),
            minor: minor(found.rdev()),
            file_mode: found.mode() & 0o777,
            permissions: PERMISSIONS,
            uid: found.uid(),
            gid: found.gid(),
        })
    }
}

fn specification<'a>(
    attempt: &'a str,
    device_nodes: &'a [DeviceNode],
    devices: &AttemptDevices<'a>,
) -> Specification<'a> {
    let uuids = devices.uuids.join(",");
    let mount = |file: &'a BindMount| Mount {
        host_path: &file.from,
        container_path: &file.to,
        options: MOUNT_OPTIONS,
    };
    let container_edits = ContainerEdits {
        env: ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
            .map(|name| format!("{name}={uuids}"))
            .to_vec(),
        device_nodes,
        mounts: devices.driver.iter().map(mount).collect(),
    };
    Specification { cdi_version: VERSION, kind: KIND, devices: [Device { name: attempt, container_edits }] }
}

/// True for a name that all versions of the standard permit for a device. It is a safe name of a file too.
fn is_device_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    name.len() <= MOST_NAME
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(inner)
}

/// The specifications of this worker, in a directory with those of others.
#[derive(Debug, Clone)]
pub struct Specifications {
    dir: PathBuf,
    /// The begin of the names of this worker's files.
    /// The name of the worker among those of the host.
    worker: String,
    prefix: String,
}

impl Specifications {
    /// `worker` distinguishes the workers of a host.
    pub fn new(dir: PathBuf, worker: &str) -> Self {
        Self { dir, worker: worker.to_owned(), prefix: format!("berth-{worker}-") }
    }

    fn path(&self, attempt: &str) -> PathBuf {
        self.dir.join(format!("{}{attempt}.json", self.prefix))
    }

    /// Writes the specification of an attempt. Returns the name of its device for podman.
    ///
    /// # Errors
    /// The reason why podman cannot get the devices by a specification.
    pub fn write(&self, attempt: &str, devices: &AttemptDevices<'_>) -> Result<String, String> {
        if !is_device_name(attempt) {
            return Err("the name of the attempt cannot be the name of a device".to_owned());
        }
        let nodes: Result<Vec<DeviceNode>, String> =
            devices.nodes.iter().map(|node| DeviceNode::read(node)).collect();
        // Workers of one host can have ranks of the same attempt.
        let device = format!("{attempt}.{}", self.worker);
        let text =
            serde_json::to_vec(&specification(&device, &nodes?, devices)).map_err(|e| e.to_string())?;
        let path = self.path(attempt);
        self.put(&path, &text).map_err(|e| format!("{} cannot be written: {e}", path.display()))?;
        Ok(format!("{KIND}={device}"))
    }

    /// Writes a whole file or none. Readers skip the unfinished one because of its name.
    fn put(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(&self.dir)?;
        let part = path.with_extension("part");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&part)?;
        // The mask of the worker may be stricter.
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text)?;
        fs::rename(part, path)
    }

    /// Removes the specification of an attempt. An absent one is no error.
    pub fn remove(&self, attempt: &str) -> io::Result<()> {
        if !is_device_name(attempt) {
            return Ok(());
        }
        let path = self.path(attempt);
        for file in [path.with_extension("part"), path] {
            match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the specifications that earlier daemons left and that no known attempt has.
    pub fn sweep(&self, known: &HashSet<String>) {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
            let Some(rest) = name.strip_prefix(&self.prefix) else { continue };
            let attempt = rest.strip_suffix(".json").or_else(|| rest.strip_suffix(".part"));
            let Some(attempt) = attempt.filter(|attempt| !known.contains(*attempt)) else { continue };
            if let Err(error) = self.remove(attempt) {
                tracing::warn!(%error, attempt, "an unknown specification of devices cannot be removed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(path: &str, minor: u64, file_mode: u32) -> DeviceNode {
        let (path, file_type, permissions) = (PathBuf::from(path), "c", PERMISSIONS);
        DeviceNode { path, file_type, major: 195, minor, file_mode, permissions, uid: 0, gid: 0 }
    }

    fn library() -> BindMount {
        BindMount {
            from: PathBuf::from("/lib/libcuda.so.550.54.15"),
            to: PathBuf::from("/usr/local/nvidia/lib64/libcuda.so.1"),
            writable: false,
        }
    }

    /// The specification as podman reads it.
    fn written(uuids: &[&str], nodes: &[DeviceNode], driver: &[BindMount]) -> Value {
        let devices = AttemptDevices { uuids, nodes: &[], driver };
        serde_json::to_value(specification("job_1-2", nodes, &devices)).unwrap()
    }

    fn expected(uuids: &str, nodes: &Value, mounts: &Value) -> Value {
        let env = [format!("CUDA_VISIBLE_DEVICES={uuids}"), format!("NVIDIA_VISIBLE_DEVICES={uuids}")];
        let edits = json!({"env": env, "deviceNodes": nodes, "mounts": mounts});
        json!({
            "cdiVersion": "0.3.0",
            "kind": "berth.dev/gpu",
            "devices": [{"name": "job_1-2", "containerEdits": edits}],
        })
    }

    #[test]
    fn a_specification_has_the_attempts_devices_and_no_hooks() {
        let expected_node = |path: &str, minor: u64, mode: u32| {
            json!({"path": path, "type": "c", "major": 195, "minor": minor, "fileMode": mode,
                "permissions": "rw", "uid": 0, "gid": 0})
        };
        let mounts = json!([{"hostPath": "/lib/libcuda.so.550.54.15",
            "containerPath": "/usr/local/nvidia/lib64/libcuda.so.1", "options": ["ro", "nosuid", "nodev", "bind"]}]);
        let (board, cap) = ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap48");
        let whole = [node(board, 1, 0o666)];
        let nodes = json!([expected_node(board, 1, 438)]);
        assert_eq!(written(&["GPU-1"], &whole, &[library()]), expected("GPU-1", &nodes, &mounts));
        let slice = [node(board, 1, 0o666), node(cap, 48, 0o444)];
        let nodes = json!([expected_node(board, 1, 438), expected_node(cap, 48, 292)]);
        assert_eq!(written(&["MIG-5"], &slice, &[]), expected("MIG-5", &nodes, &json!([])));
        for count in 1..=8_u64 {
            let uuids: Vec<String> = (0..count).map(|n| format!("GPU-{n}")).collect();
            let names: Vec<&str> = uuids.iter().map(String::as_str).collect();
            let path = |n: u64| format!("/dev/nvidia{n}");
            let boards: Vec<DeviceNode> = (0..count).map(|n| node(&path(n), n, 0o600)).collect();
            let nodes: Vec<Value> = (0..count).map(|n| expected_node(&path(n), n, 384)).collect();
            let expected = expected(&uuids.join(","), &json!(nodes), &mounts);
            assert_eq!(written(&names, &boards, &[library()]), expected);
        }
    }

    #[test]
    fn only_names_of_devices_are_accepted() {
        for good in ["job_01J-1", "a", "a.b:c-9", &"a".repeat(MOST_NAME)] {
            assert!(is_device_name(good), "{good}");
        }
        for bad in ["", "1-1", "-a", "a-", "a/b", "../a", "a b", "a=b", "é1", &"a".repeat(MOST_NAME + 1)] {
            assert!(!is_device_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_file_appears_whole_and_readable_and_goes_with_its_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let specifications = Specifications::new(dir.path().join("run/cdi"), "7");
        let nodes = [PathBuf::from("/dev/null"), PathBuf::from("/dev/zero")];
        let devices = AttemptDevices { uuids: &["GPU-1"], nodes: &nodes, driver: &[library()] };
        for _ in 0..2 {
            assert_eq!(specifications.write("job_1-2", &devices).as_deref(), Ok("berth.dev/gpu=job_1-2.7"));
        }
        let path = dir.path().join("run/cdi/berth-7-job_1-2.json");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        let found: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let nodes = &found["devices"][0]["containerEdits"]["deviceNodes"];
        assert_eq!(nodes.as_array().map(Vec::len), Some(2), "{nodes}");
        assert_eq!((&nodes[0]["path"], &nodes[0]["major"]), (&json!("/dev/null"), &json!(1)));
        assert_eq!((&nodes[1]["path"], &nodes[1]["minor"]), (&json!("/dev/zero"), &json!(5)));
        assert_eq!(fs::read_dir(dir.path().join("run/cdi")).unwrap().count(), 1, "no unfinished file");
        for _ in 0..2 {
            specifications.remove("job_1-2").unwrap();
            assert!(!path.exists());
        }
    }

    #[test]
    fn what_no_specification_can_have_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let specifications = Specifications::new(dir.path().to_owned(), "7");
        let plain = dir.path().join("plain");
        fs::write(&plain, "").unwrap();
        let write = |attempt: &str, node: &Path| {
            let devices = AttemptDevices { uuids: &["GPU-1"], nodes: &[node.to_owned()], driver: &[] };
            specifications.write(attempt, &devices).unwrap_err()
        };
        assert!(write("job_1-2", &plain).contains("is no device node"));
        assert!(write("job_1-2", &dir.path().join("none")).contains("is unreadable"));
        assert!(write("../job", Path::new("/dev/null")).contains("the name of a device"));
        specifications.remove("../plain").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the plain file");
        // A file in place of the directory.
        let blocked = Specifications::new(plain, "7");
        let devices = AttemptDevices { uuids: &[], nodes: &[PathBuf::from("/dev/null")], driver: &[] };
        assert!(blocked.write("job_1-2", &devices).unwrap_err().contains("cannot be written"));
    }

    #[test]
    fn leftovers_are_removed_and_nothing_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let specifications = Specifications::new(dir.path().to_owned(), "7");
        let kept = ["berth-7-kept-1.json", "berth-8-gone-1.json", "nvidia.yaml", "berth-7-gone-1.txt"];
        let left = ["berth-7-gone-1.json", "berth-7-gone-2.part", "berth-7-kept-11.json"];
        for name in kept.iter().chain(&left) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        specifications.sweep(&HashSet::from(["kept-1".to_owned()]));
        for name in kept {
            assert!(dir.path().join(name).exists(), "{name}");
        }
        for name in left {
            assert!(!dir.path().join(name).exists(), "{name}");
        }
        Specifications::new(dir.path().join("none"), "7").sweep(&HashSet::new());
    }
}
