//! The limit of each request's body, set before anything reads the body.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use berth_rest::extract::BodyLimit;

/// Submissions with their files, parts of uploads, and 10,000 grants of credit.
const FILES: BodyLimit = BodyLimit(12 << 20);
/// Reports and messages about credit of gateways.
const REPORTS: BodyLimit = BodyLimit(4 << 20);
/// Services and revisions with a job.
const SERVICES: BodyLimit = BodyLimit(320 << 10);
/// Stripe's events, and pictures in JSON.
const MEDIUM: BodyLimit = BodyLimit(256 << 10);

/// The limit of the body of a request to this path.
fn body_limit(path: &str) -> BodyLimit {
    let mut parts = path.strip_prefix("/api/v1/").unwrap_or_default().split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("orgs"), Some(_), Some("jobs"), None, None)
        | (Some("operator"), Some("credits"), None, None, None)
        | (Some("orgs"), Some(_), Some("volumes"), Some(_), Some("uploads")) => FILES,
        (Some("orgs"), Some(_), Some("services"), None, None)
        | (Some("orgs"), Some(_), Some("services"), Some(_), Some("revisions")) => SERVICES,
        (Some("gateway"), Some("reports" | "credit"), None, None, None) => REPORTS,
        (Some("stripe"), Some("events"), None, None, None)
        | (Some("orgs"), Some(_), Some("secrets"), Some(_), None)
        | (Some("operator"), Some("portal-settings"), Some("logo"), None, None) => MEDIUM,
        _ => BodyLimit::default(),
    }
}

/// Sets the limit of the body of a request.
pub async fn limit_body(mut request: Request, next: Next) -> Response {
    body_limit(request.uri().path()).apply(&mut request);
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_routes_for_files_have_large_bodies() {
        for (path, expected) in [
            ("/api/v1/orgs/org_1/jobs", FILES),
            ("/api/v1/orgs/org_1/jobs/job_1/cancel", BodyLimit::default()),
            ("/api/v1/orgs/org_1/volumes", BodyLimit::default()),
            ("/api/v1/orgs/org_1/volumes/data/uploads/a/b", FILES),
            ("/api/v1/orgs/org_1/secrets/key", MEDIUM),
            ("/api/v1/orgs/org_1/services", SERVICES),
            ("/api/v1/orgs/org_1/services/svc_1/revisions", SERVICES),
            ("/api/v1/orgs/org_1/services/svc_1/traffic", BodyLimit::default()),
            ("/api/v1/operator/credits", FILES),
            ("/api/v1/operator/orgs/org_1/credits", BodyLimit::default()),
            ("/api/v1/stripe/events", MEDIUM),
            ("/api/v1/gateway/reports", REPORTS),
            ("/api/v1/gateway/credit", REPORTS),
            ("/api/v1/gateway/snapshot", BodyLimit::default()),
            ("/api/v1/sessions", BodyLimit::default()),
            ("/orgs/x/jobs", BodyLimit::default()),
            ("/", BodyLimit::default()),
        ] {
            assert_eq!(body_limit(path), expected, "{path}");
        }
    }
}
