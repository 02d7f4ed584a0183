//! Levels of the lines of a log, by the usual formats of loggers.
//!
//! Pure: without a browser. The cost of a line is bounded: only its first bytes count.

use super::Shown;

/// The bytes of a line in which a level counts.
const HEAD_BYTES: usize = 256;
/// The words of a line in which a level counts.
const HEAD_WORDS: usize = 8;

/// The level of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Trace,
    Debug,
    Info,
    Warning,
    Error,
}

/// The words of loggers, compared without regard to case.
const WORDS: [(&str, Level); 16] = [
    ("trace", Level::Trace),
    ("debug", Level::Debug),
    ("info", Level::Info),
    ("notice", Level::Info),
    ("warn", Level::Warning),
    ("warning", Level::Warning),
    ("err", Level::Error),
    ("error", Level::Error),
    ("crit", Level::Error),
    ("critical", Level::Error),
    ("fatal", Level::Error),
    ("severe", Level::Error),
    ("panic", Level::Error),
    ("alert", Level::Error),
    ("emerg", Level::Error),
    ("emergency", Level::Error),
];
const JSON_KEYS: [&str; 4] = ["\"level\"", "\"severity\"", "\"levelname\"", "\"lvl\""];
const FIELD_KEYS: [&str; 3] = ["level", "severity", "lvl"];

/// Finds the level of a line. An indented line without a level continues a warning or an error, such as the
/// lines of a stack trace; `before` is the level of the line before it.
pub fn level_of(text: &str, before: Option<Level>) -> Option<Level> {
    let continued = before.filter(|level| matches!(level, Level::Warning | Level::Error));
    own_level(text).or_else(|| continued.filter(|_| text.starts_with([' ', '\t'])))
}

/// Returns true if a line of this level is shown.
pub const fn is_shown(shown: Shown, level: Option<Level>) -> bool {
    match shown {
        Shown::All => true,
        Shown::Warnings => matches!(level, Some(Level::Warning | Level::Error)),
        Shown::Errors => matches!(level, Some(Level::Error)),
    }
}

/// Returns the classes of the element of a line.
pub fn line_class(level: Option<Level>, selected: bool) -> &'static str {
    match (level, selected) {
        (Some(Level::Error), false) => "log__line log__line--error",
        (Some(Level::Error), true) => "log__line log__line--error log__line--on",
        (Some(Level::Warning), false) => "log__line log__line--warning",
        (Some(Level::Warning), true) => "log__line log__line--warning log__line--on",
        (Some(Level::Debug | Level::Trace), false) => "log__line log__line--quiet",
        (Some(Level::Debug | Level::Trace), true) => "log__line log__line--quiet log__line--on",
        (Some(Level::Info) | None, false) => "log__line",
        (Some(Level::Info) | None, true) => "log__line log__line--on",
    }
}

fn own_level(text: &str) -> Option<Level> {
    let mut end = text.len().min(HEAD_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let head = text.get(..end).unwrap_or_default();
    if head.starts_with('{') {
        return json_level(head);
    }
    let is_panic = head.starts_with("thread '") && head.contains(" panicked at ");
    if is_panic || head.starts_with("Traceback (most recent call last)") {
        return Some(Level::Error);
    }
    field_level(head).or_else(|| word_level(head))
}

/// Finds the level of a word of loggers.
fn named(word: &str) -> Option<Level> {
    WORDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, level)| *level)
}

/// Finds the level in an object such as `{"level":"error"}`.
fn json_level(head: &str) -> Option<Level> {
    JSON_KEYS.iter().find_map(|key| {
        let (_, rest) = head.split_once(key)?;
        let value = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
        named(value.split('"').next()?)
    })
}

/// Finds the level in fields such as `level=error`.
fn field_level(head: &str) -> Option<Level> {
    head.split_whitespace().find_map(|word| {
        let (key, value) = word.split_once('=')?;
        if FIELD_KEYS.contains(&key) { named(value.trim_matches('"')) } else { None }
    })
}

