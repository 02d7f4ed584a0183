//! The checks of texts from providers.

use berth_core::admission::is_hidden;
use berth_types::problems::Problem;

use crate::refusals::invalid_value;

/// The text without white space around it, if it has at most `most` printable characters. A text may be empty.
pub(crate) fn read_text(attribute: &str, text: &str, most: usize) -> Result<String, Problem> {
    let text = text.trim();
    if text.chars().count() > most {
        return Err(invalid_value(&format!("The attribute {attribute} has at most {most} characters.")));
    }
    if text.chars().any(char::is_control) {
        return Err(invalid_value(&format!("The attribute {attribute} has printable characters only.")));
    }
    Ok(text.to_owned())
}

/// The text without characters that hide in a line or turn its direction. Providers have them in names of people, and a
/// refusal would keep such a person from a deactivation.
pub(crate) fn without_hidden(text: &str) -> String {
    text.chars().filter(|c| !is_hidden(*c)).collect()
}

/// The text as in [`read_text`], with at least one character.
pub(crate) fn read_name(attribute: &str, text: &str, most: usize) -> Result<String, Problem> {
    let text = read_text(attribute, text, most)?;
    if text.is_empty() {
        return Err(invalid_value(&format!("The attribute {attribute} is required.")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_short_and_printable() {
        assert_eq!(read_text("a", " x ", 1).as_deref(), Ok("x"));
        assert_eq!(read_text("a", "", 1).as_deref(), Ok(""));
        for (bad, most) in [("xy", 1), ("\0", 1), (".\n.", 3)] {
            assert_eq!(
                read_text("a", bad, most).map_err(|problem| problem.code),
                Err("scim.value".to_owned())
            );
        }
        assert!(read_name("a", "  ", 5).is_err() && read_name("a", "x", 5).is_ok());
        assert_eq!(without_hidden("D\u{200f}a\u{202e}na\u{feff}"), "Dana");
    }
}
