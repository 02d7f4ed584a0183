//! Terminals in running jobs: their limits, the rights to them, and the record of each terminal with its user
//! and times.
//!
//! The content of a terminal does not pass through this module, and the portal does not store it.

pub mod routes;

use crate::operator_access::{self, JobAccess};
use crate::terminal_access::{self, MAX_REASON_CHARS, TerminalRefusal};
use berth_contract::TERMINAL_PATIENCE;
use berth_types::Page;
use berth_types::change_requests::Outcome;
use berth_types::ids::{AuditEventId, JobId, OrgId, TerminalId, UserId};
use berth_types::jobs::JobState;
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::quotas::{AuditContext, AuditEvent};
use berth_types::terminals::{NewTerminal, Terminal, TerminalTicket};
use berth_types::time::{Timestamp, duration_text};
use futures::FutureExt;

use crate::tunnels::{Closed, Tunnel, TunnelError, Tunnels, limit_text};
use berth_foundation::Context;
use berth_foundation::credentials::new_opaque;
use berth_foundation::live::TunnelTarget;
use berth_foundation::{Caller, Right, idempotency};
use berth_store::terminals::StoredTerminal;
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// Lifetime of a ticket in seconds.
const TICKET_S: i64 = 30;

fn terminal_from_row(row: StoredTerminal) -> Terminal {
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    Terminal {
        id: row.id,
        job: row.job_id,
        attempt: number(row.attempt),
        rank: number(row.node_rank),
        user: row.user_id,
        actor: row.actor,
        reason: row.reason,
        opened_at: row.opened_at,
        left_at: row.left_at.filter(|_| row.closed_at.is_none()),
        closed_at: row.closed_at,
        exit_code: row.exit_code.and_then(|code| i32::try_from(code).ok()),
        cause: row.cause,
    }
}

/// The permission of a user for a connection to a terminal.
#[derive(Debug, Clone)]
pub struct Entry {
    pub org: OrgId,
    pub user: UserId,
    /// The end of an operator's access; absent for access without an end.
    pub until: Option<Timestamp>,
    row: StoredTerminal,
}

/// The end of a connection to a terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TerminalEnd {
    /// The user's connection ended. The shell waits for a new one.
    Left,
    /// The shell or its attempt ended.
    Closed { exit_code: Option<i32>, cause: String },
    /// Another connection took over the terminal.
    TakenOver,
}

impl TerminalEnd {
    /// Converts the worker's last message.
    pub fn from_closed(closed: &Closed) -> Self {
        match closed.cause.as_str() {
            "taken_over" => Self::TakenOver,
            cause @ ("ended" | "job_ended" | "gone" | "refused") => {
                Self::Closed { exit_code: closed.exit_code, cause: cause.to_owned() }
            }
            // Only a newer worker sends other causes.
            _ => Self::Closed { exit_code: closed.exit_code, cause: "ended".to_owned() },
        }
    }
}

fn refused(refusal: TerminalRefusal) -> Problem {
    match refusal {
        TerminalRefusal::NotRunning => {
            let detail = "A terminal can be opened only in a running job. This job does not run.";
            Problem::conflict("job.not_running", "Job not running", detail)
        }
        TerminalRefusal::Rank => {
            Problem::invalid_field("/rank", "This rank does not exist, or it does not run now.")
        }
        TerminalRefusal::JobFull => {
            let detail = format!(
                "A job has at most {} open terminals. Close one of them.",
                terminal_access::MAX_PER_JOB
            );
            Problem::conflict("terminal.limit", "Too many terminals", detail)
        }
        TerminalRefusal::OrgFull => {
            let detail = format!(
                "An organization has at most {} open terminals. Close one of them.",
                terminal_access::MAX_PER_ORG
            );
            Problem::conflict("terminal.limit", "Too many terminals", detail)
        }
    }
}

/// The audit event of a closed terminal.
fn closed_event(row: &StoredTerminal, id: AuditEventId, at: Timestamp, cause: &str) -> AuditEvent {
    let lasted = duration_text(at.millis_since(row.opened_at));
    AuditEvent {
        id,
        at,
        actor: row.actor.clone(),
        action: "terminal.closed".to_owned(),
        subject: row.job_id.to_string(),
        detail: format!("{}: {lasted}, {}", row.id, cause.replace('_', " ")),
        context: AuditContext::default(),
    }
}

