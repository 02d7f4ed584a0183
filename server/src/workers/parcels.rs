//! Files on their way between workers and the store.
//!
//! Reads messages and answers them; what is taken and given, `service` decides.

use berth_proto as proto;
use berth_types::files::FileKind;
use berth_types::ids::NodeId;
use berth_types::problems::Problem;
use tonic::{Response, Status};

use super::{attempt, unavailable};
use crate::portal::Portal;
use crate::service::files::Offered;

fn refusal(problem: &Problem) -> Status {
    if problem.status < 500 { Status::not_found("there is no such file") } else { unavailable() }
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
        sha256: parcel.sha256.iter().map(|byte| format!("{byte:02x}")).collect(),
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
    let Some(offered) = piece.parcel.and_then(offered) else {
        return Err(Status::invalid_argument("this is no file of an attempt"));
    };
    let (portal, offset, data) = (portal.clone(), piece.offset, piece.data);
    // To its end even when the worker has hung up: the last piece of a large file takes its time.
    let keeping = tokio::spawn(async move { portal.keep_piece(node, offered, offset, data).await });
    let kept = keeping.await.map_err(|_| unavailable())?.map_err(|problem| refusal(&problem))?;
    Ok(Response::new(proto::Kept { bytes: kept.bytes, done: kept.done }))
}

pub(super) async fn fetch(
    portal: &Portal,
    node: NodeId,
    wish: proto::Wish,
) -> Result<Response<proto::Part>, Status> {
    let (Some((job, number)), Ok(file)) = (attempt(wish.attempt.as_ref()), wish.file.parse()) else {
        return Err(Status::invalid_argument("this is no file of an attempt"));
    };
    let given = portal.give_piece(node, job, number, file, wish.offset).await;
    Ok(Response::new(proto::Part { data: given.map_err(|problem| refusal(&problem))? }))
}
