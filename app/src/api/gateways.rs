//! Gateways: their list for operators, and requests of the browser to one of them.
//!
//! A request to a gateway goes to another origin: it has no cookie, and its key is in a header only.

use std::future::Future;

use berth_service_types::gateways::{Gateway, NewGateway};
use berth_types::Page;
use berth_types::ids::GatewayId;

use super::{Answer, list_all, send};

/// Lists all gateways, for operators.
pub fn list() -> impl Future<Output = Answer<Page<Gateway>>> + Send + 'static {
    list_all("/operator/gateways".to_owned())
}

/// Adds a gateway; only this answer has its token. Repeated requests with the same key add one gateway.
pub fn create(
    input: &NewGateway,
    key: Option<String>,
) -> impl Future<Output = Answer<Gateway>> + Send + 'static {
    send("POST", "/operator/gateways", input, key)
}

/// Replaces the token of a gateway; only this answer has the new one.
pub fn replace_token(gateway: GatewayId) -> impl Future<Output = Answer<Gateway>> + Send + 'static {
    send("POST", format!("/operator/gateways/{gateway}/token"), &(), None)
}

/// Removes a gateway. Its token and its blocks of credit end at once.
pub fn remove(gateway: GatewayId) -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", format!("/operator/gateways/{gateway}"), &(), None)
}

/// A request to a service through a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceRequest {
    pub url: String,
    pub method: &'static str,
    /// The inference key; absent for a public service.
    pub key: Option<String>,
    /// The body with its media type.
    pub body: Option<(String, &'static str)>,
}

/// The step of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPart {
    /// The status, before the first text.
    Status(u16),
    /// The next text of the body.
    Text(String),
}

/// Sends a request and passes each part of the answer on as it comes, until `on_part` returns false. Ends a present
/// request first.
///
/// # Errors
/// No answer: the gateway is not reachable, or the browser does not permit the request.
pub async fn ask(request: ServiceRequest, on_part: impl FnMut(AnswerPart) -> bool) -> Result<(), Unanswered> {
    inner::ask(request, on_part).await
}

/// Ends the present request to a gateway, if there is one.
pub fn stop() {
    inner::stop();
}

/// The absence of an answer, or its break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswered;

#[cfg(feature = "hydrate")]
mod inner {
    use js_sys::Promise;
    use wasm_bindgen::JsValue;
    use wasm_bindgen::prelude::wasm_bindgen;
    use wasm_bindgen_futures::JsFuture;

    use super::{AnswerPart, ServiceRequest, Unanswered};

    #[wasm_bindgen(module = "/js/gateway.js")]
    extern "C" {
        #[wasm_bindgen(js_name = startRequest)]
        fn start_request(url: &str, method: &str, headers: &str, body: Option<String>) -> Promise;

        #[wasm_bindgen(js_name = nextText)]
        fn next_text() -> Promise;

        #[wasm_bindgen(js_name = stopRequest)]
        fn stop_request();
    }

    async fn value_of(promise: Promise) -> Result<JsValue, Unanswered> {
        JsFuture::from(promise).await.map_err(|_| Unanswered)
    }

    pub async fn ask(
        request: ServiceRequest,
        mut on_part: impl FnMut(AnswerPart) -> bool,
    ) -> Result<(), Unanswered> {
        let ServiceRequest { url, method, key, body } = request;
        let mut headers = serde_json::Map::new();
        if let Some(key) = key {
            headers.insert("authorization".to_owned(), format!("Bearer {key}").into());
        }
        if let Some((_, kind)) = &body {
            headers.insert("content-type".to_owned(), (*kind).into());
        }
        let headers = serde_json::Value::Object(headers).to_string();
        let status = value_of(start_request(&url, method, &headers, body.map(|(text, _)| text))).await?;
        let status = status.as_f64().unwrap_or(0.0);
        // A status has three digits.
        if !on_part(AnswerPart::Status(status as u16)) {
            stop_request();
            return Ok(());
        }
        while let Some(text) = value_of(next_text()).await?.as_string() {
            if !on_part(AnswerPart::Text(text)) {
                stop_request();
                break;
            }
        }
        Ok(())
    }

    pub fn stop() {
        stop_request();
    }
}

#[cfg(not(feature = "hydrate"))]
mod inner {
    use super::{AnswerPart, ServiceRequest, Unanswered};

    /// Outside of a browser there is no answer.
    pub async fn ask(
        _request: ServiceRequest,
        _on_part: impl FnMut(AnswerPart) -> bool,
    ) -> Result<(), Unanswered> {
        Err(Unanswered)
    }

    pub fn stop() {}
}
