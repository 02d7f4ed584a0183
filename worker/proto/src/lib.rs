//! The gRPC contract between portal and worker, generated from `worker.proto`.
//!
//! It has no rules: `berth-core` and the worker's agent decide the meaning of messages.

pub mod exposition;

tonic::include_proto!("berth.worker.v1");

pub mod window;

/// The trait that encodes, decodes and measures messages.
pub use prost::Message;

/// The most bytes of a message: more than the files of a job (at most 12 MiB of JSON).
pub const MESSAGE_LIMIT: usize = 32 << 20;
/// The most log bytes in one message.
pub const LOG_CHUNK: usize = 256 << 10;
/// The most bytes of a file in one message.
pub const PIECE: usize = 4 << 20;
/// The most bytes of files in one bundle.
pub const BUNDLE: usize = 1 << 20;
/// The most files in one bundle.
pub const BUNDLE_FILES: usize = 500;
/// The most bytes of one log. A job with a longer log is stopped.
pub const LOG_LIMIT: u64 = 4 << 30;

/// The window of a tunnel: the most unacknowledged bytes in one direction.
pub const TUNNEL_WINDOW: u64 = 256 << 10;
/// The most data bytes in one frame of a tunnel.
pub const TUNNEL_CHUNK: usize = 16 << 10;
/// The key of the metadata with the token of a tunnel.
pub const TUNNEL_TOKEN: &str = "berth-dial";
/// The time for which a terminal without a client stays open.
pub const TERMINAL_PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

impl AttemptId {
    pub fn new(job: impl Into<String>, number: u32) -> Self {
        Self { job: job.into(), number }
    }
}

/// Without the value, so that no log has it.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, env, file, .. } = self;
        f.debug_struct("Secret").field("name", name).field("env", env).field("file", file).finish()
    }
}

/// Without user name and password, so that no log has them.
impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { registry, secret, .. } = self;
        f.debug_struct("RegistryAuth").field("registry", registry).field("secret", secret).finish()
    }
}

/// Wraps a message to the portal.
impl From<up::What> for Up {
    fn from(what: up::What) -> Self {
        Self { what: Some(what) }
    }
}

/// Wraps a message in a tunnel.
impl From<frame::What> for Frame {
    fn from(what: frame::What) -> Self {
        Self { what: Some(what) }
    }
}

/// Wraps a message to the worker.
impl From<down::What> for Down {
    fn from(what: down::What) -> Self {
        Self { what: Some(what) }
    }
}
