//! The usage of a stream of server-sent events, read in parts with any cuts.
//!
//! An event ends with an empty line, and lines end with CR LF, LF or CR, as the HTML standard says. A caller
//! gets whole events only, so nothing is held back that a client could use.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Report, Sent, Tokens, Usage, settle};

/// Bytes of an event that are read. A longer one passes unread and counts as one token.
const MAX_EVENT_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Report>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<IgnoredAny>>,
}

impl Choice {
    fn has_text(&self) -> bool {
        let delta = self.delta.as_ref();
        let texts = [
            self.text.as_deref(),
            delta.and_then(|delta| delta.content.as_deref()),
            delta.and_then(|delta| delta.reasoning_content.as_deref()),
        ];
        texts.into_iter().flatten().any(|text| !text.is_empty())
    }

    fn has_tool_call(&self) -> bool {
        let calls = self.delta.as_ref().and_then(|delta| delta.tool_calls.as_ref());
        calls.is_some_and(|calls| !calls.is_empty())
    }
}

/// Reads the usage of one stream, and hides the event with the usage from a caller who did not ask for it.
#[derive(Debug)]
pub struct StreamMeter {
    worst: Tokens,
    body_bytes: u64,
    hides_usage: bool,
    /// The present event with its line ends.
    event: Vec<u8>,
    /// The present event is longer than the limit.
    is_long: bool,
    /// The present line has no byte yet.
    line_is_empty: bool,
    after_cr: bool,
    report: Option<Report>,
    texts: u64,
    events: u64,
    is_whole: bool,
}

impl StreamMeter {
    /// For a request with this worst case and this many bytes in its body. `hides_usage` is true if the gateway
    /// alone asked for the usage.
    pub const fn new(worst: Tokens, body_bytes: u64, hides_usage: bool) -> Self {
        Self {
            worst,
            body_bytes,
            hides_usage,
            event: Vec::new(),
            is_long: false,
            line_is_empty: true,
            after_cr: false,
            report: None,
            texts: 0,
            events: 0,
            is_whole: false,
        }
    }

    /// Reads the next part of a stream. Returns what the caller gets now.
    pub fn push<'p>(&mut self, part: &'p [u8]) -> Cow<'p, [u8]> {
        let mut out = Vec::new();
        let mut rest = part;
        loop {
            let length = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len());
            let (text, end) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            self.read_text(text, &mut out);
            let Some((byte, after)) = end.split_first() else { break };
            self.read_line_end(*byte, &mut out);
            rest = after;
        }
        if self.hides_usage { Cow::Owned(out) } else { Cow::Borrowed(part) }
    }

    /// True after the event that ends a whole stream.
    pub const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The usage of what came. A stream that broke off before its usage counts its events with contents.
    pub fn finish(self) -> Usage {
        let sent = Sent { tokens: self.events, at_least: self.texts, is_whole: self.is_whole };
        settle(self.worst, self.body_bytes, self.report.as_ref(), sent)
    }

    /// Reads a part of a line without a byte of its end.
    fn read_text(&mut self, text: &[u8], out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        self.after_cr = false;
        self.line_is_empty = false;
        self.keep(text, out);
    }

    /// Reads CR or LF.
    fn read_line_end(&mut self, byte: u8, out: &mut Vec<u8>) {
        let is_second_half = byte == b'\n' && self.after_cr;
        self.after_cr = byte == b'\r';
        // The line feed of a CR LF that ended an event goes with that event.
        if is_second_half && !self.is_long && self.event.is_empty() {
            return self.pass(b"\n", out);
        }
        self.keep(&[byte], out);
        if is_second_half {
            return;
        }
        if self.line_is_empty {
            self.end_event(out);
        } else {
            self.line_is_empty = true;
        }
    }

    /// Keeps bytes of the present event, or passes them if it is too long.
    fn keep(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.is_long {
            return self.pass(bytes, out);
        }
        if bytes.len() <= MAX_EVENT_BYTES.saturating_sub(self.event.len()) {
            return self.event.extend_from_slice(bytes);
        }
        let begin = std::mem::take(&mut self.event);
        self.pass(&begin, out);
        self.pass(bytes, out);
        self.is_long = true;
    }

    fn end_event(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_long) {
            self.events = self.events.saturating_add(1);
            return;
        }
        let event = std::mem::take(&mut self.event);
        if !self.read_event(&event) {
            self.pass(&event, out);
        }
        // The memory of the event serves the next one.
        self.event = event;
        self.event.clear();
    }

    fn pass(&self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.hides_usage {
            out.extend_from_slice(bytes);
        }
    }

    /// Counts an event. Returns true if it has the usage alone.
    fn read_event(&mut self, event: &[u8]) -> bool {
        let Some(data) = data(event) else { return false };
        if data.trim_ascii() == b"[DONE]" {
            self.is_whole = true;
            return false;
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk>(&data) else { return false };
        let has_text = chunk.choices.iter().any(Choice::has_text);
        let has_contents = has_text || chunk.choices.iter().any(Choice::has_tool_call);
        self.texts = self.texts.saturating_add(u64::from(has_text));
        self.events = self.events.saturating_add(u64::from(has_contents));
        let is_usage_alone = chunk.choices.is_empty() && chunk.usage.is_some();
        if chunk.usage.is_some() {
            self.report = chunk.usage;
        }
        is_usage_alone
    }
}

/// The data of an event: its lines `data:`, joined by line feeds.
fn data(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    let lines = event.split(|byte| matches!(byte, b'\r' | b'\n'));
    let values = lines.filter_map(|line| {
        let value = line.strip_prefix(b"data:")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    });
    let values: Vec<&[u8]> = values.collect();
    match *values.as_slice() {
        [] => None,
        [only] => Some(Cow::Borrowed(only)),
        ref several => Some(Cow::Owned(several.join(&b'\n'))),
    }
}
