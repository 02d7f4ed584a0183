//! Finds text in a line, and cuts the line where the finds begin and end.
//!
//! Pure: it knows no browser.

use std::ops::Range;

use crate::ui::ansi::Line;

/// A run of a line in one style that is wholly within one find or outside all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub class: String,
    pub text: String,
    /// Which find of the line it belongs to, counted from 0.
    pub find: Option<usize>,
}

/// Where `needle` stands in `text`, in bytes. Letters of ASCII match in either case.
pub fn finds(text: &str, needle: &str) -> Vec<Range<usize>> {
    if needle.is_empty() {
        return Vec::new();
    }
    // Only ASCII letters change, so places in the lowered text are places in the text.
    let (text, needle) = (text.to_ascii_lowercase(), needle.to_ascii_lowercase());
    text.match_indices(&needle).map(|(start, hit)| start..start + hit.len()).collect()
}

/// Cuts a line at the ends of `finds`, which are in order and do not overlap.
pub fn pieces(line: &Line, finds: &[Range<usize>]) -> Vec<Piece> {
    let mut all = Vec::new();
    let mut span_start = 0;
    for span in &line.spans {
        let span_end = span_start + span.text.len();
        let mut add = |range: Range<usize>, find: Option<usize>| {
            let text = span.text.get(range.start - span_start..range.end - span_start).unwrap_or_default();
            if !text.is_empty() {
                all.push(Piece { class: span.class.clone(), text: text.to_owned(), find });
            }
        };
        let mut at = span_start;
        for (index, find) in finds.iter().enumerate() {
            let (start, end) = (find.start.max(at), find.end.min(span_end));
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
        assert_eq!(finds("Loss LOSS größe", "loss"), [0..4, 5..9]);
        assert!(finds("größe", "SSE").is_empty());
        assert_eq!(finds("aaa", "aa").first(), Some(&(0..2)));
        assert_eq!(finds("aaa", "aa").len(), 1);
        assert!(finds("anything", "").is_empty());
    }

    #[test]
    fn a_find_may_cross_styles() {
        let span = |class: &str, text: &str| Span { class: class.to_owned(), text: text.to_owned() };
        let line = Line { number: 1, spans: vec![span("", "ab"), span("ansi-red", "cd"), span("", "é")] };
        let found = pieces(&line, &finds(&line.text(), "bc"));
        let found: Vec<_> = found.iter().map(|p| (p.class.as_str(), p.text.as_str(), p.find)).collect();
        let expected = [
            ("", "a", None),
            ("", "b", Some(0)),
            ("ansi-red", "c", Some(0)),
            ("ansi-red", "d", None),
            ("", "é", None),
        ];
        assert_eq!(found, expected);
    }
}
