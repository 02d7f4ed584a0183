//! A request of the OpenAI interface: its model, its worst case, and the question for its usage.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::Tokens;
use super::members::MemberScanner;
use crate::refusals::Refusal;
use crate::routes::Endpoint;

/// Completions of one prompt.
const MAX_COMPLETIONS: u64 = 128;
/// Tokens that the template of a chat adds at most, beside the messages.
const TEMPLATE_TOKENS: u64 = 256;

/// The fields of a body that a gateway reads. A repeated one is an error: another reader could choose the other.
#[derive(Deserialize)]
struct Body {
    model: Option<String>,
    stream: Option<bool>,
    stream_options: Option<Map<String, Value>>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    /// The limit of llama.cpp, which obeys it before the others; a negative one is none.
    n_predict: Option<i64>,
    n: Option<u64>,
    /// The name of llama.cpp for `n`, which it prefers.
    n_cmpl: Option<u64>,
    best_of: Option<u64>,
    prompt: Option<Prompts>,
    messages: Option<Vec<Message>>,
    /// A template of the caller, which can make any number of tokens from a short body.
    chat_template: Option<IgnoredAny>,
}

impl Body {
    /// The most tokens of one completion, if each server keeps such a limit. Servers differ in which field goes first.
    fn max_tokens(&self) -> Option<u64> {
        // Some servers know this field alone, and read 0 as no limit.
        let limit = self.max_tokens.filter(|most| *most > 0)?;
        let limit = limit.max(self.max_completion_tokens.unwrap_or(0));
        match self.n_predict {
            None => Some(limit),
            // Other servers do not know it.
            Some(most) => u64::try_from(most).ok().map(|most| limit.max(most)),
        }
    }
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Content,
}

/// The content of a message: true if it has more than text.
#[derive(Default)]
struct Content(bool);

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: Option<String>,
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of parts or null")
    }

    fn visit_str<E>(self, _: &str) -> Result<Content, E> {
        Ok(Content(false))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content(false))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
        let mut has_media = false;
        while let Some(part) = parts.next_element::<Part>()? {
            has_media |= part.kind.as_deref() != Some("text");
        }
        Ok(Content(has_media))
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// The number of prompts in the field `prompt`: a text, tokens, or a list of either.
struct Prompts(u64);

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, tokens, or a list of them")
    }

    fn visit_str<E>(self, _: &str) -> Result<Prompts, E> {
        Ok(Prompts(1))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompts, A::Error> {
        let (mut count, mut has_token) = (0_u64, false);
        while let Some(item) = items.next_element::<PromptItem>()? {
            count += 1;
            has_token |= item.is_token;
        }
        Ok(Prompts(if has_token { 1 } else { count.max(1) }))
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

struct PromptItem {
    is_token: bool,
}

struct PromptItemVisitor;

impl<'de> Visitor<'de> for PromptItemVisitor {
    type Value = PromptItem;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a token or a list of tokens")
    }

    fn visit_str<E>(self, _: &str) -> Result<PromptItem, E> {
        Ok(PromptItem { is_token: false })
    }

    fn visit_u64<E>(self, _: u64) -> Result<PromptItem, E> {
        Ok(PromptItem { is_token: true })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<PromptItem, A::Error> {
        while tokens.next_element::<IgnoredAny>()?.is_some() {}
        Ok(PromptItem { is_token: false })
    }
}

impl<'de> Deserialize<'de> for PromptItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptItemVisitor)
    }
}

/// A request to an inference endpoint, as its body describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InferenceRequest {
    pub endpoint: Endpoint,
    pub model: String,
    /// The answer is a stream of events.
    pub is_stream: bool,
    /// The caller asked for the usage in the stream.
    pub asks_for_usage: bool,
    pub body_bytes: u64,
    /// The most tokens of one completion, if the request has a limit.
    max_tokens: Option<u64>,
    prompts: u64,
    /// Completions of each prompt.
    completions: u64,
    /// A message has more than text, or the caller sends a template. So the bytes of the body do not bound its tokens.
    has_unknown_size: bool,
}

