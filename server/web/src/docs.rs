//! The documents for users as pages of the portal: `/docs` lists them, `/docs/{name}` has one.
//!
//! The program contains the documents. Their HTML is rendered once. Raw HTML of a document is shown as text.

use std::sync::{Arc, LazyLock};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use berth_app::theme::{Theme, requested_theme};
use berth_types::portal::PortalIdentity;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd, html};

/// A document in the program.
struct Document {
    /// The name in its address.
    name: &'static str,
    group: &'static str,
    text: &'static str,
}

macro_rules! documents {
    ($($group:literal: $($name:literal)+;)+) => {
        &[$($(Document {
            name: $name,
            group: $group,
            text: include_str!(concat!("../../../docs/", $name, ".md")),
        }),+),+]
    };
}

/// The documents in the order of their list. Documents for developers are not here.
static DOCUMENTS: &[Document] = documents! {
    "Jobs": "placement" "images" "interactive" "metrics" "isolation";
    "Services": "services";
    "Data": "files" "volumes" "secrets";
    "Money": "billing";
    "Operators": "operations" "sso" "workers" "hardware" "leases";
};

/// The policy of the pages: no script and nothing of another host.
const POLICY: &str = "default-src 'none'; style-src 'self'; font-src 'self'; img-src 'self' data:; \
                      form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

impl Document {
    fn find(name: &str) -> Option<&'static Self> {
        DOCUMENTS.iter().find(|document| document.name == name)
    }

    /// The first heading.
    fn title(&self) -> &'static str {
        self.text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(self.name)
    }
}

/// The id of a heading, as links to it expect: lower case, `-` for spaces, no punctuation.
fn heading_id(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The address of the target of a link; none for a file without a page.
fn page_link(target: &str) -> Option<String> {
    if target.starts_with('#') || target.starts_with("https://") {
        return Some(target.to_owned());
    }
    let (file, heading) = match target.split_once('#') {
        Some((file, heading)) => (file, format!("#{heading}")),
        None => (target, String::new()),
    };
    let document = Document::find(file.strip_suffix(".md")?)?;
    Some(format!("/docs/{}{heading}", document.name))
}

/// The parts of a text with ids of headings, addresses of pages and frames around tables.
fn events(text: &str) -> Vec<Event<'_>> {
    let mut out = Vec::new();
    // The place of the open heading in `out`, and its text.
    let mut heading: Option<(usize, String)> = None;
    let mut in_dropped_link = false;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        if let (Some((_, title)), Event::Text(part) | Event::Code(part)) = (&mut heading, &event) {
            title.push_str(part);
        }
        match event {
            Event::Html(raw) | Event::InlineHtml(raw) => out.push(Event::Text(raw)),
            Event::Start(Tag::Heading { .. }) => {
                heading = Some((out.len(), String::new()));
                out.push(event);
            }
            Event::End(TagEnd::Heading(_)) => {
                if let Some((at, title)) = heading.take()
                    && let Some(Event::Start(Tag::Heading { id, .. })) = out.get_mut(at)
                {
                    *id = Some(heading_id(&title).into());
                }
                out.push(event);
            }
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => match page_link(&dest_url) {
                Some(url) => {
                    out.push(Event::Start(Tag::Link { link_type, dest_url: url.into(), title, id }));
                }
                // The text of the link stays.
                None => in_dropped_link = true,
            },
            Event::End(TagEnd::Link) if in_dropped_link => in_dropped_link = false,
            Event::Start(Tag::Table(_)) => {
                // A wide table scrolls by keys too.
                let frame = "<div class=\"doc__table\" role=\"group\" aria-label=\"Table\" tabindex=\"0\">";
                out.push(Event::Html(frame.into()));
                out.push(event);
            }
            Event::End(TagEnd::Table) => {
                out.push(event);
                out.push(Event::Html("</div>".into()));
            }
            other => out.push(other),
        }
    }
    out
}

/// The HTML of a text in Markdown.
fn render(text: &str) -> String {
    let mut out = String::new();
    html::push_html(&mut out, events(text).into_iter());
    out
}

/// The HTML of each document, in the order of [`DOCUMENTS`].
static RENDERED: LazyLock<Vec<String>> =
    LazyLock::new(|| DOCUMENTS.iter().map(|document| render(document.text)).collect());

/// A text inside HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The links to all documents, in groups.
fn contents() -> String {
    let mut out = String::from("<h1>Documentation</h1>");
    let mut group = "";
    for document in DOCUMENTS {
        if document.group != group {
            if !group.is_empty() {
                out.push_str("</ul>");
            }
            group = document.group;
            out.push_str(&format!("<h2>{group}</h2><ul>"));
        }
        let (name, title) = (document.name, escaped(document.title()));
        out.push_str(&format!("<li><a href=\"/docs/{name}\">{title}</a></li>"));
    }
    out.push_str("</ul><h2>API</h2><ul><li><a href=\"/api/docs\">API reference</a></li>");
    out.push_str("<li><a href=\"/api/openapi.json\">OpenAPI document</a></li></ul>");
    out
}

