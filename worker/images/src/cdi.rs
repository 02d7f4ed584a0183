//! The Container Device Interface of this host. A container gets a board's nodes and the driver's libraries through
//! it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The kind of NVIDIA's devices.
const KIND: &str = "nvidia.com/gpu";
/// The directories of specifications according to the standard.
pub const SPECIFICATION_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
/// The largest specification that is read.
const MOST_BYTES: u64 = 8 << 20;

/// The parts of a specification that name its devices.
#[derive(Deserialize)]
struct Specification {
    kind: String,
    devices: Vec<SpecifiedDevice>,
}

#[derive(Deserialize)]
struct SpecifiedDevice {
    name: String,
}

impl Specification {
    /// The content of a file, as JSON or YAML. An unreadable file offers nothing; the log has the reason.
    fn parse(path: &Path, text: &str) -> Option<Self> {
        // The parser of YAML has its own limits of depth, nodes and aliases.
        let parsed: Result<Self, String> = if path.extension().is_some_and(|e| e == "json") {
            serde_json::from_str(text).map_err(|error| error.to_string())
        } else {
            serde_saphyr::from_str(text)
                .map_err(|error: serde_saphyr::Error| error.without_snippet().to_string())
        };
        if let Err(error) = &parsed {
            tracing::warn!(file = %path.display(), %error, "the specification of devices is unreadable");
        }
        parsed.ok()
    }

    fn offers(&self, name: &str) -> bool {
        self.kind == KIND && self.devices.iter().any(|device| device.name == name)
    }
}

/// The name of a device for podman. `uuid` is that of a board or a MIG device. `None`: this host does not offer it.
pub fn find(dirs: &[PathBuf], uuid: &str) -> Option<String> {
    let entries = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let mut specifications = entries.map(|e| e.path()).filter(|p| is_specification(p)).filter_map(|p| {
        let small = fs::metadata(&p).is_ok_and(|m| m.is_file() && m.len() <= MOST_BYTES);
        let text = small.then(|| fs::read_to_string(&p).ok()).flatten()?;
        Specification::parse(&p, &text)
    });
    specifications.any(|specification| specification.offers(uuid)).then(|| format!("{KIND}={uuid}"))
}

fn is_specification(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml")
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "---\n# made by nvidia-ctk\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- containerEdits:\n\
        \x20   deviceNodes:\n    - path: /dev/nvidia0\n    hooks:\n    - name: hook\n  name: GPU-11 # the first\n\
        - name: \"MIG-22\"\n  containerEdits: {}\n";
    const JSON: &str = r#"{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{"name":"GPU-11","containerEdits":{}}, { "name": "MIG-22" }]}"#;

    fn offers(file: &str, text: &str, name: &str) -> bool {
        Specification::parse(Path::new(file), text).is_some_and(|specification| specification.offers(name))
    }

    #[test]
    fn a_device_is_found_in_either_form() {
        for (file, text) in [("a.yaml", YAML), ("a.json", JSON), ("a.yml", JSON)] {
            assert!(offers(file, text, "GPU-11") && offers(file, text, "MIG-22"), "{file}");
            for other in ["GPU-1", "nvidia0", "hook", ""] {
                assert!(!offers(file, text, other), "{file} {other}");
            }
        }
        assert!(!offers("a.yaml", &YAML.replace("nvidia.com/gpu", "other.com/gpu"), "GPU-11"));
    }

    #[test]
    fn a_hostile_specification_offers_nothing() {
        let deep = format!("kind: nvidia.com/gpu\ndevices: {}{}\n", "[".repeat(10_000), "]".repeat(10_000));
        let mut aliases = "kind: nvidia.com/gpu\na0: &a0 [x, x]\n".to_owned();
        for level in 1..40 {
            aliases.push_str(&format!("a{level}: &a{level} [*a{0}, *a{0}]\n", level - 1));
        }
        aliases.push_str("devices:\n- name: GPU-11\n");
        for text in
            [deep.as_str(), &aliases, "kind: [", "", "- 1\n", "kind: nvidia.com/gpu\ndevices: GPU-11\n"]
        {
            assert!(!offers("a.yaml", text, "GPU-11") && !offers("a.json", text, "GPU-11"));
        }
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
