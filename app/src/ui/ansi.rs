//! Decoder from the bytes of a log to lines of styled text, in a stream.
//!
//! Pure: without browser and network. Only text and colours reach the page: the decoder drops other sequences
//! and shows control characters as symbols.
#![cfg_attr(
    not(any(feature = "hydrate", test)),
    expect(dead_code, reason = "the browser decodes logs; the server only tests the decoder")
)]

mod sgr;

use anstyle_parse::{Params, Parser, Perform};
use sgr::Style;

/// The maximum length of a line in bytes; the raw log has the rest.
const LINE_BYTES: usize = 32 * 1024;
const CUT: &str = " … line truncated; see the raw log";

/// A run of text in one style.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Classes of the style sheet, separated by spaces; empty for plain text.
    pub class: String,
    pub text: String,
}

/// One line of a log. Numbers count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub number: u64,
    /// The offset of the first byte in the log.
    pub start: u64,
    pub spans: Vec<Span>,
}

impl Line {
    /// Returns the text without styles.
    pub fn text(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }
}

/// The decoder of a log.
#[derive(Debug, Clone, Default)]
pub struct LogDecoder {
    /// The bytes of an incomplete character.
    partial: Vec<u8>,
    /// The offset of the next byte in the log, without those of `partial`.
    offset: u64,
    parser: Parser,
    builder: LineBuilder,
}

impl LogDecoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes the next bytes. Returns the completed lines.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut all = std::mem::take(&mut self.partial);
        all.extend_from_slice(bytes);
        let mut lines = Vec::new();
        let mut seen = 0;
        for chunk in all.utf8_chunks() {
            for c in chunk.valid().chars() {
                self.offset += c.len_utf8() as u64;
                self.push_char(c, &mut lines);
            }
            let rest = chunk.invalid();
            seen += chunk.valid().len() + rest.len();
            if rest.is_empty() {
                continue;
            }
            // A character is incomplete only at the end, and invalid elsewhere.
            let incomplete = std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
            if incomplete && seen == all.len() {
                self.partial = rest.to_vec();
            } else {
                self.offset += rest.len() as u64;
                self.push_char(char::REPLACEMENT_CHARACTER, &mut lines);
            }
        }
        lines
    }

    /// Skips bytes of the log that are not available.
    pub fn skip(&mut self, bytes: u64) {
        self.offset = self.offset.saturating_add(bytes);
    }

    /// Finds the incomplete last line, if it has text.
    pub fn open_line(&self) -> Option<Line> {
        let LineBuilder { spans, finished, start, .. } = &self.builder;
        (!spans.is_empty()).then(|| Line { number: finished + 1, start: *start, spans: spans.clone() })
    }

    /// Ends the log. Returns the incomplete last line.
    pub fn finish(&mut self) -> Option<Line> {
        let mut lines = Vec::new();
        if !std::mem::take(&mut self.partial).is_empty() {
            self.push_char(char::REPLACEMENT_CHARACTER, &mut lines);
        }
        if !self.builder.spans.is_empty() {
            self.builder.end_line(&mut lines);
        }
        lines.pop()
    }

    fn push_char(&mut self, c: char, lines: &mut Vec<Line>) {
        // A line feed ends every sequence, so that an unterminated one hides no further lines.
        if c == '\n' {
            self.parser = Parser::default();
            self.builder.end_line(lines);
            self.builder.start = self.offset;
            return;
        }
        let mut bytes = [0; 4];
        for byte in c.encode_utf8(&mut bytes).bytes() {
            self.parser.advance(&mut self.builder, byte);
        }
    }
}

/// The lines of a log, from its text, control characters and colours.
#[derive(Debug, Clone, Default)]
struct LineBuilder {
    style: Style,
    spans: Vec<Span>,
    /// The style of the last span, while it can grow.
    open_style: Option<Style>,
    line_bytes: usize,
    cut: bool,
    /// True after a carriage return: the next character overwrites the line, unless it is a line feed.
    returned: bool,
    finished: u64,
    /// The offset of the line in the log.
    start: u64,
}

impl Perform for LineBuilder {
    fn print(&mut self, c: char) {
        self.text(c);
    }

    fn execute(&mut self, byte: u8) {
        self.text(char::from(byte));
    }

    fn csi_dispatch(&mut self, params: &Params, intermediates: &[u8], ignore: bool, action: u8) {
        if action == b'm' && intermediates.is_empty() && !ignore {
            self.style.apply(params);
        }
    }
}

