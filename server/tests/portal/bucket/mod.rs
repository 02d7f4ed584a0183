//! A stand-in for a store that speaks S3, as strict as one: each request is signed (Signature Version 4), each body is
//! what was signed, every part but the last has 5 MiB, and the end names them all. It can be down.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, Mac};
use object_store::aws::AmazonS3Builder;
use sha2::{Digest, Sha256};

pub const SECRET: &str = "the-key-of-the-bucket";
const LEAST_PART: usize = 5 << 20;

#[derive(Default)]
pub struct Shelf {
    /// By their path, bucket and all.
    pub objects: HashMap<String, Bytes>,
    /// What is not complete, by upload and part.
    pub parts: HashMap<String, BTreeMap<u32, Bytes>>,
    /// How many uploads there were.
    pub uploads: u32,
    /// Parts that are on their way.
    pub under_way: u32,
    /// What was refused for what reason, or done too early.
    pub refused: Vec<&'static str>,
    /// From this part on there is no room; 0: there is.
    pub full_at: u32,
}

#[derive(Clone, Default)]
pub struct FakeBucket(Arc<Mutex<Shelf>>);

impl FakeBucket {
    /// The bucket, and the settings with which it is reached.
    pub async fn open() -> (Self, AmazonS3Builder) {
        let bucket = Self::default();
        let app = axum::Router::new().fallback(answer).with_state(bucket.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let settings = AmazonS3Builder::new()
            .with_url("s3://berth")
            .with_endpoint(url)
            .with_allow_http(true)
            .with_region("here-1")
            .with_access_key_id("lab")
            .with_secret_access_key(SECRET);
        (bucket, settings)
    }

    pub fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap()
    }
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    Hmac::<Sha256>::new_from_slice(key).unwrap().chain_update(text).finalize().into_bytes().to_vec()
}

/// A field of the header in which the signature is.
fn field<'a>(authorization: &'a str, name: &str) -> Option<&'a str> {
    authorization.split([' ', ',']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// Whether whoever has the key signed exactly this (the canonical request of Signature Version 4).
fn is_signed(method: &str, path: &str, query: &str, headers: &HeaderMap, body: &[u8]) -> Option<bool> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let authorization = text("authorization")?;
    let scope = field(authorization, "Credential")?.strip_prefix("lab/")?;
    let names = field(authorization, "SignedHeaders")?;
    let day = text("x-amz-date")?.get(..8)?;
    let own = ["host", "x-amz-content-sha256", "x-amz-date"];
    if scope != format!("{day}/here-1/s3/aws4_request")
        || own.iter().any(|own| names.split(';').all(|name| name != *own))
    {
        return None;
    }
    let mut pairs: Vec<String> =
        query.split('&').filter(|pair| !pair.is_empty()).map(str::to_owned).collect();
    for pair in pairs.iter_mut().filter(|pair| !pair.contains('=')) {
        pair.push('=');
    }
    pairs.sort();
    let lines: Option<Vec<String>> =
        names.split(';').map(|n| Some(format!("{n}:{}\n", text(n)?.trim()))).collect();
    let hash = text("x-amz-content-sha256")?;
    let request = format!("{method}\n{path}\n{}\n{}\n{names}\n{hash}", pairs.join("&"), lines?.concat());
    let asked =
        format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", text("x-amz-date")?, hex(&Sha256::digest(request)));
    let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), |key, part| mac(&key, part));
    let whole = hash == hex(&Sha256::digest(body));
    Some(whole && field(authorization, "Signature")? == hex(&mac(&key, &asked)))
}

fn error(status: StatusCode, code: &'static str) -> Response {
    (status, format!("<Error><Code>{code}</Code></Error>")).into_response()
}

fn tagged(data: &Bytes) -> [(header::HeaderName, String); 1] {
    [(header::ETAG, format!("\"{}\"", hex(&Sha256::digest(data))))]
}

