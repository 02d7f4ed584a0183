//! The device nodes of a board, or of one MIG instance of it, as the driver offers them. Blocking.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use super::modprobe::Modprobe;

/// The minor number of `nvidiactl`.
const CONTROL: u32 = 255;

/// The directories with nodes and with the driver's tables of them.
#[derive(Debug)]
pub struct DeviceTree {
    pub dev: PathBuf,
    pub proc: PathBuf,
    /// The driver's helper that makes nodes; the driver makes none itself.
    pub modprobe: Option<Modprobe>,
}

impl Default for DeviceTree {
    fn default() -> Self {
        Self { dev: PathBuf::from("/dev"), proc: PathBuf::from("/proc"), modprobe: Modprobe::find() }
    }
}

/// A needed node.
struct NeededNode {
    path: PathBuf,
    /// The arguments of the helper that makes it.
    request: Vec<String>,
}

fn request<const N: usize>(args: [&str; N]) -> Vec<String> {
    args.map(str::to_owned).to_vec()
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

/// The number in a line `Device Minor: 1` of the driver's description of a board.
fn board_minor(information: &str) -> Option<u32> {
    information.lines().find_map(|line| line.strip_prefix("Device Minor:")?.trim().parse().ok())
}

impl DeviceTree {
    /// The nodes of the board with this minor number, or of a GPU instance on it, without nodes of other devices.
    /// Missing nodes are made.
    ///
    /// # Errors
    /// The sentence about a node that is still missing, without its full stop. It is a fault of the host, not of the
    /// board.
    pub fn nodes(&self, minor: u32, gpu_instance: Option<u32>, now: Instant) -> Result<Vec<PathBuf>, String> {
        let mut needed = self.common_nodes();
        needed.push(self.board_node(minor));
        if let Some(gi) = gpu_instance {
            let gi = format!("gpu{minor}/mig/gi{gi}");
            needed.push(self.capability(&gi)?);
            for ci in self.compute_instances(&gi) {
                needed.push(self.capability(&format!("{gi}/{ci}"))?);
            }
        }
        let mut out = Vec::new();
        for node in needed {
            self.ensure(&node, now)?;
            out.push(node.path);
        }
        // Debuggers and profilers use it; the helper makes it together with `nvidia-uvm`.
        let tools = self.dev.join("nvidia-uvm-tools");
        if tools.exists() {
            out.push(tools);
        }
        Ok(out)
    }

    /// Makes the missing nodes of all boards, as at the start of the worker. Returns a sentence for each node that is
    /// still missing.
    pub fn make_all(&self, now: Instant) -> Vec<String> {
        if !self.is_driver_loaded() {
            return Vec::new();
        }
        let boards = fs::read_dir(self.proc.join("driver/nvidia/gpus")).into_iter().flatten().flatten();
        let texts = boards.filter_map(|board| fs::read_to_string(board.path().join("information")).ok());
        let mut minors: Vec<u32> = texts.filter_map(|text| board_minor(&text)).collect();
        minors.sort_unstable();
        let mut needed = self.common_nodes();
        needed.extend(minors.into_iter().map(|minor| self.board_node(minor)));
        needed.iter().filter_map(|node| self.ensure(node, now).err()).collect()
    }

    fn is_driver_loaded(&self) -> bool {
        self.proc.join("driver/nvidia").is_dir()
    }

    /// The nodes that every device needs.
    fn common_nodes(&self) -> Vec<NeededNode> {
        let control = self.dev.join("nvidiactl");
        vec![
            NeededNode { path: control, request: request(["-c", CONTROL.to_string().as_str()]) },
            // The number is that of the node of the module `nvidia-uvm`, not of a board.
            NeededNode { path: self.dev.join("nvidia-uvm"), request: request(["-u", "-c", "0"]) },
        ]
    }

    fn board_node(&self, minor: u32) -> NeededNode {
        let path = self.dev.join(format!("nvidia{minor}"));
        NeededNode { path, request: request(["-c", minor.to_string().as_str()]) }
    }

    /// Makes a node if it is missing.
    fn ensure(&self, node: &NeededNode, now: Instant) -> Result<(), String> {
        let is_missing = || !node.path.exists();
        if is_missing()
            && self.is_driver_loaded()
            && let Some(helper) = &self.modprobe
        {
            helper.make(&node.path, &node.request, now);
        }
        if is_missing() {
            let (path, request) = (node.path.display(), node.request.join(" "));
            return Err(format!(
                "The device node {path} is missing on this node, a fault of the host and not of the board. Its operator makes it with nvidia-modprobe {request}"
            ));
        }
        Ok(())
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

    /// The node that grants the use of an instance.
    fn capability(&self, instance: &str) -> Result<NeededNode, String> {
        let access = self.capabilities().join(instance).join("access");
        let stated = fs::read_to_string(&access).ok().and_then(|text| file_minor(&text));
        let listed = || {
            let table = fs::read_to_string(self.proc.join("driver/nvidia-caps/mig-minors")).ok()?;
            // The table has no `mig` between board and instance.
            listed_minor(&table, &format!("{}/access", instance.replace("/mig/", "/")))
        };
        let number = stated
            .or_else(listed)
            .ok_or_else(|| format!("The driver of this node has no device node for {instance}"))?;
        let path = self.dev.join("nvidia-caps").join(format!("nvidia-cap{number}"));
        Ok(NeededNode { path, request: request(["-f", access.display().to_string().as_str()]) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use berth_test_programs::write_program;

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
        Ok(places.nodes(minor, gi, Instant::now())?.into_iter().map(short).collect())
    }

    #[test]
    fn a_board_has_its_own_node_and_the_common_ones() {
        let (_dir, places) = host();
        let board = names(&places, (1, None)).unwrap();
        assert_eq!(board, ["nvidiactl", "nvidia-uvm", "nvidia1", "nvidia-uvm-tools"]);
        fs::remove_file(places.dev.join("nvidia-uvm-tools")).unwrap();
        assert_eq!(names(&places, (1, None)).unwrap(), ["nvidiactl", "nvidia-uvm", "nvidia1"]);
        let gone = names(&places, (7, None)).unwrap_err();
        assert!(gone.contains("nvidia7 is missing"), "{gone}");
    }

    #[test]
    fn an_instance_has_two_more_and_not_its_neighbours() {
        let (_dir, places) = host();
        let slice = (1, Some(5));
        let expected =
            ["nvidiactl", "nvidia-uvm", "nvidia1", "nvidia-caps/nvidia-cap48", "nvidia-caps/nvidia-cap49"];
        fs::remove_file(places.dev.join("nvidia-uvm-tools")).unwrap();
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

    /// A helper that writes its arguments into the file `asked`, and makes these nodes for these requests.
    fn helper(dir: &Path, nodes: &[(&str, PathBuf)]) -> Modprobe {
        let program = dir.join("nvidia-modprobe");
        let make = |(request, node): &(&str, PathBuf)| format!("\"{request}\") : > {};;\n", node.display());
        let cases: String = nodes.iter().map(make).collect();
        let asked = dir.join("asked");
        let text = format!("#!/bin/sh\necho \"$@\" >> {}\ncase \"$*\" in\n{cases}esac\n", asked.display());
        write_program(&program, &text).unwrap();
        Modprobe::new(program)
    }

    fn asked(dir: &Path) -> String {
        fs::read_to_string(dir.join("asked")).unwrap_or_default()
    }

    #[test]
    fn a_missing_node_of_an_instance_is_made() {
        let (dir, mut places) = host();
        let missing = places.dev.join("nvidia-caps/nvidia-cap48");
        fs::remove_file(&missing).unwrap();
        let slice = (1, Some(5));
        let request = format!("-f {}", places.capabilities().join("gpu1/mig/gi5/access").display());
        let gone = names(&places, slice).unwrap_err();
        assert!(gone.contains("nvidia-cap48 is missing"), "{gone}");
        assert!(gone.ends_with(&format!("nvidia-modprobe {request}")), "{gone}");
        places.modprobe = Some(helper(dir.path(), &[(request.as_str(), missing)]));
        assert_eq!(names(&places, slice).unwrap().len(), 6);
        assert_eq!(asked(dir.path()), format!("{request}\n"));
    }

    #[test]
    fn missing_nodes_of_a_board_are_made() {
        let (dir, mut places) = host();
        let [control, uvm, board] = ["nvidiactl", "nvidia-uvm", "nvidia1"].map(|name| places.dev.join(name));
        for node in [&control, &uvm, &board] {
            fs::remove_file(node).unwrap();
        }
        places.modprobe = Some(helper(dir.path(), &[("-c 255", control), ("-u -c 0", uvm), ("-c 1", board)]));
        assert_eq!(names(&places, (1, None)).unwrap().len(), 4);
        assert_eq!(asked(dir.path()), "-c 255\n-u -c 0\n-c 1\n");
    }

    #[test]
    fn a_host_without_a_driver_is_left_alone() {
        let (dir, mut places) = host();
        fs::remove_dir_all(places.proc.join("driver")).unwrap();
        fs::remove_file(places.dev.join("nvidia-uvm")).unwrap();
        places.modprobe = Some(helper(dir.path(), &[]));
        assert!(places.make_all(Instant::now()).is_empty());
        assert!(names(&places, (1, None)).unwrap_err().contains("nvidia-uvm is missing"));
        assert_eq!(asked(dir.path()), "");
    }

    #[test]
    fn the_nodes_of_all_boards_are_made_at_the_start() {
        let (dir, mut places) = host();
        for (address, minor) in [("0000:17:00.0", 0), ("0000:65:00.0", 1), ("0000:ca:00.0", 2)] {
            let board = places.proc.join("driver/nvidia/gpus").join(address);
            fs::create_dir_all(&board).unwrap();
            let text = format!("Model: \t\t NVIDIA H100\nIRQ:   \t\t 90\nDevice Minor: \t {minor}\n");
            fs::write(board.join("information"), text).unwrap();
        }
        let board = places.dev.join("nvidia0");
        fs::remove_file(&board).unwrap();
        places.modprobe = Some(helper(dir.path(), &[("-c 0", board)]));
        let missing = places.make_all(Instant::now());
        assert_eq!(asked(dir.path()), "-c 0\n-c 2\n");
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert!(missing[0].contains("nvidia2 is missing"), "{missing:?}");
    }
}
