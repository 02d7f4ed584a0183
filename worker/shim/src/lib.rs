//! The parent process of an attempt's processes: a fork of the `forker`, or `berth-worker shim DIR`.
//!
//! A shim has its own session and outlives the daemon. It starts the command, appends the output to a file, ends the
//! command at its limit, at the end of its lease, after an excess of its disk space or after SIGTERM (SIGUSR1: a new
//! limit), kills all remaining processes, and records the end. Files and signals are its whole interface.

mod board_limits;
mod control;
mod daemon_record;
mod exit_record;
pub mod forker;
mod launch;
pub mod lease;
mod lock;
mod log_redaction;
pub mod model;
mod records;
mod resource_limits;
mod run;
mod secret_pipe;
mod supervision;
mod tenant;
pub mod waiter;

pub use board_limits::{AttemptLimits, BoardLimits};
pub use control::{send_signal, shim_pid};
pub use daemon_record::{ATTEMPT_RECORD, is_given_up, job_user};
pub use launch::{Container, LAUNCH, LIMIT, LOG, Launch, Limits, NOTICE, StopNotice};
pub use lock::{LOCK, try_lock, wait_until_released};
pub use records::{CommandExit, CommandStart, LEGACY_RECORDS, ShimRecords, create_record_file};
pub use resource_limits::{LimitCeilings, apply_limits};
pub use run::run;
pub use secret_pipe::ShimSecrets;
