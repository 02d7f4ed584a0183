//! The installation of workers: the script, the worker program and the library of simulated boards.
//!
//! The operator copies one line that runs the script. The script checks the program and the library by their
//! hashes. Nothing here is secret: the join token is in the host's environment and in no request or answer.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
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

/// The library of simulated boards, beside the worker program.
const SIMULATION: &str = "libberth_nvml_sim.so";

/// The length and modification time of a file at its last read, and its hash then.
type Hashed = (u64, SystemTime, String);

static HASHES: Mutex<BTreeMap<PathBuf, Hashed>> = Mutex::new(BTreeMap::new());

/// The routes under `/install/`; none without a worker program.
pub fn routes(portal: &Portal) -> Router {
    let Some(program) = &portal.context.settings.worker_program else { return Router::new() };
    Router::new()
        .route("/install/worker.sh", get(script))
        .route_service("/install/berth-worker", ServeFile::new(program))
        .route_service("/install/libberth_nvml_sim.so", ServeFile::new(program.with_file_name(SIMULATION)))
        .with_state(portal.clone())
}

async fn script(State(portal): State<Portal>) -> Response {
    let settings = &portal.context.settings;
    let Some(program) = settings.worker_program.clone() else { return StatusCode::NOT_FOUND.into_response() };
    let hashed = tokio::task::spawn_blocking(move || {
        let simulation = match hash(&program.with_file_name(SIMULATION)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            hashed => hashed?,
        };
        Ok((hash(&program)?, simulation))
    });
    let (sha256, simulation_sha256) = match hashed.await.map_err(io::Error::other).flatten() {
        Ok(hashes) => hashes,
        Err(error) => {
            tracing::error!(%error, "the program of the worker is not readable");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let text = SCRIPT
        .replace("@PUBLIC_URL@", &quoted(settings.public_url.trim_end_matches('/')))
        .replace("@WORKER_URL@", &quoted(&settings.worker_url))
        .replace("@SHA256@", &sha256)
        .replace("@SIMULATION_SHA256@", &simulation_sha256)
        .replace("@ARCH@", std::env::consts::ARCH);
    let headers =
        [(header::CONTENT_TYPE, "text/x-shellscript; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (headers, text).into_response()
}

/// A text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The SHA-256 of a file in hexadecimal digits. The file is read again only after a change.
fn hash(path: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    let (length, changed) = (metadata.len(), metadata.modified()?);
    let mut hashes = HASHES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((l, c, sha256)) = hashes.get(path)
        && (*l, *c) == (length, changed)
    {
        return Ok(sha256.clone());
    }
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher)?;
    let sha256 = hex::encode(hasher.finalize());
    hashes.insert(path.to_owned(), (length, changed, sha256.clone()));
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
