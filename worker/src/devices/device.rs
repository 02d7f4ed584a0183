//! A device of an attempt, as the daemon records it.

use berth_proto::Slot;
use serde::{Deserialize, Serialize};

/// A device of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptDevice {
    pub gpu_uuid: String,
    /// The MIG profile and its start. `None`: the board without MIG.
    pub instance: Option<(u32, u32)>,
    /// The share in thousandths, on a board that attempts of one organization share.
    #[serde(default)]
    pub share_milli: Option<u32>,
    /// The UUID of the MIG device, after the creation of the instance.
    pub mig_uuid: Option<String>,
    /// The attempt created the instance, so its end destroys it.
    #[serde(default)]
    pub made: bool,
    /// MiB in use on a whole board before the start.
    #[serde(default)]
    pub idle_mib: Option<u64>,
}

impl AttemptDevice {
    pub fn from_slot(slot: &Slot) -> Self {
        Self {
            gpu_uuid: slot.gpu_uuid.clone(),
            instance: slot.instance.map(|i| (i.profile_id, i.start)),
            share_milli: Some(slot.share_milli).filter(|n| *n > 0),
            mig_uuid: None,
            made: false,
            idle_mib: None,
        }
    }

    /// The name for `CUDA_VISIBLE_DEVICES`.
    pub fn visible_name(&self) -> &str {
        self.mig_uuid.as_deref().unwrap_or(&self.gpu_uuid)
    }
}
