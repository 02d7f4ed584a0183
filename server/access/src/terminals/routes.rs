//! Terminals in running jobs: their creation, their tickets and the WebSocket for their bytes.

use super::Terminals;
use crate::operator_access;
use aide::NoApi;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json as Answer};
use berth_rest::answers::{MayWait, NotKept};
use berth_rest::lists::ListQuery;
use berth_rest::operations::{answers, answers_either, doc, socket};
use berth_rest::origins::{cross_site, is_own_page};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::change_requests::ChangeRequest;
use berth_types::ids::{JobId, OrgId, TerminalId};
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::terminals::{
    NewTerminal, PROTOCOL, TICKET_PROTOCOL, Terminal, TerminalTicket, WINDOW_BYTES,
};
use serde::Deserialize;

mod socket;

pub fn routes() -> ApiRouter<Terminals> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/jobs/{job}/terminals",
            get_with(list, doc(ApiScope::JobsRead, "Lists the terminals of a job.")).post_with(
                open,
                answers_either::<201, TerminalTicket, 202, ChangeRequest>(
                    ApiScope::JobsWrite,
                    "Opens a terminal in a running job.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/terminals/{terminal}/tickets",
            post_with(
                ticket,
                answers::<201, TerminalTicket>(ApiScope::JobsWrite, "Creates a ticket for an open terminal."),
            ),
        )
        .api_route(
            "/orgs/{org}/jobs/{job}/terminals/{terminal}/socket",
            get_with(
                connect,
                socket(ApiScope::JobsWrite, "Connects to a terminal by WebSocket, with a ticket."),
            ),
        )
}

/// An answer with a ticket is never stored.
type NewTicket = (StatusCode, Extension<NotKept>, Answer<TerminalTicket>);

async fn open(
    State(terminals): State<Terminals>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    body: Json<NewTerminal>,
) -> Result<Response, Failed> {
    let created = terminals.open_terminal(&caller, org, job, body.value).await?;
    Ok((Extension(NotKept), MayWait::<201, TerminalTicket>(created)).into_response())
}

async fn ticket(
    State(terminals): State<Terminals>,
    Signed(caller): Signed,
    Path((org, job, id)): Path<(OrgId, JobId, TerminalId)>,
) -> Result<NewTicket, Failed> {
    let created = terminals.terminal_ticket(&caller, org, job, id).await?;
    Ok((StatusCode::CREATED, Extension(NotKept), Answer(created)))
}

async fn list(
    State(terminals): State<Terminals>,
    Signed(caller): Signed,
    Path((org, job)): Path<(OrgId, JobId)>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Terminal>>, Failed> {
    Ok(Answer(terminals.list_terminals(&caller, org, job, &query.by_creation()?).await?))
}

/// The columns and the rows of a screen. The worker has the same limits.
const SCREEN: std::ops::RangeInclusive<u32> = 1..=1_000;

/// The parameters of a connection to a terminal.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct ConnectQuery {
    /// The offset of the first wanted byte after a broken connection, in bytes from the shell's start.
    from: Option<u64>,
    /// The columns of the screen, 1 to 1000; 80 when absent.
    #[serde(default = "columns")]
    #[schemars(range(min = 1, max = 1_000))]
    cols: u32,
    /// The rows of the screen, 1 to 1000; 24 when absent.
    #[serde(default = "lines")]
    #[schemars(range(min = 1, max = 1_000))]
    rows: u32,
}

impl ConnectQuery {
    /// The columns and rows of the screen.
    ///
    /// # Errors
    /// A number is out of range.
    fn size(&self) -> Result<(u32, u32), Failed> {
        if SCREEN.contains(&self.cols) && SCREEN.contains(&self.rows) {
            return Ok((self.cols, self.rows));
        }
        Err(Failed(Problem::malformed("`cols` and `rows` are between 1 and 1000.")))
    }
}

const fn columns() -> u32 {
    80
}

const fn lines() -> u32 {
    24
}

/// The ticket among the offered protocols of a socket. In an address it would be in logs.
fn offered_ticket(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    let mut offers = lines.flat_map(|line| line.split(','));
    offers.find_map(|offer| offer.trim().strip_prefix(TICKET_PROTOCOL)).map(str::to_owned)
}

async fn connect(
    State(terminals): State<Terminals>,
    Signed(caller): Signed,
    Path((org, job, id)): Path<(OrgId, JobId, TerminalId)>,
    Query(query): Query<ConnectQuery>,
    NoApi(upgrade): NoApi<Result<WebSocketUpgrade, WebSocketUpgradeRejection>>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    let size = query.size()?;
    let ticket = offered_ticket(&headers);
    // Browsers add a cookie to the sockets of any site, but never a token.
    if !headers.contains_key(header::AUTHORIZATION) {
        if !is_own_page(&headers, &terminals.context.settings.public_url) {
            return Err(Failed(cross_site()));
        }
        if ticket.is_none() {
            let detail = "Request a ticket and send it as a subprotocol of the WebSocket.";
            return Err(Failed(Problem::new(403, "terminal.ticket", "Ticket required", detail)));
        }
    }
    // The subscription starts before the check of the right, so that no change is missed.
    let ended = terminals.context.access_end(org, &caller);
    let entry = terminals.enter_terminal(&caller, org, job, id, ticket.as_deref()).await?;
    let ended = operator_access::end(&terminals.context, ended, entry.until);
    let upgrade = upgrade.map_err(|_| {
        let detail = "Open this address as a WebSocket.";
        Failed(Problem::new(426, "request.websocket", "WebSocket required", detail))
    })?;
    let most = usize::try_from(WINDOW_BYTES).unwrap_or(usize::MAX);
    Ok(upgrade
        .protocols([PROTOCOL])
        .max_message_size(most)
        .max_frame_size(most)
        .on_upgrade(move |socket| socket::run(terminals, socket, entry, query.from, size, ended)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_found_among_the_protocols() {
        let mut headers = HeaderMap::new();
        assert_eq!(offered_ticket(&headers), None);
        headers
            .append(header::SEC_WEBSOCKET_PROTOCOL, "berth.terminal.v1, berth.ticket.a-b_c".parse().unwrap());
        assert_eq!(offered_ticket(&headers).as_deref(), Some("a-b_c"));
        headers.clear();
        headers.append(header::SEC_WEBSOCKET_PROTOCOL, "berth.terminal.v1".parse().unwrap());
        headers.append(header::SEC_WEBSOCKET_PROTOCOL, "berth.ticket.x".parse().unwrap());
        assert_eq!(offered_ticket(&headers).as_deref(), Some("x"), "in a line of its own");
    }
}
