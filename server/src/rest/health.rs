//! How boards are, and what operators do about it.

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json as Answer, Router};
use berth_types::Page;
use berth_types::health::{GpuHealth, PatchGpuMode};
use berth_types::ids::NodeId;

use super::extract::{Failed, Json, Path, Signed};
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/operator/nodes/{node}/gpus", get(list))
        .route("/operator/gpus/{gpu}/check", post(check))
        .route("/operator/gpus/{gpu}/release", post(release))
        .route("/operator/gpus/{gpu}/mode", post(set_mode))
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<Answer<Page<GpuHealth>>, Failed> {
    Ok(Answer(portal.health.list_gpu_health(&caller, node).await?))
}

async fn check(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(gpu): Path<String>,
) -> Result<Answer<GpuHealth>, Failed> {
    Ok(Answer(portal.health.check_gpu(&caller, &gpu).await?))
}

async fn release(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(gpu): Path<String>,
) -> Result<Answer<GpuHealth>, Failed> {
    Ok(Answer(portal.health.release_gpu(&caller, &gpu).await?))
}

async fn set_mode(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(gpu): Path<String>,
    body: Json<PatchGpuMode>,
) -> Result<Answer<GpuHealth>, Failed> {
    Ok(Answer(portal.health.set_gpu_mode(&caller, &gpu, body.value).await?))
}
