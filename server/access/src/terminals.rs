//! Shells in running jobs: who may have one, how many, and the record of who was there and for how long.
//!
//! What is typed and shown passes elsewhere and is kept nowhere.

use crate::terminal_access::{self, Refused};
use berth_proto::{AttemptId, Closed, TERMINAL_PATIENCE, Terminal as Dialled, dial};
use berth_types::Page;
use berth_types::ids::{AuditEventId, JobId, NodeId, OrgId, TerminalId, UserId};
use berth_types::jobs::JobState;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::terminals::{NewTerminal, Terminal, TerminalTicket};
use berth_types::time::{Timestamp, duration_text};
use futures::FutureExt;

use crate::tunnels::{Shut, Tunnel, Tunnels, full};
use berth_foundation::Context;
use berth_foundation::credentials::new_opaque;
use berth_foundation::{Caller, Right, idempotency};
use berth_store::terminals::TerminalRow;
use berth_store::{self as store, StoreError, Tx};
use std::sync::Arc;

/// Seconds in which a ticket must be used.
const TICKET_S: i64 = 30;

fn parse<T: std::str::FromStr>(text: &str) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt(text.to_owned()))
}

fn show(row: TerminalRow) -> Result<Terminal, StoreError> {
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    let time = Timestamp::from_micros;
    Ok(Terminal {
        id: parse(&row.id)?,
        job: parse(&row.job_id)?,
        attempt: number(row.attempt),
        rank: number(row.node_rank),
        user: parse(&row.user_id)?,
        actor: row.actor,
        reason: row.reason,
        opened_at: time(row.opened_at),
        left_at: row.left_at.filter(|_| row.closed_at.is_none()).map(time),
        closed_at: row.closed_at.map(time),
        exit_code: row.exit_code.and_then(|code| i32::try_from(code).ok()),
        cause: row.cause,
    })
}

/// A terminal that may be entered now.
#[derive(Debug, Clone)]
pub struct Entry {
    pub org: OrgId,
    pub user: UserId,
    row: TerminalRow,
}

/// How somebody's look at a terminal ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parting {
    /// Their connection did; the shell waits for them.
    Left,
    /// The shell did, or what it was in.
    Closed { exit_code: Option<i32>, cause: String },
    /// Somebody else looks at it now.
    TakenOver,
}

impl Parting {
    /// By the worker's last word.
    pub fn of(closed: &Closed) -> Self {
        match closed.cause.as_str() {
            "taken_over" => Self::TakenOver,
            cause @ ("ended" | "job_ended" | "gone" | "refused") => {
                Self::Closed { exit_code: closed.exit_code, cause: cause.to_owned() }
            }
            // A worker that says something else is a newer one.
            _ => Self::Closed { exit_code: closed.exit_code, cause: "ended".to_owned() },
        }
    }
}

fn refused(why: Refused) -> Problem {
    match why {
        Refused::NotRunning => {
            let detail = "A terminal is opened in a job that runs. This one does not.";
            Problem::conflict("job.not_running", "The job does not run", detail)
        }
        Refused::Rank => Problem::invalid_field("/rank", "The job has no such rank, or it does not run now."),
        Refused::JobFull => {
            let detail =
                format!("A job may have {} terminals open; close one of them.", terminal_access::MOST_OF_JOB);
            Problem::conflict("terminal.limit", "Too many terminals", detail)
        }
        Refused::OrgFull => {
            let detail = format!(
                "An organization may have {} terminals open; close one of them.",
                terminal_access::MOST_OF_ORG
            );
            Problem::conflict("terminal.limit", "Too many terminals", detail)
        }
    }
}

