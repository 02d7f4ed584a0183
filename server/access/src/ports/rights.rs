//! Ports of running jobs in the browser: who may open one, and whether they still may.
//!
//! What goes through them passes elsewhere and is kept nowhere.

use berth_core::ports::{Place, Shown};
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::JobState;
use berth_types::ports::{NewPortTicket, PortTicket};
use berth_types::problems::Problem;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;

use super::{DOOR, Found, Pass, Ports, ended, no_longer};
use berth_foundation::credentials::new_opaque;
use berth_foundation::{Caller, Right};
use berth_store::{self as store, StoreError, Tx};

/// Seconds in which a ticket must be used.
const TICKET_S: i64 = 30;
/// Seconds for which somebody is in by one ticket: a working day.
const PASS_S: i64 = 8 * 3_600;

/// What a job was launched with, as far as it matters here.
#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    ports: Vec<u32>,
    #[serde(default)]
    ports_keep_path: bool,
}

/// Somebody who has come in.
pub struct Entered {
    pub cookie: String,
    pub place: Place,
    pub lifetime_s: i64,
}

/// Where a port is.
struct Here {
    attempt: u32,
    node: NodeId,
    keep_path: bool,
}

/// Finds a port of a rank that runs.
async fn find(
    tx: &mut Tx<'_>,
    org: OrgId,
    Place { job, rank, port }: Place,
) -> Result<Result<Here, Problem>, StoreError> {
    let Some(row) = store::jobs::find(tx, org, job).await? else { return Ok(Err(Problem::not_found())) };
    let corrupt = |what: &str| StoreError::Corrupt(format!("job {}: {what}", row.id));
    let wanted: Wanted = serde_json::from_str(&row.spec).map_err(|_| corrupt("spec"))?;
    if !wanted.ports.contains(&u32::from(port)) {
        let detail = "The job was not launched with this port. Name it among `ports` at launch.";
        return Ok(Err(Problem::new(404, "port.not_listed", "The job has no such port", detail)));
    }
    if row.phase.state != JobState::Running {
        let detail = "A port is opened while its job runs. This one does not.";
        return Ok(Err(Problem::conflict("job.not_running", "The job does not run", detail)));
    }
    let ranks = store::attempts::list_ranks(tx, &row.id, row.attempt).await?;
    let here = ranks.into_iter().find(|r| r.rank == i64::from(rank) && r.running && !r.ended);
    let Some(here) = here else {
        let detail = "The job has no such rank, or it does not run now.";
        return Ok(Err(Problem::invalid_field("/rank", detail)));
    };
    Ok(Ok(Here {
        attempt: u32::try_from(here.number).map_err(|_| corrupt("attempt"))?,
        node: here.node_id.parse().map_err(|_| corrupt("node"))?,
        keep_path: wanted.ports_keep_path,
    }))
}

