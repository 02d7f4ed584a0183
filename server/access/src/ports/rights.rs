//! The rights to ports of running jobs: tickets, passes, and the check of a pass at each request.
//!
//! The content of a port does not pass through this module, and the portal does not store it.

use berth_core::ports::{HostScope, PortAddress};
use berth_types::change_requests::Outcome;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::JobState;
use berth_types::operators::OperatorRight;
use berth_types::ports::{NewPortTicket, PortTicket};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::operator_access;

use super::{PortPass, Ports, TICKET_PATH, ValidPass, job_ended, pass_ended};
use berth_foundation::credentials::new_opaque;
use berth_foundation::{Caller, Right};
use berth_store::{self as store, StoreError, Tx, WriteError};

/// Lifetime of a ticket in seconds.
const TICKET_S: i64 = 30;
/// Lifetime of a pass in seconds: a working day.
const PASS_S: i64 = 8 * 3_600;

/// A new pass with the value of its cookie.
pub struct NewPass {
    pub cookie: String,
    pub address: PortAddress,
    pub lifetime_s: i64,
}

/// The present location of a port.
struct PortLocation {
    attempt: u32,
    node: NodeId,
    keep_path: bool,
}

/// Locates a port of a running rank.
///
/// # Errors
/// A refusal if the job or the port is unknown, or does not run.
async fn locate_port(
    tx: &mut Tx<'_>,
    org: OrgId,
    PortAddress { job, rank, port }: PortAddress,
) -> Result<PortLocation, WriteError> {
    let Some(row) = store::jobs::find(tx, org, job).await? else { return Err(Problem::not_found().into()) };
    let corrupt = |field: &str| StoreError::Corrupt(format!("job {}: {field}", row.id));
    if !row.spec.ports.contains(&u32::from(port)) {
        let detail = "The job was submitted without this port. Add the port to `ports` of a new job.";
        return Err(Problem::new(404, "port.not_listed", "Port not in the job", detail).into());
    }
    if row.phase.state != JobState::Running {
        let detail = "A port can be opened only while its job runs. This job does not run.";
        return Err(Problem::conflict("job.not_running", "Job not running", detail).into());
    }
    let ranks = store::attempts::list_ranks(tx, job, row.attempt).await?;
    let running = ranks.into_iter().find(|r| r.rank == i64::from(rank) && r.running && !r.ended);
    let Some(rank) = running else {
        let detail = "This rank does not exist, or it does not run now.";
        return Err(Problem::invalid_field("/rank", detail).into());
    };
    Ok(PortLocation {
        attempt: u32::try_from(rank.number).map_err(|_| corrupt("attempt"))?,
        node: rank.node_id,
        keep_path: row.spec.ports_keep_path,
    })
}

