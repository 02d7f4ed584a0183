//! Health of boards, and the operators' actions on them.

use super::Health;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::Json as Answer;
use axum::extract::State;
use berth_rest::lists::{ListQuery, page_in_memory};
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::board_samples::BoardSamples;
use berth_types::health::{GpuHealth, PatchGpuMode};
use berth_types::ids::NodeId;
use berth_types::scopes::ApiScope;
use berth_types::time::Timestamp;
use serde::Deserialize;

pub fn routes() -> ApiRouter<Health> {
    ApiRouter::new()
        .api_route(
            "/operator/nodes/{node}/gpus",
            get_with(list, doc(ApiScope::FleetRead, "Lists the boards of a node with their health.")),
        )
        .api_route(
            "/operator/nodes/{node}/gpus/{gpu}/samples",
            get_with(
                samples,
                doc(ApiScope::FleetRead, "Gives the kept readings of a board, with the jobs on it."),
            ),
        )
        .api_route(
            "/operator/gpus/{gpu}/check",
            post_with(check, doc(ApiScope::FleetWrite, "Requests a check of a board by its worker.")),
        )
        .api_route(
            "/operator/gpus/{gpu}/approve",
            post_with(
                approve,
                doc(ApiScope::FleetWrite, "Approves a board beyond those of its node's approval."),
            ),
        )
        .api_route(
            "/operator/gpus/{gpu}/release",
            post_with(release, doc(ApiScope::FleetWrite, "Returns a quarantined board to service.")),
        )
        .api_route(
            "/operator/gpus/{gpu}/mode",
            post_with(set_mode, doc(ApiScope::FleetWrite, "Changes the MIG mode of a board.")),
        )
        .api_route(
            "/operator/gpus/{gpu}/reset",
            post_with(
                reset,
                doc(
                    ApiScope::FleetWrite,
                    "Resets a board by its worker after the end of its jobs, with all boards that the driver resets only together with it.",
                ),
            ),
        )
}

async fn list(
    State(health): State<Health>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<GpuHealth>>, Failed> {
    let options = query.by_name()?;
    // A board that left the node keeps its index, so two boards may have the same.
    let key = |board: &GpuHealth| format!("{:010}\u{1f}{}", board.index, board.uuid);
    Ok(Answer(page_in_memory(health.list_gpu_health(&caller, node).await?, &options, key)))
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct SamplesQuery {
    /// The start of the first wanted step, not later than `to`; a day before `to` when absent.
    from: Option<Timestamp>,
    /// The start of the last wanted step; now when absent.
    to: Option<Timestamp>,
}

async fn samples(
    State(health): State<Health>,
    Signed(caller): Signed,
    Path((node, gpu)): Path<(NodeId, String)>,
    Query(query): Query<SamplesQuery>,
) -> Result<Answer<BoardSamples>, Failed> {
    Ok(Answer(health.board_samples(&caller, (node, gpu.as_str()), (query.from, query.to)).await?))
}

async fn check(
    State(health): State<Health>,
    Signed(caller): Signed,
    Path(gpu): Path<String>,
) -> Result<Answer<GpuHealth>, Failed> {
    Ok(Answer(health.check_gpu(&caller, &gpu).await?))
}

async fn approve(
    State(health): State<Health>,
    Signed(caller): Signed,
    Path(gpu): Path<String>,
) -> Result<Answer<GpuHealth>, Failed> {
    Ok(Answer(health.approve_gpu(&caller, &gpu).await?))
}

async fn release(
    State(health): State<Health>,
    Signed(caller): Signed,
    Path(gpu): Path<String>,
) -> Result<Answer<GpuHealth>, Failed> {
    Ok(Answer(health.release_gpu(&caller, &gpu).await?))
}

async fn set_mode(
    State(health): State<Health>,
    Signed(caller): Signed,
    Path(gpu): Path<String>,
    body: Json<PatchGpuMode>,
) -> Result<Answer<GpuHealth>, Failed> {
    Ok(Answer(health.set_gpu_mode(&caller, &gpu, body.value).await?))
}

async fn reset(
    State(health): State<Health>,
    Signed(caller): Signed,
    Path(gpu): Path<String>,
) -> Result<Answer<GpuHealth>, Failed> {
    Ok(Answer(health.reset_gpu(&caller, &gpu).await?))
}
