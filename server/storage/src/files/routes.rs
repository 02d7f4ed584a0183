//! The kept files of jobs: list, bytes and removal.

use super::Files;
use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{NoContent, Response};
use berth_rest::downloads::Download;
use berth_rest::lists::ListQuery;
use berth_rest::operations::{bytes, doc};
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::Page;
use berth_types::files::{FileKind, JobFile};
use berth_types::ids::{FileId, JobId, OrgId};
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Files> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/jobs/{job}/files",
            get_with(list, doc(ApiScope::StorageRead, "Lists the kept files of a job.")),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/files/{file}",
            get_with(content, bytes(ApiScope::StorageRead, "Gives the bytes of a file, or a range of them."))
                .delete_with(remove, doc(ApiScope::StorageWrite, "Removes a file.")),
        )
}

async fn list(
    State(files): State<Files>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<JobFile>>, Failed> {
    Ok(Answer(files.list_files(&caller, org, job, &query.by_creation()?).await?))
}

async fn remove(
    State(files): State<Files>,
    Signed(caller): Signed,
    Path((org, job, file)): Path<(OrgId, JobId, FileId)>,
) -> Result<NoContent, Failed> {
    files.remove_file(&caller, org, job, file).await?;
    Ok(NoContent)
}

/// The file name of a job's file for a download.
fn download_name(file: &JobFile) -> String {
    let last = file.path.rsplit('/').next().unwrap_or_default();
    match file.kind {
        FileKind::Artifact => last.to_owned(),
        FileKind::Checkpoint => format!("{last}-{}-{}.tar", file.attempt, file.rank),
    }
}

async fn content(
    State(files): State<Files>,
    Signed(caller): Signed,
    Path((org, job, file)): Path<(OrgId, JobId, FileId)>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let file = files.get_file(&caller, org, job, file).await?;
    let download = Download { name: download_name(&file), bytes: file.bytes, sha256: file.sha256.clone() };
    match download.select_part(&headers) {
        Ok(part) => Ok(part.answer(files.read_file(&file, part.range.clone()).await?)),
        Err(response) => Ok(*response),
    }
}

#[cfg(test)]
mod tests {
    use berth_rest::downloads::content_disposition;

    use super::*;

    #[test]
    fn a_name_stays_a_name() {
        let file = |kind, path: &str| JobFile {
            id: "file_00000000000000000000000001".parse().unwrap(),
            kind,
            state: berth_types::files::FileState::Complete,
            path: path.to_owned(),
            bytes: 1,
            sha256: String::new(),
            attempt: 2,
            rank: 0,
            files: 1,
            note: None,
            created_at: berth_types::time::Timestamp::from_micros(0),
        };
        let name = |kind, path| content_disposition(&download_name(&file(kind, path)));
        assert_eq!(name(FileKind::Artifact, "out/a b\".png"), "attachment; filename*=UTF-8''a%20b%22.png");
        assert_eq!(name(FileKind::Checkpoint, "ckpt"), "attachment; filename*=UTF-8''ckpt-2-0.tar");
    }
}
