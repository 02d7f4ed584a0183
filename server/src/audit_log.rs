//! The audit events of an organization, or of all, as pages and as files.

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json as Answer;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use berth_foundation::{AuditLog, Caller, Scope};
use berth_rest::columns::Table;
use berth_rest::csv::{broken, csv_head, plain_cell};
use berth_rest::lists::{ListQuery, parse_cursor};
use berth_rest::operations::or_files;
use berth_rest::{Failed, Path, Query, Signed};
use berth_types::ids::{AuditEventId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::problems::Problem;
use berth_types::quotas::{AuditEvent, AuditFilter};
use berth_types::scopes::ApiScope;
use berth_types::time::Timestamp;
use berth_types::{Page, Sort};
use futures::{StreamExt, stream};
use serde::Deserialize;

/// Events in one page of a file.
const PAGE: u32 = 200;

pub fn routes() -> ApiRouter<AuditLog> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/audit-events",
            get_with(
                list_own,
                or_files::<Page<AuditEvent>>(
                    ApiScope::MembersRead,
                    "Lists the audit events of an organization.",
                ),
            ),
        )
        .api_route(
            "/operator/audit-events",
            get_with(
                list_all,
                or_files::<Page<AuditEvent>>(ApiScope::MembersRead, "Lists all audit events."),
            ),
        )
}

/// The form of a list of audit events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum AuditFormat {
    /// A page.
    Json,
    /// All events, one JSON object a line.
    Ndjson,
    /// All events as a table.
    Csv,
}

/// The form that the query or `Accept` asks for.
fn requested_format(format: Option<AuditFormat>, headers: &HeaderMap) -> AuditFormat {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default().trim_start();
    format.unwrap_or_else(|| {
        if accept.starts_with("application/x-ndjson") {
            AuditFormat::Ndjson
        } else if accept.starts_with("text/csv") {
            AuditFormat::Csv
        } else {
            AuditFormat::Json
        }
    })
}

/// The query of the audit events of an organization.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct OwnAuditQuery {
    /// Only audit events with this action: at most 200 bytes.
    #[schemars(length(max = 200))]
    action: Option<String>,
    /// Only audit events of the user with this name or id: at most 200 bytes.
    #[schemars(length(max = 200))]
    actor: Option<String>,
    /// Only audit events about the object with this id or name: at most 200 bytes.
    #[schemars(length(max = 200))]
    subject: Option<String>,
    /// Only audit events from this time on.
    since: Option<Timestamp>,
    /// Only audit events before this time.
    until: Option<Timestamp>,
    /// The form of the answer. Without it the header `Accept` decides: `application/x-ndjson`, `text/csv`, or
    /// JSON. A file has all events after `cursor`, whatever the `limit`.
    format: Option<AuditFormat>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

/// The query of all audit events.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct AllAuditQuery {
    /// Only audit events of this organization.
    org: Option<OrgId>,
    /// Only audit events with this action: at most 200 bytes.
    #[schemars(length(max = 200))]
    action: Option<String>,
    /// Only audit events of the user with this name or id: at most 200 bytes.
    #[schemars(length(max = 200))]
    actor: Option<String>,
    /// Only audit events about the object with this id or name: at most 200 bytes.
    #[schemars(length(max = 200))]
    subject: Option<String>,
    /// Only audit events from this time on.
    since: Option<Timestamp>,
    /// Only audit events before this time.
    until: Option<Timestamp>,
    /// The form of the answer. Without it the header `Accept` decides: `application/x-ndjson`, `text/csv`, or
    /// JSON. A file has all events after `cursor`, whatever the `limit`.
    format: Option<AuditFormat>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_own(
    State(audit_log): State<AuditLog>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<OwnAuditQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let OwnAuditQuery { action, actor, subject, since, until, format, limit, cursor, sort } = query;
    let query =
        AllAuditQuery { org: None, action, actor, subject, since, until, format, limit, cursor, sort };
    answer(audit_log, caller, Scope::Org(org), query, &headers).await
}

async fn list_all(
    State(audit_log): State<AuditLog>,
    Signed(caller): Signed,
    Query(query): Query<AllAuditQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    answer(audit_log, caller, Scope::Operator(query.org), query, &headers).await
}

