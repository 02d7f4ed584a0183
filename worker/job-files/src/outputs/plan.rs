//! The outputs of an attempt according to its specification.

use berth_proto::{Mount, Spec};
use serde::{Deserialize, Serialize};

/// The outputs of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputPlan {
    /// The checkpoint directory, inside the job's directory.
    #[serde(rename = "dir")]
    pub checkpoint_dir: Option<String>,
    /// The interval of checkpoints; 0: at the end only.
    pub every_s: u32,
    /// The patterns of artifacts.
    pub artifacts: Vec<String>,
    /// The attempt started with a checkpoint.
    #[serde(default)]
    pub restored: bool,
    /// The volumes that the attempt writes to.
    #[serde(default)]
    pub volumes: Vec<WrittenVolume>,
    /// The portal has all outputs.
    pub done: bool,
}

/// A volume that an attempt writes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenVolume {
    /// The portal's id of the volume.
    pub volume: String,
    /// The index among the volumes of the attempt.
    pub index: usize,
}

impl OutputPlan {
    pub fn from_spec(spec: &Spec) -> Self {
        // The files of a host mount stay there.
        let kept = |mount: &Mount| mount.writable && mount.class.is_empty();
        let writable = spec.volumes.iter().enumerate().filter(|(_, mount)| kept(mount));
        let volumes = writable.map(|(index, mount)| WrittenVolume { volume: mount.volume.clone(), index });
        Self {
            checkpoint_dir: Some(spec.checkpoint_dir.clone()).filter(|dir| !dir.is_empty()),
            every_s: spec.checkpoint_every_s,
            artifacts: spec.artifacts.clone(),
            restored: spec.restore.is_some(),
            volumes: volumes.collect(),
            done: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.checkpoint_dir.is_none() && self.artifacts.is_empty() && self.volumes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_host_mount_are_not_handed_over() {
        let mount = |class: &str| Mount { writable: true, class: class.to_owned(), ..Mount::default() };
        let spec = Spec { volumes: vec![mount("scratch"), mount("")], ..Spec::default() };
        let kept: Vec<usize> = OutputPlan::from_spec(&spec).volumes.iter().map(|kept| kept.index).collect();
        assert_eq!(kept, [1]);
    }

    #[test]
    fn what_an_earlier_build_recorded_is_read() {
        let old = r#"{"dir":"ckpt","every_s":5,"artifacts":["out/**"],"done":false}"#;
        let plan: OutputPlan = serde_json::from_str(old).unwrap();
        assert!(!plan.restored && plan.volumes.is_empty());
        assert_eq!(plan.checkpoint_dir.as_deref(), Some("ckpt"));
    }
}
