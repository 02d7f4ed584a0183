//! Transport of requests: `fetch` in the browser, the router of the portal during the rendering of a page.

#[cfg(feature = "ssr")]
pub use server::ApiClient;

#[cfg(feature = "hydrate")]
pub(super) use inner::send_part;
pub(super) use inner::{new_key, send};

use std::future::Future;

use super::{ApiRequest, ApiResponse};

/// Sends several requests of one call. It keeps the client of the page, because the context of the page exists
/// only before the first await.
#[derive(Clone)]
pub(super) struct Sender {
    #[cfg(all(feature = "ssr", not(feature = "hydrate")))]
    client: Option<ApiClient>,
}

impl Sender {
    /// Returns a sender with the client of the context.
    pub fn capture() -> Self {
        Self {
            #[cfg(all(feature = "ssr", not(feature = "hydrate")))]
            client: leptos::prelude::use_context::<ApiClient>(),
        }
    }

    pub fn send(self, request: ApiRequest) -> impl Future<Output = Option<ApiResponse>> + Send + 'static {
        #[cfg(all(feature = "ssr", not(feature = "hydrate")))]
        {
            server::send_with(self.client, request)
        }
        #[cfg(not(all(feature = "ssr", not(feature = "hydrate"))))]
        {
            send(request)
        }
    }
}

#[cfg(feature = "hydrate")]
mod inner {
    use std::future::Future;

    use gloo_net::http::{Method, RequestBuilder};
    use send_wrapper::SendWrapper;

    use crate::api::{ApiRequest, ApiResponse};

    pub fn send(request: ApiRequest) -> impl Future<Output = Option<ApiResponse>> + Send + 'static {
        // The browser has one thread, so the value never changes its thread.
        SendWrapper::new(async move {
            let method = match request.method {
                "POST" => Method::POST,
                "PATCH" => Method::PATCH,
                "PUT" => Method::PUT,
                "DELETE" => Method::DELETE,
                _ => Method::GET,
            };
            let mut builder =
                RequestBuilder::new(&request.path).method(method).header("accept", "application/json");
            if let Some(key) = &request.key {
                builder = builder.header("idempotency-key", key);
            }
            if let Some(tag) = &request.tag {
                builder = builder.header("if-none-match", tag);
            }
            let response = match request.body {
                Some(body) => {
                    builder.header("content-type", "application/json").body(body).ok()?.send().await.ok()?
                }
                None => builder.send().await.ok()?,
            };
            let tag = response.headers().get("etag");
            Some(ApiResponse { status: response.status(), tag, body: response.binary().await.ok()? })
        })
    }

    /// Sends a part of a file; `offset` is its first byte.
    pub async fn send_part(path: &str, offset: u64, part: web_sys::Blob) -> Option<ApiResponse> {
        let request = RequestBuilder::new(path)
            .method(Method::PATCH)
            .header("accept", "application/json")
            .header("content-type", "application/octet-stream")
            .header("upload-offset", &offset.to_string())
            .body(part)
            .ok()?;
        let response = request.send().await.ok()?;
        Some(ApiResponse { status: response.status(), tag: None, body: response.binary().await.ok()? })
    }

    pub fn new_key() -> String {
        let mut bytes = [0u8; 16];
        let filled = web_sys::window()
            .and_then(|window| window.crypto().ok())
            .is_some_and(|crypto| crypto.get_random_values_with_u8_array(&mut bytes).is_ok());
        if filled { hex::encode(bytes) } else { String::new() }
    }
}

#[cfg(not(feature = "hydrate"))]
mod inner {
    use std::future::Future;

    use crate::api::{ApiRequest, ApiResponse};

    pub fn send(request: ApiRequest) -> impl Future<Output = Option<ApiResponse>> + Send + 'static {
        #[cfg(feature = "ssr")]
        {
            super::server::send(request)
        }
        #[cfg(not(feature = "ssr"))]
        {
            let _ = (request.method, request.path, request.body, request.key, request.tag);
            std::future::ready(None)
        }
    }

    pub fn new_key() -> String {
        String::new()
    }
}

#[cfg(feature = "ssr")]
mod server {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;

    use bytes::Bytes;
    use http::{Request, Response};
    use leptos::prelude::use_context;

    use crate::api::{ApiRequest, ApiResponse};

    type Reply = Pin<Box<dyn Future<Output = Response<Bytes>> + Send>>;

    /// The client during the rendering of a page, with the cookies of the visitor. The portal provides it in the
    /// context.
    #[derive(Clone)]
    pub struct ApiClient(pub Arc<dyn Fn(Request<Bytes>) -> Reply + Send + Sync>);

    pub fn send(request: ApiRequest) -> impl Future<Output = Option<ApiResponse>> + Send + 'static {
        // Before the first await: the context exists only here.
        send_with(use_context::<ApiClient>(), request)
    }

    /// Sends a request with a client. `None` without a client.
    pub async fn send_with(client: Option<ApiClient>, request: ApiRequest) -> Option<ApiResponse> {
        let mut builder = Request::builder().method(request.method).uri(&request.path);
        if let Some(key) = &request.key {
            builder = builder.header("idempotency-key", key);
        }
        if let Some(tag) = &request.tag {
            builder = builder.header("if-none-match", tag);
        }
        if request.body.is_some() {
            builder = builder.header("content-type", "application/json");
        }
        let request = builder.body(Bytes::from(request.body.unwrap_or_default())).ok()?;
        let response = (client?.0)(request).await;
        let tag = response.headers().get("etag").and_then(|tag| tag.to_str().ok()).map(str::to_owned);
        Some(ApiResponse { status: response.status().as_u16(), tag, body: response.into_body().to_vec() })
    }
}
