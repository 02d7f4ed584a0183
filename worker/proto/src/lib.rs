//! The gRPC contract between portal and worker, generated from `worker.proto`.
//!
//! Must not hold rules: what a message means is decided by `berth-core` and the worker's agent.

tonic::include_proto!("berth.worker.v1");

/// For the length of a message on the wire.
pub use prost::Message;

/// The largest message: a job's files (12 MiB of JSON at most) with room to spare.
pub const MESSAGE_LIMIT: usize = 32 << 20;
/// Log bytes in one message.
pub const LOG_CHUNK: usize = 256 << 10;
/// Bytes of one log that are kept. A job that writes more is stopped.
pub const LOG_LIMIT: u64 = 4 << 30;

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

/// Wraps a message for the way down.
impl From<down::What> for Down {
    fn from(what: down::What) -> Self {
        Self { what: Some(what) }
    }
}
