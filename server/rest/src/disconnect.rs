//! The disconnection of a request's sender, for work that only the sender needs.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A signal that the sender of a request has disconnected. Without a connection it never comes.
#[derive(Debug, Clone, Default)]
pub struct Disconnect(CancellationToken);

impl Disconnect {
    /// Resolves after the disconnection.
    pub async fn wait(&self) {
        self.0.cancelled().await;
    }

    /// Returns a guard that sends the signal when it is dropped before it is disarmed.
    pub fn guard(&self) -> DropGuard {
        self.0.clone().drop_guard()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Disconnect {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}
