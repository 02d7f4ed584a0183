//! A fake S3 store with strict checks: every request needs a valid signature (Signature Version 4) over its
//! body, every part except the last has at least 5 MiB, and the completion names all parts. It can refuse
//! parts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hmac::{Hmac, Mac};
use object_store::aws::AmazonS3Builder;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

pub const SECRET: &str = "the-key-of-the-bucket";
const LEAST_PART: usize = 5 << 20;

#[derive(Default)]
pub struct BucketState {
    /// Objects by path with the bucket name.
    pub objects: HashMap<String, Bytes>,
    /// Parts of incomplete uploads, by upload and part number.
    pub parts: HashMap<String, BTreeMap<u32, Bytes>>,
    /// The number of started uploads.
    pub uploads: u32,
    /// The codes of refused or premature requests.
    pub refused: Vec<&'static str>,
    /// The first part number without room; 0 for enough room.
    pub full_at: u32,
    /// The number of next requests that fail with 503.
    pub failures: u32,
}

#[derive(Clone)]
pub struct FakeBucket {
    state: Arc<Mutex<BucketState>>,
    /// The number of parts in transfer.
    under_way: Arc<watch::Sender<u32>>,
}

impl FakeBucket {
    /// Starts the store; returns it with the settings of a client.
    pub async fn open() -> (Self, AmazonS3Builder) {
        let bucket = Self { state: Arc::default(), under_way: Arc::new(watch::Sender::new(0)) };
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

    pub fn state(&self) -> MutexGuard<'_, BucketState> {
        self.state.lock().unwrap()
    }

    /// Waits until a part is in transfer.
    pub async fn part_begun(&self) {
        let mut under_way = self.under_way.subscribe();
        drop(under_way.wait_for(|parts| *parts > 0).await.unwrap());
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    Hmac::<Sha256>::new_from_slice(key).unwrap().chain_update(text).finalize().into_bytes().to_vec()
}

/// Returns a field of the authorization header.
fn field<'a>(authorization: &'a str, name: &str) -> Option<&'a str> {
    authorization.split([' ', ',']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

/// Returns true if the request has a valid signature over its canonical form (Signature Version 4).
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
    let asked = format!(
        "AWS4-HMAC-SHA256\n{}\n{scope}\n{}",
        text("x-amz-date")?,
        hex::encode(Sha256::digest(request))
    );
    let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), |key, part| mac(&key, part));
    let whole = hash == hex::encode(Sha256::digest(body));
    Some(whole && field(authorization, "Signature")? == hex::encode(mac(&key, &asked)))
}

fn error(status: StatusCode, code: &'static str) -> Response {
    (status, format!("<Error><Code>{code}</Code></Error>")).into_response()
}

fn tagged(data: &Bytes) -> [(header::HeaderName, String); 1] {
    [(header::ETAG, format!("\"{}\"", hex::encode(Sha256::digest(data))))]
}

async fn answer(State(bucket): State<FakeBucket>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let (path, query) = (head.uri.path().to_owned(), head.uri.query().unwrap_or_default());
    let asked = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let part: Option<u32> = asked("partNumber").map(|number| number.parse().unwrap());
    let fits = |state: &BucketState| part.is_none_or(|number| state.full_at == 0 || number < state.full_at);
    if part.is_some() && fits(&bucket.state()) {
        // An accepted part takes time, as over a slow connection; a refusal is immediate.
        bucket.under_way.send_modify(|parts| *parts += 1);
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        bucket.under_way.send_modify(|parts| *parts -= 1);
    }
    let mut state = bucket.state();
    if is_signed(head.method.as_str(), &path, query, &head.headers, &body) != Some(true) {
        state.refused.push("SignatureDoesNotMatch");
        return error(StatusCode::FORBIDDEN, "SignatureDoesNotMatch");
    }
    if let Some(left) = state.failures.checked_sub(1) {
        state.failures = left;
        return error(StatusCode::SERVICE_UNAVAILABLE, "SlowDown");
    }
    match (head.method.as_str(), asked("uploadId")) {
        ("POST", None) if query.split('&').any(|pair| pair.trim_end_matches('=') == "uploads") => {
            state.uploads += 1;
            let id = format!("upload-{}", state.uploads);
            state.parts.insert(id.clone(), BTreeMap::new());
            let fields = format!("<Bucket>berth</Bucket><Key>{path}</Key><UploadId>{id}</UploadId>");
            format!("<InitiateMultipartUploadResult>{fields}</InitiateMultipartUploadResult>").into_response()
        }
        ("PUT", Some(id)) => {
            if !fits(&state) {
                state.refused.push("QuotaExceeded");
                return error(StatusCode::FORBIDDEN, "QuotaExceeded");
            }
            let Some(parts) = state.parts.get_mut(id) else {
                return error(StatusCode::NOT_FOUND, "NoSuchUpload");
            };
            parts.insert(part.unwrap(), body.clone());
            tagged(&body).into_response()
        }
        ("PUT", None) => {
            state.objects.insert(path, body.clone());
            tagged(&body).into_response()
        }
        ("POST", Some(id)) => complete(&mut state, path, id, std::str::from_utf8(&body).unwrap()),
        ("DELETE", Some(id)) => {
            if *bucket.under_way.borrow() > 0 {
                state.refused.push("a part may come after its upload was given up");
            }
            state.parts.remove(id);
            StatusCode::NO_CONTENT.into_response()
        }
        ("DELETE", None) => {
            state.objects.remove(&path);
            StatusCode::NO_CONTENT.into_response()
        }
        ("GET", None) => read(&state, &path, &head.headers),
        _ => {
            state.refused.push("NotImplemented");
            error(StatusCode::NOT_IMPLEMENTED, "NotImplemented")
        }
    }
}

fn complete(state: &mut BucketState, path: String, id: &str, list: &str) -> Response {
    let Some(parts) = state.parts.get(id) else { return error(StatusCode::NOT_FOUND, "NoSuchUpload") };
    let named: Vec<&str> = list.split("<Part>").skip(1).collect();
    let all = parts.iter().zip(&named).all(|((number, data), part)| {
        part.contains(&hex::encode(Sha256::digest(data)))
            && part.contains(&format!("<PartNumber>{number}</PartNumber>"))
    });
    let refusal = if !all || named.is_empty() || named.len() != parts.len() {
        "InvalidPart"
    } else if parts.values().rev().skip(1).any(|data| data.len() < LEAST_PART) {
        "EntityTooSmall"
    } else {
        let whole: Bytes = parts.values().flatten().copied().collect();
        state.parts.remove(id);
        state.objects.insert(path.clone(), whole);
        let fields = format!("<Key>{path}</Key><ETag>\"{id}\"</ETag>");
        return format!("<CompleteMultipartUploadResult>{fields}</CompleteMultipartUploadResult>")
            .into_response();
    };
    state.refused.push(refusal);
    error(StatusCode::BAD_REQUEST, refusal)
}

fn read(state: &BucketState, path: &str, headers: &HeaderMap) -> Response {
    let Some(data) = state.objects.get(path) else { return error(StatusCode::NOT_FOUND, "NoSuchKey") };
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
