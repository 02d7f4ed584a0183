//! The Container Device Interface of this host. A container gets a board's nodes and the driver's libraries through
//! it.

use std::fs;
use std::path::{Path, PathBuf};

/// The kind of NVIDIA's devices.
const KIND: &str = "nvidia.com/gpu";
/// The directories of specifications according to the standard.
pub const SPECIFICATION_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// The largest specification that is read.
const MOST_BYTES: u64 = 8 << 20;

/// True if a specification in JSON or YAML offers a device of this name.
fn offers(text: &str, name: &str) -> bool {
    let plain = |text: &str| text.trim().trim_end_matches(',').trim_matches(['"', '\'']).to_owned();
    let field = |line: &str, field: &str| {
        let line = line.trim().trim_start_matches("- ").trim_start_matches(['{', ' ']);
        let (key, value) = line.split_once(':')?;
        (plain(key) == field).then(|| plain(value.trim_end_matches(['}', ']', ' '])))
    };
    // JSON in one line reads like JSON in many.
    let lines = || text.split(['\n', ',', '[', '{']);
    lines().any(|l| field(l, "kind").as_deref() == Some(KIND))
        && lines().any(|l| field(l, "name").as_deref() == Some(name))
}

/// The name of a device for podman. `uuid` is that of a board or a MIG device. `None`: this host does not offer it.
pub fn find(dirs: &[PathBuf], uuid: &str) -> Option<String> {
    let entries = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let mut texts = entries.map(|e| e.path()).filter(|p| is_specification(p)).filter_map(|p| {
        let small = fs::metadata(&p).is_ok_and(|m| m.is_file() && m.len() <= MOST_BYTES);
        small.then(|| fs::read_to_string(&p).ok()).flatten()
    });
    texts.any(|text| offers(&text, uuid)).then(|| format!("{KIND}={uuid}"))
}

fn is_specification(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml")
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- containerEdits:\n    deviceNodes:\n\
        \x20   - path: /dev/nvidia0\n  name: GPU-11\n- name: \"MIG-22\"\n  containerEdits: {}\n";
    const JSON: &str = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-11","containerEdits":{}}, { "name": "MIG-22" }]}"#;

    #[test]
    fn a_device_is_found_in_either_form() {
        for text in [YAML, JSON] {
            assert!(offers(text, "GPU-11") && offers(text, "MIG-22"), "{text}");
            assert!(!offers(text, "GPU-1") && !offers(text, "nvidia0") && !offers(text, ""), "{text}");
        }
        assert!(!offers(&YAML.replace("nvidia.com/gpu", "other.com/gpu"), "GPU-11"));
    }

    #[test]
    fn only_specifications_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let places = [dir.path().join("none"), dir.path().to_owned()];
        fs::write(dir.path().join("nvidia.yaml.bak"), YAML).unwrap();
        assert_eq!(find(&places, "GPU-11"), None);
        fs::write(dir.path().join("nvidia.yaml"), YAML).unwrap();
        assert_eq!(find(&places, "GPU-11").as_deref(), Some("nvidia.com/gpu=GPU-11"));
        assert_eq!(find(&places, "GPU-12"), None);
    }
}
