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
use berth_types::jobs::{Explanation, ExtendJob, Job, JobPlan, JobState, NewJob, OrgJobFilter};
use berth_types::overview::JobCounts;
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Jobs> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/jobs",
            get_with(list, doc(ApiScope::JobsRead, "Lists the jobs of an organization.")).post_with(
                submit,
                answers_either::<201, Job, 200, JobPlan>(
                    ApiScope::JobsWrite,
                    "Submits a job; with `dry_run` gives its plan and price only.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/job-counts",
            get_with(count, doc(ApiScope::JobsRead, "Gives the numbers of an organization's jobs.")),
        )
        .api_route("/orgs/{org}/jobs/{job}", get_with(show, doc(ApiScope::JobsRead, "Gives a job.")))
        .api_route(
            "/orgs/{org}/jobs/{job}/submission",
            get_with(
                submission,
                doc(ApiScope::JobsRead, "Gives the submission of a job for another submission."),
            ),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/cancel",
            post_with(cancel, doc(ApiScope::JobsWrite, "Cancels a job.")),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/extend",
            post_with(extend, doc(ApiScope::JobsWrite, "Extends the time limit of a job.")),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/explanation",
            get_with(
                explanation,
                doc(
                    ApiScope::JobsRead,
                    "Explains the wait of a job, with own jobs in the way and changes that start at once.",
                ),
            ),
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
    /// True for ended jobs only, false for jobs that have not ended only.
    ended: Option<bool>,
    /// A part of the name without regard to the case of A to Z: 1 to 100 printable characters.
    #[schemars(length(min = 1, max = 100))]
    name: Option<String>,
    /// A part of the name of the submitting user without regard to the case of A to Z: 1 to 100 printable characters.
    #[schemars(length(min = 1, max = 100))]
    created_by: Option<String>,
    /// A label as `key=value`, with a key of at least one character: at most 127 bytes without control
    /// characters.
    #[schemars(length(min = 2, max = 127))]
    label: Option<String>,
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
    let ListJobs { state, ended, name, created_by, label, limit, cursor, sort } = query;
    let filter = OrgJobFilter { state, ended, name, created_by, label };
    let options = ListQuery { limit, cursor, sort }.by_creation_with(&filter)?;
    Ok(Answer(jobs.list_jobs(&caller, org, &filter, &options).await?))
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

async fn submission(
    State(jobs): State<Jobs>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
) -> Result<Answer<NewJob>, Failed> {
    Ok(Answer(jobs.get_submission(&caller, org, job).await?))
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
