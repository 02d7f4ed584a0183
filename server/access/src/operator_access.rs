//! Access of operators to running jobs of organizations. With the rule for a second operator it needs an approved change
//! request, and ends an hour after the approval.

use berth_foundation::{Caller, Context, Gate, OperatorAct};
use berth_store as store;
use berth_types::change_requests::{ChangeAction, ChangeRequest};
use berth_types::ids::{ChangeRequestId, JobId, OrgId};
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde::{Deserialize, Serialize};

/// The body of a change request for access.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct JobAccess {
    pub organization: OrgId,
    pub job: JobId,
}

/// The present access of an operator to a job. `None`: it has no end, because the portal has no rule for a second
/// operator.
///
/// # Errors
/// 403 without an open access.
pub async fn check(context: &Context, caller: &Caller, job: JobId) -> Result<Option<Timestamp>, Problem> {
    let mut conn = context.db.read().await?;
    let mut tx = conn.tx();
    if !store::change_requests::policy(&mut tx).await?.second_operator {
        return Ok(None);
    }
    let found = store::change_requests::find_access(&mut tx, caller.user.id, job, context.now()).await?;
    found.map(Some).ok_or_else(|| {
        let detail = "A second operator approves your access to this job, for one hour. You have no open access. Open a new terminal or port with a reason to request it.";
        Problem::new(403, "change_request.needed", "Approval required", detail)
    })
}

/// Requests the access of an operator to a job, unless it is open.
///
/// # Errors
/// 404 for an unknown job. 409 if the job has ended, or if too many change requests wait.
pub async fn request(
    context: &Context,
    caller: &Caller,
    access: JobAccess,
    reason: &str,
) -> Result<Option<Box<ChangeRequest>>, Problem> {
    if let Some(request) = Gate::find_requested(context, caller).await? {
        return Ok(Some(request));
    }
    match check(context, caller, access.job).await {
        Ok(_) => Ok(None),
        Err(problem) if problem.code == "change_request.needed" => {
            pass(context, caller, access, (reason, None)).await
        }
        Err(problem) => Err(problem),
    }
}

/// Approves the access of the operator who requested it.
///
/// # Errors
/// The refusals of [`request`] and of [`Gate::pass`].
pub async fn approve(
    context: &Context,
    caller: &Caller,
    access: JobAccess,
    request: &ChangeRequest,
) -> Result<(), Problem> {
    pass(context, caller, access, (&request.reason, Some(request))).await.map(drop)
}

async fn pass(
    context: &Context,
    caller: &Caller,
    access: JobAccess,
    (reason, request): (&str, Option<&ChangeRequest>),
) -> Result<Option<Box<ChangeRequest>>, Problem> {
    let JobAccess { organization, job } = access;
    let approved: Option<ChangeRequestId> = request.map(|request| request.id);
    let gate = Gate::new(context, caller, approved, &access)?;
    let act = OperatorAct {
        action: ChangeAction::AccessJob,
        org: Some(organization),
        target: job.to_string(),
        amount_micros: None,
        reason: reason.to_owned(),
        detail: format!("Terminals and ports of the job for one hour: {reason}"),
    };
    // The organization sees who gets access, and why.
    let opened = request.map(|request| {
        let detail = format!("for the operator {}, for one hour: {reason}", request.requested_by_name);
        context.audit_event(caller, "job.access_opened", job.to_string(), detail)
    });
    let done = context.db.try_write(move |tx| {
        let (gate, act, opened) = (gate.clone(), act.clone(), opened.clone());
        async move {
            let Some(row) = store::jobs::find(tx, organization, job).await? else {
                return Err(Problem::not_found().into());
            };
            if row.phase.state.ended() {
                let detail = "A terminal or a port can be opened only in a running job. This job has ended.";
                return Err(Problem::conflict("job.not_running", "Job not running", detail).into());
            }
            if let Some(request) = gate.pass(tx, &act).await? {
                return Ok(Some(request));
            }
            if let Some(event) = opened {
                store::quotas::insert_audit(tx, Some(organization), &event).await?;
            }
            Ok(None)
        }
        .boxed()
    });
    Ok(done.await?)
}

/// Resolves at the end of an access, or with `ended`.
pub fn end<F: Future<Output = ()> + Send + 'static>(
    context: &Context,
    ended: F,
    until: Option<Timestamp>,
) -> impl Future<Output = ()> + Send + 'static + use<F> {
    let context = context.clone();
    async move {
        let over = async {
            match until {
                Some(at) => context.wait_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = ended => {}
            () = over => {}
        }
    }
}
