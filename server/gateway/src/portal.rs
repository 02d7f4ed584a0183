//! The requests of the gateway to the portal.

use std::time::Duration;

use berth_autoscaling::credit::{ToGateway, ToPortal};
use berth_serving::reports::{GatewayReport, ReportAnswer};
use berth_serving::snapshot::MAX_SNAPSHOT_BYTES;
use berth_types::problems::Problem;
use reqwest::{Certificate, Client, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;

use crate::settings::{GatewayToken, PortalUrl, Settings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest request. The portal answers the question for a snapshot after 20 seconds.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the answers beside snapshots.
const MAX_ANSWER_BYTES: usize = 4 << 20;
/// Bytes of a refusal.
const MAX_PROBLEM_BYTES: usize = 64 << 10;
/// Messages about credit in one request.
pub const MAX_MESSAGES: usize = 2_000;

/// The client of the portal.
#[derive(Debug, Clone)]
pub struct Portal {
    client: Client,
    url: PortalUrl,
    token: GatewayToken,
}

impl Portal {
    /// # Errors
    /// A certificate of the settings is not readable.
    pub fn new(settings: &Settings) -> Result<Self, String> {
        // A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("berth-gateway/", env!("CARGO_PKG_VERSION")));
        if let Some(pem) = &settings.portal_ca {
            let bad = |e: reqwest::Error| format!("the certificates of --portal-ca are not readable: {e}");
            let certificates = Certificate::from_pem_bundle(pem).map_err(bad)?;
            if certificates.is_empty() {
                return Err("the file of --portal-ca has no certificate".to_owned());
            }
            builder = builder.tls_certs_only(certificates);
        }
        let client = builder.build().map_err(|e| format!("no client for the portal: {e}"))?;
        Ok(Self { client, url: settings.portal.clone(), token: settings.token.clone() })
    }

    fn path(&self, path: &str) -> String {
        format!("{}/api/v1/gateway/{path}", self.url.base)
    }

    /// The text of the next snapshot after a number; `None` if there is none yet.
    ///
    /// # Errors
    /// The portal does not answer, or refuses the gateway.
    pub async fn snapshot(&self, after: u64) -> Result<Option<Vec<u8>>, String> {
        let url = self.path(&format!("snapshot?after={after}"));
        let answer = self.send(self.client.get(url).timeout(SNAPSHOT_TIMEOUT)).await?;
        if answer.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        read(answer, MAX_SNAPSHOT_BYTES).await.map(Some)
    }

    /// Sends a report.
    ///
    /// # Errors
    /// The portal does not answer, or refuses it.
    pub async fn report(&self, report: &GatewayReport) -> Result<ReportAnswer, String> {
        let request = self.client.post(self.path("reports")).timeout(TIMEOUT).json(report);
        self.ask(request).await
    }

    /// Sends at most [`MAX_MESSAGES`] messages about credit.
    ///
    /// # Errors
    /// The portal does not answer, or refuses them.
    pub async fn credit(&self, messages: &[ToPortal]) -> Result<Vec<ToGateway>, String> {
        let request = self.client.post(self.path("credit")).timeout(TIMEOUT).json(messages);
        self.ask(request).await
    }

    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, String> {
        let text = read(self.send(request).await?, MAX_ANSWER_BYTES).await?;
        serde_json::from_slice(&text).map_err(|e| format!("the answer of the portal is not readable: {e}"))
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, String> {
        let sent = request.bearer_auth(self.token.reveal()).send().await;
        let answer = sent.map_err(|e| format!("the portal does not answer: {}", reason(&e)))?;
        match answer.status() {
            status if status.is_success() => Ok(answer),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err("the portal refuses the token of this gateway".to_owned())
            }
            status => Err(format!("the portal answers {status}{}", detail(answer).await)),
        }
    }
}

/// The sentence of a refusal, after a colon; empty without one.
async fn detail(answer: Response) -> String {
    let text = read(answer, MAX_PROBLEM_BYTES).await.unwrap_or_default();
    let problem = serde_json::from_slice::<Problem>(&text);
    problem.map(|problem| format!(": {}", problem.detail)).unwrap_or_default()
}

/// An error with its causes, which have the details.
fn reason(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The body of an answer within a limit.
async fn read(mut answer: Response, max_bytes: usize) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let broken = |e: reqwest::Error| format!("the answer of the portal broke off: {}", reason(&e));
    while let Some(part) = answer.chunk().await.map_err(broken)? {
        if text.len().saturating_add(part.len()) > max_bytes {
            return Err("the answer of the portal is too large".to_owned());
        }
        text.extend_from_slice(&part);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_sentence_of_a_refusal_is_part_of_the_error() {
        let refused = serde_json::to_string(&Problem::invalid_field("/life", "Correct the clock.")).unwrap();
        for (text, expected) in [(refused.as_str(), ": Correct the clock."), ("<html>", ""), ("", "")] {
            assert_eq!(detail(http::Response::new(text.to_owned()).into()).await, expected);
        }
        let long = format!("{}{refused}", " ".repeat(MAX_PROBLEM_BYTES));
        assert_eq!(detail(http::Response::new(long).into()).await, "");
    }
}
