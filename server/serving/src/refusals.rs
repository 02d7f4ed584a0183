//! Refusals: each reason why a gateway answers a request itself, with its problem.

use berth_types::problems::Problem;
use serde_json::{Value, json};

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
    /// The request waited until its deadline, or no replica could be reached.
    WaitedTooLong {
        retry_after_s: u64,
    },
    /// The path has another method.
    Method {
        allowed: &'static str,
    },
    /// The caller stopped in its body.
    BodyTimeout,
    /// The caller's connection broke in its body.
    BodyBroken,
    /// The time limit that the caller has set is over.
    Deadline,
    /// The budget of the key or of its organization has no room for the worst case.
    OverBudget,
    /// The gateway itself cannot pass requests now.
    Gateway {
        lack: Lack,
        retry_after_s: u64,
    },
    /// A replica began the request.
    Replica(Fault),
}

/// The lack of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// The portal lends nothing at the moment, as it does not answer.
    Credit,
    /// It has as many requests, or as large ones, as it can hold.
    Room,
    /// It has no snapshot yet.
    Snapshot,
}

/// The fault of a replica that began a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It broke off.
    Broken,
    /// It sent no answer in time.
    Silent,
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
            Self::BodyTooLarge { max_bytes } => too_large(*max_bytes),
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
            Self::Method { allowed } => Problem::new(
                405,
                "request.method",
                "Method not allowed",
                format!("This address has the method {allowed}."),
            ),
            Self::BodyTimeout => Problem::new(
                408,
                "request.timeout",
                "Body too slow",
                "The body of the request stopped on its way. Send it again.",
            ),
            Self::BodyBroken => Problem::malformed("The body of the request ended too early."),
            Self::Deadline => Problem::new(
                504,
                "request.deadline",
                "Deadline exceeded",
                "The time limit in grpc-timeout was over before the end of the answer.",
            ),
            Self::OverBudget => Problem::new(
                403,
                "budget.exceeded",
                "Budget exceeded",
                "The budget of the inference key or of its organization has no room for the worst case of this request. Lower max_tokens, or raise the budget.",
            ),
            Self::Gateway { lack, retry_after_s } => lack.problem(*retry_after_s),
            Self::Replica(fault) => fault.problem(),
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

impl Lack {
    fn problem(self, retry_after_s: u64) -> Problem {
        let (code, title, what) = match self {
            Self::Credit => (
                "budget.unknown",
                "Budget unknown",
                "The budget of the inference key cannot be checked at the moment.",
            ),
            Self::Room => ("gateway.full", "Gateway full", "The gateway has too many requests."),
            Self::Snapshot => {
                ("gateway.starting", "Gateway starting", "The gateway does not know the services yet.")
            }
        };
        waiting(code, title, what, retry_after_s)
    }
}

impl Fault {
    fn problem(self) -> Problem {
        let (status, code, title, detail) = match self {
            Self::Broken => (
                502,
                "replica.broken",
                "Replica failed",
                "The replica broke off the request after its begin. The page or the log of its job has the reason.",
            ),
            Self::Silent => (
                504,
                "replica.timeout",
                "No answer in time",
                "The replica began the request and sent no answer in time.",
            ),
        };
        Problem::new(status, code, title, detail)
    }
}

/// The body of a problem in the form of the OpenAI interface.
pub fn openai_error(problem: &Problem) -> Value {
    let kind = match problem.status {
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    let param = problem.errors.first().map(|error| error.pointer.trim_start_matches('/'));
    json!({"error": {"message": problem.detail, "type": kind, "param": param, "code": problem.code}})
}

fn key(code: &str, detail: &str) -> Problem {
    Problem::new(401, code, "Inference key required", detail)
}

fn too_large(max_bytes: u64) -> Problem {
    let detail = format!("The body has more than {max_bytes} bytes.");
    Problem::new(413, "request.too_large", "Body too large", detail)
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
            (Refusal::Method { allowed: "POST" }, 405, "request.method", None),
            (Refusal::BodyTimeout, 408, "request.timeout", None),
            (Refusal::Deadline, 504, "request.deadline", None),
            (Refusal::OverBudget, 403, "budget.exceeded", None),
            (Refusal::Gateway { lack: Lack::Credit, retry_after_s: 6 }, 503, "budget.unknown", Some(6)),
            (Refusal::Gateway { lack: Lack::Room, retry_after_s: 7 }, 503, "gateway.full", Some(7)),
            (Refusal::Gateway { lack: Lack::Snapshot, retry_after_s: 8 }, 503, "gateway.starting", Some(8)),
            (Refusal::Replica(Fault::Broken), 502, "replica.broken", None),
            (Refusal::Replica(Fault::Silent), 504, "replica.timeout", None),
        ];
        let mut codes = HashSet::new();
        for (refusal, status, code, retry_after_s) in cases {
            let problem = refusal.problem();
            assert_eq!((problem.status, problem.code.as_str()), (status, code));
            assert_eq!(problem.retry_after_s, retry_after_s, "{code}");
            assert!(codes.insert(code), "one code for each reason");
        }
    }

    #[test]
    fn an_error_of_the_openai_interface_has_its_four_fields() {
        let cases = [
            (Refusal::KeyRefused, "invalid_request_error", Value::Null),
            (Refusal::Throttled { what: "tokens", retry_after_s: 1 }, "rate_limit_error", Value::Null),
            (Refusal::Replica(Fault::Broken), "server_error", Value::Null),
            (
                Refusal::InvalidField { pointer: "/n", detail: "Enter 1." },
                "invalid_request_error",
                json!("n"),
            ),
        ];
        for (refusal, kind, param) in cases {
            let problem = refusal.problem();
            let error = openai_error(&problem);
            let expected =
                json!({"message": problem.detail, "type": kind, "param": param, "code": problem.code});
            assert_eq!(error["error"], expected);
        }
    }
}