impl LineBuilder {
    fn text(&mut self, c: char) {
        match c {
            '\r' => self.returned = true,
            _ => {
                if std::mem::take(&mut self.returned) {
                    self.clear_line();
                }
                match c {
                    '\t' => self.add(c, false),
                    '\0'..='\u{1f}' => self.add(symbol(u32::from(c)), true),
                    '\u{7f}' => self.add('\u{2421}', true),
                    '\u{80}'..='\u{9f}' => self.add(char::REPLACEMENT_CHARACTER, true),
                    _ => self.add(c, false),
                }
            }
        }
    }

    fn add(&mut self, c: char, control: bool) {
        if self.cut {
            return;
        }
        if self.line_bytes + c.len_utf8() > LINE_BYTES {
            self.cut = true;
            self.open_style = None;
            self.spans.push(Span { class: "ansi-dim".to_owned(), text: CUT.to_owned() });
            return;
        }
        self.line_bytes += c.len_utf8();
        if control {
            self.open_style = None;
            self.spans.push(Span { class: "log__ctl".to_owned(), text: c.to_string() });
            return;
        }
        if self.open_style == Some(self.style)
            && let Some(last) = self.spans.last_mut()
        {
            last.text.push(c);
            return;
        }
        self.open_style = Some(self.style);
        self.spans.push(Span { class: self.style.class(), text: c.to_string() });
    }

    fn clear_line(&mut self) {
        self.spans.clear();
        self.open_style = None;
        self.line_bytes = 0;
        self.cut = false;
    }

    fn end_line(&mut self, lines: &mut Vec<Line>) {
        self.finished += 1;
        self.returned = false;
        let spans = std::mem::take(&mut self.spans);
        self.clear_line();
        lines.push(Line { number: self.finished, start: self.start, spans });
    }
}

