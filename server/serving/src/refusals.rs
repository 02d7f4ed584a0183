//! Refusals: each reason why a gateway answers a request itself, with its problem.

use berth_types::problems::Problem;

/// The reason why a request gets no answer of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The request has no key, and nothing public has its address or model.
    KeyRequired,
    /// The key is unknown or revoked.
    KeyRefused,
    KeyExpired,
    /// The address leads to nothing, or to another organization's service.
    UnknownAddress,
    /// No service has the model, or only another organization's.
    UnknownModel,
    /// The list of the key omits the model or service.
    NotAllowed,
    BodyTooLarge {
        max_bytes: u64,
    },
    /// The body is no JSON, or names one field twice.
    Malformed {
        line: usize,
        column: usize,
    },
    /// A field has a value that no request can have.
    InvalidField {
        pointer: &'static str,
        detail: &'static str,
    },
    /// A request or its worst case goes over a rate of the key.
    Throttled {
        what: &'static str,
        retry_after_s: u64,
    },
    /// The worst case of the request alone has more tokens than the key has in a minute.
    OverTokenRate {
        tokens: u64,
        per_minute: u64,
    },
    /// Too many requests wait.
    Busy {
        retry_after_s: u64,
    },
    /// The request waited until its deadline.
    WaitedTooLong {
        retry_after_s: u64,
    },
}

impl Refusal {
    /// The answer for the caller.
    pub fn problem(&self) -> Problem {
        match self {
            Self::KeyRequired => key("key.required", "Send an inference key as a bearer token."),
            Self::KeyRefused => {
                key("key.refused", "The inference key is unknown or revoked. Send another one.")
            }
            Self::KeyExpired => key("key.expired", "The inference key has expired. Create a new one."),
            Self::UnknownAddress => Problem::not_found(),
            Self::UnknownModel => Problem::new(
                404,
                "model.not_found",
                "Model not found",
                "This model does not exist, or you have no access to it. GET /v1/models has the models.",
            ),
            Self::NotAllowed => Problem::new(
                403,
                "model.not_allowed",
                "Model not allowed",
                "The inference key is not for this model or service. Use another key.",
            ),
            Self::BodyTooLarge { max_bytes } => Problem::new(
                413,
                "request.too_large",
                "Body too large",
                format!("The body has more than {max_bytes} bytes."),
            ),
            Self::Malformed { line, column } => Problem::malformed(format!(
                "The body is not a valid request at line {line}, column {column}: bad JSON, a repeated field, or a value of another type."
            )),
            Self::InvalidField { pointer, detail } => Problem::invalid_field(pointer, *detail),
            Self::OverTokenRate { tokens, per_minute } => Problem::new(
                429,
                "key.token_rate",
                "Request over the rate of the key",
                format!(
                    "The request can have {tokens} tokens, and the key has {per_minute} a minute. Lower max_tokens or shorten the prompt."
                ),
            ),
            Self::Throttled { what, retry_after_s } => Problem::throttled(
                format!("The key has used its {what} of this minute. Try again in {retry_after_s} s."),
                *retry_after_s,
            ),
            Self::Busy { retry_after_s } => waiting(
                "service.busy",
                "Service busy",
                "Too many requests wait for this service.",
                *retry_after_s,
            ),
            Self::WaitedTooLong { retry_after_s } => waiting(
                "service.no_replica",
                "No replica in time",
                "No replica could take the request within its time.",
                *retry_after_s,
            ),
        }
    }
}

fn key(code: &str, detail: &str) -> Problem {
    Problem::new(401, code, "Inference key required", detail)
}

fn waiting(code: &str, title: &str, what: &str, retry_after_s: u64) -> Problem {
    let detail = format!("{what} Nothing was charged. Try again in {retry_after_s} s.");
    Problem { retry_after_s: Some(retry_after_s), ..Problem::new(503, code, title, detail) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_refusal_has_its_status_and_code() {
        let cases = [
            (Refusal::KeyRequired, 401, "key.required", None),
            (Refusal::KeyRefused, 401, "key.refused", None),
            (Refusal::KeyExpired, 401, "key.expired", None),
            (Refusal::UnknownAddress, 404, "object.not_found", None),
            (Refusal::UnknownModel, 404, "model.not_found", None),
            (Refusal::NotAllowed, 403, "model.not_allowed", None),
            (Refusal::BodyTooLarge { max_bytes: 5 }, 413, "request.too_large", None),
            (Refusal::Malformed { line: 1, column: 2 }, 400, "request.malformed", None),
            (Refusal::InvalidField { pointer: "/n", detail: "Enter 1." }, 422, "request.invalid", None),
            (Refusal::Throttled { what: "requests", retry_after_s: 3 }, 429, "request.throttled", Some(3)),
            (Refusal::OverTokenRate { tokens: 9, per_minute: 8 }, 429, "key.token_rate", None),
            (Refusal::Busy { retry_after_s: 4 }, 503, "service.busy", Some(4)),
            (Refusal::WaitedTooLong { retry_after_s: 5 }, 503, "service.no_replica", Some(5)),
        ];
        let mut codes = HashSet::new();
        for (refusal, status, code, retry_after_s) in cases {
            let problem = refusal.problem();
            assert_eq!((problem.status, problem.code.as_str()), (status, code));
            assert_eq!(problem.retry_after_s, retry_after_s, "{code}");
            assert!(codes.insert(code), "one code for each reason");
        }
    }
}
