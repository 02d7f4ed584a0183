//! The answer of an OpenAI service: events of a stream, or an error. Pure.

use serde::Deserialize;

/// Bytes of the longest event.
const MAX_EVENT_BYTES: usize = 256 << 10;

/// The events of a stream of server-sent events, from pieces of its text.
#[derive(Debug, Default)]
pub struct Events {
    rest: String,
}

impl Events {
    /// Adds a piece of text. Returns the data of each line that is complete; a longer line than [`MAX_EVENT_BYTES`] is
    /// dropped.
    pub fn push(&mut self, piece: &str) -> Vec<String> {
        self.rest.push_str(piece);
        let Some((complete, rest)) = self.rest.rsplit_once('\n') else {
            if self.rest.len() > MAX_EVENT_BYTES {
                self.rest.clear();
            }
            return Vec::new();
        };
        let data = complete
            .lines()
            .filter_map(|line| line.strip_prefix("data:"))
            .map(|data| data.trim().to_owned())
            .collect();
        self.rest = rest.to_owned();
        data
    }
}

/// A part of a completion.
#[derive(Debug, Default, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    error: Option<ErrorBody>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Option<Message>,
    #[serde(default)]
    message: Option<Message>,
}

#[derive(Debug, Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ErrorBody {
    #[serde(default)]
    message: String,
}

/// Returns the text in the data of an event or in a whole answer; empty without text.
pub fn completion_text(data: &str) -> String {
    let chunk: Chunk = serde_json::from_str(data).unwrap_or_default();
    if let Some(error) = chunk.error {
        return format!("\n[{}]", error.message);
    }
    let messages = chunk.choices.into_iter().filter_map(|choice| choice.delta.or(choice.message));
    messages.filter_map(|message| message.content).collect()
}

/// Returns the text in the next piece of a stream.
pub fn chat_text(events: &mut Events, piece: &str) -> String {
    events.push(piece).iter().map(|data| completion_text(data)).collect()
}

/// The errors of gateways: that of OpenAI, or a problem of Berth.
#[derive(Debug, Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    error: Option<ErrorBody>,
    #[serde(default)]
    detail: Option<String>,
}

/// Returns the sentence of a refused request; the whole body without a known form.
pub fn refusal_text(body: &str) -> String {
    let refusal: Refusal = serde_json::from_str(body).unwrap_or_default();
    let known = refusal.error.map(|error| error.message).or(refusal.detail);
    known.filter(|text| !text.is_empty()).unwrap_or_else(|| body.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\r\n\r\n\
        : a comment\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"Mo\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"in\\n\"}}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n";

    /// The text of a stream in pieces.
    fn text(pieces: &[&str]) -> String {
        let mut events = Events::default();
        pieces.iter().map(|piece| chat_text(&mut events, piece)).collect()
    }

    #[test]
    fn a_stream_gives_its_text_however_it_is_cut() {
        assert_eq!(text(&[STREAM]), "Moin\n");
        for cut in 0..=STREAM.len() {
            let (first, second) = STREAM.split_at(cut);
            assert_eq!(text(&[first, second]), "Moin\n", "{cut}");
        }
        let bytes: Vec<String> = STREAM.chars().map(String::from).collect();
        assert_eq!(text(&bytes.iter().map(String::as_str).collect::<Vec<_>>()), "Moin\n");
    }

    #[test]
    fn a_line_without_an_end_is_bounded() {
        let mut events = Events::default();
        let piece = "x".repeat(MAX_EVENT_BYTES);
        assert!(events.push(&piece).is_empty());
        assert!(events.push("x").is_empty());
        assert_eq!(events.rest.len(), 0);
    }

    #[test]
    fn a_whole_answer_and_errors_have_a_text() {
        assert_eq!(completion_text(r#"{"choices":[{"message":{"content":"Hi"}}]}"#), "Hi");
        assert_eq!(completion_text(r#"{"error":{"message":"the replica ended"}}"#), "\n[the replica ended]");
        assert_eq!(completion_text("no JSON"), "");
        assert_eq!(
            refusal_text(r#"{"error":{"message":"The key is unknown.","type":"x"}}"#),
            "The key is unknown."
        );
        assert_eq!(refusal_text(r#"{"detail":"Too many requests.","code":"x"}"#), "Too many requests.");
        assert_eq!(refusal_text(" <p>502</p> "), "<p>502</p>");
    }
}
