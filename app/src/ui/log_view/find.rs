//! Search in a line, and its division at the matches.
//!
//! Pure: without a browser.

use std::ops::Range;

use crate::ui::ansi::Line;

/// A run of a line in one style, either inside of one match or outside of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub class: String,
    pub text: String,
    /// The index of the match in the line.
    pub found: Option<usize>,
}

/// Lists the matches of `needle` in bytes, without regard to the case of ASCII letters.
pub fn matches(text: &str, needle: &str) -> Vec<Range<usize>> {
    if needle.is_empty() {
        return Vec::new();
    }
    // Only ASCII letters change, so byte positions remain valid.
    let (text, needle) = (text.to_ascii_lowercase(), needle.to_ascii_lowercase());
    text.match_indices(&needle).map(|(start, found)| start..start + found.len()).collect()
}

/// Divides a line at the ends of its matches, which are ordered and disjoint.
pub fn pieces(line: &Line, matches: &[Range<usize>]) -> Vec<Piece> {
    let mut all = Vec::new();
    let mut span_start = 0;
    for span in &line.spans {
        let span_end = span_start + span.text.len();
        let mut add = |range: Range<usize>, found: Option<usize>| {
            let text = span.text.get(range.start - span_start..range.end - span_start).unwrap_or_default();
            if !text.is_empty() {
                all.push(Piece { class: span.class.clone(), text: text.to_owned(), found });
            }
        };
        let mut at = span_start;
        for (index, found) in matches.iter().enumerate() {
            let (start, end) = (found.start.max(at), found.end.min(span_end));
            if start < end {
                add(at..start, None);
                add(start..end, Some(index));
                at = end;
            }
        }
        add(at..span_end, None);
        span_start = span_end;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::ansi::Span;

    #[test]
    fn case_of_ascii_does_not_matter() {
        assert_eq!(matches("Loss LOSS größe", "loss"), [0..4, 5..9]);
        assert!(matches("größe", "SSE").is_empty());
        assert_eq!(matches("aaa", "aa").first(), Some(&(0..2)));
        assert_eq!(matches("aaa", "aa").len(), 1);
        assert!(matches("anything", "").is_empty());
    }

    #[test]
    fn a_match_may_cross_styles() {
        let span = |class: &str, text: &str| Span { class: class.to_owned(), text: text.to_owned() };
        let line =
            Line { number: 1, start: 0, spans: vec![span("", "ab"), span("ansi-red", "cd"), span("", "é")] };
        let all = pieces(&line, &matches(&line.text(), "bc"));
        let all: Vec<_> = all.iter().map(|p| (p.class.as_str(), p.text.as_str(), p.found)).collect();
        let expected = [
            ("", "a", None),
            ("", "b", Some(0)),
            ("ansi-red", "c", Some(0)),
            ("ansi-red", "d", None),
            ("", "é", None),
        ];
        assert_eq!(all, expected);
    }
}
