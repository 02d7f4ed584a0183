//! The width of texts, and lines that fit a width. Widths are in points, 1/72 inch.

/// A width beyond the maximum by less than this length is an error of rounding.
const ROUNDING_PT: f32 = 0.01;

/// The weight of a font.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    Regular,
    Bold,
}

/// The look of a text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Style {
    pub size_pt: f32,
    pub weight: Weight,
    pub is_quiet: bool,
}

/// The widths of the characters of the fonts.
pub(super) trait Widths {
    /// Returns the width of a character as a part of the font's size.
    fn em(&self, c: char, weight: Weight) -> f32;

    fn width_pt(&self, text: &str, style: Style) -> f32 {
        text.chars().map(|c| self.em(c, style.weight)).sum::<f32>() * style.size_pt
    }
}

/// Splits a text into lines of at most `max_pt`. A line break of the text begins a line, and a word that is wider
/// than a line is broken. A line has at least one character. Control characters become spaces.
pub(super) fn wrap(widths: &impl Widths, text: &str, style: Style, max_pt: f32) -> Vec<String> {
    let max_pt = max_pt + ROUNDING_PT;
    let space_pt = widths.width_pt(" ", style);
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let paragraph: String = paragraph.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let mut line = String::new();
        let mut used_pt = 0.0;
        for word in paragraph.split_whitespace() {
            let word_pt = widths.width_pt(word, style);
            if !line.is_empty() && used_pt + space_pt + word_pt <= max_pt {
                line.push(' ');
                line.push_str(word);
                used_pt += space_pt + word_pt;
                continue;
            }
            if !line.is_empty() {
                lines.push(std::mem::take(&mut line));
                used_pt = 0.0;
            }
            for c in word.chars() {
                let char_pt = widths.em(c, style.weight) * style.size_pt;
                if !line.is_empty() && used_pt + char_pt > max_pt {
                    lines.push(std::mem::take(&mut line));
                    used_pt = 0.0;
                }
                line.push(c);
                used_pt += char_pt;
            }
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A font whose characters are half as wide as high.
    pub(in crate::pdf) struct HalfWidths;

    impl Widths for HalfWidths {
        fn em(&self, _: char, _: Weight) -> f32 {
            0.5
        }
    }

    /// Lines of ten characters.
    fn lines(text: &str) -> Vec<String> {
        let style = Style { size_pt: 2.0, weight: Weight::Regular, is_quiet: false };
        wrap(&HalfWidths, text, style, 10.0)
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(lines("one two three"), ["one two", "three"]);
        assert_eq!(lines("exactly te"), ["exactly te"]);
        assert_eq!(lines("exactly ten"), ["exactly", "ten"]);
        assert_eq!(lines("  many   spaces  "), ["many", "spaces"]);
        assert_eq!(lines(""), [""]);
    }

    #[test]
    fn line_breaks_stay_and_control_characters_become_spaces() {
        assert_eq!(lines("Pier 1\r\nKiel\n"), ["Pier 1", "Kiel", ""]);
        assert_eq!(lines("a\u{0}b\tc"), ["a b c"]);
    }

    #[test]
    fn wide_words_are_broken() {
        assert_eq!(lines("a abcdefghijklm n"), ["a", "abcdefghij", "klm n"]);
        let style = Style { size_pt: 2.0, weight: Weight::Bold, is_quiet: false };
        assert_eq!(wrap(&HalfWidths, "ab", style, 0.0), ["a", "b"]);
    }
}
