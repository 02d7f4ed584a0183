//! How a request travels: by `fetch` in the browser, through the portal's own router while a page is
//! rendered.

#[cfg(feature = "ssr")]
pub use server::Door;

#[cfg(feature = "hydrate")]
pub(super) use inner::send_piece;
pub(super) use inner::{new_key, send};

use std::future::Future;

use super::{Ask, Came};

/// Sends several requests of one call. It holds the door of the page, because the context of the page is only
/// sure to be there before the first await.
#[derive(Clone)]
pub(super) struct Sender {
    #[cfg(all(feature = "ssr", not(feature = "hydrate")))]
    door: Option<Door>,
}

impl Sender {
    /// Takes the door from the present context.
    pub fn capture() -> Self {
        Self {
            #[cfg(all(feature = "ssr", not(feature = "hydrate")))]
            door: leptos::prelude::use_context::<Door>(),
        }
    }

    pub fn send(self, ask: Ask) -> impl Future<Output = Option<Came>> + Send + 'static {
        #[cfg(all(feature = "ssr", not(feature = "hydrate")))]
        {
            server::send_through(self.door, ask)
        }
        #[cfg(not(all(feature = "ssr", not(feature = "hydrate"))))]
        {
            send(ask)
        }
    }
}

#[cfg(feature = "hydrate")]
mod inner {
    use std::future::Future;

    use gloo_net::http::{Method, RequestBuilder};
    use send_wrapper::SendWrapper;

    use crate::api::{Ask, Came};

    pub fn send(ask: Ask) -> impl Future<Output = Option<Came>> + Send + 'static {
        // The browser has one thread, so nothing is ever sent across.
        SendWrapper::new(async move {
            let method = match ask.method {
                "POST" => Method::POST,
                "PATCH" => Method::PATCH,
                "PUT" => Method::PUT,
                "DELETE" => Method::DELETE,
                _ => Method::GET,
            };
            let mut builder =
                RequestBuilder::new(&ask.path).method(method).header("accept", "application/json");
            if let Some(key) = &ask.key {
                builder = builder.header("idempotency-key", key);
            }
            let response = match ask.body {
                Some(body) => {
                    builder.header("content-type", "application/json").body(body).ok()?.send().await.ok()?
                }
                None => builder.send().await.ok()?,
            };
            Some(Came { status: response.status(), body: response.binary().await.ok()? })
        })
    }

    /// A part of a file, which begins at this byte of it.
    pub async fn send_piece(path: &str, offset: u64, piece: web_sys::Blob) -> Option<Came> {
        let request = RequestBuilder::new(path)
            .method(Method::PATCH)
            .header("accept", "application/json")
            .header("content-type", "application/octet-stream")
            .header("upload-offset", &offset.to_string())
            .body(piece)
            .ok()?;
        let response = request.send().await.ok()?;
        Some(Came { status: response.status(), body: response.binary().await.ok()? })
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

    use crate::api::{Ask, Came};

    pub fn send(ask: Ask) -> impl Future<Output = Option<Came>> + Send + 'static {
        #[cfg(feature = "ssr")]
        {
            super::server::send(ask)
        }
        #[cfg(not(feature = "ssr"))]
        {
            let _ = (ask.method, ask.path, ask.body, ask.key);
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

    use crate::api::{Ask, Came};

    type Reply = Pin<Box<dyn Future<Output = Response<Bytes>> + Send>>;

    /// The way into the portal while a page is rendered; the portal puts it into the context, with the
    /// visitor's cookie.
    #[derive(Clone)]
    pub struct Door(pub Arc<dyn Fn(Request<Bytes>) -> Reply + Send + Sync>);

    pub fn send(ask: Ask) -> impl Future<Output = Option<Came>> + Send + 'static {
        // Taken before anything is awaited: the context is only sure to be there now.
        send_through(use_context::<Door>(), ask)
    }

    /// Sends a request through a door; without one, nothing comes back.
    pub async fn send_through(door: Option<Door>, ask: Ask) -> Option<Came> {
        let mut request = Request::builder().method(ask.method).uri(&ask.path);
        if let Some(key) = &ask.key {
            request = request.header("idempotency-key", key);
        }
        if ask.body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let request = request.body(Bytes::from(ask.body.unwrap_or_default())).ok()?;
        let response = (door?.0)(request).await;
        Some(Came { status: response.status().as_u16(), body: response.into_body().to_vec() })
    }
}