/// Returns the Unicode symbol of a control character.
fn symbol(code: u32) -> char {
    char::from_u32(0x2400 + code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(Line::text).collect()
    }

    fn only_line(bytes: &[u8]) -> Vec<(String, String)> {
        let mut decoder = LogDecoder::new();
        assert!(decoder.push(bytes).is_empty());
        let line = decoder.open_line().unwrap();
        line.spans.into_iter().map(|span| (span.class, span.text)).collect()
    }

    #[test]
    fn lines_are_numbered_and_the_last_stays_open() {
        let mut decoder = LogDecoder::new();
        let lines = decoder.push(b"one\n\ntwo\r\nthr");
        assert_eq!(texts(&lines), ["one", "", "two"]);
        assert_eq!(lines.iter().map(|line| line.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(decoder.open_line().map(|line| (line.number, line.text())), Some((4, "thr".to_owned())));
        assert_eq!(texts(&decoder.push(b"ee\n")), ["three"]);
        assert_eq!(decoder.open_line(), None);
        assert_eq!(decoder.finish(), None);
    }

    #[test]
    fn lines_have_their_offsets_in_the_log() {
        let mut decoder = LogDecoder::new();
        let starts = |lines: &[Line]| lines.iter().map(|line| line.start).collect::<Vec<_>>();
        // An invalid byte counts as one, and a cut character as a whole.
        assert_eq!(starts(&decoder.push("é\n\n".as_bytes())), [0, 3]);
        assert_eq!(starts(&decoder.push(b"\xff\r\x1b[1m\n\xe2\x82")), [4]);
        assert_eq!(starts(&decoder.push(b"\xac\nx")), [11]);
        assert_eq!(decoder.open_line().map(|line| line.start), Some(15));
        decoder.skip(100);
        assert_eq!(starts(&decoder.push(b"y\nz\n")), [15, 118]);
    }

    #[test]
    fn every_division_has_the_same_lines() {
        let bytes =
            "größe \u{1b}[31;1m赤い\u{1b}[0m ok\n50 %\r100 %\r\n\u{1b}]0;title\u{7}end €\n".as_bytes();
        let whole = LogDecoder::new().push(bytes);
        assert_eq!(texts(&whole), ["größe 赤い ok", "100 %", "end €"]);
        for cut in 0..=bytes.len() {
            let mut decoder = LogDecoder::new();
            let (left, right) = bytes.split_at(cut);
            let mut lines = decoder.push(left);
            lines.extend(decoder.push(right));
            assert_eq!(lines, whole, "cut at {cut}");
        }
        let mut decoder = LogDecoder::new();
        let single: Vec<Line> = bytes.iter().flat_map(|byte| decoder.push(&[*byte])).collect();
        assert_eq!(single, whole);
    }

    #[test]
    fn invalid_bytes_are_replaced_at_once() {
        let mut decoder = LogDecoder::new();
        assert_eq!(texts(&decoder.push(b"a\xffb\xe2\x82c\xe2\x82\n")), ["a\u{fffd}b\u{fffd}c\u{fffd}"]);
        assert!(decoder.push(b"x\xe2\x82").is_empty());
        assert_eq!(decoder.finish().map(|line| line.text()), Some("x\u{fffd}".to_owned()));
    }

    #[test]
    fn a_lone_return_overwrites() {
        let mut decoder = LogDecoder::new();
        decoder.push(b"10 %\r20 %\r");
        assert_eq!(decoder.open_line().map(|line| line.text()), Some("20 %".to_owned()));
        assert_eq!(texts(&decoder.push(b"\r\n")), ["20 %"]);
    }

    #[test]
    fn colours_become_classes() {
        let spans = only_line(b"a\x1b[32mb\x1b[1mc\x1b[0md\x1b[91;44me\x1b[39;49;4mf\x1b[mg");
        let expected = [
            ("", "a"),
            ("ansi-green", "b"),
            ("ansi-green ansi-bold", "c"),
            ("", "d"),
            ("ansi-bright-red ansi-bg-blue", "e"),
            ("ansi-underline", "f"),
            ("", "g"),
        ];
        assert_eq!(spans, expected.map(|(class, text)| (class.to_owned(), text.to_owned())));
    }

    #[test]
    fn extended_colours_become_the_nearest() {
        let class = |sequence: &str| {
            let spans = only_line(format!("\u{1b}[{sequence}mx").as_bytes());
            spans.into_iter().next().unwrap().0
        };
        assert_eq!(class("38;5;1"), "ansi-red");
        assert_eq!(class("38;5;12"), "ansi-bright-blue");
        assert_eq!(class("38;5;34;1"), "ansi-green ansi-bold");
        assert_eq!(class("38;2;200;190;10"), "ansi-yellow");
        assert_eq!(class("38:2::10:180:190"), "ansi-cyan");
        assert_eq!(class("48;5;240"), "ansi-bg-black");
        assert_eq!(class("38;9;1"), "ansi-bold");
    }

    #[test]
    fn other_sequences_are_dropped_and_controls_are_shown() {
        let spans = only_line(b"a\x1b[2J\x1b[10;5Hb\x1b(Bc\x1b]8;;http://x\x1b\\d\x1b[?25l\x07\x08\te\x7f");
        let expected = [
            ("", "abcd"),
            ("log__ctl", "\u{2407}"),
            ("log__ctl", "\u{2408}"),
            ("", "\te"),
            ("log__ctl", "\u{2421}"),
        ];
        assert_eq!(spans, expected.map(|(class, text)| (class.to_owned(), text.to_owned())));
    }

    #[test]
    fn an_endless_sequence_ends_with_its_line() {
        let mut decoder = LogDecoder::new();
        assert_eq!(texts(&decoder.push(b"a\x1b]0;never\nb\x1b[3\nc\x1bPnever\nd\n")), ["a", "b", "c", "d"]);
    }

    #[test]
    fn a_hostile_sequence_shows_nothing() {
        let command = format!("a\u{1b}]0;{}\u{7}b", "x;".repeat(100_000));
        assert_eq!(only_line(command.as_bytes()), [(String::new(), "ab".to_owned())]);
        let colours = format!("a\u{1b}[{}mb\u{1b}[?1;31mc\u{1b}[1 md", "1;".repeat(1_000));
        assert_eq!(only_line(colours.as_bytes()), [(String::new(), "abcd".to_owned())]);
        let number = b"a\x1b[99999999999999999999mb\x1b[38;5;99999mc";
        assert_eq!(only_line(number), [(String::new(), "abc".to_owned())]);
    }

    #[test]
    fn a_huge_line_is_cut_but_counts_once() {
        let mut decoder = LogDecoder::new();
        decoder.push(&vec![b'x'; 3 * LINE_BYTES]);
        let lines = decoder.push(b"\nnext\n");
        assert_eq!(lines.first().map(|line| line.text().len()), Some(LINE_BYTES + CUT.len()));
        assert_eq!(lines.get(1).map(|line| (line.number, line.text())), Some((2, "next".to_owned())));
    }
}
