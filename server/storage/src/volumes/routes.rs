//! Volumes of an organization, their files, and uploads and downloads of them.

use super::PartOutcome;
use super::Volumes;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, put_with};
use axum::Json as Answer;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, NoContent, Response};
use berth_rest::answers::Created;
use berth_rest::downloads::Download;
use berth_rest::extract::read_body;
use berth_rest::lists::ListQuery;
use berth_rest::operations::{answers, bytes, doc, upload};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::volumes::{NewUpload, NewVolume, Upload, Volume, VolumeEntry};
use berth_types::{Page, Sort};
use serde::Deserialize;

/// The header with the first byte of a part in a request, and of the next part in an answer.
const OFFSET: &str = "upload-offset";

pub fn routes() -> ApiRouter<Volumes> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/volumes",
            get_with(list, doc(ApiScope::StorageRead, "Lists the volumes of an organization."))
                .post_with(create, doc(ApiScope::StorageWrite, "Creates a volume.")),
        )
        .api_route(
            "/orgs/{org}/volumes/{volume}",
            get_with(show, doc(ApiScope::StorageRead, "Gives a volume."))
                .delete_with(remove, doc(ApiScope::StorageWrite, "Removes a volume.")),
        )
        .api_route(
            "/orgs/{org}/volumes/{volume}/files",
            get_with(list_files, doc(ApiScope::StorageRead, "Lists a directory of a volume.")),
        )
        .api_route(
            "/orgs/{org}/volumes/{volume}/files/{*path}",
            get_with(
                content,
                bytes(ApiScope::StorageRead, "Gives the bytes of a file of a volume, or a range of them."),
            )
            .delete_with(remove_file, doc(ApiScope::StorageWrite, "Removes a file of a volume.")),
        )
        .api_route(
            "/orgs/{org}/volumes/{volume}/uploads/{*path}",
            put_with(begin, answers::<200, Upload>(ApiScope::StorageWrite, "Begins an upload."))
                .get_with(
                    progress,
                    answers::<200, Upload>(ApiScope::StorageRead, "Gives the progress of an upload."),
                )
                .patch_with(add, upload(ApiScope::StorageWrite, "Adds a part to an upload."))
                .delete_with(abandon, doc(ApiScope::StorageWrite, "Abandons an upload.")),
        )
}

async fn list(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Volume>>, Failed> {
    Ok(Answer(volumes.list_volumes(&caller, org, &query.by_name()?).await?))
}

async fn create(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    input: Json<NewVolume>,
) -> Result<Created<Volume>, Failed> {
    Ok(Created(volumes.create_volume(&caller, org, input.value).await?))
}

async fn show(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume)): Path<(OrgId, String)>,
) -> Result<Answer<Volume>, Failed> {
    Ok(Answer(volumes.get_volume(&caller, org, &volume).await?))
}

async fn remove(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume)): Path<(OrgId, String)>,
) -> Result<NoContent, Failed> {
    volumes.delete_volume(&caller, org, volume).await?;
    Ok(NoContent)
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListFiles {
    /// The path of the directory, at most 1024 bytes; the root when absent.
    #[schemars(length(max = 1_024))]
    dir: Option<String>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_files(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume)): Path<(OrgId, String)>,
    Query(query): Query<ListFiles>,
) -> Result<Answer<Page<VolumeEntry>>, Failed> {
    let place = (volume.as_str(), query.dir.as_deref().unwrap_or_default());
    let options =
        ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }.by_name_with(&place.1)?;
    Ok(Answer(volumes.list_volume_files(&caller, org, place, &options).await?))
}

async fn content(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume, path)): Path<(OrgId, String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let file = volumes.get_volume_file(&caller, org, &volume, &path).await?;
    let download = Download {
        name: path.rsplit('/').next().unwrap_or_default().to_owned(),
        bytes: u64::try_from(file.bytes).unwrap_or(0),
        sha256: file.sha256.clone(),
    };
    match download.select_part(&headers) {
        Ok(part) => Ok(part.answer(volumes.read_volume_file(&file, part.range.clone()).await?)),
        Err(response) => Ok(*response),
    }
}

async fn remove_file(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume, path)): Path<(OrgId, String, String)>,
) -> Result<NoContent, Failed> {
    volumes.remove_volume_file(&caller, org, volume, path).await?;
    Ok(NoContent)
}

/// An answer with the progress of an upload in its body and in its header.
fn upload_response(upload: Upload) -> Response {
    ([(OFFSET, HeaderValue::from(upload.received))], Answer(upload)).into_response()
}

async fn begin(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume, path)): Path<(OrgId, String, String)>,
    input: Json<NewUpload>,
) -> Result<Response, Failed> {
    Ok(upload_response(volumes.begin_upload(&caller, org, volume, path, input.value).await?))
}

async fn progress(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume, path)): Path<(OrgId, String, String)>,
) -> Result<Response, Failed> {
    Ok(upload_response(volumes.get_upload(&caller, org, &volume, &path).await?))
}

/// The first byte of a part, from its header.
fn offset(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(OFFSET)?.to_str().ok()?.trim();
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

async fn add(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume, path)): Path<(OrgId, String, String)>,
    request: Request,
) -> Result<Response, Failed> {
    let Some(offset) = offset(request.headers()) else {
        let detail = "Send the offset of the part in the header Upload-Offset: BYTES.";
        return Err(Failed(Problem::malformed(detail)));
    };
    let data: Bytes = read_body(request).await?;
    match volumes.add_to_upload(&caller, org, volume, path, offset, data.to_vec()).await? {
        PartOutcome::Added(upload) => Ok(upload_response(upload)),
        PartOutcome::WrongOffset(received) => {
            let detail = format!(
                "The part begins at byte {offset}, and {received} bytes are stored. Continue from there."
            );
            let problem = Problem::conflict("upload.offset", "Wrong offset", detail);
            Ok(([(OFFSET, HeaderValue::from(received))], Failed(problem)).into_response())
        }
    }
}

async fn abandon(
    State(volumes): State<Volumes>,
    Signed(caller): Signed,
    Path((org, volume, path)): Path<(OrgId, String, String)>,
) -> Result<NoContent, Failed> {
    volumes.drop_upload(&caller, org, &volume, &path).await?;
    Ok(NoContent)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(value: &[u8]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        headers.insert(OFFSET, HeaderValue::from_bytes(value).ok()?);
        offset(&headers)
    }

    proptest! {
        #[test]
        fn an_offset_is_digits_and_nothing_else(
            number in any::<u64>(),
            text in prop_oneof!["[ +-]?[0-9]{0,25}", "[0-9a-fx. _,]{0,12}"],
            bytes in prop::collection::vec(any::<u8>(), 0..12),
        ) {
            prop_assert_eq!(read(number.to_string().as_bytes()), Some(number));
            for value in [text.as_bytes(), bytes.as_slice()] {
                prop_assert!(read(value).is_none() || value.trim_ascii().iter().all(u8::is_ascii_digit));
            }
        }
    }
}
