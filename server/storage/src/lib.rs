//! Data of organizations: files of jobs, volumes with their storage classes, secrets, and the retention of ended jobs.
//! This crate must not decide the start of a job.

pub mod allowance;
mod bundles;
pub mod files;
pub mod retention;
pub mod secrets;
pub mod start_inputs;
pub mod storage_classes;
pub mod volumes;

pub use bundles::Bundles;
pub use files::{Files, HandOvers};
pub use retention::JobRetention;
pub use secrets::Secrets;
pub use storage_classes::StorageClasses;
pub use volumes::{VolumeUses, Volumes};

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::files::routes::routes as files;
    pub use crate::retention::routes::routes as retention;
    pub use crate::secrets::routes::routes as secrets;
    pub use crate::storage_classes::routes::routes as storage_classes;
    pub use crate::volumes::routes::routes as volumes;
}
