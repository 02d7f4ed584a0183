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
impl From<worker_message::Body> for WorkerMessage {
    fn from(body: worker_message::Body) -> Self {
        Self { body: Some(body) }
    }
}

/// Wraps a message in a tunnel.
impl From<frame::Body> for Frame {
    fn from(body: frame::Body) -> Self {
        Self { body: Some(body) }
    }
}

/// Wraps a message to the worker.
impl From<portal_message::Body> for PortalMessage {
    fn from(body: portal_message::Body) -> Self {
        Self { body: Some(body) }
    }
}
