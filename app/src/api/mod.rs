//! The typed client of the portal's REST API: the same calls in the browser and while a page is
//! rendered. It decides nothing and keeps nothing.

pub mod accounts;
pub mod budgets;
mod escape;
pub mod health;
pub mod invoices;
pub mod jobs;
pub mod members;
pub mod money;
pub mod nodes;
pub mod operations;
pub mod operator_reservations;
pub mod payments;
pub mod quotas;
pub mod reservations;
pub mod secrets;
mod transport;
pub mod usage;
pub mod volumes;
pub mod webhooks;

use std::future::Future;

use berth_types::Page;
use berth_types::problems::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[cfg(feature = "ssr")]
pub use transport::Door;

/// What the portal answered.
pub type Answer<T> = Result<T, Problem>;

/// One request, ready to go.
pub(crate) struct Ask {
    pub method: &'static str,
    /// With `/api/v1`.
    pub path: String,
    pub body: Option<String>,
    pub key: Option<String>,
}

/// What came back: the status and the body.
pub(crate) struct Came {
    pub status: u16,
    pub body: Vec<u8>,
}

fn unreachable() -> Problem {
    Problem {
        status: 0,
        ..Problem::new(
            503,
            "network.unreachable",
            "The portal cannot be reached",
            "Nothing was lost. What you asked for may or may not have reached the portal; look before you try again.",
        )
    }
}

/// From text, as the streams read too: a second way of reading would be a second copy of every reader
/// in the module that browsers load.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Answer<T> {
    std::str::from_utf8(body).ok().and_then(|text| serde_json::from_str(text).ok()).ok_or_else(unreachable)
}

fn read<T: DeserializeOwned>(came: Option<Came>) -> Answer<T> {
    let Some(came) = came else { return Err(unreachable()) };
    if !(200..300).contains(&came.status) {
        return Err(parse(&came.body).unwrap_or_else(|problem| problem));
    }
    parse(if came.body.is_empty() { b"null" } else { &came.body })
}

fn ask<T: DeserializeOwned + Send + 'static>(ask: Ask) -> impl Future<Output = Answer<T>> + Send + 'static {
    let sent = transport::send(ask);
    async move { read(sent.await) }
}

/// GET of a path below `/api/v1`.
pub fn get<T: DeserializeOwned + Send + 'static>(
    path: impl Into<String>,
) -> impl Future<Output = Answer<T>> + Send + 'static {
    ask(Ask { method: "GET", path: format!("/api/v1{}", path.into()), body: None, key: None })
}

/// The most pages that [`list_all`] reads.
const MOST_PAGES: usize = 50;
/// The most items of a page.
const PAGE_ITEMS: usize = 200;

/// GET of a whole list below `/api/v1`, page by page. A list of more than [`MOST_PAGES`] pages ends early and
/// keeps its `next_cursor`.
pub fn list_all<T: DeserializeOwned + Send + 'static>(
    path: String,
) -> impl Future<Output = Answer<Page<T>>> + Send + 'static {
    let sender = transport::Sender::capture();
    async move {
        let mut all = Page::whole(Vec::new());
        for _ in 0..MOST_PAGES {
            let path = page_path(&path, all.next_cursor.as_deref());
            let ask = Ask { method: "GET", path, body: None, key: None };
            let page: Page<T> = read(sender.clone().send(ask).await)?;
            all.items.extend(page.items);
            all.next_cursor = page.next_cursor;
            if all.next_cursor.is_none() {
                break;
            }
        }
        Ok(all)
    }
}

/// The address of one page of a list: `path` may have a query, and the page begins after the cursor.
fn page_path(path: &str, cursor: Option<&str>) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    let cursor = cursor.map(|cursor| format!("&cursor={}", escape::escaped(cursor))).unwrap_or_default();
    format!("/api/v1{path}{separator}limit={PAGE_ITEMS}{cursor}")
}

/// Any other request with a JSON body. An answer without a body reads as `()`.
pub fn send<B: Serialize, T: DeserializeOwned + Send + 'static>(
    method: &'static str,
    path: impl Into<String>,
    body: &B,
    key: Option<String>,
) -> impl Future<Output = Answer<T>> + Send + 'static {
    let body = serde_json::to_string(body).ok().filter(|text| text != "null");
    ask(Ask { method, path: format!("/api/v1{}", path.into()), body, key })
}

/// A new Idempotency-Key; empty where there is no browser.
pub fn new_key() -> String {
    transport::new_key()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_a_list_has_its_own_address() {
        assert_eq!(page_path("/offerings", None), "/api/v1/offerings?limit=200");
        let next = page_path("/operator/prices?offering=h100", Some("name_61"));
        assert_eq!(next, "/api/v1/operator/prices?offering=h100&limit=200&cursor=name_61");
    }
}