/// What the record says when a terminal is closed.
fn closing(row: &TerminalRow, id: AuditEventId, at: Timestamp, cause: &str) -> AuditEvent {
    let lasted = duration_text(at.micros().saturating_sub(row.opened_at) / 1_000);
    AuditEvent {
        id,
        at,
        actor: row.actor.clone(),
        action: "terminal.closed".to_owned(),
        subject: row.job_id.clone(),
        detail: format!("{}: {lasted}, {}", row.id, cause.replace('_', " ")),
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

    /// Lets members in who may stop jobs, and operators who say why; gives their reason.
    pub async fn authorise_entry(
        &self,
        caller: &Caller,
        org: OrgId,
        reason: Option<&str>,
    ) -> Result<Option<String>, Problem> {
        let Err(problem) = self.context.authorise(caller, org, Right::Run).await else { return Ok(None) };
        if self.context.authorise_operator(caller).is_err() {
            return Err(problem);
        }
        terminal_access::reason(reason).map(Some).map_err(|why| Problem::invalid_field("/reason", why))
    }

    /// Opens a terminal in a running job. The shell starts when its socket is opened.
    pub async fn open_terminal(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        input: NewTerminal,
    ) -> Result<TerminalTicket, Problem> {
        let reason = self.authorise_entry(caller, org, input.reason.as_deref()).await?;
        if let Some(made) = caller.done_before() {
            return self.terminal_ticket(caller, org, job, parse(made)?).await;
        }
        let now = self.context.now();
        let id: TerminalId = self.context.new_id(now);
        let once = caller.once.clone();
        let why = reason.as_ref().map_or_else(String::new, |reason| format!(", as operator: {reason}"));
        let event =
            self.context.audit_event(caller, "terminal.opened", job.to_string(), format!("{id}{why}"));
        let (user, actor, rank) = (caller.user.id, caller.user.name.clone(), input.rank);
        let done = self.context.db.write(move |tx| {
            let (event, actor, reason, once) = (event.clone(), actor.clone(), reason.clone(), once.clone());
            async move {
                let Some(row) = store::jobs::find(tx, org, job).await? else {
                    return Ok(Err(Problem::not_found()));
                };
                let ranks = store::attempts::list_ranks(tx, &row.id, row.attempt).await?;
                let here = ranks.into_iter().find(|r| r.rank == i64::from(rank) && r.running && !r.ended);
                let runs = row.phase.state == JobState::Running;
                let open = store::terminals::count_open(tx, org, job).await?;
                if let Err(why) = terminal_access::check(runs, here.is_some(), open) {
                    return Ok(Err(refused(why)));
                }
                let Some(here) = here else { return Ok(Err(refused(Refused::Rank))) };
                let row = TerminalRow {
                    id: id.to_string(),
                    org_id: org.to_string(),
                    job_id: row.id,
                    attempt: here.number,
                    node_rank: here.rank,
                    node_id: here.node_id,
                    user_id: user.to_string(),
                    actor,
                    reason,
                    opened_at: now.micros(),
                    attached_at: None,
                    // Nobody is there yet; without anybody it is closed again.
                    left_at: Some(now.micros()),
                    closed_at: None,
                    exit_code: None,
                    cause: None,
                };
                store::terminals::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                idempotency::claim(tx, once.as_ref(), &row.id, now).await?;
                Ok(Ok(row))
            }
            .boxed()
        });
        let row = done.await??;
        self.close_later(row.clone());
        self.ticket(caller, row)
    }

    fn ticket(&self, caller: &Caller, row: TerminalRow) -> Result<TerminalTicket, Problem> {
        let terminal = show(row)?;
        let (ticket, now) = (self.context.random(new_opaque), self.context.now());
        let expires_at = now.plus_seconds(TICKET_S);
        self.tunnels.put_ticket(&ticket, terminal.id, caller.user.id, expires_at, now);
        Ok(TerminalTicket { terminal, ticket, expires_at })
    }

    /// A terminal that this caller opened and may still be in.
    async fn own_terminal(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        id: TerminalId,
    ) -> Result<TerminalRow, Problem> {
        let allowed = self.context.authorise(caller, org, Right::Run).await;
        if let Err(problem) = &allowed
            && self.context.authorise_operator(caller).is_err()
        {
            return Err(problem.clone());
        }
        let mut conn = self.context.db.read().await?;
        let row =
            store::terminals::find(&mut conn.tx(), org, job, id).await?.ok_or_else(Problem::not_found)?;
        // An operator's reason stands in its record; who opened it without one was a member then.
        let own = row.user_id == caller.user.id.to_string() && (allowed.is_ok() || row.reason.is_some());
        if !own {
            return Err(Problem::not_found());
        }
        if row.closed_at.is_some() {
            let detail = "This terminal is closed. Open a new one.";
            return Err(Problem::conflict("terminal.closed", "The terminal is closed", detail));
        }
        Ok(row)
    }

    /// A further ticket, for somebody whose connection broke.
    pub async fn terminal_ticket(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        id: TerminalId,
    ) -> Result<TerminalTicket, Problem> {
        let row = self.own_terminal(caller, org, job, id).await?;
        self.ticket(caller, row)
    }

    /// Whether a caller may enter a terminal now. A `ticket` is used up by it.
    pub async fn enter_terminal(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        id: TerminalId,
        ticket: Option<&str>,
    ) -> Result<Entry, Problem> {
        let row = self.own_terminal(caller, org, job, id).await?;
        if ticket
            .is_some_and(|ticket| !self.tunnels.use_ticket(ticket, id, caller.user.id, self.context.now()))
        {
            let detail = "The ticket is used up, too old, or not for this terminal. Ask for another.";
            return Err(Problem::new(403, "terminal.ticket", "The ticket is not good", detail));
        }
        Ok(Entry { org, user: caller.user.id, row })
    }

    /// The shell of a terminal; gives the place at which its bytes begin.
    pub async fn reach_terminal(
        &self,
        entry: &Entry,
        from: Option<u64>,
        (cols, rows): (u32, u32),
    ) -> Result<(Tunnel, u64), Shut> {
        let row = &entry.row;
        let away = |_: StoreError| Shut::Away(Problem::internal());
        let node: NodeId = parse(&row.node_id).map_err(away)?;
        // Read anew: another socket may have begun the shell since.
        let begun = self.terminal_begun(row).await.map_err(away)?;
        let wanted =
            Dialled { id: row.id.clone(), cols, rows, resume_from: begun.then(|| from.unwrap_or(0)) };
        let attempt = AttemptId::new(&row.job_id, u32::try_from(row.attempt).unwrap_or(0));
        let closed = |cause: &str, detail: String| {
            Shut::Closed(Closed { exit_code: None, cause: cause.to_owned(), detail })
        };
        let opened =
            self.tunnels.open(&self.context, node, entry.org, attempt, dial::To::Terminal(wanted)).await;
        let (mut tunnel, begins) = opened.map_err(|shut| match shut {
            // A shell that is there already goes on waiting.
            Shut::Full if !begun => closed("refused", full()),
            other => other,
        })?;
        let (id, now) = (row.id.clone(), self.context.now());
        let attached = self.context.db.write(move |tx| {
            let id = id.clone();
            async move { store::terminals::attach(tx, &id, now).await }.boxed()
        });
        if attached.await.map_err(away)? {
            return Ok((tunnel, begins));
        }
        tunnel.hang_up().await;
        Err(closed("gone", "This terminal is closed.".to_owned()))
    }

    async fn terminal_begun(&self, row: &TerminalRow) -> Result<bool, StoreError> {
        let (org, job, id) = (parse(&row.org_id)?, parse(&row.job_id)?, parse(&row.id)?);
        let mut conn = self.context.db.read().await?;
        let now = store::terminals::find(&mut conn.tx(), org, job, id).await?;
        Ok(now.is_none_or(|row| row.attached_at.is_some()))
    }

    /// Records how somebody's look at a terminal ended.
    pub async fn part_from_terminal(&self, entry: Entry, parting: Parting) -> Result<(), StoreError> {
        let (row, now) = (entry.row, self.context.now());
        match parting {
            Parting::TakenOver => Ok(()),
            Parting::Closed { exit_code, cause } => self.close_terminal(row, None, exit_code, cause).await,
            Parting::Left => {
                let id = row.id.clone();
                let left = self.context.db.write(move |tx| {
                    let id = id.clone();
                    async move { store::terminals::leave(tx, &id, now).await }.boxed()
                });
                if left.await? {
                    self.close_later(TerminalRow { left_at: Some(now.micros()), ..row });
                }
                Ok(())
            }
        }
    }

    async fn close_terminal(
        &self,
        row: TerminalRow,
        left_at: Option<i64>,
        exit_code: Option<i32>,
        cause: String,
    ) -> Result<(), StoreError> {
        let now = self.context.now();
        let org: OrgId = parse(&row.org_id)?;
        let event = closing(&row, self.context.new_id(now), now, &cause);
        let done = self.context.db.write(move |tx| {
            let (id, cause, event) = (row.id.clone(), cause.clone(), event.clone());
            async move { close(tx, org, &id, left_at, exit_code, &cause, &event).await }.boxed()
        });
        done.await
    }

    /// Closes a terminal to which nobody comes back.
    fn close_later(&self, row: TerminalRow) {
        let terminals = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(TERMINAL_PATIENCE).await;
            let left_at = row.left_at;
            let id = row.id.clone();
            if let Err(error) = terminals.close_terminal(row, left_at, None, "left".to_owned()).await {
                tracing::warn!(id, %error, "a terminal that was left is not recorded as closed");
            }
        });
    }

    /// After a start nobody looks at any terminal; those who do not come back have left.
    pub async fn resume_terminals(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let open = self.context.db.write(move |tx| {
            async move {
                let open = store::terminals::list_open(tx).await?;
                for row in &open {
                    store::terminals::leave(tx, &row.id, now).await?;
                }
                Ok(open)
            }
            .boxed()
        });
        for row in open.await? {
            self.close_later(TerminalRow { left_at: Some(now.micros()), ..row });
        }
        Ok(())
    }

    /// The terminals of a job, newest first.
    pub async fn list_terminals(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        after: Option<TerminalId>,
        limit: u32,
    ) -> Result<Page<Terminal>, Problem> {
        self.context.authorise(caller, org, Right::Look).await?;
        let before = after.map_or_else(String::new, |id| id.to_string());
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        store::jobs::find(&mut tx, org, job).await?.ok_or_else(Problem::not_found)?;
        let rows = store::terminals::list(&mut tx, org, job, &before, i64::from(limit)).await?;
        let full = rows.len() == limit as usize;
        let items: Vec<Terminal> = rows.into_iter().map(show).collect::<Result<_, _>>()?;
        let next_cursor = items.last().filter(|_| full).map(|terminal| terminal.id.to_string());
        Ok(Page { items, next_cursor })
    }
}

async fn close(
    tx: &mut Tx<'_>,
    org: OrgId,
    id: &str,
    left_at: Option<i64>,
    exit_code: Option<i32>,
    cause: &str,
    event: &AuditEvent,
) -> Result<(), StoreError> {
    if store::terminals::close(tx, id, left_at, exit_code, cause, event.at).await? {
        store::quotas::insert_audit(tx, Some(org), event).await?;
    }
    Ok(())
}
