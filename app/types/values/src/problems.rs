//! The error type of the API: an RFC 9457 problem with a stable dotted code.

use serde::{Deserialize, Serialize};

/// All problem codes. A code never changes its meaning.
pub const CODES: &[&str] = &[
    "account.disabled",
    "account.exists",
    "account.in_use",
    "account.operator",
    "account.unverified",
    "auth.challenge",
    "auth.factor_required",
    "auth.forbidden",
    "auth.passkey",
    "auth.proof_required",
    "auth.required",
    "auth.sso_required",
    "auth.wrong_code",
    "auth.wrong_password",
    "budget.exceeded",
    "change_policy.operators",
    "change_request.changed",
    "change_request.closed",
    "change_request.limit",
    "change_request.needed",
    "change_request.own",
    "credit_limit.drawn",
    "document.too_long",
    "factor.exists",
    "factor.missing",
    "file.incomplete",
    "file.range",
    "funds.insufficient",
    "gateway.exists",
    "gateway.limit",
    "gpu.approved",
    "gpu.no_mig",
    "gpu.not_quarantined",
    "gpu.quarantined",
    "gpu.resetting",
    "gpu.silent",
    "idempotency.in_flight",
    "idempotency.other_request",
    "idempotency.shown_once",
    "inference_key.limit",
    "invitation.for_another",
    "invitation.not_valid",
    "invitation.open",
    "invoice.closed",
    "invoice.too_small",
    "job.ended",
    "job.never_starts",
    "job.not_running",
    "job.promised",
    "job.removed",
    "jobs.more",
    "join_token.refused",
    "link.not_valid",
    "maintenance.in_use",
    "members.already",
    "members.last_owner",
    "network.in_use",
    "network.limit",
    "network.not_allowed",
    "node.approved",
    "node.boards_changed",
    "node.connected",
    "node.in_use",
    "node.labels_changed",
    "object.not_found",
    "operators.account",
    "operators.last_owner",
    "org.work_elsewhere",
    "passkey.exists",
    "passkey.limit",
    "passkey.unavailable",
    "payments.no_card",
    "payments.off",
    "payments.over",
    "payments.refused",
    "port.broken",
    "port.busy",
    "port.not_listed",
    "port.off",
    "port.slow",
    "port.ticket",
    "promise.exists",
    "promise.limit",
    "quota.exceeded",
    "quota_request.decided",
    "quote.expired",
    "quote.used",
    "request.cross_site",
    "request.invalid",
    "request.malformed",
    "request.media_type",
    "request.method",
    "request.throttled",
    "request.timeout",
    "request.too_large",
    "request.websocket",
    "reservation.decided",
    "reservation.ended",
    "reservation.taken",
    "revision.not_candidate",
    "revision.nothing_before",
    "revision.underway",
    "scim.account",
    "scim.domain",
    "scim.exists",
    "scim.filter",
    "scim.limit",
    "scim.mutability",
    "scim.path",
    "scim.value",
    "secret.limit",
    "server.internal",
    "server.unavailable",
    "service.exists",
    "service.host_of_gateway",
    "service.host_taken",
    "service.limit",
    "setup.done",
    "sso.domain_taken",
    "sso.logout_token",
    "sso.missing",
    "sso.no_refresh",
    "storage.full",
    "storage_class.in_use",
    "storage_class.limit",
    "stripe.signature",
    "terminal.closed",
    "terminal.limit",
    "terminal.ticket",
    "token.address",
    "token.scope",
    "upload.hash",
    "upload.limit",
    "upload.offset",
    "volume.busy",
    "volume.exists",
    "volume.full",
    "volume.in_use",
    "volume.limit",
    "volume.on_nodes",
];

/// An invalid field of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FieldError {
    /// The JSON pointer (RFC 6901) of the field in the request body.
    pub pointer: String,
    /// A sentence about the fault of the field.
    pub detail: String,
}

impl FieldError {
    pub fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

/// An error with its meaning and the next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// The relative address of the problem type, `/problems/` with the code in dashes.
    #[serde(rename = "type")]
    pub kind: String,
    /// A short text about the kind of the problem.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// A sentence about this problem and the next step.
    pub detail: String,
    /// A stable code for programs.
    pub code: String,
    /// The id of the request, as in the header `X-Request-Id` and in the log of the portal.
    #[serde(default)]
    pub request_id: String,
    /// The invalid fields of the body; absent without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Seconds before the next attempt, for the statuses 429 and 503.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

impl Problem {
    pub fn new(status: u16, code: &str, title: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("/problems/{}", code.replace(['.', '_'], "-")),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            code: code.to_owned(),
            request_id: String::new(),
            errors: Vec::new(),
            retry_after_s: None,
        }
    }

    /// Creates a problem 400: an unreadable request.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(400, "request.malformed", "Request not readable", detail)
    }

    /// Creates a problem 422: a readable request with these invalid fields.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [only] => only.detail.clone(),
            many => format!("{} fields are invalid. Nothing was changed.", many.len()),
        };
        Self { errors, ..Self::new(422, "request.invalid", "Invalid fields", detail) }
    }

    /// Creates a problem 422 for one field.
    pub fn invalid_field(pointer: &str, detail: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError::new(pointer, detail)])
    }

    /// Creates a problem 401: no sign-in.
    pub fn unauthenticated() -> Self {
        Self::new(
            401,
            "auth.required",
            "Sign-in required",
            "Sign in, or send an API token as a bearer token.",
        )
    }

    /// Creates a problem 403: a role without the right.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(403, "auth.forbidden", "Missing permission", detail)
    }

    /// Creates a problem 404. An object of another organization gets the same body as a missing one.
    pub fn not_found() -> Self {
        Self::new(
            404,
            "object.not_found",
            "Not found",
            "This address does not exist, or you have no access to it.",
        )
    }

    /// Creates a problem 409.
    pub fn conflict(code: &str, title: &str, detail: impl Into<String>) -> Self {
        Self::new(409, code, title, detail)
    }

    /// Creates a problem 500. Only the portal's log has the cause, under the request id.
    pub fn internal() -> Self {
        Self::new(
            500,
            "server.internal",
            "Internal error",
            "The portal failed to process the request. Nothing was charged for it. Try again; if the error persists, send the request id to the operator.",
        )
    }

    /// Creates a problem 503 with the seconds before the next attempt.
    pub fn unavailable(detail: impl Into<String>, retry_after_s: u64) -> Self {
        let problem = Self::new(503, "server.unavailable", "Temporarily unavailable", detail);
        Self { retry_after_s: Some(retry_after_s), ..problem }
    }

    /// Creates a problem 429 with the seconds before the next attempt.
    pub fn throttled(detail: impl Into<String>, retry_after_s: u64) -> Self {
        let problem = Self::new(429, "request.throttled", "Too many requests", detail);
        Self { retry_after_s: Some(retry_after_s), ..problem }
    }

    /// Returns the detail of one field, for a form.
    pub fn field(&self, pointer: &str) -> Option<&str> {
        self.errors.iter().find(|e| e.pointer == pointer).map(|e| e.detail.as_str())
    }
}
