//! Curl commands for the requests of the pages.
//!
//! Pure. A command never contains a secret: the token is always `$BERTH_TOKEN`.

use super::shell_words::quote;

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

/// Returns the request of a first job.
pub fn first_job(origin: &str, org: &str) -> String {
    post(
        origin,
        &format!("/orgs/{org}/jobs"),
        r#"{"name":"hello","offering":"h100-80gb.1g.10gb","script":"echo hello from $CUDA_VISIBLE_DEVICES; sleep 30","max_duration_s":600}"#,
    )
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
    fn a_query_is_quoted() {
        assert!(
            get("http://localhost:8080", "/x?a=1&b=2").contains("'http://localhost:8080/api/v1/x?a=1&b=2'")
        );
        assert!(first_job("https://b.example", "org_1").contains("/orgs/org_1/jobs"));
    }
}
