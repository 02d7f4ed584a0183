//! Input of durations: `1 d`, `12 h`, `1 h 30 min`.
//!
//! Pure, with a precision of one second.

/// The units with their seconds, largest first.
const UNITS: [(&str, i64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];

/// Returns seconds as input: `1 d`, `1 h 30 min`, `0 s`.
pub fn typed_length(seconds: i64) -> String {
    let mut left = seconds.max(0);
    let mut parts: Vec<String> = Vec::new();
    for (unit, size) in UNITS {
        if left >= size {
            parts.push(format!("{} {unit}", left / size));
            left %= size;
        }
    }
    if parts.is_empty() { "0 s".to_owned() } else { parts.join(" ") }
}

/// Splits a text after its leading characters of a kind.
fn split(text: &str, kind: fn(&char) -> bool) -> (&str, &str) {
    let end: usize = text.chars().take_while(kind).map(char::len_utf8).sum();
    text.split_at_checked(end).unwrap_or((text, ""))
}

/// Parses `1 d`, `90 min` or `1 h 30 min` to seconds; `None` for other text.
pub fn parse_length(text: &str) -> Option<i64> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let (number, behind) = split(rest, char::is_ascii_digit);
        let (unit, behind) = split(behind.trim_start(), char::is_ascii_alphabetic);
        let number: i64 = number.parse().ok()?;
        let (_, size) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.checked_mul(size)?)?;
        rest = behind.trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_survive_input_and_parsing() {
        for (seconds, text) in [
            (0, "0 s"),
            (45, "45 s"),
            (900, "15 min"),
            (5_400, "1 h 30 min"),
            (86_400, "1 d"),
            (90_061, "1 d 1 h 1 min 1 s"),
        ] {
            assert_eq!(typed_length(seconds), text);
            assert_eq!(parse_length(text), Some(seconds));
        }
        assert_eq!(parse_length(" 90min "), Some(5_400));
        assert_eq!(parse_length("1h30min"), Some(5_400));
        for wrong in ["", "soon", "12", "1.5 h", "-1 h", "1 week", "9999999999999999 d"] {
            assert_eq!(parse_length(wrong), None, "{wrong}");
        }
    }
}
