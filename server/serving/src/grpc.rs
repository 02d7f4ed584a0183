//! gRPC on its way through a gateway: its content type, its time limit, and the status of a refusal.

use std::fmt::Write as _;

use berth_types::problems::Problem;

/// The content type, before a suffix such as `+proto`.
const CONTENT_TYPE: &str = "application/grpc";
/// Digits of a time limit.
const MAX_DIGITS: usize = 8;
/// The greatest number of a time limit.
const MAX_NUMBER: u64 = 99_999_999;

/// The status of a call that ended without one.
pub const UNKNOWN: u16 = 2;
/// The statuses that a gateway gives itself.
pub const DEADLINE_EXCEEDED: u16 = 4;
pub const RESOURCE_EXHAUSTED: u16 = 8;
pub const UNAVAILABLE: u16 = 14;
const INVALID_ARGUMENT: u16 = 3;
const NOT_FOUND: u16 = 5;
const PERMISSION_DENIED: u16 = 7;
const UNIMPLEMENTED: u16 = 12;
const INTERNAL: u16 = 13;
const DATA_LOSS: u16 = 15;
const UNAUTHENTICATED: u16 = 16;

/// True for the content type of gRPC. gRPC-Web is ordinary HTTP.
pub fn is_grpc(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    let Some((begin, suffix)) = kind.split_at_checked(CONTENT_TYPE.len()) else { return false };
    begin.eq_ignore_ascii_case(CONTENT_TYPE) && (suffix.is_empty() || suffix.starts_with('+'))
}

/// The milliseconds of a header `grpc-timeout`, rounded up; `None` for another text.
pub fn timeout_ms(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > MAX_DIGITS || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => number * 3_600_000,
        "M" => number * 60_000,
        "S" => number * 1_000,
        "m" => number,
        "u" => number.div_ceil(1_000),
        "n" => number.div_ceil(1_000_000),
        _ => return None,
    })
}

/// The text of a header `grpc-timeout`. A long time is cut to the greatest one, which is longer than three years.
pub fn timeout_text(ms: u64) -> String {
    if ms <= MAX_NUMBER { format!("{ms}m") } else { format!("{}S", (ms / 1_000).min(MAX_NUMBER)) }
}

/// The status of a refusal.
pub fn status(problem: &Problem) -> u16 {
    match problem.status {
        404 if problem.code == "model.not_found" => NOT_FOUND,
        400 | 422 => INVALID_ARGUMENT,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 | 405 => UNIMPLEMENTED,
        408 | 504 => DEADLINE_EXCEEDED,
        413 | 429 => RESOURCE_EXHAUSTED,
        502 | 503 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

/// The status that stands for an answer of HTTP without a message of gRPC (http-grpc-status-mapping.md of gRPC).
pub const fn status_for_http(status: u16) -> u16 {
    match status {
        400 => INTERNAL,
        401 => UNAUTHENTICATED,
        403 => PERMISSION_DENIED,
        404 => UNIMPLEMENTED,
        429 | 502..=504 => UNAVAILABLE,
        _ => UNKNOWN,
    }
}

/// True for a status that blames the server, as 5xx does in HTTP. A caller can cause others as it likes: a short time
/// limit, an unknown method.
pub const fn is_fault_of_server(status: u16) -> bool {
    matches!(status, UNKNOWN | INTERNAL | UNAVAILABLE | DATA_LOSS)
}

/// The text of a header `grpc-message`: all but printable ASCII characters and `%` as `%XX`.
pub fn message(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // A text takes all.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusals::{Fault, Lack, Refusal};

    #[test]
    fn only_grpc_has_its_content_type() {
        for good in
            ["application/grpc", "application/grpc+proto", "Application/GRPC; a=b", "application/grpc+json"]
        {
            assert!(is_grpc(good), "{good}");
        }
        for bad in
            ["", "application/grpc-web", "application/grpcs", "application/json", "application/grp\u{e9}"]
        {
            assert!(!is_grpc(bad), "{bad}");
        }
    }

    #[test]
    fn a_time_limit_has_eight_digits_and_a_unit() {
        for (text, ms) in [
            ("1H", 3_600_000),
            ("2M", 120_000),
            ("3S", 3_000),
            ("4m", 4),
            ("0m", 0),
            ("1001u", 2),
            ("1n", 1),
            ("99999999H", 359_999_996_400_000),
        ] {
            assert_eq!(timeout_ms(text), Some(ms), "{text}");
        }
        for bad in ["", "S", "1", "1s", "123456789S", "-1S", "+1S", " 1S", "1 S", "1\u{e9}", "\u{e9}"] {
            assert_eq!(timeout_ms(bad), None, "{bad}");
        }
        for ms in [0, 1, 999, 99_999_999, 100_000_000, 359_999_996_400_000] {
            let again = timeout_ms(&timeout_text(ms)).unwrap();
            assert!((again <= ms && ms - again < 1_000) || again == MAX_NUMBER * 1_000, "{ms}: {again}");
        }
    }

    #[test]
    fn each_refusal_has_a_status() {
        let cases = [
            (Refusal::KeyRequired, 16),
            (Refusal::KeyRefused, 16),
            (Refusal::UnknownAddress, 12),
            (Refusal::UnknownModel, 5),
            (Refusal::NotAllowed, 7),
            (Refusal::OverBudget, 7),
            (Refusal::BodyTooLarge { max_bytes: 5 }, 8),
            (Refusal::Throttled { what: "requests", retry_after_s: 3 }, 8),
            (Refusal::BodyBroken, 3),
            (Refusal::BodyTimeout, 4),
            (Refusal::Deadline, 4),
            (Refusal::Method { allowed: "POST" }, 12),
            (Refusal::Busy { retry_after_s: 4 }, 14),
            (Refusal::Gateway { lack: Lack::Room, retry_after_s: 7 }, 14),
            (Refusal::Replica(Fault::Broken), 14),
            (Refusal::Replica(Fault::Silent), 4),
        ];
        for (refusal, expected) in cases {
            assert_eq!(status(&refusal.problem()), expected, "{refusal:?}");
        }
    }

    #[test]
    fn a_caller_cannot_choose_the_faults_of_a_server() {
        let faults: Vec<u16> = (0..=20).filter(|status| is_fault_of_server(*status)).collect();
        assert_eq!(faults, [2, 13, 14, 15]);
    }

    #[test]
    fn a_message_is_printable_ascii_and_comes_back() {
        assert_eq!(message("a b~"), "a b~");
        assert_eq!(message("100 %\n\u{e9}"), "100 %25%0A%C3%A9");
        for byte in 0..=127_u8 {
            let text = char::from(byte).to_string();
            let expected =
                if (32..127).contains(&byte) && byte != 37 { text.clone() } else { format!("%{byte:02X}") };
            assert_eq!(message(&text), expected);
        }
    }
}
