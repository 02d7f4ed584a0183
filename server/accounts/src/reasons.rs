//! Reasons of changes of accounts by operators.

use berth_types::people::MAX_REASON_CHARS;
use berth_types::problems::Problem;

/// Checks the reason of a change of an account. Returns it without the white space around it.
pub(crate) fn check_reason(reason: &str) -> Result<String, Problem> {
    let fits = reason.chars().count() <= MAX_REASON_CHARS && !reason.chars().any(char::is_control);
    match reason.trim() {
        trimmed if fits && !trimmed.is_empty() => Ok(trimmed.to_owned()),
        _ => Err(Problem::invalid_field("/reason", "Enter 1 to 300 printable characters on one line.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_short_line() {
        assert_eq!(check_reason(" Unpaid invoices. ").ok().as_deref(), Some("Unpaid invoices."));
        for bad in ["", "  ", "two\nlines", &"x".repeat(MAX_REASON_CHARS + 1)] {
            assert!(check_reason(bad).is_err(), "{bad:?}");
        }
    }
}
