//! Files on their way between workers and the store.
//!
//! Reads messages and answers them. Must not decide: `berth-storage` does.

use berth_proto as proto;
use berth_types::files::FileKind;
use berth_types::ids::{FileId, NodeId};
use berth_types::problems::Problem;
use tonic::{Response, Status};

use super::{attempt, unavailable};
use crate::portal::Portal;
use berth_storage::files::{Kept, Offered, OfferedBundle, SmallFile};
use berth_storage::volumes::OfferedVolume;

fn refusal(problem: &Problem) -> Status {
    if problem.status < 500 { Status::not_found("there is no such file") } else { unavailable() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a worker offers to a volume; `None` when it makes no sense.
fn offered_to_volume(parcel: proto::Parcel) -> Option<OfferedVolume> {
    let (job, number) = attempt(parcel.attempt.as_ref())?;
    if parcel.sha256.len() != 32 {
        return None;
    }
    Some(OfferedVolume {
        job,
        attempt: number,
        volume: parcel.volume,
        path: parcel.path,
        bytes: i64::try_from(parcel.bytes).ok()?,
        sha256: hex(&parcel.sha256),
        listing: parcel.listing,
        note: parcel.note,
        refused: parcel.refused,
    })
}

/// What a worker offers; `None` when it makes no sense.
fn offered(parcel: proto::Parcel) -> Option<Offered> {
    let (job, number) = attempt(parcel.attempt.as_ref())?;
    if parcel.sha256.len() != 32 {
        return None;
    }
    Some(Offered {
        job,
        attempt: number,
        kind: if parcel.checkpoint { FileKind::Checkpoint } else { FileKind::Artifact },
        path: parcel.path,
        seq: i64::try_from(parcel.seq).ok()?,
        bytes: i64::try_from(parcel.bytes).ok()?,
        sha256: hex(&parcel.sha256),
        files: i64::try_from(parcel.files).ok()?,
        note: parcel.note,
        refused: parcel.refused,
    })
}

pub(super) async fn keep(
    portal: &Portal,
    node: NodeId,
    piece: proto::Piece,
) -> Result<Response<proto::Kept>, Status> {
    let no_file = || Status::invalid_argument("this is no file of an attempt");
    let parcel = piece.parcel.ok_or_else(no_file)?;
    let (portal, offset, data) = (portal.clone(), piece.offset, piece.data);
    // To its end even when the worker has hung up: the last piece of a large file takes its time.
    let keeping: tokio::task::JoinHandle<Result<Kept, Problem>> = if parcel.volume.is_empty() {
        let offered = offered(parcel).ok_or_else(no_file)?;
        tokio::spawn(async move { portal.files.keep_piece(node, offered, offset, data).await })
    } else {
        let offered = offered_to_volume(parcel).ok_or_else(no_file)?;
        tokio::spawn(async move { portal.volumes.keep_volume_piece(node, offered, offset, data).await })
    };
    let kept = keeping.await.map_err(|_| unavailable())?.map_err(|problem| refusal(&problem))?;
    Ok(Response::new(proto::Kept { bytes: kept.bytes, done: kept.done }))
}

/// A bundle, and whether it is only asked for; `None` when it makes no sense.
fn offered_bundle(bundle: proto::Bundle) -> Option<(OfferedBundle, bool)> {
    let (job, number) = attempt(bundle.attempt.as_ref())?;
    let carried: usize = bundle.files.iter().map(|file| file.data.len()).sum();
    if bundle.files.len() > proto::BUNDLE_FILES || carried > proto::BUNDLE {
        return None;
    }
    let ask = bundle.ask;
    let small = |file: proto::SmallFile| {
        let whole = ask || file.data.len() as u64 == file.bytes;
        (whole && file.sha256.len() == 32).then_some(())?;
        let (bytes, sha256) = (i64::try_from(file.bytes).ok()?, hex(&file.sha256));
        Some(SmallFile { path: file.path, bytes, sha256, data: file.data.into() })
    };
    let files = bundle.files.into_iter().map(small).collect::<Option<Vec<SmallFile>>>()?;
    let volume = Some(bundle.volume).filter(|volume| !volume.is_empty());
    Some((OfferedBundle { job, attempt: number, volume, files }, ask))
}

pub(super) async fn keep_many(
    portal: &Portal,
    node: NodeId,
    bundle: proto::Bundle,
) -> Result<Response<proto::BundleKept>, Status> {
    let (offered, ask) =
        offered_bundle(bundle).ok_or_else(|| Status::invalid_argument("these are no files of an attempt"))?;
    let portal = portal.clone();
    // To its end even when the worker has hung up, so that what came counts.
    let keeping = tokio::spawn(async move {
        if ask {
            portal.bundles.ask_bundle(node, offered).await
        } else {
            portal.bundles.keep_bundle(node, offered).await
        }
    });
    let done = keeping.await.map_err(|_| unavailable())?.map_err(|problem| refusal(&problem))?;
    Ok(Response::new(proto::BundleKept { done }))
}

pub(super) async fn fetch(
    portal: &Portal,
    node: NodeId,
    wish: proto::Wish,
) -> Result<Response<proto::Part>, Status> {
    let no_file = || Status::invalid_argument("this is no file of an attempt");
    let (job, number) = attempt(wish.attempt.as_ref()).ok_or_else(no_file)?;
    let mut part = proto::Part::default();
    let refused = |problem: Problem| refusal(&problem);
    if wish.volume.is_empty() {
        let file: FileId = wish.file.parse().map_err(|_| no_file())?;
        part.data = portal.files.give_piece(node, job, number, file, wish.offset).await.map_err(refused)?;
    } else if wish.file.is_empty() {
        let listed = portal.volumes.give_volume_list(node, (job, number), &wish.volume, &wish.after).await;
        part.files = listed.map_err(refused)?;
    } else {
        let wanted = (wish.file.as_str(), wish.offset);
        let given = portal.volumes.give_volume_piece(node, (job, number), &wish.volume, wanted).await;
        part.data = given.map_err(refused)?;
    }
    Ok(Response::new(part))
}
