//! The transfer of files between workers and the object store.
//!
//! Reads messages and answers them. The rules are in `berth-storage`.

use berth_proto as proto;
use berth_types::files::FileKind;
use berth_types::ids::{FileId, NodeId, VolumeId};
use berth_types::problems::Problem;
use tonic::{Response, Status};

use super::{attempt_key, unavailable};
use crate::portal::Portal;
use berth_storage::files::{FileProgress, OfferedBundle, OfferedFile, SmallFile};
use berth_storage::volumes::{OfferedVolumeFile, VersionFile};

fn refusal(problem: &Problem) -> Status {
    if problem.status < 500 { Status::not_found("the file does not exist") } else { unavailable() }
}

/// A file that a worker offers for a volume; `None` for an invalid message.
fn offered_to_volume(file: proto::OutputFile) -> Option<OfferedVolumeFile> {
    let (job, number) = attempt_key(file.attempt.as_ref())?;
    if file.sha256.len() != 32 {
        return None;
    }
    Some(OfferedVolumeFile {
        job,
        attempt: number,
        volume: file.volume.parse().ok()?,
        path: file.path,
        bytes: i64::try_from(file.bytes).ok()?,
        sha256: hex::encode(&file.sha256),
        listing: file.manifest,
        note: file.note,
        refused: file.refused,
    })
}

/// A file that a worker offers as an artifact or a checkpoint; `None` for an invalid message.
fn offered_file(file: proto::OutputFile) -> Option<OfferedFile> {
    let (job, number) = attempt_key(file.attempt.as_ref())?;
    if file.sha256.len() != 32 {
        return None;
    }
    Some(OfferedFile {
        job,
        attempt: number,
        kind: if file.checkpoint { FileKind::Checkpoint } else { FileKind::Artifact },
        path: file.path,
        seq: i64::try_from(file.seq).ok()?,
        bytes: i64::try_from(file.bytes).ok()?,
        sha256: hex::encode(&file.sha256),
        files: i64::try_from(file.files).ok()?,
        note: file.note,
        refused: file.refused,
    })
}

/// Receives a chunk of a file.
pub(super) async fn upload(
    portal: &Portal,
    node: NodeId,
    chunk: proto::UploadChunk,
) -> Result<Response<proto::UploadProgress>, Status> {
    let no_file = || Status::invalid_argument("the file belongs to no attempt");
    let file = chunk.file.ok_or_else(no_file)?;
    let (portal, offset, data) = (portal.clone(), chunk.offset, chunk.data);
    // In a task of its own, so that it ends even if the worker disconnects: the last chunk of a large file is
    // slow.
    let task: tokio::task::JoinHandle<Result<FileProgress, Problem>> = if file.volume.is_empty() {
        let offered = offered_file(file).ok_or_else(no_file)?;
        tokio::spawn(async move { portal.files.receive_chunk(node, offered, offset, data).await })
    } else {
        let offered = offered_to_volume(file).ok_or_else(no_file)?;
        tokio::spawn(async move { portal.volumes.receive_volume_chunk(node, offered, offset, data).await })
    };
    let progress = task.await.map_err(|_| unavailable())?.map_err(|problem| refusal(&problem))?;
    Ok(Response::new(proto::UploadProgress { received_bytes: progress.bytes, done: progress.done }))
}

/// A batch, and true if the worker only asks for its state; `None` for an invalid message.
fn offered_batch(batch: proto::UploadBatchRequest) -> Option<(OfferedBundle, bool)> {
    let (job, number) = attempt_key(batch.attempt.as_ref())?;
    let data_bytes: usize = batch.files.iter().map(|file| file.data.len()).sum();
    if batch.files.len() > berth_contract::BATCH_FILES || data_bytes > berth_contract::BATCH_BYTES {
        return None;
    }
    let check_only = batch.check_only;
    let small = |file: proto::SmallFile| {
        let whole = check_only || file.data.len() as u64 == file.bytes;
        (whole && file.sha256.len() == 32).then_some(())?;
        let (bytes, sha256) = (i64::try_from(file.bytes).ok()?, hex::encode(&file.sha256));
        Some(SmallFile { path: file.path, bytes, sha256, data: file.data.into() })
    };
    let files = batch.files.into_iter().map(small).collect::<Option<Vec<SmallFile>>>()?;
    let volume: Option<VolumeId> = match batch.volume.as_str() {
        "" => None,
        id => Some(id.parse().ok()?),
    };
    Some((OfferedBundle { job, attempt: number, volume, files }, check_only))
}

/// Receives a batch of small files, or answers which of them the portal has.
pub(super) async fn upload_batch(
    portal: &Portal,
    node: NodeId,
    batch: proto::UploadBatchRequest,
) -> Result<Response<proto::UploadBatchResult>, Status> {
    let (offered, check_only) =
        offered_batch(batch).ok_or_else(|| Status::invalid_argument("the files belong to no attempt"))?;
    let portal = portal.clone();
    // In a task of its own, so that the received files count even if the worker disconnects.
    let task = tokio::spawn(async move {
        if check_only {
            portal.bundles.check_bundle(node, offered).await
        } else {
            portal.bundles.receive_bundle(node, offered).await
        }
    });
    let done = task.await.map_err(|_| unavailable())?.map_err(|problem| refusal(&problem))?;
    Ok(Response::new(proto::UploadBatchResult { done }))
}

fn to_volume_file(file: VersionFile) -> proto::VolumeFile {
    proto::VolumeFile {
        path: file.path,
        file: file.file.to_string(),
        bytes: file.bytes,
        sha256: file.sha256,
        executable: file.executable,
    }
}

/// Gives a chunk of a file, or a part of the list of a volume's files.
pub(super) async fn fetch(
    portal: &Portal,
    node: NodeId,
    request: proto::FetchRequest,
) -> Result<Response<proto::FetchResponse>, Status> {
    let no_file = || Status::invalid_argument("the file belongs to no attempt");
    let (job, number) = attempt_key(request.attempt.as_ref()).ok_or_else(no_file)?;
    let mut answer = proto::FetchResponse::default();
    let refused = |problem: Problem| refusal(&problem);
    let range = request.offset..request.offset.saturating_add(berth_contract::FILE_CHUNK as u64);
    if request.volume.is_empty() {
        let file: FileId = request.file.parse().map_err(|_| no_file())?;
        answer.data = portal.files.read_chunk(node, job, number, file, range).await.map_err(refused)?;
    } else {
        let volume: VolumeId = request.volume.parse().map_err(|_| refused(Problem::not_found()))?;
        if request.file.is_empty() {
            let listed =
                portal.volumes.list_volume_version(node, (job, number), volume, &request.after).await;
            answer.files = listed.map_err(refused)?.into_iter().map(to_volume_file).collect();
        } else {
            let file: FileId = request.file.parse().map_err(|_| refused(Problem::not_found()))?;
            let given = portal.volumes.read_volume_chunk(node, (job, number), volume, (file, range)).await;
            answer.data = given.map_err(refused)?;
        }
    }
    Ok(Response::new(answer))
}