/// Finds the level in the words of a line, after words such as a time, a process or the name of a logger.
fn word_level(head: &str) -> Option<Level> {
    let mut words = head.split_whitespace().take(HEAD_WORDS).peekable();
    while let Some(word) = words.next() {
        let next = words.peek().copied().unwrap_or_default();
        let level = glog_level(word, next).or_else(|| marked_level(word, next));
        if level.is_some() {
            return level;
        }
        if !is_before_level(word, next) {
            return None;
        }
    }
    None
}

/// Finds the level of glog, such as `E0512 14:20:05.120`, also after brackets.
fn glog_level(word: &str, next: &str) -> Option<Level> {
    let (letter, date) = word.rsplit('[').next()?.split_at_checked(1)?;
    let is_date = matches!(date.len(), 4 | 8) && date.bytes().all(|byte| byte.is_ascii_digit());
    if !is_date || !next.starts_with(|c: char| c.is_ascii_digit()) || !next.contains(':') {
        return None;
    }
    match letter {
        "I" => Some(Level::Info),
        "W" => Some(Level::Warning),
        "E" | "F" => Some(Level::Error),
        _ => None,
    }
}

/// Finds the level of a word in capitals or with punctuation, such as `ERROR`, `[error]`, `error:` or
/// `ValueError:`. A measurement such as `error: 0.25` has no level.
fn marked_level(word: &str, next: &str) -> Option<Level> {
    if let Some(name) = word.strip_suffix(':') {
        if name.ends_with("Error") || name.ends_with("Exception") {
            let is_measurement = name == "Error" && is_number(next);
            return (!is_measurement).then_some(Level::Error);
        }
        if name.ends_with("Warning") {
            return Some(Level::Warning);
        }
    }
    let inner = word.trim_matches(|c: char| "[](){}<>:,|*-".contains(c));
    // `ERROR:root:message` and `error[E0308]:`, or `14:20:05][root][WARNING]`
    let (first, last) = (inner.split([':', '[']).next(), inner.rsplit('[').next());
    let name = [first, last].into_iter().flatten().find(|name| named(name).is_some())?;
    let level = named(name)?;
    let is_capital = !name.bytes().any(|byte| byte.is_ascii_lowercase());
    let is_marked = name.len() < word.len() && !is_number(next);
    (is_capital || is_marked).then_some(level)
}

fn is_number(word: &str) -> bool {
    word.trim_end_matches([',', ';', '%']).parse::<f64>().is_ok()
}