impl InferenceRequest {
    /// Reads a whole body, whose size is checked before.
    ///
    /// # Errors
    /// The body is no request, or a number in it has no sense.
    pub fn read(endpoint: Endpoint, body: &[u8]) -> Result<Self, Refusal> {
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(Refusal::Malformed { line: 1, column: 1 });
        }
        let fields: Body = serde_json::from_slice(body)
            .map_err(|e| Refusal::Malformed { line: e.line(), column: e.column() })?;
        let max_tokens = fields.max_tokens();
        let Some(model) = fields.model.filter(|model| !model.is_empty()) else {
            return Err(Refusal::InvalidField { pointer: "/model", detail: "Name a model." });
        };
        let most = fields.n.max(fields.best_of).max(fields.n_cmpl);
        let completions = most.unwrap_or(1).max(1);
        if fields.n == Some(0) || completions > MAX_COMPLETIONS {
            let detail = "Ask for 1 to 128 completions of a prompt.";
            return Err(Refusal::InvalidField { pointer: "/n", detail });
        }
        let options = fields.stream_options.unwrap_or_default();
        Ok(Self {
            endpoint,
            model,
            is_stream: fields.stream == Some(true) && endpoint != Endpoint::Embeddings,
            asks_for_usage: options.get("include_usage") == Some(&Value::Bool(true)),
            body_bytes: body.len() as u64,
            max_tokens,
            prompts: fields.prompt.map_or(1, |prompts| prompts.0),
            completions,
            has_unknown_size: fields.chat_template.is_some()
                || fields.messages.iter().flatten().any(|message| message.content.0),
        })
    }

    /// The most tokens that the request can have: a token of the prompt has at least one byte in the body, or
    /// comes from the template, and prompt and completion fit into the context.
    pub fn worst(&self, context_tokens: u64) -> Tokens {
        if self.endpoint == Endpoint::Embeddings {
            return Tokens { prompt: self.body_bytes, completion: 0 };
        }
        let contexts = context_tokens.saturating_mul(self.prompts);
        let by_bytes = self.body_bytes.saturating_add(TEMPLATE_TOKENS);
        let prompt = if self.has_unknown_size { contexts } else { by_bytes.min(contexts) };
        let each = self.max_tokens.unwrap_or(context_tokens).min(context_tokens);
        let all = self.prompts.saturating_mul(self.completions);
        Tokens { prompt, completion: each.saturating_mul(all) }
    }

    /// The body that asks for the usage of a stream: `stream_options.include_usage` is true, and all other bytes
    /// stay in their order. The body is the one of [`Self::read`].
    pub fn with_usage<'b>(&self, body: &'b [u8]) -> Cow<'b, [u8]> {
        if !self.is_stream || self.asks_for_usage {
            return Cow::Borrowed(body);
        }
        let Some(options) = member(body, "stream_options") else {
            let end = body.iter().rposition(|byte| *byte == b'}').unwrap_or(body.len());
            return Cow::Owned(replace(body, end..end, br#","stream_options":{"include_usage":true}"#));
        };
        let text = body.get(options.clone()).unwrap_or_default();
        if text == b"null" {
            return Cow::Owned(replace(body, options, br#"{"include_usage":true}"#));
        }
        if let Some(value) = member(text, "include_usage") {
            let value = options.start + value.start..options.start + value.end;
            return Cow::Owned(replace(body, value, b"true"));
        }
        let begin = options.start + 1;
        let is_empty = text.get(1..).unwrap_or_default().trim_ascii() == b"}";
        let added =
            if is_empty { br#""include_usage":true"#.as_slice() } else { br#""include_usage":true,"# };
        Cow::Owned(replace(body, begin..begin, added))
    }
}

/// The place of the value of a member of a JSON object.
fn member(object: &[u8], name: &'static str) -> Option<Range<usize>> {
    let mut scanner = MemberScanner::new(name);
    scanner.push(object);
    scanner.range()
}

/// The body with another text in a range.
fn replace(body: &[u8], range: Range<usize>, text: &[u8]) -> Vec<u8> {
    let (head, tail) = (body.get(..range.start), body.get(range.end..));
    [head.unwrap_or_default(), text, tail.unwrap_or_default()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(body: &str) -> Result<InferenceRequest, Refusal> {
        InferenceRequest::read(Endpoint::ChatCompletions, body.as_bytes())
    }

    fn worst(body: &str) -> Tokens {
        read(body).unwrap().worst(4_096)
    }

    #[test]
    fn the_worst_case_follows_from_the_body() {
        let body = r#"{"model":"m"}"#;
        assert_eq!(worst(body), Tokens { prompt: 269, completion: 4_096 }, "13 bytes and the template");
        for (fields, completion) in [
            (r#""max_tokens":7"#, 7),
            (r#""max_tokens":null"#, 4_096),
            (r#""max_tokens":7,"max_completion_tokens":9"#, 9),
            (r#""max_tokens":9000"#, 4_096),
            (r#""max_completion_tokens":7"#, 4_096),
            (r#""max_tokens":0"#, 4_096),
            (r#""max_tokens":0,"max_completion_tokens":7"#, 4_096),
            (r#""max_tokens":7,"max_completion_tokens":0"#, 7),
            (r#""max_tokens":7,"max_completion_tokens":null"#, 7),
            (r#""max_tokens":7,"n":3"#, 21),
            (r#""max_tokens":7,"n":3,"best_of":5"#, 35),
            (r#""max_tokens":7,"n":3,"n_cmpl":5"#, 35),
            (r#""max_tokens":7,"n_predict":9"#, 9),
            (r#""max_tokens":9,"n_predict":7"#, 9),
            (r#""max_completion_tokens":7,"n_predict":9"#, 4_096),
            (r#""max_tokens":0,"n_predict":9"#, 4_096),
            (r#""max_tokens":7,"n_predict":0"#, 7),
            (r#""max_tokens":7,"n_predict":-1"#, 4_096),
            (r#""max_tokens":7,"n_predict":9000"#, 4_096),
            (r#""max_tokens":7,"n_predict":null"#, 7),
            (r#""n_predict":7"#, 4_096),
            (r#""max_tokens":7,"prompt":"a""#, 7),
            (r#""max_tokens":7,"prompt":["a","b"]"#, 14),
            (r#""max_tokens":7,"prompt":[1,2,3]"#, 7),
            (r#""max_tokens":7,"prompt":[[1,2],[3]],"n":2"#, 28),
            (r#""max_tokens":7,"prompt":[]"#, 7),
        ] {
            assert_eq!(worst(&format!(r#"{{"model":"m",{fields}}}"#)).completion, completion, "{fields}");
        }
        let long = "x".repeat(5_000);
        assert_eq!(worst(&format!(r#"{{"model":"m","prompt":"{long}"}}"#)).prompt, 4_096);
        let embeddings = InferenceRequest::read(Endpoint::Embeddings, body.as_bytes()).unwrap();
        assert_eq!(embeddings.worst(10), Tokens { prompt: 13, completion: 0 });
    }

    #[test]
    fn a_message_with_a_picture_can_fill_the_context() {
        let prompt = |content: &str| {
            worst(&format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":{content}}},{{"role":"x"}}]}}"#
            ))
            .prompt
        };
        for text in ["null", r#""hi""#, "[]", r#"[{"type":"text","text":"hi"}]"#] {
            assert!(prompt(text) < 400, "{text}");
        }
        for media in [r#"[{"type":"image\u005furl"}]"#, "[{}]", r#"[{"type":"text"},{"type":"file"}]"#] {
            assert_eq!(prompt(media), 4_096, "{media}");
        }
    }

    #[test]
    fn a_template_of_the_caller_can_fill_the_context() {
        let prompt = |template: &str| worst(&format!(r#"{{"model":"m","chat_template":{template}}}"#)).prompt;
        assert!(prompt("null") < 400);
        for template in [r#""{{ 'a' * 9999 }}""#, r#""""#, "5"] {
            assert_eq!(prompt(template), 4_096, "{template}");
        }
    }

    #[test]
    fn bad_bodies_are_refused() {
        for bad in [
            "",
            "[\"m\"]",
            "{",
            r#"{"model":"m"} x"#,
            r#"{"model":5}"#,
            r#"{"model":"a","model":"b"}"#,
            r#"{"model":"m","max_tokens":1,"max\u005ftokens":2}"#,
            r#"{"model":"m","max_tokens":-1}"#,
            r#"{"model":"m","max_tokens":1.5}"#,
            r#"{"model":"m","max_tokens":1,"n_predict":"9"}"#,
            r#"{"model":"m","max_tokens":1,"n_predict":9.5}"#,
            r#"{"model":"m","n_predict":1,"n\u005fpredict":9}"#,
            r#"{"model":"m","stream":"yes"}"#,
            r#"{"model":"m","stream_options":[true]}"#,
            r#"{"model":"m","messages":[{"content":5}]}"#,
            r#"{"model":"m","prompt":{}}"#,
        ] {
            assert!(matches!(read(bad), Err(Refusal::Malformed { .. })), "{bad}");
        }
        for bad in ["{}", r#"{"messages":[]}"#, r#"{"model":null}"#, r#"{"model":""}"#] {
            assert!(matches!(read(bad), Err(Refusal::InvalidField { pointer: "/model", .. })), "{bad}");
        }
        for bad in [
            r#"{"model":"m","n":0}"#,
            r#"{"model":"m","n":129}"#,
            r#"{"model":"m","best_of":129}"#,
            r#"{"model":"m","n_cmpl":129}"#,
        ] {
            assert!(matches!(read(bad), Err(Refusal::InvalidField { pointer: "/n", .. })), "{bad}");
        }
    }

    #[test]
    fn the_usage_is_asked_for_and_the_rest_stays() {
        let asked = |body: &str| {
            let changed = read(body).unwrap().with_usage(body.as_bytes()).into_owned();
            String::from_utf8(changed).unwrap()
        };
        for (body, expected) in [
            (
                r#"{"stream":true,"z":1,"model":"m","a":"}"} "#,
                r#"{"stream":true,"z":1,"model":"m","a":"}","stream_options":{"include_usage":true}} "#,
            ),
            (
                r#"{"stream_options": null,"model":"m","stream":true}"#,
                r#"{"stream_options": {"include_usage":true},"model":"m","stream":true}"#,
            ),
            (
                r#"{"stream_options":{ },"model":"m","stream":true}"#,
                r#"{"stream_options":{"include_usage":true },"model":"m","stream":true}"#,
            ),
            (
                r#"{"stream_options":{"x":{"include_usage":false}},"model":"m","stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"x":{"include_usage":false}},"model":"m","stream":true}"#,
            ),
            (
                r#"{"stream_options":{"a":1,"include_usage": false ,"b":2},"model":"m","stream":true}"#,
                r#"{"stream_options":{"a":1,"include_usage": true ,"b":2},"model":"m","stream":true}"#,
            ),
        ] {
            assert_eq!(asked(body), expected);
            assert_eq!(asked(expected), expected, "once only");
        }
        for same in [r#"{"model":"m"}"#, r#"{"model":"m","stream":false}"#, r#"{"model":"m","stream":null}"#]
        {
            assert_eq!(asked(same), same);
        }
    }

    proptest! {
        #[test]
        fn a_changed_body_has_the_same_fields_and_the_usage(
            others in prop::collection::btree_map("[a-f\\\\\"{}]{1,3}", any::<i32>(), 0..4),
            options in prop_oneof![
                Just(None::<Value>),
                Just(Some(json!(null))),
                Just(Some(json!({}))),
                any::<bool>().prop_map(|on| Some(json!({"include_usage": on, "b}": "\\\"{"}))),
                any::<i32>().prop_map(|other| Some(json!({"other": [other]}))),
            ],
            pretty: bool,
        ) {
            let mut body = json!({"model": "m", "stream": true});
            for (name, value) in others {
                body[name.as_str()] = json!(value);
            }
            if let Some(options) = options {
                body["stream_options"] = options;
            }
            let text = if pretty { serde_json::to_vec_pretty(&body) } else { serde_json::to_vec(&body) };
            let text = text.unwrap();
            let request = InferenceRequest::read(Endpoint::Completions, &text).unwrap();
            let changed: Value = serde_json::from_slice(&request.with_usage(&text)).unwrap();
            if !body["stream_options"].is_object() {
                body["stream_options"] = json!({});
            }
            body["stream_options"]["include_usage"] = json!(true);
            prop_assert_eq!(changed, body);
        }

        #[test]
        fn any_bytes_are_a_request_or_a_refusal(bytes: Vec<u8>) {
            let _ = InferenceRequest::read(Endpoint::Completions, &bytes);
            let text = [br#"{"model":"m","stream":true,"x":"#.as_slice(), &bytes].concat();
            if let Ok(request) = InferenceRequest::read(Endpoint::Completions, &text) {
                prop_assert!(serde_json::from_slice::<Value>(&request.with_usage(&text)).is_ok());
            }
        }
    }
}
