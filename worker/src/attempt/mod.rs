//! One attempt on this host: its directory, its state, and the steps of its preparation and its cleanup.
//!
//! The attempt's directory has the whole state, so a restarted daemon reads it and goes on. `prepare` and
//! `clean` run off the async threads; the other steps write briefly. `reconcile` decides; this room carries out.

mod attempt_network;
mod cleanup;
mod confinement;
mod directory;
mod environment;
mod evidence;
mod gang_check;
mod host;
mod host_mount_args;
mod isolation_report;
mod links;
mod preparation;
mod rdma;
mod record;
mod state;
mod status;
mod tally;

pub use cleanup::clean;
pub use directory::{Attempt, AttemptMap, directory};
pub use gang_check::check_gang;
pub use host::Host;
pub use host_mount_args::{HostMountArgs, id_range};
pub use isolation_report::{MOST_CHARS, isolation_report};
pub use preparation::{PreparationControl, prepare};
pub use record::AttemptRecord;
pub use state::{AttemptState, CleaningState};
pub use status::status;
pub use tally::{DeviceObservation, EvidenceTally};
