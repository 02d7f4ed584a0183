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
    /// The driver's id of the created instance.
    #[serde(default)]
    pub gpu_instance: Option<u32>,
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
            gpu_instance: None,
            idle_mib: None,
        }
    }

    /// True for a board that no other attempt uses.
    pub const fn is_whole_board(&self) -> bool {
        self.instance.is_none() && self.share_milli.is_none()
    }

    /// The name for `CUDA_VISIBLE_DEVICES`. `None`: the instance has no known MIG device. The name of its board would
    /// be that of its neighbours too.
    pub fn visible_name(&self) -> Option<&str> {
        match self.instance {
            None => Some(&self.gpu_uuid),
            Some(_) => self.mig_uuid.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_proto::Instance;

    use super::*;

    #[test]
    fn a_slice_never_has_the_name_of_its_board() {
        let slot = |instance| Slot { gpu_uuid: "GPU-1".to_owned(), instance, share_milli: 0 };
        let whole = AttemptDevice::from_slot(&slot(None));
        assert_eq!(whole.visible_name(), Some("GPU-1"));
        let mut slice = AttemptDevice::from_slot(&slot(Some(Instance { profile_id: 19, start: 6, size: 1 })));
        assert_eq!(slice.visible_name(), None);
        slice.mig_uuid = Some("MIG-1".to_owned());
        assert_eq!(slice.visible_name(), Some("MIG-1"));
    }
}
