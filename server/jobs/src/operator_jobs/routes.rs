//! The jobs of all organizations, jobs as CSV, and bulk stops.

use super::OperatorJobs;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use berth_foundation::Caller;
use berth_rest::answers::NotKept;
use berth_rest::columns::Table;
use berth_rest::csv::{Format, broken, csv_head, plain_cell, wants_csv};
use berth_rest::lists::{ListQuery, parse_cursor};
use berth_rest::operations::{answers_either, csv, or_csv};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{JobState, OrgJobFilter, StopOrgJobs};
use berth_types::lists::ListOptions;
use berth_types::operations::{JobFilter, OperatedJob, StopJobs, StoppedJobs};
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use futures::{StreamExt, stream};
use serde::Deserialize;

pub fn routes() -> ApiRouter<OperatorJobs> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/jobs.csv",
            get_with(own_jobs_csv, csv(ApiScope::JobsRead, "Gives the jobs of an organization as CSV.")),
        )
        .api_route(
            "/orgs/{org}/jobs/stop",
            post_with(
                stop_own_jobs,
                answers_either::<202, StoppedJobs, 200, StoppedJobs>(
                    ApiScope::JobsWrite,
                    "Stops jobs of an organization; with `preview` counts them only.",
                ),
            ),
        )
        .api_route(
            "/operator/jobs",
            get_with(
                list_jobs,
                or_csv::<Page<OperatedJob>>(ApiScope::JobsRead, "Lists the jobs of all organizations."),
            ),
        )
        .api_route(
            "/operator/jobs.csv",
            get_with(jobs_csv, csv(ApiScope::JobsRead, "Gives the jobs of all organizations as CSV.")),
        )
        .api_route(
            "/operator/jobs/stop",
            post_with(
                stop_jobs,
                answers_either::<202, StoppedJobs, 200, StoppedJobs>(
                    ApiScope::JobsWrite,
                    "Stops jobs; with `preview` counts them only.",
                ),
            ),
        )
}

/// Jobs in one page of a CSV file.
const PAGE: u32 = 200;

/// The options for a page of a CSV file.
fn page_after(cursor: Option<JobId>) -> ListOptions<JobId> {
    ListOptions { cursor, ..ListOptions::newest(PAGE) }
}

/// The filter of a query for jobs.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct JobQuery {
    /// Only jobs of this organization.
    org: Option<OrgId>,
    /// Only jobs with this node in their latest attempt.
    node: Option<NodeId>,
    /// Only jobs in this state.
    state: Option<JobState>,
    /// The slug of an offering, at most 100 bytes.
    #[schemars(length(max = 100))]
    offering: Option<String>,
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
    /// The format of the answer; by `Accept` when absent.
    format: Option<Format>,
}

impl JobQuery {
    fn take_filter(&mut self) -> JobFilter {
        JobFilter {
            org: self.org,
            node: self.node,
            state: self.state,
            offering: self.offering.take(),
            label: self.label.take(),
        }
    }
}

async fn list_jobs(
    State(operator_jobs): State<OperatorJobs>,
    Signed(caller): Signed,
    Query(mut query): Query<JobQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let filter = query.take_filter();
    if wants_csv(query.format, &headers) {
        return all_jobs_csv(operator_jobs, caller, filter).await;
    }
    let options =
        ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }.by_creation_with(&filter)?;
    Ok(Answer(operator_jobs.list_all_jobs(&caller, &filter, &options).await?).into_response())
}

async fn jobs_csv(
    State(operator_jobs): State<OperatorJobs>,
    Signed(caller): Signed,
    Query(mut query): Query<JobQuery>,
) -> Result<Response, Failed> {
    all_jobs_csv(operator_jobs, caller, query.take_filter()).await
}

