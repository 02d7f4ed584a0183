//! The gRPC contract between portal and worker, generated from `worker.proto`.
//!
//! It has no rules: `berth-core` and the worker's agent decide the meaning of messages.

pub mod device_metrics;

tonic::include_proto!("berth.worker.v1");

/// The trait that encodes, decodes and measures messages.
pub use prost::Message;

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