/// Terminals in running jobs.
#[derive(Clone)]
pub struct Terminals {
    context: Context,
    tunnels: Arc<Tunnels>,
}

impl Terminals {
    pub const fn new(context: Context, tunnels: Arc<Tunnels>) -> Self {
        Self { context, tunnels }
    }

    /// Authorises members with the right to run jobs, and operators with a reason. Returns the operator's
    /// reason, or the change request for access that waits for a second operator.
    ///
    /// # Errors
    /// The refusal of [`Context::authorise`] for all others. 422 for a long reason, and for an operator without
    /// a valid one. 403 for an operator with a second factor and without a fresh proof.
    pub async fn authorise_entry(
        &self,
        caller: &Caller,
        (org, job): (OrgId, JobId),
        reason: Option<&str>,
    ) -> Result<Outcome<Option<String>>, Problem> {
        let refusal = self.context.authorise(caller, org, Right::Run).await.err();
        if let Some(problem) = &refusal
            && !caller.has_operator_right(OperatorRight::EnterJobs)
        {
            return Err(problem.clone());
        }
        if reason.is_some_and(|reason| reason.chars().count() > MAX_REASON_CHARS) {
            return Err(Problem::invalid_field("/reason", "Use at most 500 printable characters."));
        }
        if refusal.is_none() {
            return Ok(Outcome::Done(None));
        }
        let reason = terminal_access::check_reason(reason)
            .map_err(|detail| Problem::invalid_field("/reason", detail))?;
        self.context.check_proof(caller)?;
        let access = JobAccess { organization: org, job };
        match operator_access::request(&self.context, caller, access, &reason).await? {
            Some(request) => Ok(Outcome::Requested(request)),
            None => Ok(Outcome::Done(Some(reason))),
        }
    }

    /// Opens a terminal in a running job. The shell starts at the opening of its socket.
    ///
    /// # Errors
    /// 409 if the job does not run, or at the limit of terminals. 422 for a rank that does not run.
    pub async fn open_terminal(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        input: NewTerminal,
    ) -> Result<Outcome<TerminalTicket>, Problem> {
        let reason = match self.authorise_entry(caller, (org, job), input.reason.as_deref()).await? {
            Outcome::Requested(request) => return Ok(Outcome::Requested(request)),
            Outcome::Done(reason) => reason,
        };
        if let Some(id) = caller.already_created() {
            let id = id.parse().map_err(|_| Problem::internal())?;
            return self.terminal_ticket(caller, org, job, id).await.map(Outcome::Done);
        }
        let now = self.context.now();
        let id: TerminalId = self.context.new_id(now);
        let key = caller.idempotency_key.clone();
        let why = reason.as_ref().map_or_else(String::new, |reason| format!(", as operator: {reason}"));
        let event =
            self.context.audit_event(caller, "terminal.opened", job.to_string(), format!("{id}{why}"));
        let (user, actor, rank) = (caller.user.id, caller.user.name.clone(), input.rank);
        let done = self.context.db.try_write(move |tx| {
            let (event, actor, reason, key) = (event.clone(), actor.clone(), reason.clone(), key.clone());
            async move {
                let Some(row) = store::jobs::find(tx, org, job).await? else {
                    return Err(Problem::not_found().into());
                };
                let ranks = store::attempts::list_ranks(tx, job, row.attempt).await?;
                let running_rank =
                    ranks.into_iter().find(|r| r.rank == i64::from(rank) && r.running && !r.ended);
                let runs = row.phase.state == JobState::Running;
                let open = store::terminals::count_open(tx, org, job).await?;
                if let Err(refusal) = terminal_access::check(runs, running_rank.is_some(), open) {
                    return Err(refused(refusal).into());
                }
                let Some(rank) = running_rank else { return Err(refused(TerminalRefusal::Rank).into()) };
                let row = StoredTerminal {
                    id,
                    org_id: org,
                    job_id: job,
                    attempt: rank.number,
                    node_rank: rank.rank,
                    node_id: rank.node_id,
                    user_id: user,
                    actor,
                    reason,
                    opened_at: now,
                    attached_at: None,
                    // The user counts as absent until the first connection. Without one the terminal is
                    // closed.
                    left_at: Some(now),
                    closed_at: None,
                    exit_code: None,
                    cause: None,
                };
                store::terminals::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                idempotency::claim(tx, key.as_ref(), &row.id.to_string(), now).await?;
                Ok(row)
            }
            .boxed()
        });
        let row = done.await?;
        self.close_later(row.clone());
        Ok(Outcome::Done(self.ticket(caller, row)))
    }