impl Ports {
    /// A ticket to a port of a running job.
    pub async fn port_ticket(
        &self,
        caller: &Caller,
        org: OrgId,
        job: JobId,
        port: u16,
        input: NewPortTicket,
    ) -> Result<PortTicket, Problem> {
        let reason = self.terminals.authorise_entry(caller, org, input.reason.as_deref()).await?;
        let Some(origin) = &self.context.settings.ports_origin else {
            let detail = "This portal has no host name for ports of jobs. Its operator starts it with \
                          --ports-origin to give it one.";
            return Err(Problem::conflict("port.off", "Ports cannot be opened here", detail));
        };
        let place = Place { job, rank: input.rank, port };
        let why = reason.as_ref().map_or_else(String::new, |reason| format!(", as operator: {reason}"));
        let what = format!("port {port} of rank {}{why}", input.rank);
        let event = self.context.audit_event(caller, "port.opened", job.to_string(), what);
        let done = self.context.db.write(move |tx| {
            let event = event.clone();
            async move {
                let found = find(tx, org, place).await?;
                if found.is_ok() {
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(found)
            }
            .boxed()
        });
        let Here { attempt, node, keep_path } = done.await??;
        let pass = Pass {
            org,
            caller: Caller { once: None, ..caller.clone() },
            as_operator: reason.is_some(),
            place,
            attempt,
            node,
            keep_path,
        };
        let (ticket, now) = (self.context.random(new_opaque), self.context.now());
        let expires_at = now.plus_seconds(TICKET_S);
        self.passes.put_ticket(&ticket, pass, expires_at, now);
        let at = origin.of_job(job);
        let (url, address) = (format!("{at}{DOOR}"), format!("{at}{}", place.prefix()));
        Ok(PortTicket { url, address, ticket, expires_at })
    }

    /// Uses a ticket up; what it gives is good for a while.
    pub async fn trade_port_ticket(&self, ticket: &str, shown: Shown) -> Result<Entered, Problem> {
        let pass = self.passes.use_ticket(ticket, self.context.now());
        let pass = pass.filter(|pass| shown.has(pass.place.job)).ok_or_else(|| {
            let detail = "The ticket is used up, too old, or none. Open the port from the job's page again.";
            Problem::new(403, "port.ticket", "The ticket is not good", detail)
        })?;
        self.still_in(&pass).await?;
        let (cookie, place, now) = (self.context.random(new_opaque), pass.place, self.context.now());
        self.passes.put(&cookie, pass, now.plus_seconds(PASS_S), now);
        Ok(Entered { cookie, place, lifetime_s: PASS_S })
    }

    /// The pass by which somebody may look at a port now, among what their cookies say; with it, what resolves
    /// when they may no longer.
    pub(super) async fn port_pass(
        &self,
        cookies: &[String],
        place: Place,
    ) -> Result<(Pass, BoxFuture<'static, ()>), Problem> {
        let now = self.context.now();
        let found = cookies.iter().find_map(|c| Some((c, self.passes.find(c, place, now)?)));
        let (cookie, Found { pass, expires_at, mut life }) = found.ok_or_else(no_longer)?;
        // Listens before it is looked whether the right is there.
        let changed = self.context.live.streams_end(pass.org, pass.user(), pass.caller.token.map(|t| t.id));
        if let Err(problem) = self.still_in(&pass).await {
            // What went wrong here is no reason to put anybody out.
            if problem.status < 500 {
                self.passes.end(cookie);
            }
            return Err(problem);
        }
        let left = u64::try_from(expires_at.millis_since(now)).unwrap_or(0);
        let over = async move {
            let taken = async { while life.changed().await.is_ok() {} };
            tokio::select! {
                () = changed => {}
                () = taken => {}
                () = tokio::time::sleep(std::time::Duration::from_millis(left)) => {}
            }
        };
        Ok((pass, over.boxed()))
    }

    /// Whether a pass stands for what is still so: the right, the token, the attempt.
    async fn still_in(&self, pass: &Pass) -> Result<(), Problem> {
        let caller = self.caller_now(&pass.caller).await?;
        match self.context.authorise(&caller, pass.org, Right::Run).await {
            Ok(_) => {}
            Err(problem) if problem.status >= 500 => return Err(problem),
            Err(_) if pass.as_operator && self.context.authorise_operator(&caller).is_ok() => {}
            Err(_) => return Err(no_longer()),
        }
        let mut conn = self.context.db.read().await?;
        match find(&mut conn.tx(), pass.org, pass.place).await? {
            Ok(here) if here.attempt == pass.attempt && here.node == pass.node => Ok(()),
            // A further attempt is another job's room: it is entered anew.
            Ok(_) => Err(no_longer()),
            Err(_) => Err(ended()),
        }
    }

    /// Who somebody is by now. A token that was revoked stands for nobody.
    async fn caller_now(&self, before: &Caller) -> Result<Caller, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let user = store::accounts::find_user(&mut tx, before.user.id).await?.ok_or_else(no_longer)?;
        if let Some(token) = before.token
            && !store::accounts::token_exists(&mut tx, token.id, self.context.now()).await?
        {
            return Err(no_longer());
        }
        Ok(Caller { user, ..before.clone() })
    }
}