impl Ports {
    /// Issues a ticket for a port of a running job.
    ///
    /// # Errors
    /// 404 for a port that the job did not name. 409 if the job does not run, or without a host name for
    /// ports. 422 for a rank that does not run.
    pub async fn port_ticket(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        port: u16,
        input: NewPortTicket,
    ) -> Result<Outcome<PortTicket>, Problem> {
        let entry = self.terminals.authorise_entry(caller, (org, job), input.reason.as_deref());
        let reason = match entry.await? {
            Outcome::Requested(request) => return Ok(Outcome::Requested(request)),
            Outcome::Done(reason) => reason,
        };
        let Some(origin) = &self.context.settings.ports_origin else {
            let detail = "This portal has no host name for the ports of jobs. Ask the operator to start the portal with \
                          --ports-origin.";
            return Err(Problem::conflict("port.off", "Ports disabled", detail));
        };
        let address = PortAddress { job, rank: input.rank, port };
        let why = reason.as_ref().map_or_else(String::new, |reason| format!(", as operator: {reason}"));
        let detail = format!("port {port} of rank {}{why}", input.rank);
        let event = self.context.audit_event(caller, "port.opened", job.to_string(), detail);
        let done = self.context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                let location = locate_port(tx, org, address).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(location)
            }
            .boxed()
        });
        let PortLocation { attempt, node, keep_path } = done.await?;
        let pass = PortPass {
            org,
            caller: Caller { idempotency_key: None, ..caller.clone() },
            as_operator: reason.is_some(),
            address,
            attempt,
            node,
            keep_path,
        };
        let (ticket, now) = (self.context.random(new_opaque), self.context.now());
        let expires_at = now.plus_seconds(TICKET_S);
        self.passes.put_ticket(&ticket, pass, expires_at, now);
        let job_origin = origin.job_origin(job);
        let url = format!("{job_origin}{TICKET_PATH}");
        let address = format!("{job_origin}{}", address.prefix());
        Ok(Outcome::Done(PortTicket { url, address, ticket, expires_at }))
    }

    /// Exchanges a ticket for a pass.
    ///
    /// # Errors
    /// 403 if the ticket is used, expired or for a job outside `scope`, or if the right has ended.
    pub async fn exchange_port_ticket(&self, ticket: &str, scope: HostScope) -> Result<NewPass, Problem> {
        let pass = self.passes.use_ticket(ticket, self.context.now());
        let pass = pass.filter(|pass| scope.includes(pass.address.job)).ok_or_else(|| {
            let detail =
                "The ticket is invalid, used or expired. Open the port again from the page of its job.";
            Problem::new(403, "port.ticket", "Invalid ticket", detail)
        })?;
        self.check_pass(&pass).await?;
        let (cookie, address, now) = (self.context.random(new_opaque), pass.address, self.context.now());
        self.passes.put(&cookie, pass, now.plus_seconds(PASS_S), now);
        Ok(NewPass { cookie, address, lifetime_s: PASS_S })
    }

    /// Finds the valid pass for a port among the cookies of a request and checks its right. The returned
    /// future resolves at the end of the right.
    ///
    /// # Errors
    /// 403 without a valid pass. 410 if the job does not run any more.
    pub(super) async fn port_pass(
        &self,
        cookies: &[String],
        address: PortAddress,
    ) -> Result<(PortPass, BoxFuture<'static, ()>), Problem> {
        let now = self.context.now();
        let found = cookies.iter().find_map(|c| Some((c, self.passes.find(c, address, now)?)));
        let (cookie, ValidPass { pass, expires_at, mut alive }) = found.ok_or_else(pass_ended)?;
        // Subscribed before the check of the right, so no change between them is missed.
        let changed = self.context.access_end(pass.org, &pass.caller);
        let until = match self.check_pass(&pass).await {
            Ok(until) => until,
            Err(problem) => {
                // A fault of the portal must not end a pass.
                if problem.status < 500 {
                    self.passes.remove(cookie);
                }
                return Err(problem);
            }
        };
        let changed = operator_access::end(&self.context, changed, until);
        let left = u64::try_from(expires_at.millis_since(now)).unwrap_or(0);
        let ended = async move {
            let removed = async { while alive.changed().await.is_ok() {} };
            tokio::select! {
                () = changed => {}
                () = removed => {}
                () = tokio::time::sleep(std::time::Duration::from_millis(left)) => {}
            }
        };
        Ok((pass, ended.boxed()))
    }

    /// Checks a pass against the present state: the right, the token and the attempt. Returns the end of an operator's
    /// access.
    async fn check_pass(&self, pass: &PortPass) -> Result<Option<Timestamp>, Problem> {
        let caller = self.refresh_caller(&pass.caller).await?;
        let until = match self.context.authorise(&caller, pass.org, Right::Run).await {
            Ok(_) => None,
            Err(problem) if problem.status >= 500 => return Err(problem),
            Err(_) if pass.as_operator && caller.has_operator_right(OperatorRight::EnterJobs) => {
                match operator_access::check(&self.context, &caller, pass.address.job).await {
                    Err(problem) if problem.status < 500 => return Err(pass_ended()),
                    checked => checked?,
                }
            }
            Err(_) => return Err(pass_ended()),
        };
        let mut conn = self.context.db.read().await?;
        match locate_port(&mut conn.tx(), pass.org, pass.address).await {
            Ok(location) if location.attempt == pass.attempt && location.node == pass.node => Ok(until),
            // A pass is for one attempt. A further attempt needs a new ticket.
            Ok(_) => Err(pass_ended()),
            Err(WriteError::Refused(_)) => Err(job_ended()),
            Err(WriteError::Store(error)) => Err(error.into()),
        }
    }

    /// Reads the present data of a caller. Refuses a deleted user, an ended session and a revoked token.
    async fn refresh_caller(&self, old: &Caller) -> Result<Caller, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let now = self.context.now();
        let expired = old.expires_at.is_some_and(|at| at <= now);
        if expired || !self.context.is_signed_in(&mut tx, old, now).await? {
            return Err(pass_ended());
        }
        let user = store::accounts::find_user(&mut tx, old.user.id).await?.ok_or_else(pass_ended)?;
        let operator_role = store::operators::find_role(&mut tx, user.id).await?;
        Ok(Caller { user, operator_role, ..old.clone() })
    }
}
