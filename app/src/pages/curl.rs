//! Curl commands for the requests of the pages.
//!
//! A command never contains a secret: the token is always `$BERTH_TOKEN`.

use leptos::prelude::*;

use super::parts::origin;
use super::shell_words::quote;
use crate::ui::CopyBlock;

/// The text in place of the command of an incomplete form.
pub const INCOMPLETE: &str = "Complete the form to get the command.";

/// A curl command, closed at first, with a copy button.
#[component]
pub fn CopyAsCurl(
    /// The command.
    #[prop(into)]
    line: Signal<String>,
    /// The accessible name of the command.
    label: &'static str,
) -> impl IntoView {
    view! {
        <details class="more">
            <summary>"Copy as curl"</summary>
            <CopyBlock text=line label=label.to_owned()/>
        </details>
    }
}

/// The GET request of a list as a curl command.
#[component]
pub fn ListCurl(
    /// The path below `/api/v1`, with the filters in force.
    #[prop(into)]
    path: Signal<String>,
    /// The accessible name of the command.
    label: &'static str,
) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || path.with(|path| get(&origin.get(), path)));
    view! { <CopyAsCurl line=line label=label/> }
}

/// Returns a POST request of `body` to `path`, a path below `/api/v1`.
///
/// The shell expands `$BERTH_TOKEN` and the idempotency key, but nothing in the quoted body.
pub fn post(origin: &str, path: &str, body: &str) -> String {
    format!(
        "curl {url} \\\n  -H \"Authorization: Bearer $BERTH_TOKEN\" \\\n  -H \"Content-Type: application/json\" \\\n  -H \"Idempotency-Key: $(uuidgen)\" \\\n  -d {body}",
        url = quote(&format!("{origin}/api/v1{path}")),
        body = quote(body),
    )
}

/// Returns a GET request of `path`, a path below `/api/v1`.
pub fn get(origin: &str, path: &str) -> String {
    format!(
        "curl {url} \\\n  -H \"Authorization: Bearer $BERTH_TOKEN\"",
        url = quote(&format!("{origin}/api/v1{path}")),
    )
}

/// Returns the request of a first job with a device of `offering`.
pub fn job_on(origin: &str, org: &str, offering: &str) -> String {
    let body = format!(
        r#"{{"name":"hello","offering":"{offering}","script":"echo hello from $CUDA_VISIBLE_DEVICES; sleep 30","max_duration_s":600}}"#
    );
    post(origin, &format!("/orgs/{org}/jobs"), &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_with_quotes_stays_one_argument() {
        let line = post("https://berth.example", "/orgs/o/jobs", r#"{"name":"it's"}"#);
        assert!(line.starts_with("curl https://berth.example/api/v1/orgs/o/jobs \\\n"), "{line}");
        assert!(line.ends_with(r#"-d '{"name":"it'\''s"}'"#), "{line}");
        assert!(line.contains("Bearer $BERTH_TOKEN"), "{line}");
    }

    #[test]
    fn no_character_of_a_body_has_a_meaning_in_a_shell() {
        let body = serde_json::json!({"script": "echo \"a\" 'b'\n! `id` $(id) \\ ü 🚢", "n": 1}).to_string();
        let line = post("https://berth.example", "/orgs/o/jobs", &body);
        let (_, argument) = line.split_once("-d ").unwrap();
        assert_eq!(super::super::shell_words::split(argument).unwrap(), [body]);
        // Single quotes hold it all: an interactive shell replaces `!` between double quotes.
        let quotes = argument.replace(r"'\''", "");
        assert!(quotes.starts_with('\'') && quotes.ends_with('\''), "{argument}");
        assert_eq!(quotes.matches('\'').count(), 2, "{argument}");
        // A line break is JSON's own escape, so a pasted command stays one line.
        assert!(!argument.contains('\n'), "{argument}");
    }

    #[test]
    fn a_query_is_quoted() {
        assert!(
            get("http://localhost:8080", "/x?a=1&b=2").contains("'http://localhost:8080/api/v1/x?a=1&b=2'")
        );
        let job = job_on("https://b.example", "org_1", "a30-24gb");
        assert!(
            job.contains("/orgs/org_1/jobs") && job.contains(r#"{"name":"hello","offering":"a30-24gb","#)
        );
    }
}
