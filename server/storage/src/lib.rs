//! The data of organizations: files that jobs keep, volumes and secrets. Must not decide when a job runs.

mod bundles;
pub mod files;
pub mod secrets;
pub mod volumes;

pub use bundles::Bundles;
pub use files::{Files, HandOvers};
pub use secrets::Secrets;
pub use volumes::{VolumeUses, Volumes};
