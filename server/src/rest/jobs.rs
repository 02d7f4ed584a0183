//! Jobs.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json as Answer, Router};
use berth_types::Page;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Explanation, ExtendJob, Job, JobState, NewJob};
use serde::Deserialize;

use super::extract::{Failed, Json, Path, Query, Signed, cursor, limit};
use super::once::NotKept;
use crate::portal::Portal;

pub fn routes() -> Router<Portal> {
    Router::new()
        .route("/orgs/{org}/jobs", get(list).post(submit))
        .route("/orgs/{org}/jobs/{job}", get(show))
        .route("/orgs/{org}/jobs/{job}/cancel", post(cancel))
        .route("/orgs/{org}/jobs/{job}/extend", post(extend))
        .route("/orgs/{org}/jobs/{job}/explanation", get(explanation))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submit {
    #[serde(default)]
    dry_run: bool,
}

async fn submit(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<Submit>,
    body: Json<NewJob>,
) -> Result<Response, Failed> {
    if query.dry_run {
        let plan = portal.jobs.plan_job(&caller, org, &body.value).await?;
        return Ok((Extension(NotKept), Answer(plan)).into_response());
    }
    let job = portal.jobs.submit_job(&caller, org, body.value).await?;
    Ok((StatusCode::CREATED, Answer(job)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListJobs {
    state: Option<JobState>,
    limit: Option<u32>,
    cursor: Option<String>,
}

async fn list(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListJobs>,
) -> Result<Answer<Page<Job>>, Failed> {
    let page = portal.jobs.list_jobs(&caller, org, query.state, cursor(query.cursor)?, limit(query.limit)?);
    Ok(Answer(page.await?))
}

async fn show(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
) -> Result<Answer<Job>, Failed> {
    Ok(Answer(portal.jobs.get_job(&caller, org, job).await?))
}

async fn cancel(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
) -> Result<(StatusCode, Answer<Job>), Failed> {
    Ok((StatusCode::ACCEPTED, Answer(portal.jobs.cancel_job(&caller, org, job).await?)))
}

async fn extend(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    body: Json<ExtendJob>,
) -> Result<(StatusCode, Answer<Job>), Failed> {
    Ok((StatusCode::ACCEPTED, Answer(portal.jobs.extend_job(&caller, org, job, body.value).await?)))
}

async fn explanation(
    State(portal): State<Portal>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
) -> Result<Answer<Explanation>, Failed> {
    Ok(Answer(portal.jobs.explain_job(&caller, org, job).await?))
}
