//! Percent-encoding of values in an address. Pure.

/// Percent-encodes all characters except the unreserved ones.
pub fn escaped(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(b).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_one_value() {
        assert_eq!(escaped("h100-80gb.1g.10gb+me"), "h100-80gb.1g.10gb%2Bme");
        assert_eq!(escaped("a&b=c d/ü"), "a%26b%3Dc%20d%2F%C3%BC");
    }
}