    fn ticket(&self, caller: &Caller, row: StoredTerminal) -> TerminalTicket {
        let terminal = terminal_from_row(row);
        let (ticket, now) = (self.context.random(new_opaque), self.context.now());
        let expires_at = now.plus_seconds(TICKET_S);
        self.tunnels.put_ticket(&ticket, terminal.id, caller.user.id, expires_at, now);
        TerminalTicket { terminal, ticket, expires_at }
    }

    /// An open terminal of this caller, provided that the caller still has the right to it, and the end of an
    /// operator's access.
    async fn own_terminal(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        id: TerminalId,
    ) -> Result<(StoredTerminal, Option<Timestamp>), Problem> {
        let allowed = self.context.authorise(caller, org, Right::Run).await;
        if let Err(problem) = &allowed
            && !caller.has_operator_right(OperatorRight::EnterJobs)
        {
            return Err(problem.clone());
        }
        let mut conn = self.context.db.read().await?;
        let row =
            store::terminals::find(&mut conn.tx(), org, job, id).await?.ok_or_else(Problem::not_found)?;
        // A terminal without a reason was opened by a member, so it needs the present right of a member.
        let own = row.user_id == caller.user.id && (allowed.is_ok() || row.reason.is_some());
        if !own {
            return Err(Problem::not_found());
        }
        drop(conn);
        let until = match allowed {
            Ok(_) => None,
            Err(_) => operator_access::check(&self.context, caller, job).await?,
        };
        if row.closed_at.is_some() {
            let detail = "This terminal is closed. Open a new one.";
            return Err(Problem::conflict("terminal.closed", "Terminal closed", detail));
        }
        Ok((row, until))
    }

    /// A further ticket, for a new connection to a terminal.
    pub async fn terminal_ticket(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        id: TerminalId,
    ) -> Result<TerminalTicket, Problem> {
        let (row, _) = self.own_terminal(caller, org, job, id).await?;
        Ok(self.ticket(caller, row))
    }

    /// Checks the right of a caller to connect to a terminal, and uses up the `ticket`.
    ///
    /// # Errors
    /// 403 for an invalid ticket. 409 if the terminal is closed.
    pub async fn enter_terminal(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        id: TerminalId,
        ticket: Option<&str>,
    ) -> Result<Entry, Problem> {
        let (row, until) = self.own_terminal(caller, org, job, id).await?;
        if ticket
            .is_some_and(|ticket| !self.tunnels.use_ticket(ticket, id, caller.user.id, self.context.now()))
        {
            let detail = "The ticket is used, expired or for another terminal. Request a new ticket.";
            return Err(Problem::new(403, "terminal.ticket", "Invalid ticket", detail));
        }
        Ok(Entry { org, user: caller.user.id, until, row })
    }

    /// Connects to the shell of a terminal, and starts the shell at the first connection. `from` is the first
    /// wanted byte of the output. Returns the tunnel and the offset of its first byte.
    pub async fn connect_terminal(
        &self,
        entry: &Entry,
        from: Option<u64>,
        (cols, rows): (u32, u32),
    ) -> Result<(Tunnel, u64), TunnelError> {
        let row = &entry.row;
        let failed = |_: StoreError| TunnelError::Unreachable(Problem::internal());
        // Read again, since another socket may have started the shell.
        let started = self.is_started(row).await.map_err(failed)?;
        let terminal = TunnelTarget::Terminal {
            id: row.id,
            cols,
            rows,
            resume_from: started.then(|| from.unwrap_or(0)),
        };
        let attempt = (row.job_id, u32::try_from(row.attempt).unwrap_or(0));
        let closed = |cause: &str, detail: String| {
            TunnelError::Closed(Closed { exit_code: None, cause: cause.to_owned(), detail })
        };
        let opened = self.tunnels.open(&self.context, row.node_id, entry.org, attempt, terminal).await;
        let (mut tunnel, begins) = opened.map_err(|error| match error {
            // A shell that runs already stays open and waits for another connection.
            TunnelError::Full if !started => closed("refused", limit_text()),
            other => other,
        })?;
        let (id, now) = (row.id, self.context.now());
        let attached = self
            .context
            .db
            .write(move |tx| async move { store::terminals::attach(tx, id, now).await }.boxed());
        if attached.await.map_err(failed)? {
            return Ok((tunnel, begins));
        }
        tunnel.hang_up().await;
        Err(closed("gone", "This terminal is closed.".to_owned()))
    }

