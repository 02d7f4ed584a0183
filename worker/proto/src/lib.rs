//! The gRPC contract between portal and worker, generated from `worker.proto`.
//!
//! Must not hold rules: what a message means is decided by `berth-core` and the worker's agent.

pub mod exposition;

tonic::include_proto!("berth.worker.v1");

pub mod window;

/// For the length of a message on the wire.
pub use prost::Message;

/// The largest message: a job's files (12 MiB of JSON at most) with room to spare.
pub const MESSAGE_LIMIT: usize = 32 << 20;
/// Log bytes in one message.
pub const LOG_CHUNK: usize = 256 << 10;
/// Bytes of a kept file in one message.
pub const PIECE: usize = 4 << 20;
/// Bytes and number of the files that are handed over together in one message.
pub const BUNDLE: usize = 1 << 20;
pub const BUNDLE_FILES: usize = 500;
/// Bytes of one log that are kept. A job that writes more is stopped.
pub const LOG_LIMIT: u64 = 4 << 30;

/// Bytes that one side sends into a tunnel beyond what the other has said was taken.
pub const TUNNEL_WINDOW: u64 = 256 << 10;
/// Data bytes in one frame of a tunnel.
pub const TUNNEL_CHUNK: usize = 16 << 10;
/// The metadata that names a tunnel.
pub const TUNNEL_TOKEN: &str = "berth-dial";
/// How long a shell waits for somebody whose connection broke.
pub const TERMINAL_PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

impl AttemptId {
    pub fn new(job: impl Into<String>, number: u32) -> Self {
        Self { job: job.into(), number }
    }
}

/// A value is never written down.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, env, file, .. } = self;
        f.debug_struct("Secret").field("name", name).field("env", env).field("file", file).finish()
    }
}

/// Nor is a password.
impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { registry, secret, .. } = self;
        f.debug_struct("RegistryAuth").field("registry", registry).field("secret", secret).finish()
    }
}

/// Wraps a message for the way up.
impl From<up::What> for Up {
    fn from(what: up::What) -> Self {
        Self { what: Some(what) }
    }
}

/// Wraps what goes through a tunnel.
impl From<frame::What> for Frame {
    fn from(what: frame::What) -> Self {
        Self { what: Some(what) }
    }
}

/// Wraps a message for the way down.
impl From<down::What> for Down {
    fn from(what: down::What) -> Self {
        Self { what: Some(what) }
    }
}
