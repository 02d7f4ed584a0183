//! The answer of a service: its progress, the events of a stream of an OpenAI service, or an error. Pure.

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

const UNANSWERED: &str = "The gateway did not answer this page, or the answer broke off. Check that your browser reaches the address of the gateway. If the gateway is new, load this page again.";

/// The state of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Idle,
    /// No answer yet.
    Waiting,
    /// The answer comes.
    Answering(u16),
    /// The whole answer is shown.
    Ended(u16),
    /// The first part of a longer answer is shown.
    Cut(u16),
    /// No answer, or its break.
    Failed,
    /// The portal names no gateway.
    NoGateway,
}

impl Progress {
    /// Returns true before the end of an answer.
    pub const fn is_running(self) -> bool {
        matches!(self, Self::Waiting | Self::Answering(_))
    }

    /// Returns the sentence about the state; empty without a request.
    pub fn text(self) -> String {
        match self {
            Self::Idle => String::new(),
            Self::Waiting => "Waiting for the answer. A sleeping service starts a replica first.".to_owned(),
            Self::Answering(status) => format!("Status {status}, answer in progress."),
            Self::Ended(status) => format!("Status {status}, complete."),
            Self::Cut(status) => {
                format!("Status {status}. The panel shows only the first MiB of the answer.")
            }
            Self::Failed => UNANSWERED.to_owned(),
            Self::NoGateway => {
                "No gateway is connected to the portal now. Nothing was sent. Try again later.".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_off_answer_is_not_complete() {
        let text = "Status 200. The panel shows only the first MiB of the answer.";
        assert_eq!(Progress::Cut(200).text(), text);
    }

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
