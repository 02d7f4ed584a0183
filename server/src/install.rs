//! What a host fetches to become a node: the script of the one line that the operator copies, and the
//! worker's program, which the script checks by its hash.
//!
//! Nothing here is secret. The join token comes in the host's environment and never through here.

use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::SystemTime;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};
use tower_http::services::ServeFile;

use crate::portal::Portal;

const SCRIPT: &str = include_str!("install/worker.sh");

/// The hash of the program as it was when it was last looked at: length, time of change, hash.
static HASH: Mutex<Option<(u64, SystemTime, String)>> = Mutex::new(None);

/// `/install/…`; without a worker's program there is nothing.
pub fn routes(portal: &Portal) -> Router<Portal> {
    let Some(program) = &portal.settings.worker_program else { return Router::new() };
    Router::new()
        .route("/install/worker.sh", get(script))
        .route_service("/install/berth-worker", ServeFile::new(program))
}

async fn script(State(portal): State<Portal>) -> Response {
    let settings = &portal.settings;
    let Some(program) = settings.worker_program.clone() else { return StatusCode::NOT_FOUND.into_response() };
    let hashed = tokio::task::spawn_blocking(move || hash(&program)).await;
    let sha256 = match hashed.map_err(std::io::Error::other).flatten() {
        Ok(sha256) => sha256,
        Err(error) => {
            tracing::error!(%error, "the worker's program cannot be read");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let text = SCRIPT
        .replace("@PUBLIC_URL@", &quoted(settings.public_url.trim_end_matches('/')))
        .replace("@WORKER_URL@", &quoted(&settings.worker_url))
        .replace("@SHA256@", &sha256)
        .replace("@ARCH@", std::env::consts::ARCH);
    let headers =
        [(header::CONTENT_TYPE, "text/x-shellscript; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (headers, text).into_response()
}

/// As one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// SHA-256 in hex. Read again only when the file has changed.
fn hash(program: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(program)?;
    let about = file.metadata()?;
    let (length, changed) = (about.len(), about.modified()?);
    let mut kept = HASH.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((l, c, sha256)) = kept.as_ref()
        && (*l, *c) == (length, changed)
    {
        return Ok(sha256.clone());
    }
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher)?;
    let sha256: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    *kept = Some((length, changed, sha256.clone()));
    Ok(sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_one_word_of_a_shell() {
        assert_eq!(quoted("https://a.b:1"), "'https://a.b:1'");
        assert_eq!(quoted("a'; rm -rf /; '"), r"'a'\''; rm -rf /; '\'''");
    }
}
