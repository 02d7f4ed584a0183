//! The name of a browser in the record of its session.

/// Bytes of a recorded name.
const MAX_BYTES: usize = 200;

/// Returns the printable characters of the header `User-Agent`, at most [`MAX_BYTES`] bytes.
pub fn browser_head(header: &str) -> String {
    let mut head = String::new();
    for c in header.chars().filter(|c| !c.is_control()) {
        if head.len() + c.len_utf8() > MAX_BYTES {
            break;
        }
        head.push(c);
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_printable() {
        assert_eq!(browser_head("curl/8.5.0"), "curl/8.5.0");
        assert_eq!(browser_head("a\u{1b}[31mb\n"), "a[31mb");
        assert_eq!(browser_head(&"x".repeat(1_000)).len(), MAX_BYTES);
        // A character of several bytes is not cut.
        assert_eq!(browser_head(&format!("x{}", "é".repeat(200))).len(), MAX_BYTES - 1);
    }
}
