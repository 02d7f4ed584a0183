//! Answers with the bytes of a file: all, a range, or none if the caller has them. PDF files have no ranges.

use std::ops::Range;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use berth_foundation::objects::ByteStream;
use berth_types::problems::Problem;

use crate::failed::Failed;

/// The rule for caches of files, of the 200 and of the 304. No cache and no browser stores a file beside its download. The
/// `ETag` is for programs, which know the hash of their file.
const CACHE_CONTROL: &str = "no-store, no-transform";

/// A file for a download.
pub struct Download {
    pub name: String,
    pub bytes: u64,
    /// In hexadecimal digits.
    pub sha256: String,
}

/// The part of a file that the answer has.
pub struct DownloadPart {
    file: Download,
    status: StatusCode,
    pub range: Range<u64>,
}

impl Download {
    fn tag(&self) -> String {
        format!("\"{}\"", self.sha256)
    }

    /// The part that the headers of a request ask for.
    ///
    /// # Errors
    /// The answer without bytes: 304 if the caller has the file, 416 if the range is outside of it.
    pub fn select_part(self, headers: &HeaderMap) -> Result<DownloadPart, Box<Response>> {
        let text = |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
        let tag = self.tag();
        if text(header::IF_NONE_MATCH).is_some_and(|known| known.split(',').any(|one| one.trim() == tag)) {
            let fields = [(header::ETAG, tag), (header::CACHE_CONTROL, CACHE_CONTROL.to_owned())];
            return Err(Box::new((StatusCode::NOT_MODIFIED, fields).into_response()));
        }
        // A download of another version of the file does not continue: it begins anew.
        let same = text(header::IF_RANGE).is_none_or(|known| known.trim() == tag);
        let requested = parse_range(text(header::RANGE).filter(|_| same), self.bytes);
        let (status, range) = match requested {
            RequestedRange::All => (StatusCode::OK, 0..self.bytes),
            RequestedRange::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
            RequestedRange::Empty => {
                let detail =
                    format!("The file has {} bytes, and the range begins after its end.", self.bytes);
                let problem = Problem::new(416, "file.range", "Range outside of the file", detail);
                let headers = [(header::CONTENT_RANGE, format!("bytes */{}", self.bytes))];
                return Err(Box::new((headers, Failed(problem)).into_response()));
            }
        };
        Ok(DownloadPart { file: self, status, range })
    }
}

impl DownloadPart {
    /// The answer with the bytes of the part.
    pub fn answer(&self, content: ByteStream) -> Response {
        let (range, bytes) = (&self.range, self.file.bytes);
        let length = range.end - range.start;
        let content_range = format!("bytes {}-{}/{bytes}", range.start, range.end.saturating_sub(1));
        let mut response = (self.status, Body::from_stream(content)).into_response();
        let mut put = |name: header::HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.headers_mut().insert(name, value);
            }
        };
        put(header::CONTENT_LENGTH, &length.to_string());
        if self.status == StatusCode::PARTIAL_CONTENT {
            put(header::CONTENT_RANGE, &content_range);
        }
        put(header::ACCEPT_RANGES, "bytes");
        put(header::ETAG, &self.file.tag());
        // Without compression, so that the length is known and ranges count the file's own bytes.
        put(header::CONTENT_ENCODING, "identity");
        put(header::CACHE_CONTROL, CACHE_CONTROL);
        // The content is not trusted: browsers must save it and never render it.
        put(header::CONTENT_TYPE, "application/octet-stream");
        put(header::CONTENT_DISPOSITION, &content_disposition(&self.file.name));
        put(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        put(header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'; frame-ancestors 'none'");
        response
    }
}

/// The bytes that a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum RequestedRange {
    All,
    Part(Range<u64>),
    /// The range has no bytes of the file.
    Empty,
}

/// Parses a `Range`. An invalid value or several ranges mean the whole file, which the standard allows.
fn parse_range(range: Option<&str>, bytes: u64) -> RequestedRange {
    let Some((first, last)) = range.and_then(|r| r.trim().strip_prefix("bytes=")?.split_once('-')) else {
        return RequestedRange::All;
    };
    let (first, last) = (first.trim(), last.trim());
    let number = |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let (start, end) = match (number(first), number(last)) {
        (Some(start), Some(last)) if last >= start => (start, last.saturating_add(1).min(bytes)),
        (Some(start), None) if last.is_empty() => (start, bytes),
        (None, Some(count)) if first.is_empty() => (bytes.saturating_sub(count), bytes),
        _ => return RequestedRange::All,
    };
    if start < end { RequestedRange::Part(start..end) } else { RequestedRange::Empty }
}

