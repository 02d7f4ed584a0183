//! Plain words about fields that do not fit, in place of the parser's own text.

/// The most characters of a name of the sender in a sentence.
const MOST_NAME_CHARS: usize = 80;

/// The sentences about a fault of the parser. `subject` is the field, or the whole body.
pub(crate) fn plain(subject: &str, message: &str) -> String {
    let other = || format!("Invalid value: {message}.");
    unfit(subject, message).or_else(|| named(subject, message)).unwrap_or_else(other)
}

/// True for the fault of a number that its type does not have.
pub(crate) fn is_beyond(message: &str) -> bool {
    ["number too large to fit in target type", "number too small to fit in target type"]
        .iter()
        .any(|text| message.ends_with(text))
}

/// The bounds of the widest type whose largest number fits.
pub(crate) fn widest_bounds(fits: impl Fn(i128) -> bool) -> Option<(i128, i128)> {
    let kinds = ["u64", "i64", "u32", "i32", "u16", "i16", "u8", "i8"];
    kinds.into_iter().filter_map(bounds).find(|(_, most)| fits(*most))
}

/// [`plain`] for a fault of a parameter, whose value is a text before it is parsed. `bounds` are those of a number
/// that its type does not have.
pub(crate) fn plain_parameter(
    subject: &str,
    value: &str,
    message: &str,
    bounds: Option<(i128, i128)>,
) -> String {
    if let Some(bounds) = bounds {
        return format!("{subject} must be {}.", range_text(bounds));
    }
    let digits = value.strip_prefix('-').unwrap_or_default();
    let is_negative = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let must_be = match message {
        "invalid digit found in string" if is_negative => "a whole number from 0",
        "invalid digit found in string" | "cannot parse integer from empty string" => "a whole number",
        "number too large to fit in target type" => "a smaller number",
        "number too small to fit in target type" => "a larger number",
        "invalid float literal" | "cannot parse float from empty string" => "a number",
        "provided string was not `true` or `false`" => "true or false",
        _ => return plain(subject, message),
    };
    format!("{subject} must be {must_be}.")
}

/// A value of another kind or size, such as ``invalid value: integer `-1`, expected u64``.
fn unfit(subject: &str, message: &str) -> Option<String> {
    if message == "expected value" {
        return Some(format!("{subject} must be one of the allowed values."));
    }
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, expected) = rest.rsplit_once(", expected ")?;
    let expected = match bounds(expected) {
        Some(bounds) => whole_text(found, bounds),
        None => kind_text(expected)?.to_owned(),
    };
    let shown = match found.split(' ').next() {
        // It could be a password of digits.
        Some("integer" | "floating") if expected == "a text" => "a number",
        _ => found_text(found),
    };
    Some(format!("{subject} must be {expected}, not {shown}."))
}

/// A field or a choice with a wrong name, or without one.
fn named(subject: &str, message: &str) -> Option<String> {
    let quoted = |prefix: &str| message.strip_prefix(prefix)?.strip_suffix('`');
    if let Some(name) = quoted("missing field `") {
        return Some(format!("The field `{name}` is missing."));
    }
    if let Some(name) = quoted("duplicate field `") {
        return Some(format!("The field `{name}` is there twice."));
    }
    if let Some(rest) = message.strip_prefix("unknown field `") {
        let (name, fields) = rest.rsplit_once("`, expected ")?;
        let fields = fields.strip_prefix("one of ").unwrap_or(fields);
        return Some(format!("The field `{}` is unknown. Allowed: {fields}.", short(name)));
    }
    let (name, choices) = message.strip_prefix("unknown variant `")?.rsplit_once("`, expected ")?;
    Some(format!("{subject} must be {choices}, not `{}`.", short(name)))
}

/// The begin of a name of the sender.
fn short(name: &str) -> String {
    name.chars().take(MOST_NAME_CHARS).collect()
}

/// The least and the largest value of a type of whole numbers.
fn bounds(kind: &str) -> Option<(i128, i128)> {
    Some(match kind {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "usize" => (0, u64::MAX.into()),
        "i8" => (i8::MIN.into(), i8::MAX.into()),
        "i16" => (i16::MIN.into(), i16::MAX.into()),
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        "i64" | "isize" => (i64::MIN.into(), i64::MAX.into()),
        _ => return None,
    })
}

fn range_text((least, most): (i128, i128)) -> String {
    format!("a whole number from {least} to {most}")
}

/// The allowed whole numbers. Both bounds are there for a number beyond one that nobody guesses.
fn whole_text(found: &str, (least, most): (i128, i128)) -> String {
    match number(found) {
        Some(number) if number > most || (least < 0 && number < least) => range_text((least, most)),
        _ if least == 0 => "a whole number from 0".to_owned(),
        _ => "a whole number".to_owned(),
    }
}

/// The number in the parser's text of a value. A whole number past 64 bits is there as a floating point number.
fn number(found: &str) -> Option<i128> {
    let text = found.split('`').nth(1)?;
    text.parse().ok().or_else(|| format!("{:.0}", text.parse::<f64>().ok()?).parse().ok())
}

fn kind_text(expected: &str) -> Option<&'static str> {
    Some(match expected {
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" | "variant identifier" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ => return None,
    })
}

/// The value itself, or its kind for a longer value.
fn found_text(found: &str) -> &str {
    match found.split(' ').next() {
        Some("string") => "a text",
        Some("sequence") => "a list",
        Some("map") => "an object",
        Some("integer" | "floating" | "boolean") => found.split('`').nth(1).unwrap_or(found),
        _ => found,
    }
}
