//! Jobs.

use super::Jobs;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use berth_rest::answers::{Accepted, NotKept};
use berth_rest::lists::ListQuery;
use berth_rest::operations::{answers_either, doc};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Explanation, ExtendJob, Job, JobPlan, JobState, NewJob};
use berth_types::overview::JobCounts;
use berth_types::{Page, Sort};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Jobs> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/jobs",
            get_with(list, doc("Lists the jobs of an organization.")).post_with(
                submit,
                answers_either::<201, Job, 200, JobPlan>(
                    "Submits a job; with `dry_run` gives its plan and price only.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/job-counts",
            get_with(count, doc("Gives the numbers of an organization's jobs.")),
        )
        .api_route("/orgs/{org}/jobs/{job}", get_with(show, doc("Gives a job.")))
        .api_route("/orgs/{org}/jobs/{job}/cancel", post_with(cancel, doc("Cancels a job.")))
        .api_route(
            "/orgs/{org}/jobs/{job}/extend",
            post_with(extend, doc("Extends the time limit of a job.")),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/explanation",
            get_with(explanation, doc("Explains the wait of a job.")),
        )
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Submit {
    /// True for the plan of the job, without a submission.
    #[serde(default)]
    dry_run: bool,
}

async fn submit(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<Submit>,
    body: Json<NewJob>,
) -> Result<Response, Failed> {
    if query.dry_run {
        let plan = jobs.plan_job(&caller, org, &body.value).await?;
        return Ok((Extension(NotKept), Answer(plan)).into_response());
    }
    let job = jobs.submit_job(&caller, org, body.value).await?;
    Ok((StatusCode::CREATED, Answer(job)).into_response())
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListJobs {
    /// Only jobs in this state.
    state: Option<JobState>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListJobs>,
) -> Result<Answer<Page<Job>>, Failed> {
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }.by_creation()?;
    Ok(Answer(jobs.list_jobs(&caller, org, query.state, &options).await?))
}

async fn count(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<JobCounts>, Failed> {
    Ok(Answer(jobs.count_jobs(&caller, org).await?))
}

async fn show(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
) -> Result<Answer<Job>, Failed> {
    Ok(Answer(jobs.get_job(&caller, org, job).await?))
}

async fn cancel(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
) -> Result<Accepted<Job>, Failed> {
    Ok(Accepted(jobs.cancel_job(&caller, org, job).await?))
}

async fn extend(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    body: Json<ExtendJob>,
) -> Result<Accepted<Job>, Failed> {
    Ok(Accepted(jobs.extend_job(&caller, org, job, body.value).await?))
}

async fn explanation(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
) -> Result<Answer<Explanation>, Failed> {
    Ok(Answer(jobs.explain_job(&caller, org, job).await?))
}
