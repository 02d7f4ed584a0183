//! The source of the present request, for audit events: its id and its sender.

use std::net::IpAddr;

use berth_types::ids::RequestId;

/// The source of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestSource {
    pub request_id: Option<RequestId>,
    /// The address of the sender; absent for requests inside the portal.
    pub address: Option<IpAddr>,
}

tokio::task_local! {
    static PRESENT: RequestSource;
}

impl RequestSource {
    /// Handles a request from this source.
    pub async fn scope<F: Future>(self, handling: F) -> F::Output {
        PRESENT.scope(self, handling).await
    }

    /// The source of the request that this task handles; empty outside of requests.
    pub fn present() -> Self {
        PRESENT.try_with(|source| *source).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_source_is_known_while_its_request_is_handled() {
        let address = Some(IpAddr::from([192, 0, 2, 7]));
        let source = RequestSource { request_id: None, address };
        assert_eq!(source.scope(async { RequestSource::present() }).await, source);
        assert_eq!(RequestSource::present(), RequestSource::default());
    }
}