/// A page of the audit events, or a file with all of them.
async fn answer(
    audit_log: AuditLog,
    caller: Caller,
    scope: Scope,
    query: AllAuditQuery,
    headers: &HeaderMap,
) -> Result<Response, Failed> {
    let format = requested_format(query.format, headers);
    let filter = AuditFilter {
        action: query.action.unwrap_or_default(),
        actor: query.actor.unwrap_or_default(),
        subject: query.subject.unwrap_or_default(),
        since: query.since,
        until: query.until,
    };
    let options: ListOptions<AuditEventId> =
        ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }
            .by_creation_with(&(query.org, &filter))?;
    if format == AuditFormat::Json {
        return Ok(Answer(audit_log.list_events(&caller, scope, &filter, &options).await?).into_response());
    }
    let (first, sort) = (options.cursor, options.sort);
    file(format, first, move |cursor| {
        let (audit_log, caller, filter) = (audit_log.clone(), caller.clone(), filter.clone());
        let options = ListOptions { cursor, limit: PAGE, sort, binding: None };
        async move { audit_log.list_events(&caller, scope, &filter, &options).await }
    })
    .await
}

/// A file with all audit events after `first`. Each page is read after the client has received the page before it.
/// A file of any length needs the memory of one page, and it ends early for a caller who loses the right.
async fn file<P>(
    format: AuditFormat,
    first: Option<AuditEventId>,
    read: impl Fn(Option<AuditEventId>) -> P + Send + 'static,
) -> Result<Response, Failed>
where
    P: Future<Output = Result<Page<AuditEvent>, Problem>> + Send + 'static,
{
    // The first page is read before the answer begins, so that a refusal has its own status.
    let (begin, next) = file_page(format, read(first).await?, true)?;
    let rest = stream::try_unfold(next, move |from| {
        let page = from.map(|from| read(Some(from)));
        async move {
            let Some(page) = page else { return Ok(None) };
            // The error aborts the answer: a part of the file must not pass for the whole file.
            let failed = "a list of audit events ended early";
            file_page(format, page.await.map_err(|_| failed)?, false).map(Some).map_err(|_| failed)
        }
    });
    let body = Body::from_stream(stream::once(std::future::ready(Ok(begin))).chain(rest));
    if format == AuditFormat::Csv {
        return Ok((csv_head("audit-events.csv"), body).into_response());
    }
    let head = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"audit-events.ndjson\""),
    ];
    Ok((head, body).into_response())
}

/// A page of a file, and the cursor of the next page. The first page of a table begins with the column names.
fn file_page(
    format: AuditFormat,
    page: Page<AuditEvent>,
    first: bool,
) -> Result<(Vec<u8>, Option<AuditEventId>), Failed> {
    let next = page.next_cursor.map(parse_cursor).transpose()?;
    let bytes = match format {
        AuditFormat::Csv => table(page.items, first)?,
        AuditFormat::Json | AuditFormat::Ndjson => {
            let mut lines = Vec::new();
            for event in page.items {
                serde_json::to_writer(&mut lines, &event).map_err(broken)?;
                lines.push(b'\n');
            }
            lines
        }
    };
    Ok((bytes, next))
}

fn table(events: Vec<AuditEvent>, first: bool) -> Result<Vec<u8>, Failed> {
    fn text(value: Option<impl ToString>) -> String {
        value.map_or_else(String::new, |value| value.to_string())
    }
    let mut file = csv::Writer::from_writer(Vec::new());
    if first {
        file.write_record(Page::<AuditEvent>::COLUMNS).map_err(broken)?;
    }
    for event in events {
        let context = event.context;
        let cells = [
            text(context.seq),
            event.id.to_string(),
            event.at.to_string(),
            text(context.org),
            plain_cell(event.actor),
            text(context.actor_id),
            text(context.token_id),
            plain_cell(text(context.session)),
            text(context.address),
            text(context.request_id),
            event.action,
            plain_cell(event.subject),
            plain_cell(event.detail),
            plain_cell(text(context.before)),
            plain_cell(text(context.after)),
            text(context.hash),
        ];
        file.write_record(&cells).map_err(broken)?;
    }
    file.into_inner().map_err(broken)
}