/// The jobs of a filter as CSV, newest first.
async fn all_jobs_csv(
    operator_jobs: OperatorJobs,
    caller: Caller,
    filter: JobFilter,
) -> Result<Response, Failed> {
    jobs_file(move |from| {
        let (operator_jobs, caller, filter) = (operator_jobs.clone(), caller.clone(), filter.clone());
        async move { operator_jobs.list_all_jobs(&caller, &filter, &page_after(from)).await }
    })
    .await
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct OwnJobsQuery {
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
}

/// The jobs of an organization as CSV, newest first.
async fn own_jobs_csv(
    State(operator_jobs): State<OperatorJobs>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<OwnJobsQuery>,
) -> Result<Response, Failed> {
    let OwnJobsQuery { state, ended, name, created_by, label } = query;
    let filter = OrgJobFilter { state, ended, name, created_by, label };
    jobs_file(move |from| {
        let (operator_jobs, caller, filter) = (operator_jobs.clone(), caller.clone(), filter.clone());
        async move { operator_jobs.list_own_jobs(&caller, org, &filter, &page_after(from)).await }
    })
    .await
}

/// Jobs as CSV. Each page is read after the client has received the page before it. A file of any length
/// needs the memory of one page, and it ends early for a caller who loses the right.
async fn jobs_file<P>(read: impl Fn(Option<JobId>) -> P + Send + 'static) -> Result<Response, Failed>
where
    P: Future<Output = Result<Page<OperatedJob>, Problem>> + Send + 'static,
{
    // The first page is read before the answer begins, so that a refusal has its own status.
    let (begin, next) = jobs_page(read(None).await?, true)?;
    let rest = stream::try_unfold(next, move |from| {
        let page = from.map(|from| read(Some(from)));
        async move {
            let Some(page) = page else { return Ok(None) };
            // The error aborts the answer: a part of the file must not pass for the whole file.
            let failed = "a list of jobs ended early";
            jobs_page(page.await.map_err(|_| failed)?, false).map(Some).map_err(|_| failed)
        }
    });
    let bytes = stream::once(std::future::ready(Ok(begin))).chain(rest);
    Ok((csv_head("jobs.csv"), Body::from_stream(bytes)).into_response())
}

/// A page of jobs as CSV, and the cursor of the next page. The first page begins with the column names.
fn jobs_page(page: Page<OperatedJob>, first: bool) -> Result<(Vec<u8>, Option<JobId>), Failed> {
    let mut file = csv::Writer::from_writer(Vec::new());
    if first {
        file.write_record(Page::<OperatedJob>::COLUMNS).map_err(broken)?;
    }
    let text = |value: Option<String>| value.unwrap_or_default();
    for job in page.items {
        let labels: Vec<String> = job.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let cells = [
            job.id.to_string(),
            job.org.to_string(),
            plain_cell(job.org_name),
            plain_cell(job.name),
            job.state.name().to_owned(),
            job.attempt.to_string(),
            job.offering,
            job.count.to_string(),
            job.nodes.to_string(),
            plain_cell(text(job.node_name)),
            plain_cell(labels.join("; ")),
            plain_cell(job.created_by),
            job.created_at.to_string(),
            text(job.started_at.map(|at| at.to_string())),
            text(job.ended_at.map(|at| at.to_string())),
            text(job.exit_code.map(|code| code.to_string())),
            text(job.failure.map(|failure| failure.code)),
            job.metered_ms.to_string(),
            job.cost_micros.to_string(),
            job.currency,
        ];
        file.write_record(cells).map_err(broken)?;
    }
    Ok((file.into_inner().map_err(broken)?, page.next_cursor.map(parse_cursor).transpose()?))
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct StopQuery {
    /// True for the number of matching jobs, without a stop.
    #[serde(default)]
    preview: bool,
}

async fn stop_jobs(
    State(operator_jobs): State<OperatorJobs>,
    Signed(caller): Signed,
    Query(query): Query<StopQuery>,
    body: Json<StopJobs>,
) -> Result<Response, Failed> {
    if query.preview {
        let preview = operator_jobs.preview_stop(&caller, &body.value).await?;
        return Ok((Extension(NotKept), Answer(preview)).into_response());
    }
    Ok((StatusCode::ACCEPTED, Answer(operator_jobs.stop_jobs(&caller, body.value).await?)).into_response())
}

async fn stop_own_jobs(
    State(operator_jobs): State<OperatorJobs>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<StopQuery>,
    body: Json<StopOrgJobs>,
) -> Result<Response, Failed> {
    let order = &body.value;
    if query.preview {
        let preview = operator_jobs.preview_own_stop(&caller, org, order).await?;
        return Ok((Extension(NotKept), Answer(preview)).into_response());
    }
    Ok((StatusCode::ACCEPTED, Answer(operator_jobs.stop_own_jobs(&caller, org, order).await?))
        .into_response())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use berth_types::time::Timestamp;

    use super::*;

    fn id(n: u32) -> JobId {
        JobId::from_uuid(uuid::Uuid::from_u128(n.into()))
    }

    fn job(n: u32) -> OperatedJob {
        OperatedJob {
            id: id(n),
            org: OrgId::from_uuid(uuid::Uuid::nil()),
            org_name: "lab".to_owned(),
            name: format!("job {n}"),
            state: JobState::Queued,
            attempt: 0,
            offering: "h100".to_owned(),
            count: 1,
            nodes: 1,
            node_name: None,
            labels: std::collections::BTreeMap::new(),
            created_by: "a@b".to_owned(),
            created_at: Timestamp::from_micros(0),
            started_at: None,
            ended_at: None,
            exit_code: None,
            failure: None,
            metered_ms: 0,
            cost_micros: 0,
            currency: "USD".to_owned(),
        }
    }

    /// A file of pages with one job each, and the count of read pages. The read of page `refused` fails.
    async fn file(pages: u32, refused: u32) -> (Result<Response, Failed>, Arc<AtomicU32>) {
        let read = Arc::new(AtomicU32::new(0));
        let count = read.clone();
        let file = jobs_file(move |from| {
            let n = count.fetch_add(1, Ordering::SeqCst) + 1;
            async move {
                assert_eq!(from, (n > 1).then(|| id(n - 1)), "each goes on where the one before ended");
                if n == refused {
                    return Err(Problem::not_found());
                }
                Ok(Page { items: vec![job(n)], next_cursor: (n < pages).then(|| id(n).to_string()) })
            }
        });
        (file.await, read)
    }

    #[tokio::test]
    async fn a_page_of_a_file_is_read_when_the_one_before_was_taken() {
        let (response, read) = file(3, 0).await;
        let mut body = response.ok().unwrap().into_body().into_data_stream();
        let mut names = Vec::new();
        for n in 1..=3 {
            let bytes = body.next().await.unwrap().unwrap();
            assert_eq!(read.load(Ordering::SeqCst), n, "no page is read before it is asked for");
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            names.extend(text.lines().map(|line| line.split(',').nth(3).unwrap().to_owned()));
        }
        assert!(body.next().await.is_none());
        assert_eq!(names, ["name", "job 1", "job 2", "job 3"], "the head comes once");
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_refused_or_broken_off() {
        assert_eq!(file(3, 1).await.0.err().unwrap().0.status, 404);
        let mut body = file(3, 2).await.0.ok().unwrap().into_body().into_data_stream();
        assert!(body.next().await.unwrap().is_ok());
        assert!(body.next().await.unwrap().is_err());
    }
}
