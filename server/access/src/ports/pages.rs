//! The own pages of the hosts of ports: the form for tickets, and the page of a problem.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_types::ids::RequestId;
use berth_types::problems::Problem;

use berth_foundation::Context;

/// The path for tickets. No job id has this name.
pub const TICKET_PATH: &str = "/.berth/enter";
/// Seconds before a page tries again to reach a port without a server.
const REFRESH_S: u32 = 3;

/// The tokens of style/_tokens.scss that these pages need.
const STYLE: &str = "\
:root{color-scheme:light dark;--surface:oklch(0.972 0.006 92);--raised:oklch(0.993 0.003 92);\
--line:oklch(0.885 0.009 92);--text:oklch(0.245 0.022 252);--quiet:oklch(0.475 0.02 252);--accent:oklch(0.455 0.105 247)}\
@media(prefers-color-scheme:dark){:root{--surface:oklch(0.208 0.013 248);--raised:oklch(0.24 0.015 248);\
--line:oklch(0.325 0.017 248);--text:oklch(0.93 0.006 240);--quiet:oklch(0.725 0.017 245);--accent:oklch(0.79 0.095 238)}}\
body{margin:0;min-height:100vh;display:grid;place-items:center;background:var(--surface);color:var(--text);\
font:16px/1.5 'IBM Plex Sans',system-ui,sans-serif}\
main{box-sizing:border-box;width:min(34rem,calc(100% - 2rem));padding:24px;background:var(--raised);\
border:1px solid var(--line);border-radius:6px}\
h1{margin:0 0 8px;font-size:20px;line-height:1.3}p{margin:0 0 12px}p:last-child{margin:0}\
a{color:var(--accent)}.quiet{color:var(--quiet);font-size:14px}";

/// True if the client accepts HTML.
pub fn accepts_html(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|kind| kind.trim().starts_with("text/html"))
}

fn escape(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other => out.push(other),
        }
        out
    })
}

/// A page of the portal, without external resources and without scripts other than the one with the nonce.
fn page(status: StatusCode, nonce: &str, title: &str, head: &str, body: &str) -> Response {
    let html = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{}</title>{head}\
         <style nonce=\"{nonce}\">{STYLE}</style></head><body><main>{body}</main></body></html>",
        escape(title)
    );
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'"
    );
    let mut response = (status, Body::from(html)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// The answer with a problem, as a page or as JSON. `back` is a link to the portal. With `refresh` the page
/// reloads itself.
pub fn problem(
    context: &Context,
    nonce: &str,
    mut problem: Problem,
    html: bool,
    back: &str,
    refresh: bool,
) -> Response {
    let id: RequestId = context.new_id(context.now());
    problem.request_id = id.to_string();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = if html {
        let head = if refresh {
            format!("<meta http-equiv=\"refresh\" content=\"{REFRESH_S}\">")
        } else {
            String::new()
        };
        let hint = if refresh { "<p class=\"quiet\">This page reloads every few seconds.</p>" } else { "" };
        let body = format!(
            "<h1>{}</h1><p>{}</p>{hint}<p><a href=\"{}\">Open the portal</a></p><p class=\"quiet\">{} · {}</p>",
            escape(&problem.title),
            escape(&problem.detail),
            escape(back),
            escape(&problem.code),
            escape(&problem.request_id)
        );
        page(status, nonce, &problem.title, &head, &body)
    } else {
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let kind = [
            (header::CONTENT_TYPE, "application/problem+json"),
            (header::CACHE_CONTROL, "no-store"),
            (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        ];
        (status, kind, body).into_response()
    };
    if let Some(seconds) = problem.retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The page that posts a ticket. Its script reads the ticket from the fragment of the address, which no
/// server gets.
pub fn ticket_page(nonce: &str) -> Response {
    let script = "const ticket = location.hash.slice(1);\
                  history.replaceState(null, '', location.pathname);\
                  const form = document.forms[0];\
                  if (ticket) { form.elements.ticket.value = ticket; form.submit(); }\
                  else document.getElementById('none').hidden = false;";
    let body = format!(
        "<h1>Opening the port</h1><form method=\"post\" action=\"{TICKET_PATH}\"><input type=\"hidden\" name=\"ticket\"></form>\
         <p id=\"none\" hidden>The address has no ticket. Open the port from the page of its job.</p>\
         <noscript><p>This page sends your ticket by a script. Allow scripts, then open the port again from the page of its job.</p></noscript>\
         <script nonce=\"{nonce}\">{script}</script>"
    );
    page(StatusCode::OK, nonce, "Opening the port", "", &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_for_browsers_and_json_for_the_rest() {
        let accepts = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            accepts_html(&headers)
        };
        assert!(accepts("text/html,application/xhtml+xml;q=0.9") && accepts("a/b, text/html;q=0.1"));
        assert!(!accepts("application/json") && !accepts("*/*") && !accepts_html(&HeaderMap::new()));
    }

    #[test]
    fn texts_in_a_page_are_escaped() {
        assert_eq!(escape("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
        let answer = page(StatusCode::GONE, "n", "<x>", "", "");
        assert_eq!(answer.status(), StatusCode::GONE);
        let policy = answer.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'nonce-n'"), "{policy}");
    }
}