/// The answer with a PDF file that the portal wrote for this request.
pub fn pdf_answer(bytes: Vec<u8>, name: &str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/pdf".to_owned()),
        (header::CONTENT_DISPOSITION, content_disposition(name)),
        (header::CACHE_CONTROL, "private, no-store".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'; frame-ancestors 'none'".to_owned()),
    ];
    (headers, bytes).into_response()
}

/// The header `Content-Disposition` with a file name for the browser.
pub fn content_disposition(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let escape = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    let escaped: String = name.bytes().map(escape).collect();
    format!("attachment; filename*=UTF-8''{escaped}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_answer_for_a_known_file_keeps_its_rule_for_caches() {
        let file = Download { name: "a".to_owned(), bytes: 1, sha256: "00".to_owned() };
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"00\""));
        let answer = file.select_part(&headers).err().unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer.headers()[header::CACHE_CONTROL], CACHE_CONTROL);
    }

    #[test]
    fn downloads_are_stored_by_no_cache_and_shown_in_no_frame() {
        let file = Download { name: "a".to_owned(), bytes: 1, sha256: "00".to_owned() };
        let part = file.select_part(&HeaderMap::new()).ok().unwrap();
        let content: ByteStream = Box::pin(futures::stream::empty());
        for answer in [part.answer(content), pdf_answer(Vec::new(), "a.pdf")] {
            let text = |name: header::HeaderName| answer.headers()[name].to_str().unwrap().to_owned();
            assert!(text(header::CACHE_CONTROL).contains("no-store"));
            assert!(text(header::CONTENT_SECURITY_POLICY).contains("frame-ancestors 'none'"));
        }
    }

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        for (range, expected) in [
            (None, RequestedRange::All),
            (Some("bytes=0-9"), RequestedRange::Part(0..10)),
            (Some("bytes=3-"), RequestedRange::Part(3..10)),
            (Some("bytes=3-3"), RequestedRange::Part(3..4)),
            (Some("bytes=-4"), RequestedRange::Part(6..10)),
            (Some("bytes=-40"), RequestedRange::Part(0..10)),
            (Some("bytes=5-500"), RequestedRange::Part(5..10)),
            (Some("bytes=10-"), RequestedRange::Empty),
            (Some("bytes=-0"), RequestedRange::Empty),
            (Some("bytes=4-3"), RequestedRange::All),
            (Some("bytes=0-1,3-4"), RequestedRange::All),
            (Some("bytes=+1-"), RequestedRange::All),
            (Some("bytes=-"), RequestedRange::All),
            (Some("lines=1-2"), RequestedRange::All),
            (Some("bytes=18446744073709551615-18446744073709551615"), RequestedRange::Empty),
        ] {
            assert_eq!(parse_range(range, 10), expected, "{range:?}");
        }
        assert_eq!(parse_range(Some("bytes=0-"), 0), RequestedRange::Empty);
    }

    fn number() -> impl Strategy<Value = String> {
        let numbers = prop_oneof![any::<u64>(), 0u64..40];
        prop_oneof![numbers.prop_map(|number| number.to_string()), "[ +-]?[0-9]{0,25}", ".{0,4}"]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn a_part_is_never_empty_and_never_outside_of_the_file(
            unit in "(bytes|lines)?=?",
            first in number(),
            last in number(),
            bytes in prop_oneof![0u64..40, any::<u64>()],
        ) {
            if let RequestedRange::Part(part) = parse_range(Some(&format!("{unit}{first}-{last}")), bytes) {
                prop_assert!(part.start < part.end && part.end <= bytes, "{part:?} of {bytes}");
            }
        }

        #[test]
        fn a_range_inside_of_the_file_is_the_part((start, last, more) in (0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 40)) {
            let last = start + last;
            let range = format!("bytes={start}-{last}");
            prop_assert_eq!(parse_range(Some(&range), last + 1 + more), RequestedRange::Part(start..last + 1));
        }

        #[test]
        fn a_file_name_has_no_end_of_the_header(name in "(?s).{0,40}") {
            let text = content_disposition(&name);
            prop_assert!(text.bytes().all(|b| b.is_ascii_graphic() || b == b' '), "{text}");
            prop_assert!(!text.contains('"'), "{text}");
        }
    }
}
