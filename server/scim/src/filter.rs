//! The filters of lists, and their windows.

use berth_types::scim::{MAX_SCIM_FILTER_BYTES, MAX_SCIM_ROWS};

/// The comparison of an attribute with a text: `attribute eq "value"`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// The attribute in lower case.
    pub attribute: String,
    pub value: String,
}

/// Reads a filter with one comparison; `None` for any other one.
pub(crate) fn read_filter(text: &str) -> Option<Comparison> {
    if text.len() > MAX_SCIM_FILTER_BYTES {
        return None;
    }
    let (attribute, rest) = text.trim().split_once(char::is_whitespace)?;
    let (operator, value) = rest.trim_start().split_once(char::is_whitespace)?;
    let value: String = serde_json::from_str(value.trim()).ok()?;
    let is_readable = operator.eq_ignore_ascii_case("eq") && !value.chars().any(char::is_control);
    is_readable.then(|| Comparison { attribute: attribute.to_ascii_lowercase(), value })
}

/// The part of a list in one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    /// The place of the first resource, from 1 on.
    pub start: i64,
    pub rows: i64,
}

impl Window {
    /// The part by the parameters of a request. A start before the first resource means the first one, and a number of
    /// resources beyond the limits the nearest limit (RFC 7644, section 3.4.2.4).
    pub const fn new(start_index: Option<i64>, count: Option<i64>) -> Self {
        let start = match start_index {
            Some(start) if start > 1 => start,
            _ => 1,
        };
        let rows = match count {
            Some(count) if count < 0 => 0,
            Some(count) if count < MAX_SCIM_ROWS => count,
            _ => MAX_SCIM_ROWS,
        };
        Self { start, rows }
    }

    /// The number of resources, and of those before them.
    pub const fn limits(self) -> (i64, i64) {
        (self.rows, self.start - 1)
    }

    /// The total and the rows of a list with at most one resource.
    pub fn cut<T>(self, found: Option<T>) -> (i64, Vec<T>) {
        let total = i64::from(found.is_some());
        (total, found.into_iter().filter(|_| self.start == 1 && self.rows > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_one_comparison_with_a_text() {
        let read = |text: &str| read_filter(text).map(|found| (found.attribute, found.value));
        let found = |attribute: &str, value: &str| Some((attribute.to_owned(), value.to_owned()));
        // The forms of Okta and of Entra ID.
        assert_eq!(read(r#"userName eq "ada@corp.example""#), found("username", "ada@corp.example"));
        assert_eq!(read(r#" externalId  Eq  "a \"b\"" "#), found("externalid", "a \"b\""));
        let long = format!("userName eq \"{}\"", "a".repeat(MAX_SCIM_FILTER_BYTES));
        for bad in [
            "",
            "userName",
            "userName eq",
            "userName eq ada",
            "userName co \"a\"",
            r#"userName eq "a" and active eq true"#,
            "userName eq \"\\u0000\"",
            "active eq true",
            &long,
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_window_has_at_most_a_hundred_resources() {
        let window = |start: Option<i64>, count: Option<i64>| {
            let window = Window::new(start, count);
            (window.start, window.rows, window.limits().1)
        };
        assert_eq!(window(None, None), (1, 100, 0));
        assert_eq!(window(Some(0), Some(-3)), (1, 0, 0));
        assert_eq!(window(Some(101), Some(1_000)), (101, 100, 100));
        assert_eq!(window(Some(i64::MAX), Some(0)), (i64::MAX, 0, i64::MAX - 1));
        assert_eq!(Window::new(Some(1), None).cut(Some("a")), (1, vec!["a"]));
        assert_eq!(Window::new(Some(2), None).cut(Some("a")), (1, Vec::new()));
        assert_eq!(Window::new(None, None).cut(None::<&str>), (0, Vec::new()));
    }
}