async fn answer(State(bucket): State<FakeBucket>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default());
    let asked = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let part: Option<u32> = asked("partNumber").map(|number| number.parse().unwrap());
    let fits = |shelf: &Shelf| part.is_none_or(|number| shelf.full_at == 0 || number < shelf.full_at);
    if part.is_some() && fits(&bucket.shelf()) {
        // A while, as over a long line; a refusal comes at once.
        bucket.shelf().under_way += 1;
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        bucket.shelf().under_way -= 1;
    }
    let mut shelf = bucket.shelf();
    if is_signed(head.method.as_str(), &path, query, &head.headers, &body) != Some(true) {
        shelf.refused.push("SignatureDoesNotMatch");
        return error(StatusCode::FORBIDDEN, "SignatureDoesNotMatch");
    }
    match (head.method.as_str(), asked("uploadId")) {
        ("POST", None) if query.split('&').any(|pair| pair.trim_end_matches('=') == "uploads") => {
            shelf.uploads += 1;
            let id = format!("upload-{}", shelf.uploads);
            shelf.parts.insert(id.clone(), BTreeMap::new());
            let told = format!("<Bucket>berth</Bucket><Key>{path}</Key><UploadId>{id}</UploadId>");
            format!("<InitiateMultipartUploadResult>{told}</InitiateMultipartUploadResult>").into_response()
        }
        ("PUT", Some(id)) => {
            if !fits(&shelf) {
                shelf.refused.push("QuotaExceeded");
                return error(StatusCode::FORBIDDEN, "QuotaExceeded");
            }
            let Some(parts) = shelf.parts.get_mut(id) else {
                return error(StatusCode::NOT_FOUND, "NoSuchUpload");
            };
            parts.insert(part.unwrap(), body.clone());
            tagged(&body).into_response()
        }
        ("PUT", None) => {
            shelf.objects.insert(path, body.clone());
            tagged(&body).into_response()
        }
        ("POST", Some(id)) => complete(&mut shelf, path, id, std::str::from_utf8(&body).unwrap()),
        ("DELETE", Some(id)) => {
            if shelf.under_way > 0 {
                shelf.refused.push("a part may come after its upload was given up");
            }
            shelf.parts.remove(id);
            StatusCode::NO_CONTENT.into_response()
        }
        ("DELETE", None) => {
            shelf.objects.remove(&path);
            StatusCode::NO_CONTENT.into_response()
        }
        ("GET", None) => read(&shelf, &path, &head.headers),
        _ => {
            shelf.refused.push("NotImplemented");
            error(StatusCode::NOT_IMPLEMENTED, "NotImplemented")
        }
    }
}

fn complete(shelf: &mut Shelf, path: String, id: &str, list: &str) -> Response {
    let Some(parts) = shelf.parts.get(id) else { return error(StatusCode::NOT_FOUND, "NoSuchUpload") };
    let named: Vec<&str> = list.split("<Part>").skip(1).collect();
    let all = parts.iter().zip(&named).all(|((number, data), part)| {
        part.contains(&hex(&Sha256::digest(data)))
            && part.contains(&format!("<PartNumber>{number}</PartNumber>"))
    });
    let refusal = if !all || named.is_empty() || named.len() != parts.len() {
        "InvalidPart"
    } else if parts.values().rev().skip(1).any(|data| data.len() < LEAST_PART) {
        "EntityTooSmall"
    } else {
        let whole: Bytes = parts.values().flatten().copied().collect();
        shelf.parts.remove(id);
        shelf.objects.insert(path.clone(), whole);
        let told = format!("<Key>{path}</Key><ETag>\"{id}\"</ETag>");
        return format!("<CompleteMultipartUploadResult>{told}</CompleteMultipartUploadResult>")
            .into_response();
    };
    shelf.refused.push(refusal);
    error(StatusCode::BAD_REQUEST, refusal)
}

fn read(shelf: &Shelf, path: &str, headers: &HeaderMap) -> Response {
    let Some(data) = shelf.objects.get(path) else { return error(StatusCode::NOT_FOUND, "NoSuchKey") };
    let dated = [(header::LAST_MODIFIED, "Mon, 23 Nov 2026 00:00:00 GMT")];
    let range = headers.get(header::RANGE).map(|range| range.to_str().unwrap());
    let Some(range) = range else { return (dated, tagged(data), data.clone()).into_response() };
    let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let from: usize = from.parse().unwrap();
    let end = to.parse::<usize>().map_or(data.len(), |last| data.len().min(last + 1));
    let Some(piece) = data.get(from..end).filter(|piece| !piece.is_empty()) else {
        return error(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange");
    };
    let at = [(header::CONTENT_RANGE, format!("bytes {from}-{}/{}", end - 1, data.len()))];
    (StatusCode::PARTIAL_CONTENT, dated, at, tagged(data), data.slice_ref(piece)).into_response()
}