/// Returns true if a level may follow a word: a time, a number, a name with punctuation or in capitals, or a
/// field before a separator. A level within a sentence does not count.
fn is_before_level(word: &str, next: &str) -> bool {
    matches!(next, "-" | "|")
        || word.bytes().any(|byte| byte.is_ascii_digit() || b":[]()|_/.-".contains(&byte))
        || !word.bytes().any(|byte| byte.is_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_formats_have_levels() {
        use Level::{Debug, Error, Info, Trace, Warning};
        for (text, level) in [
            // Python logging, with the format of basicConfig and with others.
            ("ERROR:root:no such file", Error),
            ("WARNING:torch.distributed:slow", Warning),
            ("2026-11-20 14:20:05,123 - trainer - ERROR - loss is NaN", Error),
            ("2026-11-20 14:20:05,123 - trainer - INFO - epoch 3", Info),
            ("[2026-11-20 14:20:05,123][root][WARNING] - slow", Warning),
            ("CRITICAL out of memory", Error),
            ("2026-11-20 14:20:05.123 | DEBUG    | train:step:12 - ok", Debug),
            ("INFO:     Started server process [12]", Info),
            ("Traceback (most recent call last):", Error),
            ("ValueError: invalid literal for int()", Error),
            ("torch.cuda.OutOfMemoryError: CUDA out of memory.", Error),
            ("train.py:12: UserWarning: slow path", Warning),
            // Rust tracing and panics, rustc, Go.
            ("2026-11-20T14:20:05.123456Z  WARN berth::queue: slow pass", Warning),
            ("2026-11-20T14:20:05.123456Z TRACE berth: poll", Trace),
            (" INFO berth: started", Info),
            ("thread 'main' panicked at src/main.rs:2:5:", Error),
            ("thread 'main' (412) panicked at src/main.rs:2:5:", Error),
            ("error[E0308]: mismatched types", Error),
            ("warning: unused variable: `x`", Warning),
            ("panic: runtime error: index out of range", Error),
            // glog, with brackets and a rank of PyTorch.
            ("E0512 14:20:05.123456 4121 pass.cc:12] failed", Error),
            ("W20261120 14:20:05.123456 4121 pass.cc:12] slow", Warning),
            ("I0512 14:20:05.123456 4121 pass.cc:12] ready", Info),
            ("F0512 14:20:05.123456 4121 pass.cc:12] fatal", Error),
            ("[rank0]:[E1120 14:20:05.123456 ProcessGroupNCCL.cpp:616] timeout", Error),
            // JSON and fields.
            (r#"{"level":"error","msg":"no"}"#, Error),
            (r#"{"ts":1.5,"severity" : "WARNING","message":"error"}"#, Warning),
            (r#"{"msg":"x","levelname": "DEBUG"}"#, Debug),
            (r#"time=2026-11-20T14:20:05Z level=warn msg="error: x""#, Warning),
            (r#"ts=1 lvl="info" msg=ok"#, Info),
            // Others.
            ("2026/11/20 14:20:05 [error] 12#0: upstream timed out", Error),
            ("2026-11-20 14:20:05 [main] ERROR com.example.Main - no", Error),
            ("gpu-1:412:420 [0] NCCL INFO Bootstrap : Using eth0", Info),
            ("gpu-1:412:420 [0] NCCL WARN Call failed", Warning),
            ("Error: ENOENT: no such file", Error),
            ("fatal: not a git repository", Error),
            ("ERROR: 404 not found", Error),
        ] {
            assert_eq!(level_of(text, None), Some(level), "{text}");
        }
    }

    #[test]
    fn other_lines_have_no_level() {
        let far = format!("{} ERROR", "x".repeat(HEAD_BYTES));
        for text in [
            "",
            "epoch 3/40 loss 0.25",
            "Found 3 ERROR lines",
            "there was an error in the input",
            "the info page",
            "error: 0.25",
            "step:3 error: 0.25, accuracy: 0.9",
            "Error: 12%",
            "errors: none",
            "information",
            "E0512 no time follows",
            "X0512 14:20:05.123456 4121 pass.cc:12] of no level",
            r#"{"msg":"error: no level"}"#,
            r#"{"level":3}"#,
            "mode=error level",
            "1 2 3 4 5 6 7 8 ERROR",
            far.as_str(),
        ] {
            assert_eq!(level_of(text, None), None, "{text}");
        }
        // The limit is within a character.
        assert_eq!(level_of(&"é".repeat(HEAD_BYTES), None), None);
        assert_eq!(level_of(&format!("x{}", "é".repeat(HEAD_BYTES)), None), None);
    }

    #[test]
    fn an_indented_line_continues_a_warning_or_an_error() {
        for (text, before, level) in [
            ("  File \"train.py\", line 3", Some(Level::Error), Some(Level::Error)),
            ("\tat com.example.Main", Some(Level::Warning), Some(Level::Warning)),
            ("  more", Some(Level::Info), None),
            ("  more", None, None),
            ("next", Some(Level::Error), None),
            ("", Some(Level::Error), None),
            ("  INFO ready", Some(Level::Error), Some(Level::Info)),
        ] {
            assert_eq!(level_of(text, before), level, "{text}");
        }
    }

    #[test]
    fn a_filter_shows_its_level_and_those_above() {
        for (level, warnings, errors) in [
            (Some(Level::Error), true, true),
            (Some(Level::Warning), true, false),
            (Some(Level::Info), false, false),
            (Some(Level::Debug), false, false),
            (Some(Level::Trace), false, false),
            (None, false, false),
        ] {
            assert!(is_shown(Shown::All, level));
            assert_eq!(is_shown(Shown::Warnings, level), warnings, "{level:?}");
            assert_eq!(is_shown(Shown::Errors, level), errors, "{level:?}");
            assert!(line_class(level, true).starts_with(line_class(level, false)));
        }
    }
}
