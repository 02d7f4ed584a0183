//! One member of a JSON object, found in parts as they come, in bounded memory.

use std::ops::Range;

/// Bytes of a name that is looked at; a longer one is another.
const MAX_NAME_BYTES: usize = 128;
/// Bytes of a value that are kept.
const MAX_VALUE_BYTES: usize = 4_096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the object.
    Start,
    /// Before a name, or after the last value.
    BeforeName,
    Name,
    AfterName,
    Value,
    /// After the object, or in a text that is no object.
    End,
}

/// Looks for the member `name` of the outermost object. It expects valid JSON, and in other text it finds
/// something or nothing.
#[derive(Debug)]
pub struct MemberScanner {
    name: &'static str,
    place: Place,
    /// Open objects and arrays.
    depth: u64,
    is_string: bool,
    is_escaped: bool,
    at: usize,
    name_bytes: Vec<u8>,
    /// True inside the value of the member.
    is_member: bool,
    value: Vec<u8>,
    range: Range<usize>,
    is_found: bool,
}

impl MemberScanner {
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            place: Place::Start,
            depth: 0,
            is_string: false,
            is_escaped: false,
            at: 0,
            name_bytes: Vec::new(),
            is_member: false,
            value: Vec::new(),
            range: 0..0,
            is_found: false,
        }
    }

    /// The place of the value in all parts together.
    pub fn range(&self) -> Option<Range<usize>> {
        self.is_found.then(|| self.range.clone())
    }

    /// The value; of several members with the name the last, as readers of JSON do. A longer value than the
    /// limit is cut, so it is no JSON.
    pub fn value(&self) -> Option<&[u8]> {
        self.is_found.then_some(self.value.as_slice())
    }

    pub fn push(&mut self, part: &[u8]) {
        for byte in part {
            if self.place != Place::End {
                self.step(*byte);
            }
            self.at += 1;
        }
    }

    fn step(&mut self, byte: u8) {
        if self.is_string {
            self.step_in_string(byte);
            return;
        }
        match byte {
            b'"' => self.begin_string(byte),
            b'{' | b'[' if self.place == Place::Start => {
                self.depth = 1;
                self.place = if byte == b'{' { Place::BeforeName } else { Place::End };
            }
            b'{' | b'[' => {
                self.depth += 1;
                self.keep(byte);
            }
            b'}' | b']' if self.depth == 1 => {
                self.end_value();
                self.place = Place::End;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.keep(byte);
            }
            b',' if self.depth == 1 => {
                self.end_value();
                self.place = Place::BeforeName;
            }
            b':' if self.place == Place::AfterName => self.begin_value(),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ if self.place == Place::Start => self.place = Place::End,
            _ => self.keep(byte),
        }
    }

    fn step_in_string(&mut self, byte: u8) {
        let ends = byte == b'"' && !self.is_escaped;
        self.is_escaped = byte == b'\\' && !self.is_escaped;
        if ends {
            self.is_string = false;
        }
        match self.place {
            Place::Name if ends => self.place = Place::AfterName,
            // One byte more than the limit shows that a name is longer.
            Place::Name if self.name_bytes.len() <= MAX_NAME_BYTES => self.name_bytes.push(byte),
            Place::Name => {}
            _ => self.keep(byte),
        }
    }

    fn begin_string(&mut self, byte: u8) {
        match self.place {
            Place::Start => {
                self.place = Place::End;
                return;
            }
            Place::BeforeName => {
                self.place = Place::Name;
                self.name_bytes.clear();
            }
            _ => self.keep(byte),
        }
        self.is_string = true;
    }

    fn begin_value(&mut self) {
        self.place = Place::Value;
        self.is_member = self.has_name();
        if self.is_member {
            self.is_found = false;
            self.value.clear();
            self.range = 0..0;
        }
    }

    fn end_value(&mut self) {
        if self.is_member {
            self.is_found = !self.range.is_empty();
        }
        self.is_member = false;
    }

    /// Keeps a byte of the value of the member.
    fn keep(&mut self, byte: u8) {
        if !self.is_member {
            return;
        }
        if self.range.is_empty() {
            self.range.start = self.at;
        }
        self.range.end = self.at + 1;
        if self.value.len() < MAX_VALUE_BYTES {
            self.value.push(byte);
        }
    }

    fn has_name(&self) -> bool {
        if !self.name_bytes.contains(&b'\\') {
            return self.name_bytes == self.name.as_bytes();
        }
        if self.name_bytes.len() > MAX_NAME_BYTES {
            return false;
        }
        let quoted = [b"\"".as_slice(), &self.name_bytes, b"\""].concat();
        serde_json::from_slice::<String>(&quoted).is_ok_and(|name| name == self.name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn found(text: &str) -> Option<String> {
        let mut scanner = MemberScanner::new("usage");
        scanner.push(text.as_bytes());
        let value = scanner.value().map(|value| String::from_utf8(value.to_vec()).unwrap());
        let place = scanner.range().map(|range| text[range].to_owned());
        // White space outside of strings is not kept.
        let compact = |text: &str| text.parse::<Value>().unwrap().to_string();
        assert_eq!(value.as_deref().map(compact), place.as_deref().map(compact));
        place
    }

    #[test]
    fn only_the_member_of_the_outermost_object_is_found() {
        for (text, expected) in [
            (r#"{"usage":1}"#, Some("1")),
            (
                r#" { "a" : [ {"usage":2} ] , "usage" : { "b" : [ 1 , "}" ] } , "c":3 } "#,
                Some(r#"{ "b" : [ 1 , "}" ] }"#),
            ),
            (r#"{"a":"\"usage\":1,","b":{"usage":1}}"#, None),
            (r#"{"us\u0061ge":"x\\"}"#, Some(r#""x\\""#)),
            (r#"{"usage":1,"usage":[2]}"#, Some("[2]")),
            (r#"{"usage":null}"#, Some("null")),
            (r#"[{"usage":1}]"#, None),
            (r#""usage":1"#, None),
            (r#"5{"usage":1}"#, None),
            (r#"{"usage":"#, None),
            (r#"{"usage":{"a":1}"#, None),
            (r#"{}{"usage":1}"#, None),
            ("", None),
        ] {
            assert_eq!(found(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut scanner = MemberScanner::new("usage");
        let long = "x".repeat(100_000);
        scanner.push(format!(r#"{{"{long}":1,"usage":"{long}","{long}":["{long}"]}}"#).as_bytes());
        assert_eq!(scanner.place, Place::End);
        assert!(scanner.name_bytes.len() <= MAX_NAME_BYTES + 1);
        assert_eq!(scanner.value().map(<[u8]>::len), Some(MAX_VALUE_BYTES));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            "[ -~é\\\\\"]{0,6}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("(usage|a|b\\\\)", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_member_is_what_a_parser_finds(json in any_json(), pretty: bool) {
            let text = if pretty { serde_json::to_string_pretty(&json) } else { serde_json::to_string(&json) };
            let found = found(&text.unwrap()).map(|text| text.parse::<Value>().unwrap());
            prop_assert_eq!(found.as_ref(), json.get("usage"));
        }

        #[test]
        fn any_bytes_and_cuts_end_alike(bytes: Vec<u8>, cut: usize) {
            let (mut whole, mut parts) = (MemberScanner::new("usage"), MemberScanner::new("usage"));
            whole.push(&bytes);
            let (first, last) = bytes.split_at(cut % (bytes.len() + 1));
            parts.push(first);
            parts.push(last);
            prop_assert_eq!(whole.range(), parts.range());
            prop_assert_eq!(whole.value(), parts.value());
        }
    }
}
