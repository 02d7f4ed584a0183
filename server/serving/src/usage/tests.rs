use std::borrow::Cow;

use serde_json::json;

use super::answer::AnswerMeter;
use super::stream::StreamMeter;
use super::*;

const WORST: Tokens = Tokens { prompt: 100, completion: 20 };
const BODY_BYTES: u64 = 40;

fn reported(prompt: u64, completion: u64) -> Usage {
    Usage { tokens: Tokens { prompt, completion }, is_reported: true, fault: None }
}

fn estimated(prompt: u64, completion: u64, fault: Option<Fault>) -> Usage {
    Usage { tokens: Tokens { prompt, completion }, is_reported: false, fault }
}

/// The usage of a whole answer, in one part and byte by byte.
fn answer(worst: Tokens, text: &str) -> Usage {
    let mut whole = AnswerMeter::new(worst, BODY_BYTES);
    whole.push(text.as_bytes());
    let mut parts = AnswerMeter::new(worst, BODY_BYTES);
    text.as_bytes().chunks(1).for_each(|part| parts.push(part));
    let usage = whole.finish(true);
    assert_eq!(parts.finish(true), usage);
    usage
}

#[test]
fn a_whole_answer_counts_within_its_worst_case() {
    use Fault::{AboveWorstCase, Missing, NotACount};
    for (usage, expected) in [
        (json!({"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}), reported(9, 5)),
        (json!({"prompt_tokens": 100, "completion_tokens": 20}), reported(100, 20)),
        (json!({"prompt_tokens": 101, "completion_tokens": 20}), estimated(100, 20, Some(AboveWorstCase))),
        (json!({"prompt_tokens": 9, "completion_tokens": 21}), estimated(9, 20, Some(AboveWorstCase))),
        (json!({"prompt_tokens": 9, "completion_tokens": u64::MAX}), estimated(9, 20, Some(AboveWorstCase))),
        (json!({"prompt_tokens": -1, "completion_tokens": 5}), estimated(10, 5, Some(NotACount))),
        (json!({"prompt_tokens": 1.5, "completion_tokens": 5}), estimated(10, 5, Some(NotACount))),
        (json!({"prompt_tokens": "9", "completion_tokens": 5}), estimated(10, 5, Some(NotACount))),
        (json!({"completion_tokens": 5}), estimated(10, 5, Some(Missing))),
    ] {
        let text = json!({"choices": [{"text": "usage"}], "usage": usage}).to_string();
        assert_eq!(answer(WORST, &text), expected, "{text}");
    }
}

#[test]
fn an_answer_without_usage_counts_what_was_sent() {
    let missing = |completion| estimated(10, completion, Some(Fault::Missing));
    assert_eq!(answer(WORST, r#"{"choices":[]}"#), missing(4), "14 bytes");
    assert_eq!(answer(WORST, r#"{"usage":null}"#), missing(4));
    assert_eq!(answer(WORST, &format!(r#"{{"a":"{}"}}"#, "x".repeat(9_999))), missing(20), "the worst case");
    assert_eq!(answer(WORST, "garbage"), missing(2));
    assert_eq!(answer(WORST, ""), missing(0));
    let mut broken = AnswerMeter::new(WORST, BODY_BYTES);
    broken.push(br#"{"choices":["#);
    assert_eq!(broken.finish(false), estimated(10, 3, None), "a broken answer is no lie");
}

#[test]
fn embeddings_have_no_completion() {
    let worst = Tokens { prompt: 100, completion: 0 };
    assert_eq!(answer(worst, r#"{"usage":{"prompt_tokens":8,"total_tokens":8}}"#), reported(8, 0));
    let absurd = r#"{"usage":{"prompt_tokens":8,"completion_tokens":1}}"#;
    assert_eq!(answer(worst, absurd), estimated(8, 0, Some(Fault::AboveWorstCase)));
}

/// The usage of a stream in these parts, and the bytes for its caller.
fn stream<'p>(parts: impl IntoIterator<Item = &'p [u8]>, hides_usage: bool) -> (Usage, Vec<u8>) {
    let mut meter = StreamMeter::new(WORST, BODY_BYTES, hides_usage);
    let mut passed = Vec::new();
    for part in parts {
        let out = meter.push(part);
        assert_eq!(matches!(out, Cow::Borrowed(_)), !hides_usage);
        passed.extend_from_slice(&out);
    }
    (meter.finish(), passed)
}

/// Two tokens, a tool call, a comment, the usage over two lines, and the end.
const USAGE: &str =
    "data: {\"choices\":[],\ndata:\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n";

fn sample(line_end: &str) -> (String, String) {
    let head = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"é\"}}]}\n\n",
        ": beat\n\n",
        "event: x\ndata: {\"choices\":[{\"text\":\"b\"}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}\n\n",
    );
    let whole = format!("{head}{USAGE}data: [DONE]\n\n").replace('\n', line_end);
    let hidden = format!("{head}data: [DONE]\n\n").replace('\n', line_end);
    (whole, hidden)
}

#[test]
fn each_cut_of_a_stream_counts_alike() {
    for line_end in ["\n", "\r\n", "\r"] {
        let (whole, hidden) = sample(line_end);
        let bytes = whole.as_bytes();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                let (usage, passed) = stream(parts, true);
                assert_eq!(usage, reported(9, 4), "{first} {second}");
                let text = String::from_utf8(passed).unwrap();
                if line_end == "\r\n" {
                    // The hidden event leaves the line feed of its last CR LF.
                    assert_eq!(text.len(), hidden.len() + 1);
                    assert_eq!(lines(&text), lines(&hidden), "{first} {second}");
                } else {
                    assert_eq!(text, hidden, "{first} {second}");
                }
            }
            let (usage, passed) = stream([&bytes[..first], &bytes[first..]], false);
            assert_eq!((usage, passed.as_slice()), (reported(9, 4), bytes));
        }
    }
}

fn lines(text: &str) -> Vec<&str> {
    text.split(['\r', '\n']).filter(|line| !line.is_empty()).collect()
}

#[test]
fn a_broken_stream_counts_what_was_sent() {
    let (whole, _) = sample("\n");
    let usage_at = whole.find(USAGE).unwrap();
    for end in 0..whole.len() {
        let (usage, passed) = stream([&whole.as_bytes()[..end]], true);
        let has = |text: &str| {
            let mut places = whole.as_bytes()[..end].windows(text.len());
            u64::from(places.any(|place| place == text.as_bytes()))
        };
        let expected = if end >= usage_at + USAGE.len() {
            reported(9, 4)
        } else {
            let events = ["\"é\"}}]}\n\n", "\"b\"}]}\n\n", "[{}]}}]}\n\n"];
            estimated(10, events.into_iter().map(has).sum(), None)
        };
        assert_eq!(usage, expected, "{end}");
        assert!(whole.as_bytes().starts_with(&passed) || end >= usage_at + USAGE.len());
    }
}

#[test]
fn a_stream_that_lies_is_bounded_by_what_was_sent_and_by_the_worst_case() {
    let tokens = |count: usize| "data: {\"choices\":[{\"text\":\"x\"}]}\n\n".repeat(count);
    let usage = |completion: i64| {
        format!(
            "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{completion}}}}}\n\n"
        )
    };
    let done = "data: [DONE]\n\n";
    let counted = |text: String| stream([text.as_bytes()], false).0;
    assert_eq!(counted(tokens(5) + &usage(5) + done), reported(9, 5));
    assert_eq!(counted(tokens(5) + &usage(4) + done), estimated(9, 5, Some(Fault::BelowSent)));
    assert_eq!(counted(tokens(5) + &usage(-3) + done), estimated(9, 5, Some(Fault::NotACount)));
    assert_eq!(counted(tokens(5) + &usage(21) + done), estimated(9, 20, Some(Fault::AboveWorstCase)));
    assert_eq!(counted(tokens(5) + done), estimated(10, 5, Some(Fault::Missing)));
    assert_eq!(counted(tokens(50) + done), estimated(10, 20, Some(Fault::Missing)));
    assert_eq!(counted(tokens(50)), estimated(10, 20, None));
    assert_eq!(counted(usage(3) + &tokens(2) + &usage(7)), reported(9, 7), "the last usage counts");
}

#[test]
fn a_long_event_passes_unread() {
    let text = format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "x".repeat(300_000));
    let all = format!("{text}data: {{\"choices\":[{{\"text\":\"b\"}}]}}\n\n");
    for hides_usage in [false, true] {
        let (usage, passed) = stream(all.as_bytes().chunks(7_000), hides_usage);
        assert_eq!((usage, passed.as_slice()), (estimated(10, 2, None), all.as_bytes()));
    }
    let endless = "x".repeat(10_000_000);
    let (usage, passed) = stream([endless.as_bytes()], true);
    assert_eq!((usage, passed.len()), (estimated(10, 0, None), 10_000_000));
}
