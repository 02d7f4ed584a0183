//! The typed client of the REST API, in the browser and on the server during the rendering of a page. It is
//! stateless.

pub mod accounts;
pub mod budgets;
pub mod change_requests;
pub mod egress;
pub(crate) mod escape;
pub mod factors;
pub mod gateways;
pub mod health;
pub mod inference_keys;
pub mod invoices;
pub mod jobs;
pub mod members;
pub mod money;
pub mod nodes;
pub mod operations;
pub mod operator_reservations;
pub mod operators;
pub mod passkeys;
pub mod payments;
pub mod people;
pub mod portal;
pub mod quotas;
pub mod reservations;
pub mod secrets;
pub mod service_accounts;
pub mod services;
pub mod sso;
pub mod storage;
pub mod storage_classes;
mod transport;
pub mod usage;
pub mod volumes;
pub mod webhooks;

use std::future::Future;

use berth_types::Page;
use berth_types::problems::Problem;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::proof;

#[cfg(feature = "ssr")]
pub use transport::ApiClient;

/// The answer of the portal.
pub type Answer<T> = Result<T, Problem>;

/// A request of the API.
#[derive(Clone)]
pub(crate) struct ApiRequest {
    pub method: &'static str,
    /// The path from `/api/v1` on.
    pub path: String,
    /// The JSON body.
    pub body: Option<String>,
    /// The Idempotency-Key.
    pub key: Option<String>,
    /// The tag of the known answer.
    pub tag: Option<String>,
}

/// A response of the API.
pub(crate) struct ApiResponse {
    pub status: u16,
    /// The tag of the answer, if it has one.
    pub tag: Option<String>,
    pub body: Vec<u8>,
}

fn unreachable() -> Problem {
    Problem {
        status: 0,
        ..Problem::new(
            503,
            "network.unreachable",
            "Portal not reachable",
            "The portal did not answer. The request may have taken effect: check the current state before you repeat it.",
        )
    }
}

/// Parses from text, like the streams: another parser would duplicate the code in the module of the browser.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Answer<T> {
    std::str::from_utf8(body).ok().and_then(|text| serde_json::from_str(text).ok()).ok_or_else(unreachable)
}

fn parse_response<T: DeserializeOwned>(response: Option<ApiResponse>) -> Answer<T> {
    let Some(response) = response else { return Err(unreachable()) };
    if !(200..300).contains(&response.status) {
        return Err(parse(&response.body).unwrap_or_else(|problem| problem));
    }
    parse(if response.body.is_empty() { b"null" } else { &response.body })
}

/// Replaces the text about a possible effect, for a request that changes nothing.
fn of_read<T>(answer: Answer<T>) -> Answer<T> {
    answer.map_err(|problem| match problem.status {
        0 => Problem { detail: "The portal did not answer. Nothing was changed.".to_owned(), ..problem },
        _ => problem,
    })
}

fn call<T: DeserializeOwned + Send + 'static>(
    request: ApiRequest,
) -> impl Future<Output = Answer<T>> + Send + 'static {
    let repetition = request.clone();
    let reads = request.method == "GET" || request.path.ends_with("?dry_run=true");
    let response = transport::send(request);
    async move {
        let answer = parse_response(response.await);
        let unproved = answer.as_ref().err().is_some_and(|problem| problem.code == "auth.proof_required");
        if unproved && proof::ask().await {
            return parse_response(transport::send(repetition).await);
        }
        if reads { of_read(answer) } else { answer }
    }
}

/// Gets a path below `/api/v1`.
pub fn get<T: DeserializeOwned + Send + 'static>(
    path: impl Into<String>,
) -> impl Future<Output = Answer<T>> + Send + 'static {
    let path = format!("/api/v1{}", path.into());
    call(ApiRequest { method: "GET", path, body: None, key: None, tag: None })
}

/// An answer with its tag.
pub type Tagged<T> = (T, Option<String>);

/// Gets a path below `/api/v1`. `None`: the answer still has the tag `known`.
pub fn get_changed<T: DeserializeOwned + Send + 'static>(
    path: impl Into<String>,
    known: Option<String>,
) -> impl Future<Output = Answer<Option<Tagged<T>>>> + Send + 'static {
    let path = format!("/api/v1{}", path.into());
    let response = transport::send(ApiRequest { method: "GET", path, body: None, key: None, tag: known });
    async move {
        let response = response.await;
        if response.as_ref().is_some_and(|response| response.status == 304) {
            return Ok(None);
        }
        let tag = response.as_ref().and_then(|response| response.tag.clone());
        Ok(Some((of_read(parse_response(response))?, tag)))
    }
}

impl transport::Sender {
    /// Gets a path below `/api/v1`, also after an earlier answer.
    async fn get<T: DeserializeOwned>(self, path: &str) -> Answer<T> {
        let path = format!("/api/v1{path}");
        let request = ApiRequest { method: "GET", path, body: None, key: None, tag: None };
        of_read(parse_response(self.send(request).await))
    }
}

/// The maximum number of pages of [`list_all`].
const MAX_PAGES: usize = 50;
/// The number of items of a page.
const PAGE_ITEMS: usize = 200;

/// Gets a whole list below `/api/v1` page by page. A list of more than [`MAX_PAGES`] pages ends early and keeps
/// its `next_cursor`.
pub fn list_all<T: DeserializeOwned + Send + 'static>(
    path: String,
) -> impl Future<Output = Answer<Page<T>>> + Send + 'static {
    let sender = transport::Sender::capture();
    async move {
        let mut all = Page::whole(Vec::new());
        for _ in 0..MAX_PAGES {
            let path = page_path(&path, all.next_cursor.as_deref());
            let request = ApiRequest { method: "GET", path, body: None, key: None, tag: None };
            let page: Page<T> = of_read(parse_response(sender.clone().send(request).await))?;
            all.items.extend(page.items);
            all.next_cursor = page.next_cursor;
            if all.next_cursor.is_none() {
                break;
            }
        }
        Ok(all)
    }
}

/// Returns the address of a page of a list. `path` may have a query; the page begins after the cursor.
fn page_path(path: &str, cursor: Option<&str>) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    let cursor = cursor.map(|cursor| format!("&cursor={}", escape::escaped(cursor))).unwrap_or_default();
    format!("/api/v1{path}{separator}limit={PAGE_ITEMS}{cursor}")
}

/// Sends a request with a JSON body. A response without a body parses as `()`.
pub fn send<B: Serialize, T: DeserializeOwned + Send + 'static>(
    method: &'static str,
    path: impl Into<String>,
    body: &B,
    key: Option<String>,
) -> impl Future<Output = Answer<T>> + Send + 'static {
    let body = serde_json::to_string(body).ok().filter(|text| text != "null");
    call(ApiRequest { method, path: format!("/api/v1{}", path.into()), body, key, tag: None })
}

/// Returns a new Idempotency-Key; empty outside of a browser.
pub fn new_key() -> String {
    transport::new_key()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_without_an_answer_changed_nothing() {
        let lost = of_read(parse_response::<()>(None)).unwrap_err();
        assert!(lost.detail.ends_with("Nothing was changed."), "{}", lost.detail);
        let refused = Err::<(), Problem>(Problem::not_found());
        assert_eq!(of_read(refused), Err(Problem::not_found()));
    }

    #[test]
    fn a_page_of_a_list_has_its_own_address() {
        assert_eq!(page_path("/offerings", None), "/api/v1/offerings?limit=200");
        let next = page_path("/operator/prices?offering=h100", Some("name_61"));
        assert_eq!(next, "/api/v1/operator/prices?offering=h100&limit=200&cursor=name_61");
    }
}