    /// True if the shell of a terminal has started.
    async fn is_started(&self, row: &StoredTerminal) -> Result<bool, StoreError> {
        let mut conn = self.context.db.read().await?;
        let row = store::terminals::find(&mut conn.tx(), row.org_id, row.job_id, row.id).await?;
        Ok(row.is_none_or(|row| row.attached_at.is_some()))
    }

    /// Records the end of a connection to a terminal.
    pub async fn record_terminal_end(&self, entry: Entry, end: TerminalEnd) -> Result<(), StoreError> {
        let (row, now) = (entry.row, self.context.now());
        match end {
            TerminalEnd::TakenOver => Ok(()),
            TerminalEnd::Closed { exit_code, cause } => {
                self.close_terminal(row, None, exit_code, cause).await
            }
            TerminalEnd::Left => {
                let id = row.id;
                let left = self
                    .context
                    .db
                    .write(move |tx| async move { store::terminals::leave(tx, id, now).await }.boxed());
                if left.await? {
                    self.close_later(StoredTerminal { left_at: Some(now), ..row });
                }
                Ok(())
            }
        }
    }

    async fn close_terminal(
        &self,
        row: StoredTerminal,
        left_at: Option<Timestamp>,
        exit_code: Option<i32>,
        cause: String,
    ) -> Result<(), StoreError> {
        let now = self.context.now();
        let event = closed_event(&row, self.context.new_id(now), now, &cause);
        let (org, id) = (row.org_id, row.id);
        let done = self.context.db.write(move |tx| {
            let (cause, event) = (cause.clone(), event.clone());
            async move { close(tx, org, id, left_at, exit_code, &cause, &event).await }.boxed()
        });
        done.await
    }

    /// Closes a terminal after a delay if the user does not connect again.
    fn close_later(&self, row: StoredTerminal) {
        let terminals = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(TERMINAL_PATIENCE).await;
            let (id, left_at) = (row.id, row.left_at);
            if let Err(error) = terminals.close_terminal(row, left_at, None, "left".to_owned()).await {
                tracing::warn!(%id, %error, "the end of an abandoned terminal cannot be recorded");
            }
        });
    }

    /// Marks all open terminals as left after a start of the portal, since all connections are lost. A
    /// terminal without a new connection is closed after the usual delay.
    pub async fn resume_terminals(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let open = self.context.db.write(move |tx| {
            async move {
                let open = store::terminals::list_open(tx).await?;
                for row in &open {
                    store::terminals::leave(tx, row.id, now).await?;
                }
                Ok(open)
            }
            .boxed()
        });
        for row in open.await? {
            self.close_later(StoredTerminal { left_at: Some(now), ..row });
        }
        Ok(())
    }

    /// A page of the terminals of a job.
    pub async fn list_terminals(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        options: &ListOptions<TerminalId>,
    ) -> Result<Page<Terminal>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        store::jobs::find(&mut tx, org, job).await?.ok_or_else(Problem::not_found)?;
        let rows = store::terminals::list(&mut tx, org, job, options).await?;
        Ok(options.page(rows, |row| row.id).map(terminal_from_row))
    }
}

async fn close(
    tx: &mut Tx<'_>,
    org: OrgId,
    id: TerminalId,
    left_at: Option<Timestamp>,
    exit_code: Option<i32>,
    cause: &str,
    event: &AuditEvent,
) -> Result<(), StoreError> {
    if store::terminals::close(tx, id, left_at, exit_code, cause, event.at).await? {
        store::quotas::insert_audit(tx, Some(org), event).await?;
    }
    Ok(())
}