/// A whole page. `build` is the name of the assets; an empty name leaves plain HTML.
fn page(build: &str, identity: &PortalIdentity, theme: Theme, title: &str, content: &str) -> String {
    let name = escaped(&identity.name);
    let accent = identity.accent.name();
    let chosen = theme.attribute().map(|name| format!(" data-theme=\"{name}\"")).unwrap_or_default();
    let scheme = theme.attribute().unwrap_or("light dark");
    let style = if build.is_empty() {
        String::new()
    } else {
        format!("<link rel=\"stylesheet\" href=\"/pkg/{build}/berth.css\">")
    };
    format!(
        "<!DOCTYPE html><html lang=\"en\"{chosen} data-accent=\"{accent}\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"{scheme}\"><link rel=\"icon\" href=\"data:,\">{style}\
         <title>{} · {name}</title></head><body><a class=\"skip\" href=\"#main\">Skip to content</a>\
         <div class=\"doc\"><header class=\"doc__head\"><a class=\"brand\" href=\"/\">{name}</a>\
         <nav class=\"doc__links\" aria-label=\"Documentation\"><a href=\"/docs\">All documents</a>\
         <a href=\"/api/docs\">API reference</a></nav></header>\
         <main class=\"doc__text\" id=\"main\" tabindex=\"-1\">{content}</main></div></body></html>",
        escaped(title),
    )
}

fn answer(status: StatusCode, page: String) -> Response {
    let fields = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // The theme of the visitor is in a cookie.
        (header::CACHE_CONTROL, "private, max-age=300"),
        (header::VARY, "cookie"),
    ];
    (status, fields, Html(page)).into_response()
}

async fn list(
    State(build): State<Arc<str>>,
    Extension(identity): Extension<PortalIdentity>,
    headers: HeaderMap,
) -> Response {
    let page = page(&build, &identity, requested_theme(&headers), "Documentation", &contents());
    answer(StatusCode::OK, page)
}

async fn show(
    State(build): State<Arc<str>>,
    Extension(identity): Extension<PortalIdentity>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let theme = requested_theme(&headers);
    let found = DOCUMENTS.iter().zip(RENDERED.iter()).find(|(document, _)| document.name == name);
    match found {
        Some((document, html)) => {
            answer(StatusCode::OK, page(&build, &identity, theme, document.title(), html))
        }
        None => {
            let content = "<h1>Document not found</h1><p>This address has no document. \
                           <a href=\"/docs\">All documents</a></p>";
            answer(StatusCode::NOT_FOUND, page(&build, &identity, theme, "Document not found", content))
        }
    }
}

/// The pages. A request has the identity of the portal as an extension.
pub fn routes(build: &str) -> Router {
    Router::new()
        .route("/docs", get(list))
        .route("/docs/{name}", get(show))
        .with_state(Arc::<str>::from(build))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The values of an attribute in HTML.
    fn values<'a>(html: &'a str, attribute: &str) -> Vec<&'a str> {
        let parts = html.split(&format!(" {attribute}=\"")).skip(1).collect::<Vec<_>>();
        parts.into_iter().filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn each_link_among_documents_has_its_page_and_its_heading() {
        let ids = |name: &str| {
            let html = render(Document::find(name).unwrap().text);
            values(&html, "id").into_iter().map(str::to_owned).collect::<Vec<String>>()
        };
        let mut links = 0;
        for document in DOCUMENTS {
            let own = ids(document.name);
            let different: BTreeSet<&String> = own.iter().collect();
            assert_eq!(different.len(), own.len(), "{}: {own:?}", document.name);
            let html = render(document.text);
            for link in values(&html, "href") {
                let (page, heading) = link.split_once('#').unwrap_or((link, ""));
                let target = match page.strip_prefix("/docs/") {
                    Some(name) => ids(name),
                    None if page.is_empty() => own.clone(),
                    None => continue,
                };
                assert!(heading.is_empty() || target.iter().any(|id| id == heading), "{link}");
                links += 1;
            }
        }
        assert!(links >= 9, "{links}");
    }

    #[test]
    fn a_text_becomes_html_without_its_raw_html() {
        let html = render(
            "# `A` b!\n\n<script>x</script>\n\na <b>c</b> [v](volumes.md#versions) [g](grafana/berth.json)\n\n| a |\n|---|\n| b |\n",
        );
        assert!(html.starts_with("<h1 id=\"a-b\"><code>A</code> b!</h1>"), "{html}");
        assert!(!html.contains("<script>") && !html.contains("<b>"), "{html}");
        assert!(html.contains("<a href=\"/docs/volumes#versions\">v</a> g"), "{html}");
        assert!(html.contains("tabindex=\"0\"><table>") && html.contains("</table>\n</div>"), "{html}");
    }

    #[test]
    fn targets_of_links_have_an_address() {
        assert_eq!(page_link("files.md").as_deref(), Some("/docs/files"));
        assert_eq!(page_link("files.md#limits").as_deref(), Some("/docs/files#limits"));
        assert_eq!(page_link("#tests").as_deref(), Some("#tests"));
        for target in ["architecture/store.md", "javascript:alert(1)", "pace.md", "grafana/berth.json"] {
            assert_eq!(page_link(target), None, "{target}");
        }
    }

    #[test]
    fn each_document_has_a_title_and_its_place_in_the_list() {
        let contents = contents();
        for document in DOCUMENTS {
            assert_ne!(document.title(), document.name);
            assert!(contents.contains(&format!("href=\"/docs/{}\"", document.name)), "{}", document.name);
        }
        assert_eq!(contents.matches("<ul>").count(), contents.matches("</ul>").count());
        let identity = PortalIdentity { name: "A <b>".to_owned(), ..PortalIdentity::default() };
        let html = page("b1", &identity, Theme::Dark, "Money", "x");
        assert!(html.contains("A &lt;b&gt;") && html.contains("data-theme=\"dark\""), "{html}");
        assert!(html.contains("/pkg/b1/berth.css") && !html.contains("<script"), "{html}");
    }
}
